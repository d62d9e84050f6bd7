"""The hypotheses of a translation as a tree: from the prompt on the left, a column for each length."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ..tracing.trace import Trace
from .canvas import FAINT, INK, Box, Canvas
from .translation import Translation
from .writing import number, shorten, text_width


DROPPED = 1  # so many of the best that a step dropped are drawn; the others are counted
LONGEST, SMALL, TINY = 96.0, 11.0, 10.0  # the width of a token; sizes of type
GAP, APART = 34.0, 8.0  # between columns, and between the boxes of one
STRAIGHT = 1e4  # how much more than another's the winner's way is kept straight


@dataclass(eq=False)
class Node:
    """A hypothesis on the figure; `y` is its middle."""

    hypothesis: dict[str, Any]
    lines: list[str]  # token and log P; where it has ended also the penalty, the score, and what it is
    parent: Optional["Node"]
    weight: float
    y: float = 0.0
    box: Box = field(default_factory=lambda: Box(0, 0, 0, 0))

    @property
    def height(self) -> float:
        return 10.0 + 14.0 * len(self.lines)

    @property
    def width(self) -> float:
        return 14.0 + max(text_width(self.lines[0]), *(text_width(line, TINY) for line in self.lines[1:]))


def tree(trace: Trace, index: int) -> Canvas:
    """What lived on or ended, with its log P and at the end its score; of what a step dropped only the best."""
    translation = Translation(trace, index)
    canvas = Canvas(
        f"{translation.title}, as a tree of hypotheses",
        f"From left to right, a column for each length; {translation.formula}. The winner: {translation.result}. Of "
        "what a step dropped, the best is drawn and the others are counted.",
    )
    columns, more = _columns(translation)
    for column in columns:
        _settle(column)
    top = translation.head(canvas) + 64
    down = top - min(node.y - node.height / 2 for column in columns for node in column)
    x, bottom, way = 0.0, top, translation.lineage()
    for length, column in enumerate(columns):
        width = max(node.width for node in column)
        _heading(canvas, x + width / 2, top - 30, length, column[0].hypothesis["penalty"])
        for node in column:
            node.box = Box(x, node.y + down - node.height / 2, width, node.height)
            _draw(canvas, node, node.hypothesis["id"] in way)
        below = max(node.box.bottom[1] for node in column)
        if more[length]:
            canvas.text(x + width / 2, below + 15, f"+{more[length]} more", size=TINY, anchor="middle", kind="faint")
        bottom, x = max(bottom, below + 20), x + width + GAP
    if translation.hidden_steps:
        canvas.text(x, top + 10, f"and {translation.hidden_steps} more steps", size=SMALL, kind="faint")
    _legend(canvas, bottom + 20, translation)
    return canvas


def _columns(translation: Translation) -> tuple[list[list[Node]], list[int]]:
    """The nodes of each length from top to bottom, so that no lines cross; and how many more there are of each."""
    hypotheses, way = translation.hypotheses, translation.lineage()
    root = Node(hypotheses[0], [translation.words(translation.record["prompt"]), "log P = 0"], None, STRAIGHT)
    columns, more = [[root]], [0]
    for step in translation.steps:
        parents = {node.hypothesis["id"]: (place, node) for place, node in enumerate(columns[-1])}
        kept = [each for each in step["candidates"] if each["fate"] != "dropped"]
        dropped = [each for each in step["candidates"] if each["fate"] == "dropped"]
        shown = sorted(
            kept + dropped[:DROPPED], key=lambda each: (parents[each["parent"]][0], -each["total"], each["hypothesis"])
        )
        if not shown:
            break
        column = []
        for each in shown:
            hypothesis = hypotheses[each["hypothesis"]]
            weight = STRAIGHT if hypothesis["id"] in way else 1.0
            column.append(Node(hypothesis, _lines(translation, hypothesis), parents[each["parent"]][1], weight))
        columns.append(column)
        more.append(len(dropped[DROPPED:]))
    return columns, more


def _lines(translation: Translation, hypothesis: dict[str, Any]) -> list[str]:
    lines = [shorten(translation.word(hypothesis["token"]), LONGEST), number(hypothesis["log_prob"])]
    if hypothesis["fate"] in ("live", "dropped"):
        return lines
    lines[1] += f" / {number(hypothesis['penalty'])}"
    lines.append(f"= {number(hypothesis['score'])}")
    cut_off = ["cut off"] if translation.is_cut_off(hypothesis) else []
    return lines + cut_off + (["winner"] if hypothesis["fate"] == "winner" else [])


def _settle(column: Sequence[Node]) -> None:
    """Each node as near to its parent's height as the others allow, in the order that they have.

    What would overlap is moved together, to where it is nearest on the whole: isotonic regression.
    """
    offsets, at = [], 0.0
    for node in column:
        offsets.append(at + node.height / 2)
        at += node.height + APART
    blocks: list[tuple[float, float, int]] = []  # where it begins, its weight, how many nodes
    for node, offset in zip(column, offsets, strict=True):
        block = (node.parent.y if node.parent else 0.0) - offset, node.weight, 1
        while blocks and blocks[-1][0] > block[0]:
            above = blocks.pop()
            weight = above[1] + block[1]
            block = (above[0] * above[1] + block[0] * block[1]) / weight, weight, above[2] + block[2]
        blocks.append(block)
    starts = [start for start, _, count in blocks for _ in range(count)]
    for node, start, offset in zip(column, starts, offsets, strict=True):
        node.y = start + offset


def _draw(canvas: Canvas, node: Node, on_the_way: bool) -> None:
    """The box, and the line from its parent's."""
    hypothesis, box, fate = node.hypothesis, node.box, node.hypothesis["fate"]
    faint = fate == "dropped"
    if node.parent:
        color, opacity, width = (INK, 1.0, 2.4) if on_the_way else (FAINT, 0.45 if faint else 0.9, 1.1)
        ids = {"parent": node.parent.hypothesis["id"], "child": hypothesis["id"]}
        canvas.curve(node.parent.box.right, box.left, color, opacity, width, True, **ids)
    tint = {"winner": "dark", "finished": "softmax", "cut off": "tokens"}.get(fate, "plain")
    line = "thin dashed" if faint else "strong" if on_the_way else ""
    ink = "light" if fate == "winner" else "faint" if faint else ""
    with canvas.group(**{"class": "hypothesis", "data-hypothesis": hypothesis["id"], "data-fate": fate}):
        canvas.rectangle(box.x, box.y, box.width, box.height, tint, 5, line)
        for i, text in enumerate(node.lines):
            size, kind = (13.0, "bold" if on_the_way else "") if i == 0 else (TINY, "number" if i < 3 else "bold")
            canvas.text(box.top[0], box.y + 17 + i * 14, text, size, "middle", f"{kind} {ink}".strip())


def _heading(canvas: Canvas, x: float, y: float, length: int, penalty: float) -> None:
    canvas.text(
        x, y, str(length) if length else "length", size=12, anchor="middle", kind="bold" if length else "faint"
    )
    kind = "number faint" if length else "faint"
    canvas.text(x, y + 15, number(penalty) if length else "penalty", size=TINY, anchor="middle", kind=kind)


def _legend(canvas: Canvas, y: float, translation: Translation) -> None:
    way = translation.lineage()
    fates = {each["fate"] for each in translation.hypotheses if each["id"] not in way}
    notes = [
        ("plain", "strong", "the way to the winner", True),
        ("plain", "", "lived on", "live" in fates),
        ("softmax", "", "ended: log P / penalty = score", "finished" in fates),
        ("tokens", "", "cut off at the limit", "cut off" in fates),
        ("plain", "thin dashed", "dropped: the best of each step, the others are counted", "dropped" in fates),
    ]
    x = 0.0
    for tint, line, text, there in notes:
        if there:
            canvas.rectangle(x, y, 22, 14, tint, 4, line)
            canvas.text(x + 30, y + 11, text, size=SMALL, kind="faint")
            x += text_width(text, SMALL) + 60
