"""Figure 2 of the paper: one attention module, its four linears and its heads, and the numbers of one head."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..tracing.trace import Trace
from .canvas import Box, Canvas, Point
from .choices import choice, chosen_sentence
from .layout import GAP, HEIGHT, Matrix, aside, below, caption, matrix, operation, padding, put, step, tokens
from .shading import HEAT_LEVELS
from .writing import FONT, number, shape_text, text_width


# What each matrix of Figure 2, left, is computed from: its cell (i, j) from row i, column j or cell (i, j) of these as
# they are drawn. Of the masks a figure holds those that hide something.
MADE_FROM = {
    "products": [("q_heads", "row"), ("k_heads", "column")],
    "scores": [("products", "cell")],
    "masked_scores": [("scores", "cell"), ("padding_mask", "cell"), ("look_ahead_mask", "cell"), ("mask", "cell")],
    "weights": [("masked_scores", "row")],
    "heads": [("weights", "row"), ("v_heads", "column")],
}
TRANSPOSED = ["k_heads"]  # drawn as its transpose: the queries' rows meet the keys' columns
NUMBERS = 36  # cells of weights that stand beside those of other heads in numbers; more are tinted squares
WIDE, STEP, SMALL = 1100, 52.0, 11.0  # pixels: of a figure, of an arrow, of small letters


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    found: dict[str, Callable[..., Canvas]] = {}
    for name in trace:
        path, _, symbol = name.rpartition(".")
        if symbol == "weights":
            found[f"{path}.multi_head"] = partial(multi_head, trace, path)
            found[path] = partial(scaled_dot_product, trace, path)
            found[f"{path}.matrices"] = partial(matrices, trace, path)
    return found


def scaled_dot_product(trace: Trace, path: str, sentence: int = 0, head: int = 0) -> Canvas:
    """Figure 2, left, from top to bottom, with the matrices of one sentence and one head at its arrows (Equation 1).

    The queries stand left of their products and the keys above, so that a cell lies where the row and the column that
    it is made of meet; likewise for weights and values.
    """
    sentence = chosen_sentence(trace, sentence)
    heads = trace[f"{path}.weights"].shape[1]
    head = choice("head", head, heads, "head")
    *_, at, memory_at = trace[f"{path}.weights"].axes
    source = "memory" if f"{path}.memory" in trace else "x"
    labels = {at: tokens(trace, sentence, at), memory_at: tokens(trace, sentence, memory_at)}
    faint = padding(trace)

    def part(symbol: str, title: str) -> Matrix:
        tensor = trace[f"{path}.{symbol}"]
        where = sentence, min(head, tensor.shape[1] - 1)  # a mask is the same for all heads
        *_, rows, columns = tensor.axes
        transposed = symbol in TRANSPOSED
        options = {"rows": labels.get(rows, ()), "columns": labels.get(columns, ())}
        if transposed:
            options = {"rows": options["columns"], "columns": options["rows"]}
        limits = (0.0, 1.0) if symbol == "weights" else None
        return matrix(tensor, where, title, symbol, transposed, faint=faint, limits=limits, **options)

    def title(symbol: str) -> str:
        return symbol.replace("_", " ").replace("look ahead", "look-ahead")

    canvas = Canvas(
        f"Scaled dot-product attention: {path}, sentence {sentence}, head {head}",
        "Figure 2, left: softmax(QKᵀ/√d_k + mask) V in the numbers of one head. "
        f"Q has a row for each of: {' '.join(labels[at])}. K and V for each of: {' '.join(labels[memory_at])}.",
    )
    queries, keys = part("q_heads", "Q_i = x W_i^Q + b_i^Q"), part("k_heads", f"K_iᵀ = ({source} W_i^K + b_i^K)ᵀ")
    values, result = part("v_heads", f"V_i = {source} W_i^V + b_i^V"), part("heads", "head_i = weights · V_i")
    masks = [part(symbol, title(symbol)) for symbol in _masks(trace, path)]
    squares = [part(symbol, title(symbol)) for symbol in ("products", "scores", "masked_scores", "weights")]
    products, scores, masked, weights = squares

    # Three columns: what comes in from the left, the square matrices of the paper's boxes, values and result.
    center = products.cells.width / 2
    left = -max(each.left for each in squares) - 2 * GAP
    right = max(each.right for each in (keys, *squares)) + 2 * GAP + max(values.left, result.left)
    middle = right + max(values.cells.width, result.cells.width) / 2
    outer = left - max(queries.width, sum(mask.width + GAP for mask in masks) - GAP)
    caption(canvas, outer, path, f"sentence {sentence}, head i = {head} of {heads}")

    box = keys.draw(canvas, center - keys.cells.width / 2, max(keys.head, 44))
    times = step(canvas, [box], "MatMul  ×", "linear", center)
    y = below(times, queries, products)
    first = queries.draw(canvas, left - queries.right, y)
    _around(canvas, (first.right[0] + 3, y + queries.cells.height / 2), left + GAP * 0.8, times)
    box = put(canvas, products, y, times)

    root = math.sqrt(trace[f"{path}.q_heads"].shape[-1])
    scale = step(canvas, [box, first], f"Scale  ÷ √d_k = {number(root)}", "norm", center)
    y = below(scale, scores, *masks)
    box = put(canvas, scores, y, scale)
    x, beside = left, []
    for mask in masks:
        beside.append(mask.draw(canvas, x - mask.right, y))
        x -= mask.width + GAP
    hide = step(canvas, [box, *beside], "Mask  +", "embedding", center)
    for mask_box in beside:
        aside(canvas, mask_box, hide)

    y = below(hide, masked, values)
    box, last = put(canvas, masked, y, hide), values.draw(canvas, middle - values.cells.width / 2, y)
    soften = step(canvas, [box, last], "SoftMax", "softmax", center)
    weigh = step(canvas, [last, box], "MatMul  ×", "linear", middle)
    y = below(soften, weights, result)
    box = put(canvas, weights, y, soften)
    start = box.x + weights.cells.width + 3, y + weights.cells.height / 2
    _around(canvas, start, right - result.left - GAP, weigh)
    put(canvas, result, y, weigh)
    return canvas


def _around(canvas: Canvas, start: Point, x: float, end: Box) -> None:
    """An arrow from beside a matrix up to the left of an operation that stands higher, by way of `x`."""
    canvas.arrow([start, (x, start[1]), (x, end.left[1]), end.left], round=6)


def _masks(trace: Trace, path: str) -> list[str]:
    """The parts of the mask that hide something in this batch; if there is none, the mask, which is all zeros."""
    parts = [part for part in ("padding_mask", "look_ahead_mask") if trace[f"{path}.{part}"].value.lt(0).any()]
    return parts or ["mask"]


def matrices(trace: Trace, path: str, sentence: int = 0) -> Canvas:
    """The attention weights of all heads, side by side: a row for each query, a column for each key."""
    sentence = chosen_sentence(trace, sentence)
    weights = trace[f"{path}.weights"]
    *_, at, memory_at = weights.axes
    rows, columns = tokens(trace, sentence, at), tokens(trace, sentence, memory_at)
    canvas = Canvas(
        f"Attention weights: {path}, sentence {sentence}, all of {_heads(weights.shape[1])}",
        f"Each row adds up to 1. Rows: {' '.join(rows)}. Columns: {' '.join(columns)}.",
    )
    caption(canvas, 0, path, f"sentence {sentence}")
    options: dict[str, Any] = {"rows": rows, "columns": columns, "faint": padding(trace)}
    options |= {"limits": (0.0, 1.0), "numbers": NUMBERS, "corner": False}
    x, y, end = 0.0, 56.0, 0.0
    for head in range(weights.shape[1]):
        each = matrix(weights, (sentence, head), f"head {head}", "weights", **options)
        if x and x + each.width > WIDE:
            x, y = 0.0, end + GAP
        with canvas.group(**{"data-head": head}):
            box = each.draw(canvas, x - each.whole.x + each.cells.x, y + each.head)
        x, end = x + each.width + GAP, max(end, box.bottom[1])
    if len(rows) * len(columns) > NUMBERS:
        _key(canvas, 6, end)
    return canvas


def _key(canvas: Canvas, x: float, y: float) -> None:
    """What the tints stand for."""
    levels = torch.linspace(0, 1, HEAT_LEVELS)[None]
    box, _ = canvas.grid(x, y, levels, "", "", [""], [""] * HEAT_LEVELS, limits=(0, 1), numbers=0, corner=False)
    canvas.text(box.x - 6, box.y + 11, "0", size=SMALL, anchor="end")
    canvas.text(box.right[0] + 6, box.y + 11, "1", size=SMALL)


def multi_head(trace: Trace, path: str) -> Canvas:
    """Figure 2, right, from below as in the paper: three linears, h heads side by side, Concat and the fourth linear.

    Beside every arrow stands the shape of what goes along it, for the whole batch. Weights are written as in x W; the
    modules keep their transposes.
    """
    heads = trace[f"{path}.heads"].shape[1]
    crossing = f"{path}.memory" in trace
    canvas = Canvas(
        f"Multi-head attention: {path}",
        "Figure 2, right: queries, keys and values, each through a linear of its own and split into "
        f"{_heads(heads)}; attention in each; their results side by side and through a fourth linear. "
        + ("Queries come from the decoder, keys and values from the encoder's output." if crossing else
           "Queries, keys and values all come from one x."),
    )  # fmt: skip

    def shape(symbol: str) -> str:
        return shape_text(trace[f"{path}.{symbol}"].axes, trace[f"{path}.{symbol}"].shape)

    # From left to right V, K, Q, as in the paper.
    pitch = 40 + max(
        150.0, *(text_width(shape(f"{name}_{form}"), SMALL) for name in "vkq" for form in ("split", "heads"))
    )
    places = {"v": 0.0, "k": pitch, "q": 2 * pitch}

    def arrows(y: float, **symbols: float) -> float:
        """Into what ends at `y`, from below; the formula and the shape of what goes along them. Where they begin."""
        for symbol, x in symbols.items():
            canvas.arrow([(x, y + STEP), (x, y)])
            canvas.text(x + 8, y + STEP / 2 - 2, trace[f"{path}.{symbol}"].symbol, size=SMALL, kind="formula")
            canvas.text(x + 8, y + STEP / 2 + 13, shape(symbol), size=SMALL, kind="faint")
        return y + STEP

    def linear(x: float, y: float, letter: str, before: str, after: str) -> Box:
        axes, sizes = zip(*((trace[f"{path}.{each}"].axes[-1], trace[f"{path}.{each}"].shape[-1])
                            for each in (before, after)), strict=True)  # fmt: skip
        lines = [f"W^{letter}  {shape_text(axes, sizes)}", f"b^{letter}  {shape_text(axes[1:], sizes[1:])}"]
        return _lines(canvas, x, y, ["Linear", *lines], "linear")

    y = linear(pitch, arrows(0, output=pitch), "O", "concat", "output").bottom[1]
    y = operation(canvas, pitch, arrows(y, concat=pitch), "Concat", "norm").bottom[1]
    y = _stack(canvas, pitch, arrows(y, heads=pitch), 2 * pitch + 130, heads, path).bottom[1]
    y = arrows(y, **{f"{name}_heads": x for name, x in places.items()})
    for name, x in places.items():
        operation(canvas, x, y, f"swap {trace[f'{path}.{name}_split'].axes[1]} and H", "tokens")
    y = arrows(y + HEIGHT, **{f"{name}_split": x for name, x in places.items()})
    for x in places.values():
        operation(canvas, x, y, f"split into {_heads(heads)}", "tokens")
    y = arrows(y + HEIGHT, **places)
    boxes = {name: linear(x, y, name.upper(), "input", name) for name, x in places.items()}
    y = boxes["q"].bottom[1]
    stack = path.partition(".")[0]
    if crossing:
        _input(canvas, pitch / 2, y, ["memory, from the encoder", shape("memory")], [boxes["v"], boxes["k"]])
        _input(canvas, 2 * pitch, y, ["x, in the decoder", shape("input")], [boxes["q"]])
    else:
        _input(canvas, pitch, y, [f"x, in the {stack}", shape("input")], list(boxes.values()))
    return canvas


def _heads(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def _stack(canvas: Canvas, x: float, y: float, width: float, heads: int, path: str) -> Box:
    """The attention of the heads, one sheet behind the other, at most three; the page opens its numbers."""
    sheets = min(heads, 3)
    with canvas.link(path, "Scaled Dot-Product Attention"):
        for i in reversed(range(sheets)):
            box = canvas.rectangle(x - width / 2 + 6 * i, y + 6 * (sheets - 1 - i), width, 44, "attention")
        canvas.text(x, box.y + 27, "Scaled Dot-Product Attention", anchor="middle")
    canvas.text(box.right[0] + 6 * sheets + 4, box.y + 20, f"h = {heads}", kind="formula")
    return Box(box.x, y, width, box.y + 44 - y)


def _input(canvas: Canvas, x: float, y: float, lines: Sequence[str], ends: Sequence[Box]) -> None:
    """What comes in from below, with an arrow to each linear."""
    box = _lines(canvas, x, y + STEP, lines, "tokens")
    for end in ends:
        turn = y + STEP / 2
        straight = end.bottom[0] == x
        canvas.arrow(
            [box.top, end.bottom] if straight else [box.top, (x, turn), (end.bottom[0], turn), end.bottom], round=6
        )


def _lines(canvas: Canvas, x: float, y: float, lines: Sequence[str], kind: str) -> Box:
    """A box around lines of formulas, the first one larger, with the middle of its upper edge at (x, y)."""
    sizes = [FONT, *[SMALL] * (len(lines) - 1)]
    width = max(map(text_width, lines, sizes)) + 20
    box = canvas.rectangle(x - width / 2, y, width, 13 + 17 * len(lines), kind)
    for i, (line, size) in enumerate(zip(lines, sizes, strict=True)):
        canvas.text(x, y + 19 + 17 * i, line, size=size, anchor="middle", kind="formula")
    return box
