"""Reads a figure back from its SVG: grids as printed and exactly, shapes, lines of text; and what printed numbers say.

A printed number stands for an interval, half a unit of its last place to either side. `Interval` computes with these:
a test asks whether what is printed at the end of an arrow can come from what is printed at its beginning.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

import torch

from hf_attention.figures.canvas import Canvas


SVG = "{http://www.w3.org/2000/svg}"
SHAPE = re.compile(r"\[([^][=]*)\] = \[([\d, ]*)\]")
NUMBER = re.compile(r"[−-]?(\d+(?:\.(\d+))?)(?:e([+-]\d+))?$")


@dataclass
class Interval:
    """Numbers from `low` to `high`, tensors of one shape."""

    low: torch.Tensor
    high: torch.Tensor

    def __getitem__(self, where) -> "Interval":
        return Interval(self.low[where], self.high[where])

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def __neg__(self) -> "Interval":
        return Interval(-self.high, -self.low)

    def __mul__(self, other: "Interval") -> "Interval":
        ends = torch.stack([a * b for a in (self.low, self.high) for b in (other.low, other.high)])
        return Interval(ends.amin(0), ends.amax(0))

    def __truediv__(self, other: "Interval") -> "Interval":
        return self * Interval(1 / other.high, 1 / other.low)

    def exp(self) -> "Interval":
        return Interval(self.low.exp(), self.high.exp())

    def log(self) -> "Interval":
        return Interval(self.low.log(), self.high.log())

    def sum(self) -> "Interval":
        return Interval(self.low.sum(-1), self.high.sum(-1))

    def softmax(self) -> "Interval":
        """Each is largest where it is itself, and the others are smallest."""
        own, most, least = self.exp(), self.exp().high.sum(-1), self.exp().low.sum(-1)
        low = own.low / (own.low + most[..., None] - own.high)
        return Interval(low, own.high / (own.high + least[..., None] - own.low))

    @property
    def width(self) -> float:
        """Of the widest one: what is printed says nothing where this is large."""
        return float((self.high - self.low).nan_to_num().max())

    def meets(self, other: "Interval", slack: float = 1e-6) -> bool:
        """Whether one number can be in both, everywhere; `slack` is for the arithmetic of float32."""
        return bool(((self.low <= other.high + slack) & (other.low <= self.high + slack)).all())


def read(text: str) -> Interval:
    """One printed number."""
    if text in ("−∞", "∞"):
        value = torch.tensor(float("-inf" if text == "−∞" else "inf"), dtype=torch.float64)
        return Interval(value, value)
    whole, decimals, power = NUMBER.fullmatch(text).groups()
    value = float(text.replace("−", "-"))
    half = 0.5 * 10.0 ** (int(power or 0) - len(decimals)) if decimals else 0.0
    return Interval(*torch.tensor([value - half, value + half], dtype=torch.float64))


@dataclass
class Grid:
    """A matrix. `hatched`: [row, column] of the cells that are; `levels`: of a heat map, −1 where hatched."""

    printed: Interval
    exact: torch.Tensor
    rows: list[str]
    columns: list[str]
    hatched: list[list[int]]
    levels: dict[tuple[int, int], int]
    text: list[str]


class Drawn:
    """What is on a figure. A key that several grids carry, as those of all heads, has the last one in `grids`."""

    def __init__(self, canvas: Canvas):
        self.svg = canvas.svg()
        self.root = ET.fromstring(self.svg)
        self.lines = ["".join(text.itertext()) for text in self.root.iter(f"{SVG}text")]
        self.shapes = [found.groups() for line in self.lines for found in SHAPE.finditer(line)]
        self.all_grids = [(group.get("data-grid"), _grid(group)) for group in self.root.iter(f"{SVG}g")
                          if group.get("data-grid")]  # fmt: skip
        self.grids = dict(self.all_grids)

    def after(self, words: str) -> Interval:
        """The number behind `words` in a line of the figure."""
        line = next(line for line in self.lines if words in line)
        return read(line.partition(words)[2].split()[0])


def _grid(group: ET.Element) -> Grid:
    elements = list(group)
    cells = [(int(cell.get("data-row")), int(cell.get("data-column")), cell, elements[i + 1 : i + 3])
             for i, cell in enumerate(elements) if cell.get("class") == "cell"]  # fmt: skip
    size = [1 + max((cell[axis] for cell in cells), default=-1) for axis in (0, 1)]
    low, high, exact = (torch.full(size, torch.nan, dtype=torch.float64) for _ in range(3))
    hatched = []
    for row, column, cell, after in cells:
        hidden = after[0].get("class") == "hidden"
        if hidden:
            hatched.append([row, column])
        printed = read(after[1 if hidden else 0].text)
        low[row, column], high[row, column] = printed.low, printed.high
        exact[row, column] = float(cell.get("data-value"))
    names = {
        side: [text.text for text in group.iter(f"{SVG}text") if text.get(f"data-{side}-name")]
        for side in ("row", "column")
    }
    levels = {
        (int(y), int(x)): int(path.get("data-level"))
        for path in group.iter(f"{SVG}path")
        if path.get("data-level")
        for x, y in re.findall(r"M(\d+) (\d+)", path.get("d"))
    }
    text = ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]
    return Grid(Interval(low, high), exact, names["row"], names["column"], hatched, levels, text)
