"""How figures of numbers are set: matrices put where their cells shall be, operations between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..tracing.trace import Trace, TracedTensor
from .canvas import Box, Canvas
from .shading import is_sampled
from .writing import number, shape_text, text_width


GAP = 26.0  # between a matrix and an operation, so that the head of an arrow has room
HEIGHT = 30.0  # of an operation
IGNORED = -100  # the label that fills up a row, by the library's custom


class Matrix:
    """A grid that has been measured and is to be drawn. `cells`, `whole`: its boxes, were it drawn at (0, 0)."""

    def __init__(self, values: torch.Tensor, title: str, note: str, **options: Any):
        self._what = (values, title, note)
        self._options = options
        self.cells, self.whole = Canvas("").grid(0, 0, *self._what, **options)

    @property
    def head(self) -> float:
        """How far its titles stand above the cells."""
        return self.cells.y - self.whole.y

    @property
    def left(self) -> float:
        """How far its labels stand out to the left of the cells."""
        return self.cells.x - self.whole.x

    @property
    def right(self) -> float:
        """From the left edge of the cells to the end of all that is drawn."""
        return self.whole.x + self.whole.width - self.cells.x

    @property
    def width(self) -> float:
        return self.whole.width

    @property
    def below(self) -> float:
        """From the upper edge of the cells to the end of all that is drawn."""
        return self.whole.y + self.whole.height - self.cells.y

    def draw(self, canvas: Canvas, x: float, y: float) -> Box:
        """Draws it with the upper left corner of its cells at (x, y). Returns the cells, with what is below them."""
        cells, _ = canvas.grid(x - self.cells.x, y - self.cells.y, *self._what, **self._options)
        return Box(cells.x, cells.y, cells.width, self.below)


def matrix(
    tensor: TracedTensor, where: Sequence[int], title: str, key: str, transposed: bool = False, **options: Any
) -> Matrix:
    """The last two axes of a tensor, at the indices `where` of those in front, with its shape below the title."""
    values, axes = tensor.value[tuple(where)], tensor.axes[len(where) :]
    if transposed:
        values, axes = values.T, axes[::-1]
    options["sampled"] = is_sampled(tensor.name)
    return Matrix(readable(values), title, shape_text(axes, values.shape), key=key, **options)


def readable(values: torch.Tensor) -> torch.Tensor:
    """−∞ as a float32 mask has it, also from a narrower type, whose minimum could be a number of another one."""
    if not values.is_floating_point() or values.dtype == torch.float64:
        return values
    hidden = values <= torch.finfo(values.dtype).min / 2
    return values.float().masked_fill(hidden, torch.finfo(torch.float32).min)


def operation(canvas: Canvas, x: float, y: float, line: str, kind: str, link: str | None = None) -> Box:
    """A box around one line, a formula, with the middle of its upper edge at (x, y)."""
    width = max(96.0, text_width(line) + 20)
    with canvas.link(link, line):
        box = canvas.rectangle(x - width / 2, y, width, HEIGHT, kind)
        canvas.text(x, y + HEIGHT / 2 + 4.5, line, anchor="middle", kind="formula")
    return box


def step(canvas: Canvas, above: Sequence[Box], line: str, kind: str, x: float) -> Box:
    """An operation around `x` below what it works on, with a straight arrow from the first of `above`."""
    box = operation(canvas, x, max(each.bottom[1] for each in above) + GAP, line, kind)
    canvas.arrow([(x, above[0].bottom[1] + 3), box.top])
    return box


def aside(canvas: Canvas, start: Box, end: Box) -> None:
    """An arrow from below a matrix, further to the left, to an operation."""
    x, y = start.bottom
    canvas.arrow([(x, y + 3), (x, end.left[1]), end.left], round=6)


def below(box: Box, *matrices: Matrix) -> float:
    """Where the cells of these, side by side, begin below an operation."""
    return box.bottom[1] + GAP + max(each.head for each in matrices)


def put(canvas: Canvas, each: Matrix, y: float, after: Box) -> Box:
    """Draws the outcome of the operation `after`, its cells from `y` on."""
    box = each.draw(canvas, after.top[0] - each.cells.width / 2, y)
    canvas.arrow([after.bottom, (after.bottom[0], y - each.head - 4)])
    return box


def caption(canvas: Canvas, x: float, *lines: str) -> None:
    """What the figure shows, at its top."""
    for i, line in enumerate(lines):
        canvas.text(x, 12 + 18 * i, line, size=12, kind="faint" if i else "bold")


def tokens(trace: Trace, sentence: int, axis: str) -> list[str]:
    """The words at the source positions (`S`) or at the decoder's (`T`) of one sentence, padding and all."""
    ids = trace["source.input_ids" if axis == "S" else "target.decoder_input_ids"].value[sentence]
    return [trace.token(token) for token in ids.tolist()]


def labels(trace: Trace, sentence: int) -> list[str]:
    """The labels of one sentence; what fills up the row, and is not counted, as the number that it is."""
    ids = trace["target.labels"].value[sentence].tolist()
    return [number(label) if label == IGNORED else trace.token(label) for label in ids]


def padding(trace: Trace) -> str:
    """The word that fills up the shorter sentences of a batch."""
    return trace.token(trace.info["special"]["pad"])


@dataclass(frozen=True)
class Cell:
    """What stands in a table: a line, perhaps a smaller one under it. `data`: what the line is, for page and tests."""

    line: str
    under: str = ""
    kind: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return max(text_width(self.line, 12, self.kind), text_width(self.under, 11, "number"))


def table(canvas: Canvas, x: float, y: float, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Box:
    """Lines of cells below a header, each column as wide as it has to be; (x, y) is the upper left corner."""
    columns = list(zip(*rows, strict=True))
    widths = [
        24 + max(text_width(title, 11), *(cell.width for cell in column))
        for title, column in zip(header, columns, strict=True)
    ]
    lefts = [x + 8 + sum(widths[:i]) for i in range(len(widths))]
    height = 40.0 if any(cell.under for row in rows for cell in row) else 24.0
    for left, title in zip(lefts, header, strict=True):
        canvas.text(left, y + 12, title, size=11, kind="faint formula")
    for i, row in enumerate(rows):
        top = y + 20 + i * height
        canvas.rule(x, top, sum(widths))
        for left, cell in zip(lefts, row, strict=True):
            middle = top + height / 2
            canvas.text(left, middle + (-3 if cell.under else 4), cell.line, size=12, kind=cell.kind, **cell.data)
            if cell.under:
                canvas.text(left, middle + 13, cell.under, size=11, kind="faint number")
    bottom = y + 20 + len(rows) * height
    return Box(x, y, sum(widths), bottom - y)
