"""What goes into encoder and decoder (§3.4, §3.5), and how the decoder's input is made from the labels."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from ..tracing.trace import Trace
from .canvas import Box, Canvas
from .choices import chosen_sentence, letters
from .layout import GAP, IGNORED, Matrix, aside, below, caption, labels, matrix, padding, put, step, tokens
from .writing import number, shape_text, text_width


SMALL, HEIGHT, DROP = 11.0, 40.0, 64.0  # pixels: of small letters, of a token's box, between two rows of them
TINTS = {"start": "softmax", "end": "embedding", "": "tokens"}  # what is marked otherwise has a dashed edge


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    stacks = {f"{stack}.inputs": partial(inputs, trace, stack) for stack in ("encoder", "decoder")}
    return {**stacks, "shift": partial(shift, trace)}


def inputs(trace: Trace, stack: str, sentence: int = 0) -> Canvas:
    """From the tokens of one sentence to what enters the first layer: E[x] · √d_model + PE (§3.4, §3.5)."""
    sentence = chosen_sentence(trace, sentence)
    name, at = ("source.input_ids", "S") if stack == "encoder" else ("target.decoder_input_ids", "T")
    ids, words = trace[name].value[sentence].tolist(), tokens(trace, sentence, at)
    learned = trace.info["model"]["config"]["position_encoding"] == "learned"
    canvas = Canvas(
        f"Input of the {stack}: sentence {sentence}",
        f"Tokens {' '.join(words)}; their rows of the embedding matrix, times √d_model, plus the positional encoding.",
    )

    row = trace[f"{stack}.embed_tokens.rows"].symbol  # of E, or of a matrix of its own
    scaled_row = f"{row} · √d_model"

    def part(symbol: str, title: str, labels: Sequence[str]) -> Matrix:
        tensor = trace[f"{stack}.{symbol}"]
        where = [sentence] if tensor.axes[0] == "B" else []
        return matrix(tensor, where, title, symbol, rows=labels, faint=padding(trace))

    found = part("embed_tokens.rows", row, words)
    scaled = part("embed_tokens.output", scaled_row, words)
    encoding = part(
        "embed_positions.output",
        f"PE, {'learned' if learned else 'sines and cosines'}",
        [str(i) for i in range(len(ids))],
    )
    total = part("sum", f"{scaled_row} + PE", words)

    left = -found.left - 2 * GAP
    outer = left - encoding.width
    caption(canvas, outer, f"Input of the {stack}", f"sentence {sentence}")
    width, center = _width(words, ids), found.cells.width / 2
    across = len(ids) * width
    x = center - across / 2 if across <= found.cells.width else max(found.cells.width - across, outer + 260)
    sentence_box = _row(canvas, x, 20, words, ids, width, _marks(trace, ids, at == "T"))
    for i, (line, kind) in enumerate((("x: token and id", ""), (shape_text([at], [len(ids)]), "faint"))):
        canvas.text(sentence_box.x - 12, sentence_box.y + 17 + 16 * i, line, size=SMALL, anchor="end", kind=kind)
    sizes = trace["lm_head.logits"].shape[-1], trace[f"{stack}.embed_tokens.rows"].shape[-1]
    line = f"Embedding: row x of {letters(trace)[f'{stack}.embed_tokens']}  {shape_text(('W', 'D'), sizes)}"
    look_up = step(canvas, [sentence_box], line, "embedding", center)
    box = put(canvas, found, below(look_up, found), look_up)
    scale = step(canvas, [box], f"Scale  × √d_model = {number(math.sqrt(sizes[1]))}", "norm", center)
    y = below(scale, scaled, encoding)
    box, beside = put(canvas, scaled, y, scale), encoding.draw(canvas, left - encoding.right, y)
    add = step(canvas, [box, beside], "Positional Encoding  +", "tokens", center)
    aside(canvas, beside, add)
    box = put(canvas, total, below(add, total), add)
    if not trace[f"{stack}.dropped"].value.equal(trace[f"{stack}.sum"].value):
        dropped = part("dropped", f"dropout({scaled_row} + PE)", words)
        drop = step(canvas, [box], f"Dropout  P = {trace.info['model']['config']['dropout']}", "tokens", center)
        put(canvas, dropped, below(drop, dropped), drop)
    return canvas


def shift(trace: Trace, sentence: int = 0) -> Canvas:
    """How the decoder's input is made: the labels, one place further right, behind the start symbol.

    So at position t the decoder has read the labels before t and none from t on, when it predicts label t.
    """
    sentence = chosen_sentence(trace, sentence)
    targets, spelt = trace["target.labels"].value[sentence].tolist(), labels(trace, sentence)
    ids, words = trace["target.decoder_input_ids"].value[sentence].tolist(), tokens(trace, sentence, "T")
    canvas = Canvas(
        f"Shifted right: sentence {sentence}",
        f"Labels: {' '.join(spelt)}. The decoder reads: {' '.join(words)}. "
        f"{number(IGNORED)} fills up a shorter row and is not counted.",
    )
    width = _width(spelt + words, targets + ids)
    above = _row(canvas, 0, 34, spelt, targets, width, _marks(trace, targets, False))
    read = _row(canvas, 0, above.bottom[1] + DROP, words, ids, width, _marks(trace, ids, True), marks_below=True)
    for i in range(len(ids)):
        canvas.text((i + 0.5) * width, 12, str(i), size=SMALL, anchor="middle", kind="faint")
    names = (("position t", 12.0, ()), ("labels y", above.y + 17, ("T",)), ("decoder's input", read.y + 17, ("T",)))
    for line, y, axes in names:
        canvas.text(-16, y, line, size=SMALL, anchor="end", kind="bold" if axes else "faint")
        if axes:
            canvas.text(-16, y + 16, shape_text(axes, [len(ids)]), size=SMALL, anchor="end", kind="faint")
    for i in range(len(targets)):
        start, end = ((i + 0.5) * width, above.bottom[1] + 2), ((i + 1.5) * width, read.y - 2)
        canvas.arrow([start, end], dashed=i + 1 == len(targets))
    _token(canvas, len(ids) * width, read.y, spelt[-1], targets[-1], width, "cut off", marks_below=True)
    return canvas


def _marks(trace: Trace, ids: Sequence[int], shifted: bool) -> list[str]:
    """What stands for no word of its own: start, end, padding, and labels that do not count."""
    special = trace.info["special"]
    names = {special["pad"]: "padding", special["end"]: "end", IGNORED: "not counted"}
    marks = [names.get(token, "") for token in ids]
    return ["start", *marks[1:]] if shifted else marks


def _width(words: Sequence[str], ids: Sequence[int]) -> float:
    """Of each token's box, the gap to the next one included."""
    return max(
        74.0, *(text_width(word) + 24 for word in words), *(text_width(str(token), SMALL) + 24 for token in ids)
    )


def _row(
    canvas: Canvas,
    x: float,
    y: float,
    words: Sequence[str],
    ids: Sequence[int],
    width: float,
    marks: Sequence[str],
    marks_below: bool = False,
) -> Box:
    """The tokens of a sentence, side by side."""
    for i, (word, token, mark) in enumerate(zip(words, ids, marks, strict=True)):
        _token(canvas, x + i * width, y, word, token, width, mark, marks_below)
    return Box(x, y, len(ids) * width, HEIGHT)


def _token(
    canvas: Canvas, x: float, y: float, word: str, token: int, width: float, mark: str, marks_below: bool = False
) -> None:
    line, faint = ("", "") if mark in TINTS else ("dashed", "faint")
    canvas.rectangle(x + 4, y, width - 8, HEIGHT, TINTS.get(mark, "plain"), line=line, token=token)
    middle = x + width / 2
    if token == IGNORED:
        canvas.text(middle, y + 25, word, anchor="middle", kind=faint)
    else:
        canvas.text(middle, y + 17, word, anchor="middle", kind=faint)
        canvas.text(middle, y + 33, str(token), size=SMALL, anchor="middle", kind="faint number")
    if mark:
        canvas.text(middle, y + HEIGHT + 14 if marks_below else y - 5, mark, size=SMALL, anchor="middle", kind="faint")
