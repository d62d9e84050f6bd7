"""Who looks at whom, head by head: the paper's Figures 3 to 5, of one sentence or of a translation.

Queries stand on the left, keys on the right, and a line for each weight between them, the stronger the larger it is.
All queries: a panel for each head, as in Figures 4 and 5. One query: all heads in one panel, as in Figure 3.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..tracing.trace import Trace, TracedTensor
from .canvas import INK, Canvas
from .choices import choice, chosen_sentence, words
from .writing import shape_text, shorten, text_width


LEAST = 0.02  # a smaller weight is not drawn
HEADS = 8  # so many are drawn if nobody chooses
PANELS = 4  # in a row
# Neighbours differ in lightness, too, so that they stay apart in grey.
COLORS = ["#1f4e8c", "#e08214", "#7b1e3a", "#3fa7c9", "#1d6b3f", "#d46a9f", "#4b3a8f", "#9a9a1f"]
ROW, ACROSS, LONGEST = 22.0, 120.0, 120.0
MARK = 14.0  # a head's square beside a key


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    found: dict[str, Callable[..., Canvas]] = {}
    for name in trace:
        path, _, symbol = name.rpartition(".")
        if symbol == "weights":
            found[f"{path}.arcs"] = partial(arcs, trace, path)
        elif symbol == "cross_attention":
            found[f"{path}.arcs"] = partial(translation_arcs, trace, path)
    return found


def arcs(
    trace: Trace,
    path: str,
    *,
    sentence: int = 0,
    heads: Sequence[int] | None = None,
    position: int | None = None,
) -> Canvas:
    """One sentence in the attention module `path`, without its padding.

    `heads`: which; up to 8 if not given. `position`: only this query's lines, all heads together.
    """
    sentence = chosen_sentence(trace, sentence)
    tensor = trace[f"{path}.weights"]
    weights = tensor.value[sentence]  # [H, queries, keys]
    queries, keys = (words(trace, sentence, axis) for axis in tensor.axes[-2:])
    left, right = ("decoder input" if axis == "T" else "source" for axis in tensor.axes[-2:])
    padded = weights.shape[1] - len(queries), weights.shape[2] - len(keys)
    stack, _, layer, module = path.split(".")
    kind = "Cross-attention" if module == "cross_attn" else "Self-attention"
    picture = Picture(
        f"{kind}, head by head: {stack} layer {layer}, sentence {sentence}",
        tensor,
        weights[:, : len(queries), : len(keys)],
        queries,
        keys,
        f"Left: queries ({left}). Right: keys ({right})",
        "Padding is left out." if any(padded) else "",
    )
    return picture.draw(heads, position)


def translation_arcs(
    trace: Trace,
    path: str,
    *,
    layer: int = -1,
    heads: Sequence[int] | None = None,
    position: int | None = None,
) -> Canvas:
    """Where the translation looked as it chose each of its tokens; `path` is `search.I`, `layer` the last by default.

    `heads` and `position` as in `arcs`.
    """
    tensor = trace[f"{path}.cross_attention"]  # [N, H, T, S]
    layer = choice("layer", layer, tensor.shape[0], "decoder layer")
    index = int(path.rpartition(".")[2])
    tokens = [trace.token(token) for token in trace.info["searches"][index]["tokens"]]
    picture = Picture(
        f"Cross-attention of translation {index}, head by head: decoder layer {layer}",
        tensor,
        tensor.value[layer, :, : len(tokens)],
        tokens,
        words(trace, index, "S"),
        "Left: queries, under the token that each chose. Right: keys (source)",
    )
    return picture.draw(heads, position)


@dataclass
class Picture:
    """The weights [H, queries, keys] of one sentence out of `tensor`, with the words for them."""

    title: str
    tensor: TracedTensor
    weights: torch.Tensor
    queries: list[str]
    keys: list[str]
    sides: str
    note: str = ""

    def draw(self, heads: Any, position: Any) -> Canvas:
        count = len(self.weights)
        if heads is None:
            heads = list(range(min(count, HEADS)))
        elif isinstance(heads, str | int) or not list(heads):
            raise ValueError(f"heads is {heads!r}, wanted a list of head numbers, such as [0, 1]")
        else:
            heads = list(dict.fromkeys(choice("heads", head, count, "head") for head in heads))
        if position is not None:
            position = choice("position", position, len(self.queries), "query")
        said = f"Weights below {LEAST} are not drawn."
        said += f" {self.note}" if self.note else ""
        said += f" {len(heads)} of {count} heads are shown." if len(heads) < count else ""
        canvas = Canvas(self.title, f"{self.sides}. {said} {self._strongest(heads, position)}")
        canvas.text(0, 0, self.title, size=15, kind="bold")
        shape = shape_text(self.tensor.axes, self.tensor.shape)
        canvas.text(0, 20, f"weights {shape}", size=11, kind="shape", tensor=self.tensor.name)
        canvas.text(0, 36, f"{self.sides}.", size=11, kind="faint")
        bottom = self._panels(canvas, heads) if position is None else self._fan(canvas, heads, position)
        _scale(canvas, bottom + 24, position is not None)
        canvas.text(0, bottom + 46, said, size=11, kind="faint")
        return canvas

    def _panels(self, canvas: Canvas, heads: list[int]) -> float:
        """One for each head, all queries in it; returns where they end."""
        height = 28 + ROW * max(len(self.queries), len(self.keys))
        left, right = self._widths()
        width = left + ACROSS + right
        for place, head in enumerate(heads):
            with canvas.at(place % PANELS * (width + 40), 58 + place // PANELS * (height + 26)):
                color = COLORS[head % len(COLORS)]
                canvas.patch(left, 0, 11, color)
                canvas.text(left + 17, 10, f"head {head}", size=12, kind="bold")
                self._words(canvas, left, 28)
                self._lines(canvas, head, range(len(self.queries)), left, 28)
        rows = math.ceil(len(heads) / PANELS)
        return 58 + rows * (height + 26) - 26

    def _fan(self, canvas: Canvas, heads: list[int], position: int) -> float:
        """All heads of one query; beside each key a square for each head, as dark as it looks there."""
        left, right = self._widths()
        with canvas.at(0, 58):
            self._words(canvas, left, 36, position)
            marks = left + ACROSS + right + 12
            for place, head in enumerate(heads):
                color = COLORS[head % len(COLORS)]
                x = marks + place * (MARK + 3)
                canvas.text(x + MARK / 2, 6, str(head), size=11, anchor="middle")
                canvas.patch(x, 11, MARK, color)
                self._lines(canvas, head, [position], left, 36, place - (len(heads) - 1) / 2)
                for key, weight in enumerate(self.weights[head, position].tolist()):
                    y = 36 + (key + 0.5) * ROW - MARK / 2
                    canvas.patch(x, y, MARK, color, weight, head=head, key=key, mark=f"{weight:.7g}")
            canvas.text(marks - 6, 6, "head", size=11, anchor="end", kind="faint")
        return 58 + 36 + ROW * max(len(self.queries), len(self.keys))

    def _words(self, canvas: Canvas, left: float, top: float, position: int | None = None) -> None:
        for i, word in enumerate(self.queries):
            kind = "" if position is None else "bold" if i == position else "faint"
            canvas.text(left - 6, top + (i + 0.5) * ROW + 4.5, shorten(word, LONGEST), anchor="end", kind=kind)
        for i, word in enumerate(self.keys):
            canvas.text(left + ACROSS + 6, top + (i + 0.5) * ROW + 4.5, shorten(word, LONGEST))

    def _lines(
        self, canvas: Canvas, head: int, queries: Iterable[int], left: float, top: float, lane: float | None = None
    ) -> None:
        """The faint ones first. In a `lane` of their own, the lines of a head run beside those of others."""
        shift = 2.3 * (lane or 0.0)
        rows = self.weights[head].tolist()
        lines = [(weight, i, j) for i in queries for j, weight in enumerate(rows[i]) if weight >= LEAST]
        # The page draws the lines of other layers between the same words.
        place = f"{left:g} {left + ACROSS:g} {top:g} {ROW:g} {len(self.queries)} {len(self.keys)}"
        color = COLORS[head % len(COLORS)]
        with canvas.group(**{"class": "head", "stroke": color, "data-head": head, "data-lines": place}):
            for weight, i, j in sorted(lines):
                start = left, top + (i + 0.5) * ROW + shift
                end = left + ACROSS, top + (j + 0.5) * ROW + shift
                data: dict[str, Any] = {"query": i, "key": j, "weight": f"{weight:.7g}"}
                canvas.curve(start, end, "", *_look(weight, lane is not None), flat=True, **data)

    def _widths(self) -> tuple[float, float]:
        """Of the words on both sides, in bold type."""
        left, right = (
            max(text_width(shorten(word, LONGEST)) for word in side) * 1.1 for side in (self.queries, self.keys)
        )
        return left + 6, right + 6

    def _strongest(self, heads: list[int], position: int | None) -> str:
        """In words, for who can't see the lines."""
        found = []
        for head in heads:
            weights = self.weights[head] if position is None else self.weights[head, position, None]
            query, key = divmod(int(weights.argmax()), weights.shape[1])
            query = query if position is None else position
            found.append(f"head {head} from {self.queries[query]} to {self.keys[key]} ({float(weights.max()):.3f})")
        return f"The strongest: {', '.join(found)}."


def _look(weight: float, together: bool) -> tuple[float, float]:
    """Opacity and width of a line; with all heads in one panel, there are few of them and they lie close."""
    return (0.25 + 0.75 * weight, 0.8 + 1.6 * weight) if together else (0.08 + 0.92 * weight, 0.7 + 3.8 * weight)


def _scale(canvas: Canvas, y: float, together: bool) -> None:
    """What a line of some weights looks like."""
    canvas.text(0, y, "weight", size=11, kind="faint")
    for i, weight in enumerate((0.05, 0.25, 0.5, 1.0)):
        x = 58 + i * 84
        canvas.curve((x, y - 4), (x + 34, y - 4), INK, *_look(weight, together), flat=True)
        canvas.text(x + 40, y, f"{weight:g}", size=11, kind="faint")
