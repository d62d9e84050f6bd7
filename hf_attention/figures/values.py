"""The numbers of a trace as the page carries them: a small JSON object for each tensor, read when it is asked for.

A tensor is taken apart into matrices, its last two axes without batch and spread ones, in the order of its memory.
Whatever is drawn in numbers is there to the last bit, and whatever Figure 2 adds up, as long as the page stays small
enough to be sent. Of other large matrices there is what their heat map shows.
"""

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..tracing.trace import Trace, TracedTensor
from .attention import TRANSPOSED
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


KEPT = 1_500_000  # numbers behind the heat maps of queries, keys, values and heads: two sentences of a base model
POSITIONS = {"S", "T"}
LEVELS = "0123456789ab"  # a letter for each level of a heat map; "." where there is no number


def all_packed(trace: Trace) -> dict[str, dict[str, Any]]:
    """What the page holds of each tensor, under `value:` and its name, and of its gradient, under `gradient:`."""
    found: dict[str, dict[str, Any]] = {}
    room = KEPT
    for tensor in trace.values():
        symbol = tensor.name.rpartition(".")[2]
        limits = (0.0, 1.0) if symbol == "weights" else None
        kept = is_added_up(tensor)
        if kept and not POSITIONS.issuperset(tensor.axes[-2:]):
            kept = tensor.value.numel() <= room
            room -= tensor.value.numel() * kept
        found[f"value:{tensor.name}"] = packed(tensor, tensor.value, symbol in TRANSPOSED, limits, kept=kept)
        if tensor.gradient is not None:
            found[f"gradient:{tensor.name}"] = packed(tensor, tensor.gradient, write=fine)
    for held in [held for held, each in found.items() if held.endswith("_split") and "heats" in each]:
        what, _, name = held.partition(":")
        twin = name.removesuffix("_split") + "_heads"
        if f"{what}:{twin}" in found and _is_turned(_of(trace[name], what), _of(trace[twin], what)):
            same = {key: found[held][key] for key in ("matrix", "type")}
            found[held] = same | {"from" if "values" in found[f"{what}:{twin}"] else "like": f"{what}:{twin}"}
    return found


def _of(tensor: TracedTensor, what: str) -> torch.Tensor:
    value = tensor.value if what == "value" else tensor.gradient
    assert value is not None
    return value


def _is_turned(value: torch.Tensor, twin: torch.Tensor) -> bool:
    """Whether [B, L, H, K] holds the numbers of [B, H, L, K]."""
    return torch.equal(value, twin.transpose(1, 2))


def packed(
    tensor: TracedTensor,
    value: torch.Tensor,
    turned: bool = False,
    limits: tuple[float, float] | None = None,
    write: Callable[[float], str] = number,
    kept: bool = False,
) -> dict[str, Any]:
    """What the page holds of `value`, the tensor's own or its gradient. `limits`: drawn white and dark, as in figures;
    `write`: how numbers of a summary are; `kept`: all numbers, also of matrices that are drawn as heat maps.

    `matrix`: [rows, columns] of each. `type`: bool, int, f32 or f64. `values`: all of them in one row, whole numbers
    as a list, others as base64 of little-endian floats; missing where there are too many. `heats`: one for each matrix
    that is not drawn in numbers, {levels, size, cells, low, high, summary, corner}; missing where the script can tell
    it from the values. `turned`: the same of the transposed matrices, on request.

    Large q_split, k_split and v_split say instead `from` where their numbers are; gradients, what they are `like`.
    """
    matrices, shape = _matrices(tensor.axes, readable(value))
    small = in_numbers(shape)
    found: dict[str, Any] = {"matrix": shape, "type": _type(value)}
    if small or kept:
        found["values"] = _exact(value)
    if not (small or (kept and _has_squares(shape))):
        found["heats"] = [_heat(matrix, limits, write, is_sampled(tensor.name)) for matrix in matrices]
    shape = shape[::-1]
    if turned and not (in_numbers(shape) or (kept and _has_squares(shape))):
        found["turned"] = [_heat(matrix.T, limits, write, is_sampled(tensor.name)) for matrix in matrices]
    return found


def _matrices(axes: Sequence[str], value: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """[number of matrices, rows, columns]; a row of numbers stands upright, one to a line."""
    own = [size for axis, size in zip(axes, value.shape, strict=True) if axis not in ("B", "1")]
    rows, columns = (own + [1, 1])[:2] if len(own) < 2 else own[-2:]
    return value.reshape(-1, rows, columns), [rows, columns]


def is_added_up(tensor: TracedTensor) -> bool:
    """Whether Figure 2 works out cells from it: matrices of one head, each number with a square of its own."""
    return tensor.axes[-3:-2] in (("H",), ("1",)) and _has_squares(tensor.shape[-2:])


def _has_squares(shape: Sequence[int]) -> bool:
    """Whether a heat map has a square for each number."""
    return shape[0] <= HEAT_ROWS and shape[1] <= HEAT_COLUMNS


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
