"""Figure 1 of the paper, drawn from the modules that ran.

A box is there because its tensors are in the trace, in the order of their computation: what the model does not have,
such as a norm before a sub-layer or behind the last layer, can't be drawn. Every arrow says the shape of what flows
along it, and its branches carry the same.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from ..tracing.trace import AXES, Trace
from .canvas import Canvas, Point, number, shape_text, shorten, text_width
from .choices import choice, chosen_sentence


TITLE, SMALL, LABEL = 14.0, 10.5, 11.0  # sizes of type
STRAIGHT, BEFORE_BRANCH, FORK, TAIL = 30.0, 28.0, 16.0, 24.0  # arrows, and the pieces of those that branch
BESIDE, EDGE, GUTTER = 20.0, 36.0, 44.0  # from a column to its residuals and to its stack's edge; between stacks
INSIDE, OUTSIDE = 14.0, 20.0  # a stack's edge above its last norm, and what is left between stacks and other boxes
APART, CORNER = 50.0, 9.0  # between V, K and Q; the radius of corners
CIRCLE, PLUS = 17.0, 11.0  # radii of the positional encoding and of the sum
CHIP, CHIP_GAP, CHIP_ROWS = 20.0, 5.0, 3  # tokens: height, what lies between them, the most rows
HEIGHTS = {"attention": 62.0, "cross": 62.0, "feed_forward": 62.0, "norm": 42.0}
APPROACHES = {
    "attention": BEFORE_BRANCH + FORK + TAIL,
    "cross": BEFORE_BRANCH + FORK + TAIL,
    "feed_forward": BEFORE_BRANCH + TAIL,
    "norm": STRAIGHT,
}

Line = tuple[str, str]  # of a box: text, and the name of a tensor whose shape follows, or nothing


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
    tokens = {ids: [int(token) for token in trace[ids].value[sentence]] for ids in read}
    room = max(len(_rows(trace, some, 2 * half)) for some in tokens.values()) * (CHIP + CHIP_GAP)
    for ids, column in read.items():
        title, what = ("Inputs", "source") if column is encoder else ("Outputs (shifted right)", "target")
        column.tokens(title, f"sentence {sentence}", what, tokens[ids], room)
        column.embed(ids)

    encoder.layers(min(layer, depths["encoder"] - 1), depths["encoder"], [])
    top = encoder.y - INSIDE - OUTSIDE
    memory = [(encoder.x, encoder.y), (encoder.x, top), (0.0, top)]
    decoder.layers(min(layer, depths["decoder"] - 1), depths["decoder"], memory)
    encoder.label("encoder.output", encoder.x + 10, top - 7, "start", symbol=True)
    best = trace["lm_head.log_probs"].value[sentence].float().argmax(-1)
    decoder.predict([int(token) for token in best])
    bottom = _loss(encoder, decoder, sentence)
    _legend(encoder, (bottom + top) / 2)
    return canvas


class Column:
    """One stack in the making, from below; `y` is how far it has grown.

    `outward` is the side on which residuals go around its sub-layers: -1 left, 1 right. Shapes stand on the other.
    """

    def __init__(self, canvas: Canvas, trace: Trace, stack: str, x: float, half: float, outward: int):
        self.canvas, self.trace, self.stack = canvas, trace, stack
        self.x, self.half, self.outward, self.y = x, half, outward, 0.0

    def tokens(self, title: str, note: str, link: str, tokens: Sequence[int], room: float) -> None:
        """What one sentence reads, with its name below; `room` is the height for the tokens."""
        with self.canvas.link(link, f"{title}, {note}"):
            self.canvas.text(self.x, 22, title, size=TITLE, anchor="middle", kind="bold")
            self.canvas.text(self.x, 38, note, size=SMALL, anchor="middle", kind="faint")
            self.chips(tokens, -room)
        self.y = -room

    def embed(self, ids: str) -> None:
        """The embedding, with √d_model, and the positional encoding that is added to it."""
        path, positions = f"{self.stack}.embed_tokens", f"{self.stack}.embed_positions"
        name = "Input Embedding" if self.stack == "encoder" else "Output Embedding"
        self.flow(ids, STRAIGHT)
        self.box("embedding", 62, path, [(name, ""), ("E[x] · √d_model", ""), self.parameters(path)])
        self.flow(f"{path}.output", STRAIGHT)

        y = self.y - PLUS
        self.circle(self.x, y, PLUS)
        self.canvas.arrow([(self.x - 6, y), (self.x + 6, y)], head=False)
        self.canvas.arrow([(self.x, y - 6), (self.x, y + 6)], head=False)
        self.y -= 2 * PLUS
        away = self.x + self.outward * (self.half + 8)
        kind = self.trace.info["model"]["config"]["position_encoding"]
        with self.canvas.link(positions, f"Positional Encoding, {kind}"):
            self.circle(away, y, CIRCLE)
            (_table if kind == "learned" else _wave)(self.canvas, away, y)
            beside, anchor = away + self.outward * (CIRCLE + 7), "start" if self.outward > 0 else "end"
            self.canvas.text(beside, y - 8, "Positional", size=12, anchor=anchor)
            self.canvas.text(beside, y + 7, "Encoding", size=12, anchor=anchor)
            note = self.parameters(positions)[0] if kind == "learned" else ""
            for line, text in enumerate(filter(None, (kind, note))):
                self.canvas.text(beside, y + 21 + 13 * line, text, size=SMALL, anchor=anchor, kind="faint")
        start, end = away - self.outward * CIRCLE, self.x + self.outward * PLUS
        self.canvas.arrow([(start, y), (end, y)], tensor=f"{positions}.output")
        self.label(f"{positions}.output", (start + end) / 2, y - 6, "middle")

    def layers(self, layer: int, count: int, memory: list[Point]) -> None:
        """Layer number `layer` of `count`; `memory` is the way from the encoder to cross-attention."""
        parts = _parts(self.trace, f"{self.stack}.layers.{layer}")
        bottom = self.y - OUTSIDE
        height = sum(HEIGHTS[kind] + APPROACHES[kind] for kind, _ in parts) + INSIDE
        self.canvas.rectangle(
            self.x - self.half - EDGE, bottom - height, 2 * (self.half + EDGE), height, "stack", 14, "thin"
        )
        x, anchor = self.x + self.outward * (self.half + EDGE + 12), "start" if self.outward > 0 else "end"
        self.canvas.text(x, bottom - height / 2, "N×", size=26, anchor=anchor)
        self.canvas.text(x, bottom - height / 2 + 20, f"N = {count}", size=12, anchor=anchor)
        self.canvas.text(x, bottom - height / 2 + 36, f"layer {layer}", size=SMALL, anchor=anchor, kind="faint")

        flowing, start = f"{parts[0][1]}.input", self.y  # the first arrow begins below the stack
        self.y = bottom
        for kind, path in parts:
            if kind == "norm":
                self.flow(flowing, APPROACHES["norm"])
                self.residual(branch, self.y - HEIGHTS["norm"] / 2)
                self.box("norm", HEIGHTS["norm"], path, [("Add & Norm", ""), self.parameters(path)])
            else:
                branch = flowing, start, self.y - BEFORE_BRANCH
                self.approach(kind, path, flowing, start, memory)
                self.box(kind, HEIGHTS[kind], path, self.inside(kind, path))
            flowing, start = f"{path}.output", self.y

    def residual(self, branch: tuple[str, float, float], end: float) -> None:
        """Around a sub-layer, from where its input branches (the tensor, where it starts, where it turns)."""
        flowing, start, turn = branch
        inner, outer = (self.x + self.outward * (self.half + way) for way in (0.0, BESIDE))
        points = [(self.x, start), (self.x, turn), (outer, turn), (outer, end), (inner, end)]
        self.canvas.arrow(points, round=CORNER, tensor=flowing)

    def approach(self, kind: str, path: str, flowing: str, start: float, memory: list[Point]) -> None:
        """The arrows into a sub-layer: one into the feed-forward, V, K and Q into attention."""
        branch = self.y - BEFORE_BRANCH
        fork, end = branch - FORK, self.y - APPROACHES[kind]
        left, right = self.x - APART, self.x + APART
        self.label_beside(flowing, self.y - BEFORE_BRANCH / 2 + 4)
        if kind == "feed_forward":
            arrows = {"": [(self.x, start), (self.x, end)]}
        elif kind == "cross":
            along = [*memory, (memory[-1][0], fork)]
            arrows = {
                "V": [*along, (left, fork), (left, end)],
                "K": [*along, (self.x, fork), (self.x, end)],
                "Q": [(self.x, start), (self.x, branch), (right, branch), (right, end)],
            }
        else:
            arrows = {
                "V": [(self.x, start), (self.x, fork), (left, fork), (left, end)],
                "K": [(self.x, start), (self.x, end)],
                "Q": [(self.x, start), (self.x, fork), (right, fork), (right, end)],
            }
        for name, points in arrows.items():
            of_memory = kind == "cross" and name != "Q"
            self.canvas.arrow(points, round=CORNER, tensor=f"{path}.memory" if of_memory else flowing)
            self.canvas.text(points[-1][0] + 6, end + 14, name, size=LABEL)
        self.y = end

    def inside(self, kind: str, path: str) -> list[Line]:
        if kind == "feed_forward":
            return [("Feed Forward", ""), ("inside: ", f"{path}.inner"), self.parameters(path)]
        weights = self.trace[f"{path}.weights"]
        # With a single target position there is nothing to look ahead at; the decoder masks it all the same.
        ahead = self.trace[f"{path}.look_ahead_mask"].value
        masked = bool((ahead < 0).any()) or (kind == "attention" and self.stack == "decoder" and ahead.shape[-1] == 1)
        heads = f"{weights.shape[1]} head{'s' * (weights.shape[1] != 1)} · {self.parameters(path)[0]}"
        return [("Masked " * masked + "Multi-Head Attention", ""), ("weights: ", weights.name), (heads, "")]

    def predict(self, best: list[int]) -> None:
        """Linear and softmax, and the most probable tokens of the sentence."""
        self.y -= INSIDE
        self.canvas.arrow([(self.x, self.y + INSIDE), (self.x, self.y)], head=False, tensor="decoder.output")
        self.flow("decoder.output", STRAIGHT + 4)
        self.box("linear", HEIGHTS["norm"], "lm_head", [("Linear", ""), self.parameters("lm_head")])
        self.flow("lm_head.logits", STRAIGHT)
        self.box("softmax", 32, "lm_head", [("Softmax", "")])
        self.flow("lm_head.log_probs", STRAIGHT)
        room = len(_rows(self.trace, best, 2 * self.half)) * (CHIP + CHIP_GAP) + 40
        self.y -= room
        with self.canvas.link("lm_head", "Output Probabilities"):
            self.canvas.text(self.x, self.y + 14, "Output Probabilities", size=TITLE, anchor="middle", kind="bold")
            self.canvas.text(self.x, self.y + 30, "the most probable:", size=SMALL, anchor="middle", kind="faint")
            self.chips(best, self.y + 40)

    # Pieces

    def flow(self, name: str, length: float) -> None:
        """An arrow upwards, with the shape of what it carries."""
        self.canvas.arrow([(self.x, self.y), (self.x, self.y - length)], tensor=name)
        self.label_beside(name, self.y - length / 2 + 4)
        self.y -= length

    def label(self, name: str, x: float, y: float, anchor: str, symbol: bool = False) -> None:
        tensor = self.trace[name]
        text = f"{tensor.symbol} " * symbol + shape_text(tensor.axes, tensor.shape)
        self.canvas.text(x, y, text, size=LABEL, anchor=anchor, kind="shape", tensor=name)

    def label_beside(self, name: str, y: float) -> None:
        """On the inner side, where no residual passes."""
        self.label(name, self.x - self.outward * 8, y, "end" if self.outward > 0 else "start")

    def box(self, kind: str, height: float, path: str, lines: list[Line]) -> None:
        """A box upwards from here: its name, and what is to be said about it."""
        kind = "attention" if kind == "cross" else kind
        lines = [line for line in lines if any(line)]
        step = 15.0
        with self.canvas.link(path, lines[0][0]):
            self.canvas.rectangle(self.x - self.half, self.y - height, 2 * self.half, height, kind)
            y = self.y - height / 2 + 5 - (len(lines) - 1) * step / 2
            for i, (text, name) in enumerate(lines):
                data = {"tensor": name} if name else {}
                if name:
                    text += shape_text(self.trace[name].axes, self.trace[name].shape)
                size = SMALL if i else TITLE
                self.canvas.text(self.x, y + i * step, text, size=size, anchor="middle", **data)
        self.y -= height

    def parameters(self, path: str) -> Line:
        """How many parameters are in a module; of a matrix that is another one's too, whose."""
        rows = [row for row in self.trace.info["parameters"] if f"{row['module']}.".startswith(f"{path}.")]
        tied = [row for row in rows if row["tied_to"]]
        if tied:
            return f"the same matrix E, {tied[0]['count']:,} parameters", ""
        count = sum(row["count"] for row in rows)
        return f"{count:,} parameters" if count else "", ""

    def chips(self, tokens: Sequence[int], y: float) -> None:
        """Tokens in rows, centred; padding is faint."""
        padding = self.trace.info["special"]["pad"]
        for row in _rows(self.trace, tokens, 2 * self.half):
            widths = [_chip_width(word) for word, _ in row]
            x = self.x - (sum(widths) + CHIP_GAP * (len(row) - 1)) / 2
            for (word, token), width in zip(row, widths, strict=True):
                faint = token == padding
                self.canvas.rectangle(x, y, width, CHIP, "plain" if faint else "tokens", 4, "thin")
                kind = "faint" if faint else ""
                self.canvas.text(x + width / 2, y + CHIP / 2 + 4, word, size=12, anchor="middle", kind=kind)
                x += width + CHIP_GAP
            y += CHIP + CHIP_GAP

    def circle(self, x: float, y: float, radius: float) -> None:
        self.canvas.rectangle(x - radius, y - radius, 2 * radius, 2 * radius, "plain", radius)


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
    padding = trace.info["special"]["pad"]
    labels = [padding if label < 0 else int(label) for label in trace["target.labels"].value[sentence].tolist()]
    below += STRAIGHT
    with canvas.link("target", "Labels"):
        encoder.chips(labels, below)
        below += len(_rows(trace, labels, 2 * encoder.half)) * (CHIP + CHIP_GAP)
        canvas.text(encoder.x, below + 12, "Labels", size=TITLE, anchor="middle", kind="bold")
    return below + 16


def _legend(column: Column, middle: float) -> None:
    """The letters of the shapes, with their numbers in this run."""
    trace, canvas = column.trace, column.canvas
    rows = [(letter, trace.sizes[letter], AXES[letter]) for letter in "BSTDFHW"]
    x, y = column.x - column.half + 8, middle - len(rows) * 8
    for i, (letter, size, meaning) in enumerate(rows):
        canvas.text(x, y + 16 * i, f"{letter} = {size}", size=LABEL, kind="bold")
        canvas.text(x + 66, y + 16 * i, meaning, size=LABEL, kind="faint")
    total = f"{trace.info['model']['num_parameters']:,} parameters in all"
    if trace.info["mode"]["training"]:
        total += f", dropout {trace.info['model']['config']['dropout']:g}"
    canvas.text(x, y + 16 * len(rows) + 6, total, size=LABEL, kind="faint")


def _depth(trace: Trace, stack: str) -> int:
    return len({name.split(".")[2] for name in trace if name.startswith(f"{stack}.layers.")})


def _parts(trace: Trace, layer: str) -> list[tuple[str, str]]:
    """What a layer is made of, as (kind, path) in the order of computation; the kind is seen from its tensors."""
    parts = []
    for path in dict.fromkeys(tensor.name.rpartition(".")[0] for tensor in trace.within(layer)):
        marks = {"cross": "memory", "attention": "weights", "feed_forward": "inner", "norm": "sum"}
        parts.append((next(kind for kind, mark in marks.items() if f"{path}.{mark}" in trace), path))
    return parts


def _half_width(trace: Trace) -> float:
    """Half the width of a box: on either side of an arrow there is room for the longest shape."""
    shapes = (
        shape_text(tensor.axes, tensor.shape)
        for tensor in trace.values()
        if 1 < len(tensor.axes) < 4 and not tensor.name.startswith("search.")
    )
    return max(132.0, *(text_width(shape, LABEL) + 14 for shape in shapes))


def _rows(trace: Trace, tokens: Sequence[int], width: float) -> list[list[tuple[str, int]]]:
    """Tokens, as words, broken into rows of this width; what does not fit into the last row is counted."""
    rows: list[list[tuple[str, int]]] = [[]]
    room = width
    for i, token in enumerate(tokens):
        word = shorten(trace.token(token), 110, 12)
        last = len(rows) == CHIP_ROWS and i + 1 < len(tokens)
        rest = f"+{len(tokens) - i}"
        needed = _chip_width(word) + (CHIP_GAP + _chip_width(rest) if last else 0)
        if rows[-1] and needed > room:
            if len(rows) == CHIP_ROWS:
                rows[-1].append((rest, -1))
                return rows
            rows.append([])
            room = width
        rows[-1].append((word, token))
        room -= _chip_width(word) + CHIP_GAP
    return rows


def _chip_width(word: str) -> float:
    return max(text_width(word, 12) + 10, CHIP)


def _wave(canvas: Canvas, x: float, y: float) -> None:
    points = [(x + dx, y - 7 * math.sin(dx * math.pi / 11)) for dx in range(-11, 12)]
    canvas.arrow(points, head=False)


def _table(canvas: Canvas, x: float, y: float) -> None:
    for step in (-9, -3, 3, 9):
        canvas.arrow([(x - 9, y + step), (x + 9, y + step)], head=False)
        canvas.arrow([(x + step, y - 9), (x + step, y + 9)], head=False)
