"""The table of parameters: module by module, adding up to the model's own count, a tied matrix counted once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tracing.trace import Trace
from .choices import letters


PAPER = {  # the paper's letters for a module's parameters
    "embed_positions": "learned positions (Table 3, row E)",
    "q_proj": "W^Q of all heads",
    "k_proj": "W^K of all heads",
    "v_proj": "W^V of all heads",
    "out_proj": "W^O",
    "fc1": "W₁, b₁",
    "fc2": "W₂, b₂",
    "norm": "gain and bias of LayerNorm",
}


WRAPPED = ("base_layer", "original_module")  # what PEFT calls the module that it has wrapped


@dataclass
class Row:
    """One module: its own parameters as (name, shape), how many numbers they hold, what has been counted before."""

    module: str
    paper: str
    shapes: list[tuple[str, str]] = field(default_factory=list)
    count: int = 0
    tied_to: str | None = None


@dataclass
class Block:
    """A layer, or what stands outside of the layers; `count` is the sum of its rows."""

    name: str
    rows: list[Row] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(row.count for row in self.rows)


def blocks(trace: Trace) -> list[Block]:
    found: dict[str, Block] = {}
    rows: dict[str, Row] = {}
    known = letters(trace)
    for parameter in trace.info["parameters"]:
        module = parameter["module"]
        if module not in rows:
            rows[module] = Row(module, _paper(module, known))
            name = _block(module)
            found.setdefault(name, Block(name)).rows.append(rows[module])
        _add(rows[module], parameter)
    return list(found.values())


def _paper(module: str, known: dict[str, str]) -> str:
    """The paper's letters for a module; adapters such as LoRA wrap it and put matrices of their own inside."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        letter = known.get(".".join(parts[:end])) or PAPER.get(parts[end - 1])
        if letter:
            own = end == len(parts) or parts[end] in WRAPPED
            return letter if own else f"not in the paper: an adapter of {letter}"
    return ""


def _block(module: str) -> str:
    layer = re.match(r"(encoder|decoder)\.layers\.\d+", module)
    return layer[0] if layer else module


def _add(row: Row, parameter: dict[str, Any]) -> None:
    row.shapes.append((parameter["name"].rpartition(".")[2], _shape(parameter["shape"])))
    if parameter["tied_to"] is None:
        row.count += parameter["count"]
    else:
        row.tied_to = parameter["tied_to"]


def _shape(sizes: Sequence[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"
