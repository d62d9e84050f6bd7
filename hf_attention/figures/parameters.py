"""The table of parameters: module by module, adding up to the model's own count, a tied matrix counted once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tracing.trace import Trace


PAPER = {  # the paper's letters for a module's parameters
    "embed_tokens": "E",
    "embed_positions": "learned positions (Table 3, row E)",
    "q_proj": "W^Q of all heads",
    "k_proj": "W^K of all heads",
    "v_proj": "W^V of all heads",
    "out_proj": "W^O",
    "fc1": "W₁, b₁",
    "fc2": "W₂, b₂",
    "norm": "gain and bias of LayerNorm",
    "lm_head": "Eᵀ",
}


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
    for parameter in trace.info["parameters"]:
        module = parameter["module"]
        if module not in rows:
            rows[module] = Row(module, PAPER.get(module.rpartition(".")[2], ""))
            name = _block(module)
            found.setdefault(name, Block(name)).rows.append(rows[module])
        _add(rows[module], parameter)
    return list(found.values())


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
