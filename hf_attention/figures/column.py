"""A stack of Figure 1 in the making, with all that stands below and above it."""

import math
from collections.abc import Sequence

from ..tracing.trace import Trace
from .canvas import Canvas, Point
from .writing import shape_text, shorten, text_width


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
Token = tuple[str, bool]  # as it is written, and whether it is padding or stands where only padding is


class Column:
    """One stack in the making, from below; `y` is how far it has grown.

    `outward` is the side on which residuals go around its sub-layers: -1 left, 1 right. Shapes stand on the other.
    """

    def __init__(self, canvas: Canvas, trace: Trace, stack: str, x: float, half: float, outward: int):
        self.canvas, self.trace, self.stack = canvas, trace, stack
        self.x, self.half, self.outward, self.y = x, half, outward, 0.0

    def tokens(self, title: str, note: str, link: str, tokens: Sequence[Token], room: float) -> None:
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
        symbol = self.trace[f"{path}.output"].symbol
        self.flow(ids, STRAIGHT)
        self.box("embedding", 62, path, [(name, ""), (symbol.replace("·", " · "), ""), self.parameters(path)])
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
        parts = _layer_parts(self.trace, f"{self.stack}.layers.{layer}")
        bottom = self.y - OUTSIDE
        height = sum(HEIGHTS[kind] + APPROACHES[kind] for kind, _ in parts) + INSIDE
        self.canvas.rectangle(
            self.x - self.half - EDGE, bottom - height, 2 * (self.half + EDGE), height, "stack", 14, "thin"
        )
        x, anchor = self.x + self.outward * (self.half + EDGE + 12), "start" if self.outward > 0 else "end"
        self.canvas.text(x, bottom - height / 2, "N×", size=26, anchor=anchor)
        self.canvas.text(x, bottom - height / 2 + 20, f"N = {count}", size=12, anchor=anchor)
        self.canvas.text(x, bottom - height / 2 + 36, f"layer {layer}", size=SMALL, anchor=anchor, kind="faint")

        around = flowing = f"{parts[0][1]}.input"
        start = self.y  # the first arrow begins below the stack
        self.y = bottom
        residual: list[Point] = []
        for kind, path in parts:
            if kind == "norm":
                self.flow(flowing, APPROACHES["norm"])
                self.residual(residual, around, self.y - HEIGHTS["norm"] / 2)
                self.box("norm", HEIGHTS["norm"], path, [("Add & Norm", ""), self.parameters(path)])
            else:
                around, residual = flowing, self.approach(kind, path, flowing, start, memory)
                self.box(kind, HEIGHTS[kind], path, self.inside(kind, path))
            flowing, start = f"{path}.output", self.y

    def residual(self, beginning: list[Point], carried: str, end: float) -> None:
        """Around a sub-layer, from where its input branches to the height `end`."""
        inner, outer = (self.x + self.outward * (self.half + way) for way in (0.0, BESIDE))
        points = [*beginning, (outer, beginning[-1][1]), (outer, end), (inner, end)]
        self.canvas.arrow(points, round=CORNER, tensor=carried)

    def approach(self, kind: str, path: str, flowing: str, start: float, memory: list[Point]) -> list[Point]:
        """The arrows into a sub-layer, one into the feed-forward, V, K and Q into attention; where a residual begins.

        Of arrows that branch, one is drawn whole and the others from their branch on.
        """
        branch = self.y - BEFORE_BRANCH
        fork, end = branch - FORK, self.y - APPROACHES[kind]
        left, right = self.x - APART, self.x + APART
        self.label_beside(flowing, self.y - BEFORE_BRANCH / 2 + 4)
        beginning = [(self.x, branch + 2 * CORNER), (self.x, branch)]
        whole = [(self.x, start), (self.x, end)]
        if kind == "feed_forward":
            arrows = {"": whole}
        elif kind == "cross":
            arrows = {
                "V": [*memory, (memory[-1][0], fork), (left, fork), (left, end)],
                "K": [(left - CORNER, fork), (self.x, fork), (self.x, end)],
                "Q": [(self.x, start), (self.x, branch), (right, branch), (right, end)],
            }
            beginning = [(right - CORNER, branch)] if self.outward > 0 else beginning
        else:
            arrows = {
                "V": [(self.x, fork + FORK), (self.x, fork), (left, fork), (left, end)],
                "K": whole,
                "Q": [(self.x, fork + FORK), (self.x, fork), (right, fork), (right, end)],
            }
        for name, points in arrows.items():
            of_memory = kind == "cross" and name != "Q"
            self.canvas.arrow(points, round=CORNER, tensor=f"{path}.memory" if of_memory else flowing)
            self.canvas.text(points[-1][0] + 6, end + 14, name, size=LABEL)
        self.y = end
        return beginning

    def inside(self, kind: str, path: str) -> list[Line]:
        if kind == "feed_forward":
            return [("Feed Forward", ""), ("inside: ", f"{path}.inner"), self.parameters(path)]
        weights = self.trace[f"{path}.weights"]
        # With a single target position there is nothing to look ahead at; the decoder masks it all the same.
        ahead = self.trace[f"{path}.look_ahead_mask"].value
        masked = bool((ahead < 0).any()) or (kind == "attention" and self.stack == "decoder" and ahead.shape[-1] == 1)
        heads = f"{weights.shape[1]} head{'s' * (weights.shape[1] != 1)} · {self.parameters(path)[0]}"
        return [("Masked " * masked + "Multi-Head Attention", ""), ("weights: ", weights.name), (heads, "")]

    def predict(self, best: list[Token]) -> None:
        """Linear and softmax, and the most probable tokens of the sentence."""
        self.y -= INSIDE
        self.canvas.arrow([(self.x, self.y + INSIDE), (self.x, self.y)], head=False, tensor="decoder.output")
        self.flow("decoder.output", STRAIGHT + 4)
        self.box("linear", HEIGHTS["norm"], "lm_head", [("Linear", ""), self.parameters("lm_head")])
        self.flow("lm_head.logits", STRAIGHT)
        self.box("softmax", 32, "lm_head", [("Softmax", "")])
        self.flow("lm_head.log_probs", STRAIGHT)
        self.y -= len(chip_rows(best, 2 * self.half)) * (CHIP + CHIP_GAP) + 40
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
                size = SMALL if i else TITLE
                if name:
                    text += shape_text(self.trace[name].axes, self.trace[name].shape)
                    self.canvas.text(self.x, y + i * step, text, size, "middle", "shape", tensor=name)
                else:
                    self.canvas.text(self.x, y + i * step, text, size, "middle", "formula")
        self.y -= height

    def parameters(self, path: str) -> Line:
        """How many parameters are in a module; of a matrix that is another one's too, whose."""
        rows = [row for row in self.trace.info["parameters"] if f"{row['module']}.".startswith(f"{path}.")]
        tied = [row for row in rows if row["tied_to"]]
        if tied:
            return f"the same matrix E, {tied[0]['count']:,} parameters", ""
        count = sum(row["count"] for row in rows)
        return f"{count:,} parameters" if count else "", ""

    def chips(self, tokens: Sequence[Token], y: float) -> float:
        """Tokens in rows from `y` down, centred; the height that they take."""
        rows = chip_rows(tokens, 2 * self.half)
        for row in rows:
            widths = [_chip_width(word) for word, _ in row]
            x = self.x - (sum(widths) + CHIP_GAP * (len(row) - 1)) / 2
            for (word, faint), width in zip(row, widths, strict=True):
                self.canvas.rectangle(x, y, width, CHIP, "plain" if faint else "tokens", 4, "thin")
                kind = "faint" if faint else ""
                self.canvas.text(x + width / 2, y + CHIP / 2 + 4, word, size=12, anchor="middle", kind=kind)
                x += width + CHIP_GAP
            y += CHIP + CHIP_GAP
        return len(rows) * (CHIP + CHIP_GAP)

    def circle(self, x: float, y: float, radius: float) -> None:
        self.canvas.rectangle(x - radius, y - radius, 2 * radius, 2 * radius, "plain", radius)


def _layer_parts(trace: Trace, layer: str) -> list[tuple[str, str]]:
    """What a layer is made of, as (kind, path) in the order of computation; the kind is seen from its tensors."""
    parts = []
    for path in dict.fromkeys(tensor.name.rpartition(".")[0] for tensor in trace.within(layer)):
        marks = {"cross": "memory", "attention": "weights", "feed_forward": "inner", "norm": "sum"}
        parts.append((next(kind for kind, mark in marks.items() if f"{path}.{mark}" in trace), path))
    return parts


def chip_rows(tokens: Sequence[Token], width: float) -> list[list[Token]]:
    """Tokens broken into rows of this width; trailing padding is counted, and what does not fit into the last row."""
    trailing = next((i for i, (_, faint) in enumerate(reversed(tokens)) if not faint), len(tokens))
    if trailing > 2:
        words = {word for word, _ in tokens[-trailing:]}
        tokens = [*tokens[:-trailing], (f"{words.pop()} ×{trailing}" if len(words) == 1 else f"+{trailing}", True)]
    rows: list[list[Token]] = [[]]
    room = width
    for i, (word, faint) in enumerate(tokens):
        word = shorten(word, 110, 12)
        rest = f"+{len(tokens) - i}"
        last = len(rows) == CHIP_ROWS and i + 1 < len(tokens)
        needed = _chip_width(word) + (CHIP_GAP + _chip_width(rest) if last else 0)
        if rows[-1] and needed > room:
            if len(rows) == CHIP_ROWS:
                rows[-1].append((rest, True))
                break
            rows.append([])
            room = width
        rows[-1].append((word, faint))
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
