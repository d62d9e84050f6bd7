"""Figure 1 of the paper, drawn from the modules that ran.

A box is there because its tensors are in the trace, in the order of their computation: what the model does not have,
such as a norm before a sub-layer or behind the last layer, can't be drawn. Every arrow says the shape of what flows
along it, and its branches carry the same.
"""

from collections.abc import Callable
from functools import partial

from ..tracing.trace import AXES, Trace
from .canvas import Canvas
from .choices import choice, chosen_sentence
from .column import CHIP, CHIP_GAP, EDGE, GUTTER, INSIDE, LABEL, OUTSIDE, SMALL, STRAIGHT, TITLE, Column, chip_rows
from .writing import number, shape_text, text_width


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    return {"architecture": partial(architecture, trace)}


def architecture(trace: Trace, *, sentence: int = 0, layer: int = 0) -> Canvas:
    """Figure 1. `sentence`: whose tokens are written; `layer`: whose shapes, and what its boxes open on the page.

    A stack with fewer layers than that shows its last one.
    """
    sentence = chosen_sentence(trace, sentence)
    depths = {stack: _depth(trace, stack) for stack in ("encoder", "decoder")}
    layer = choice("layer", layer, max(depths.values()), "layer")
    counts = " and ".join(f"{depth} {stack} layer{'s' * (depth != 1)}" for stack, depth in depths.items())
    canvas = Canvas(
        "Figure 1: the Transformer that ran",
        f"Encoder on the left, decoder on the right, both from below. There are {counts}; one of each is drawn. Every "
        "arrow says the shape of what flows along it, and its branches carry the same.",
    )
    half = _half_width(trace)
    middle = half + EDGE + GUTTER / 2
    encoder = Column(canvas, trace, "encoder", -middle, half, outward=-1)
    decoder = Column(canvas, trace, "decoder", middle, half, outward=1)
    read = {"source.input_ids": encoder, "target.decoder_input_ids": decoder}
    padding = trace.info["special"]["pad"]
    tokens = {
        ids: [(trace.token(token), token == padding) for token in trace[ids].value[sentence].tolist()] for ids in read
    }
    room = max(len(chip_rows(some, 2 * half)) for some in tokens.values()) * (CHIP + CHIP_GAP)
    for ids, column in read.items():
        title, what = ("Inputs", "source") if column is encoder else ("Outputs (shifted right)", "target")
        column.tokens(title, f"sentence {sentence}", what, tokens[ids], room)
        column.embed(ids)

    encoder.layers(min(layer, depths["encoder"] - 1), depths["encoder"], [])
    top = encoder.y - INSIDE - OUTSIDE
    memory = [(encoder.x, encoder.y), (encoder.x, top), (0.0, top)]
    decoder.layers(min(layer, depths["decoder"] - 1), depths["decoder"], memory)
    encoder.label("encoder.output", encoder.x + 10, top - 7, "start", symbol=True)
    best = trace["lm_head.log_probs"].value[sentence].float().argmax(-1).tolist()
    counted = trace["loss.counted"].value[sentence].tolist()
    decoder.predict([(trace.token(token), not counts) for token, counts in zip(best, counted, strict=True)])
    bottom = _loss(encoder, decoder, sentence)
    _legend(encoder, (bottom + top) / 2)
    return canvas


def _loss(encoder: Column, decoder: Column, sentence: int) -> float:
    """Beyond the paper's figure: what training makes of the probabilities. Returns how far down it reaches."""
    canvas, trace = encoder.canvas, encoder.trace
    height, y = 48.0, decoder.y + 24
    end, start = encoder.x + encoder.half, decoder.x - 84
    canvas.arrow([(start, y), (end, y)], dashed=True, tensor="lm_head.log_probs")
    encoder.label("lm_head.log_probs", (start + end) / 2, y - 6, "middle")
    plain, total = (float(trace[f"loss.{name}"].value) for name in ("plain", "total"))
    smoothing = trace.info["loss"]["smoothing"]
    note = f"plain {number(plain)} · smoothed (ε = {smoothing:g}) {number(total)}"
    with canvas.link("loss", f"Loss, {note}"):
        canvas.rectangle(encoder.x - encoder.half, y - height / 2, 2 * encoder.half, height, "plain", 6, "dashed")
        canvas.text(encoder.x, y - 2, "Loss", size=TITLE, anchor="middle")
        canvas.text(encoder.x, y + 14, note, size=SMALL, anchor="middle")
    below = y + height / 2
    canvas.arrow([(encoder.x, below + STRAIGHT), (encoder.x, below)], dashed=True, tensor="target.labels")
    encoder.label_beside("target.labels", below + STRAIGHT / 2 + 4)
    below += STRAIGHT
    padding = trace.info["special"]["pad"]
    ids = trace["target.labels"].value[sentence].tolist()
    labels = [(trace.token(padding if label < 0 else label), label < 0) for label in ids]
    with canvas.link("target", "Labels"):
        below += encoder.chips(labels, below)
        canvas.text(encoder.x, below + 12, "Labels", size=TITLE, anchor="middle", kind="bold")
    return below + 16


def _legend(column: Column, middle: float) -> None:
    """The letters of the shapes, with their numbers in this run."""
    trace, canvas = column.trace, column.canvas
    rows = [(letter, trace.sizes[letter], AXES[letter]) for letter in "BSTDFHW"]
    x, y = column.x - column.half, middle - len(rows) * 8
    beside = max(text_width(f"{letter} = {size}", LABEL) for letter, size, _ in rows) + 20
    for i, (letter, size, meaning) in enumerate(rows):
        canvas.text(x, y + 16 * i, f"{letter} = {size}", size=LABEL, kind="bold")
        canvas.text(x + beside, y + 16 * i, meaning, size=LABEL, kind="faint")
    total = f"{trace.info['model']['num_parameters']:,} parameters in all"
    if trace.info["mode"]["training"]:
        total += f", dropout {trace.info['model']['config']['dropout']:g}"
    canvas.text(x, y + 16 * len(rows) + 6, total, size=LABEL, kind="faint")


def _depth(trace: Trace, stack: str) -> int:
    return len({name.split(".")[2] for name in trace if name.startswith(f"{stack}.layers.")})


def _half_width(trace: Trace) -> float:
    """Half the width of a box: on either side of an arrow there is room for the longest shape."""
    shapes = (
        shape_text(tensor.axes, tensor.shape)
        for tensor in trace.values()
        if 1 < len(tensor.axes) < 4 and not tensor.name.startswith("search.")
    )
    return max(132.0, *(text_width(shape, LABEL) + 14 for shape in shapes))
