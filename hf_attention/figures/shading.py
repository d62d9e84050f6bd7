"""How a matrix becomes cells: in numbers or as a heat map, how dark each, and the words that sum it up."""

import math
import re
from collections.abc import Callable, Sequence

import torch

from .writing import MINUS_INFINITY, number


NUMBERS = 200  # cells; a larger matrix is drawn as a heat map
COLUMNS = 16
HEAT_ROWS, HEAT_COLUMNS, HEAT_LEVELS, HEAT_CELL = 40, 64, 12, 7.0
HEAT_WIDE = 32  # up to so many rows or columns with labels, each is twice as large: a token fits beside it
CORNER_ROWS, CORNER_COLUMNS = 3, 4
# Neighbouring sines and cosines would cancel out: of a positional encoding, and of what is added to it, some columns
# are shown instead of means, the same ones everywhere, so that a sum can be seen.
SAMPLED = re.compile(r"(encoder|decoder)\.(embed_\w+\.\w+|sum|dropped)")
DARK = (23, 78, 140)
WHITE_FROM = 0.755  # of the way to DARK, white letters stand out better than black ones; both do by 4.5 to 1 there


def shade(level: float) -> tuple[str, str]:
    """Fill and ink of a cell at `level` from 0 (white) to 1 (dark); one hue, so that grey shows the same order."""
    level = 0.0 if math.isnan(level) else min(max(level, 0.0), 1.0)
    fill = "#" + "".join(f"{round(255 + (dark - 255) * level):02x}" for dark in DARK)
    return fill, "#ffffff" if level > WHITE_FROM else "#000000"


def is_sampled(name: str) -> bool:
    """Whether heat maps of the tensor `name` show some of its columns and not means."""
    return bool(SAMPLED.fullmatch(name))


def pool(values: torch.Tensor, sampled: bool = False) -> torch.Tensor:
    """[rows, columns] as at most HEAT_ROWS x HEAT_COLUMNS; −∞ doesn't count, nan where all is.

    Means of blocks, or `sampled`: evenly spaced rows, and evenly spaced pairs of columns, a sine with its cosine.
    """
    values = values.double()
    known = values.gt(MINUS_INFINITY)
    if sampled:
        row, pair = _strides(values.shape)
        columns = [column for column in range(values.shape[1]) if column // 2 % pair == 0]
        return values.masked_fill(~known, torch.nan)[::row, columns]
    size = min(values.shape[0], HEAT_ROWS), min(values.shape[1], HEAT_COLUMNS)
    parts = torch.stack((values.masked_fill(~known, 0), known.double()))
    total, share = torch.nn.functional.adaptive_avg_pool2d(parts, size)
    return total / share  # 0 / 0 where nothing is known


def cells(shape: Sequence[int], sampled: bool = False) -> str:
    """What the cells of a heat map [rows, columns] are, in words; nothing where each is one value of its own."""
    if sampled:
        counted = zip(_strides(shape), ("row", "pair of columns"), strict=True)
        return " and ".join(f"every {_ordinal(stride)} {what}" for stride, what in counted if stride > 1)
    parts = []
    for size, most, what in zip(shape, (HEAT_ROWS, HEAT_COLUMNS), ("rows", "columns"), strict=True):
        lengths = {-(-(i + 1) * size // most) - i * size // most for i in range(most)} if size > most else set()
        if lengths:
            parts.append(" to ".join(map(str, sorted({min(lengths), max(lengths)}))) + f" {what}")
    return f"each cell the mean of {' × '.join(parts)}" if parts else ""


def _strides(shape: Sequence[int]) -> tuple[int, int]:
    """From one row, and from one pair of columns, to the next that is shown."""
    return math.ceil(shape[0] / HEAT_ROWS), math.ceil(math.ceil(shape[1] / 2) / (HEAT_COLUMNS // 2))


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number // 10 % 10 == 1 else ending}"


def heat_levels(values: torch.Tensor, low: float, high: float, sampled: bool = False) -> torch.Tensor:
    """The pooled [rows, columns] as whole numbers from 0 to HEAT_LEVELS - 1; -1 where there is no number but −∞."""
    pooled = pool(values, sampled).clamp(low, high)
    levels = ((pooled - low) / ((high - low) or 1) * (HEAT_LEVELS - 1)).round()
    return levels.nan_to_num(nan=-1).long()


def heat_cell(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    """Width and height of a heat map's cells, by the labels of its rows and columns."""
    height, width = (HEAT_CELL * 2 if 0 < len(labels) <= HEAT_WIDE else HEAT_CELL for labels in (rows, columns))
    return width, height


def in_numbers(shape: Sequence[int], numbers: int = NUMBERS) -> bool:
    """Whether a matrix of this [rows, columns] is drawn in numbers; otherwise it is a heat map."""
    return shape[0] * shape[1] <= numbers and shape[1] <= COLUMNS


def summary(values: torch.Tensor, write: Callable[[float], str] = number) -> str:
    """`min, max, mean, std` of what is no −∞."""
    finite = values.double()[values > MINUS_INFINITY]
    if not len(finite):
        return "all −∞"
    parts = {"min": finite.min(), "max": finite.max(), "mean": finite.mean(), "std": finite.std(correction=0)}
    return " · ".join(f"{name} {write(float(value))}" for name, value in parts.items())


def extremes(values: torch.Tensor) -> tuple[float, float]:
    """The smallest and largest value that are no −∞: white and dark."""
    finite = values.double()[values > MINUS_INFINITY]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
