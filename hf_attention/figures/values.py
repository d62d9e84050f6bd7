"""The numbers of a trace as the page carries them: a small JSON object for each tensor, read when it is asked for.

A tensor is taken apart into matrices, its last two axes without batch and spread ones, in the order of its memory.
Whatever is drawn in numbers is there to the last bit. Of larger matrices there is what their heat map shows.
"""

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..tracing.trace import TracedTensor
from .layout import readable
from .shading import (
    CORNER_COLUMNS,
    CORNER_ROWS,
    HEAT_COLUMNS,
    HEAT_ROWS,
    cells,
    extremes,
    heat_levels,
    in_numbers,
    is_sampled,
    summary,
)
from .writing import number


KEPT = 2048  # values of a sentence's queries, keys or values: up to here Figure 2 adds up what it shows as heat maps
POSITIONS = {"S", "T"}  # attention's [T, S] is kept for that as long as each has a square of its own on the heat map
LEVELS = "0123456789ab"  # a letter for each level of a heat map; "." where there is no number


def packed(
    tensor: TracedTensor,
    value: torch.Tensor,
    turned: bool = False,
    limits: tuple[float, float] | None = None,
    write: Callable[[float], str] = number,
) -> dict[str, Any]:
    """What the page holds of `value`, the tensor's own or its gradient. `limits`: drawn white and dark, as in figures;
    `write`: how numbers of a summary are.

    `matrix`: [rows, columns] of each. `type`: bool, int, f32 or f64. `values`: all of them in one row, whole numbers
    as a list, others as base64 of little-endian floats; missing where there are too many. `heats`: one for
    each matrix that is not drawn in numbers, {levels, size, cells, low, high, summary, corner}. `turned`: the same of the
    transposed matrices, on request.
    """
    matrices, shape = _matrices(tensor.axes, readable(value))
    small = in_numbers(shape)
    found: dict[str, Any] = {"matrix": shape, "type": _type(value)}
    if small or _is_added_up(tensor.axes, shape, value[:1].numel()):
        found["values"] = _exact(value)
    if not small:
        found["heats"] = [_heat(matrix, limits, write, is_sampled(tensor.name)) for matrix in matrices]
    if turned and not in_numbers(shape[::-1]):
        found["turned"] = [_heat(matrix.T, limits, write, is_sampled(tensor.name)) for matrix in matrices]
    return found


def _matrices(axes: Sequence[str], value: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """[number of matrices, rows, columns]; a row of numbers stands upright, one to a line."""
    own = [size for axis, size in zip(axes, value.shape, strict=True) if axis not in ("B", "1")]
    rows, columns = (own + [1, 1])[:2] if len(own) < 2 else own[-2:]
    return value.reshape(-1, rows, columns), [rows, columns]


def _is_added_up(axes: Sequence[str], shape: Sequence[int], size: int) -> bool:
    """Whether the page needs the numbers behind a heat map of one head, each with a square of its own."""
    of_heads = axes[-3:-2] in (("H",), ("1",)) and shape[0] <= HEAT_ROWS and shape[1] <= HEAT_COLUMNS
    return of_heads and (size <= KEPT or POSITIONS.issuperset(axes[-2:]))


def _type(value: torch.Tensor) -> str:
    if value.is_floating_point():
        return "f64" if value.dtype == torch.float64 else "f32"
    return "bool" if value.dtype == torch.bool else "int"


def _exact(value: torch.Tensor) -> str | list[int]:
    kind = _type(value)
    if kind in ("bool", "int"):
        return value.flatten().int().tolist()
    numbers = readable(value.detach()).to(torch.float64 if kind == "f64" else torch.float32).contiguous().numpy()
    return base64.b64encode(numbers.astype(f"<f{int(kind[1:]) // 8}").tobytes()).decode()


def _heat(
    values: torch.Tensor, limits: tuple[float, float] | None, write: Callable[[float], str], sampled: bool
) -> dict[str, Any]:
    low, high = limits or extremes(values)
    levels = heat_levels(values, low, high, sampled)
    return {
        "levels": "".join(LEVELS[level] if level >= 0 else "." for level in levels.flatten().tolist()),
        "size": list(levels.shape),
        "cells": cells(values.shape, sampled),
        "low": _for_json(low),
        "high": _for_json(high),
        "summary": summary(values, write),
        "corner": _exact(values[:CORNER_ROWS, :CORNER_COLUMNS]),
    }


def fine(value: float) -> str:
    """As `number`, but with a power of ten where three decimals would say nothing, as of gradients."""
    return f"{value:.1e}".replace("-", "−") if 0 < abs(value) < 0.01 else number(value)


def _for_json(value: float) -> float | str:
    """JSON has no word for what is no number; JavaScript's `Number` reads these."""
    return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[str(value)]
