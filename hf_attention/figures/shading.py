"""How a matrix becomes cells: in numbers or as a heat map, how dark each, and the words that sum it up."""

import math
from collections.abc import Callable, Sequence

import torch

from .writing import MINUS_INFINITY, number


NUMBERS = 200  # cells; a larger matrix is drawn as a heat map
COLUMNS = 16
HEAT_ROWS, HEAT_COLUMNS, HEAT_LEVELS, HEAT_CELL = 40, 64, 12, 7.0
HEAT_WIDE = 32  # up to so many rows or columns with labels, each is twice as large: a token fits beside it
CORNER_ROWS, CORNER_COLUMNS = 3, 4
DARK = (23, 78, 140)
WHITE_FROM = 0.755  # of the way to DARK, white letters stand out better than black ones; both do by 4.5 to 1 there


def shade(level: float) -> tuple[str, str]:
    """Fill and ink of a cell at `level` from 0 (white) to 1 (dark); one hue, so that grey shows the same order."""
    level = 0.0 if math.isnan(level) else min(max(level, 0.0), 1.0)
    fill = "#" + "".join(f"{round(255 + (dark - 255) * level):02x}" for dark in DARK)
    return fill, "#ffffff" if level > WHITE_FROM else "#000000"


def pool(values: torch.Tensor) -> torch.Tensor:
    """[rows, columns] as the means of at most HEAT_ROWS x HEAT_COLUMNS blocks; −∞ doesn't count, nan where all is."""
    size = min(values.shape[0], HEAT_ROWS), min(values.shape[1], HEAT_COLUMNS)
    values = values.double()
    known = values.gt(MINUS_INFINITY)
    parts = torch.stack((values.masked_fill(~known, 0), known.double()))
    total, share = torch.nn.functional.adaptive_avg_pool2d(parts, size)
    return total / share  # 0 / 0 where nothing is known


def heat_levels(values: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """The pooled [rows, columns] as whole numbers from 0 to HEAT_LEVELS - 1; -1 where there is no number but −∞."""
    pooled = pool(values).clamp(low, high)
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
