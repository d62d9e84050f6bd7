"""A translation as it was searched for: a time line of its steps here, the tree of its hypotheses in `beams`."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ..tracing.trace import Trace
from .beams import tree
from .canvas import Canvas
from .translation import Translation
from .writing import number, probability, shorten, text_width


ROW, SMALL = 26.0, 11.0
NUMBER, CACHED, READ, TOTAL, ADJUSTED = 44.0, 70.0, 230.0, 84.0, 112.0  # widths of the columns
CELL, CELL_HEIGHT, GAP, ACROSS = 142.0, 20.0, 6.0, 5  # of a candidate; how many stand in a row
FINISHED = 5  # so many of those that have ended are compared below


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    found: dict[str, Callable[..., Canvas]] = {}
    for index in range(len(trace.info["searches"])):
        found[f"search.{index}.steps"] = partial(steps, trace, index)
        found[f"search.{index}.tree"] = partial(tree, trace, index)
    return found


def steps(trace: Trace, index: int) -> Canvas:
    """What the decoder was fed in each step, what its cache held, what it thought likely, and what lived on."""
    translation = Translation(trace, index)
    canvas = Canvas(f"{translation.title}, step by step", f"The winner: {translation.result}.")
    TimeLine(canvas, translation).draw()
    return canvas


class TimeLine:
    """A row for each live hypothesis of each step."""

    def __init__(self, canvas: Canvas, translation: Translation):
        self.canvas, self.translation = canvas, translation
        self.best = translation.lineage()
        self.lines: set[str] = set()  # the kinds of edges that occur
        self.read = NUMBER + CACHED
        self.total = self.read + READ
        self.top = self.total + (ADJUSTED if translation.adjusted else TOTAL)

    def draw(self) -> None:
        canvas, y = self.canvas, self.translation.head(self.canvas) + 34
        log_p, best = "log P so far", "the most probable next tokens"
        if self.translation.adjusted:
            log_p, best = "adjusted log P", "the best next tokens, each with e^(its adjusted log P)"
        heads = [
            (0.0, "start", "step"),
            (self.read - 20, "end", "in cache"),
            (self.total - 14, "end", "read before · fed now"),
            (self.top - 20, "end", log_p),
            (self.top, "start", f"{best}, and what becomes of them"),
        ]
        for x, anchor, text in heads:
            canvas.text(x, y, text, size=SMALL, anchor=anchor, kind="faint")
        y += 12
        for place, step in enumerate(self.translation.steps):
            y = self._step(place, step, y)
        if self.translation.hidden_steps:
            canvas.text(0, y + 16, f"and {self.translation.hidden_steps} more steps", size=SMALL, kind="faint")
            y += 22
        self._legend(y + 14)
        self._finished(y + 64)

    def _step(self, index: int, step: dict[str, Any], y: float) -> float:
        """One step from `y` down; returns where it ends."""
        canvas = self.canvas
        rows = [self._options(step, row) for row in range(len(step["live"]))]
        height = ROW * sum(-(-len(row) // ACROSS) for row in rows) + 8
        width = self.top + ACROSS * (CELL + GAP) - GAP + 10
        canvas.rectangle(-10, y, width + 10, height, "stack" if index % 2 == 0 else "plain", 4, "bare")
        with canvas.group(**{"class": "step", "data-step": index}):
            canvas.text(0, y + 22, str(index + 1), size=14, kind="bold")
            canvas.text(self.read - 20, y + 22, str(step["cache_length"]), size=12, anchor="end", kind="number")
            for row, options in enumerate(rows):
                self._row(index, row, options, y + 4)
                y += ROW * -(-len(options) // ACROSS)
        return y + 8

    def _row(self, index: int, row: int, options: list[dict[str, Any]], y: float) -> None:
        canvas, translation = self.canvas, self.translation
        steps = translation.record["steps"]
        following = steps[index + 1]["live"] if index + 1 < len(steps) else []
        step = steps[index]
        hypothesis = translation.hypotheses[step["live"][row]]
        fed = step["fed"][row]
        before = translation.tokens(hypothesis["id"])[: -len(fed)]
        word = shorten(translation.words(fed), READ - 60, 12)
        width = text_width(word, 12) + 10
        left = self.total - 14 - width
        canvas.rectangle(left, y + 3, width, CELL_HEIGHT, "tokens", 4, "thin")
        canvas.text(left + width / 2, y + 17, word, size=12, anchor="middle")
        shown = list(map(translation.word, before))
        while shown and text_width(" ".join(["…", *shown]), 12) > left - self.read - 20:
            shown = shown[1:]
        text = " ".join(["…", *shown] if len(shown) < len(before) else shown)
        canvas.text(left - 6, y + 17, text, size=12, anchor="end", kind="faint")
        if len(step["live"]) > 1:
            canvas.text(self.read, y + 17, f"{row + 1}", size=SMALL, kind="faint")
        canvas.text(self.top - 20, y + 17, number(hypothesis["log_prob"]), size=SMALL, anchor="end", kind="number")
        for place, option in enumerate(options):
            x = self.top + place % ACROSS * (CELL + GAP)
            self._option(option, following, x, y + 3 + place // ACROSS * ROW)

    def _options(self, step: dict[str, Any], row: int) -> list[dict[str, Any]]:
        """The best tokens of a row, and those that survive though they are not among them: {token, probability, fate}.

        `fate` is that of the hypothesis they make, "" where they make none; `hypothesis` its id, or None.
        """
        parent = step["live"][row]
        made = {each["token"]: each for each in step["candidates"] if each["parent"] == parent}
        options = [dict(option) for option in step["top"][row]]
        for token, each in made.items():
            if each["fate"] != "dropped" and token not in {option["token"] for option in options}:
                options.append({"token": token, "probability": math.exp(each["log_prob"])})
        for option in options:
            candidate = made.get(option["token"])
            option["hypothesis"] = candidate and candidate["hypothesis"]
            option["fate"] = self.translation.hypotheses[option["hypothesis"]]["fate"] if candidate else ""
        return options

    def _option(self, option: dict[str, Any], following: list[int], x: float, y: float) -> None:
        """A token, its probability as a number and as a bar, and what becomes of it."""
        canvas, fate = self.canvas, option["fate"]
        alive = fate not in ("", "dropped")
        mark = {"finished": "ended", "winner": "winner", "cut off": "limit"}.get(fate, "")
        if fate == "live":
            mark = f"→ {following.index(option['hypothesis']) + 1}" if len(following) > 1 else "→"
        line = {"": "bare", "dropped": "thin dashed"}.get(fate, "strong" if option["hypothesis"] in self.best else "")
        data = {"token": option["token"], "probability": f"{option['probability']:.7g}", "fate": fate}
        with canvas.group(**{"class": "option", **{f"data-{name}": value for name, value in data.items()}}):
            if line != "bare":
                canvas.rectangle(x, y, CELL, CELL_HEIGHT, "plain", 4, line)
            if option["probability"] * CELL > 3:
                bar = option["probability"] * (CELL - 3)
                canvas.rectangle(x + 1.5, y + CELL_HEIGHT - 4.5, bar, 3, "dark", 1, "bare")
            kind = "" if alive else "faint"
            written = probability(option["probability"])
            room = 90 - text_width(written, 10, "number")
            canvas.text(x + 6, y + 13, shorten(self.translation.word(option["token"]), room, 12), size=12, kind=kind)
            canvas.text(x + 100, y + 13, written, 10, "end", f"number {kind}".strip())
            if mark:
                canvas.text(x + CELL - 5, y + 13, mark, size=9.5, anchor="end")
        self.lines.add(line)

    def _legend(self, y: float) -> None:
        """Of the edges that occur."""
        notes = {
            "": "lives on, as that row of the next step, or has ended",
            "strong": "the way to the winner",
            "thin dashed": "considered, and dropped",
            "bare": "below the best of all rows" if self.translation.record["beams"] > 1 else "not the best",
        }
        x = 0.0
        for line, note in notes.items():
            if line in self.lines:
                if line == "bare":
                    self.canvas.text(x, y + 11, "abc", size=12, kind="faint")
                else:
                    self.canvas.rectangle(x, y, 22, 14, "plain", 4, line)
                self.canvas.text(x + 30, y + 11, note, size=SMALL, kind="faint")
                x += text_width(note, SMALL) + 60

    def _finished(self, y: float) -> None:
        """The best of those that have ended, and how their scores came about."""
        canvas, found = self.canvas, self.translation.finished()
        canvas.text(0, y, "Ended" if len(found) > 1 else "Result", size=12, kind="bold")
        canvas.text(self.top, y, self.translation.formula, size=SMALL, kind="faint")
        for hypothesis in found[:FINISHED]:
            y += 20
            kind = "bold" if hypothesis["fate"] == "winner" else ""
            text = shorten(self.translation.words(hypothesis["tokens"]), self.top - 30, 12)
            canvas.text(0, y, text, size=12, kind=kind)
            canvas.text(self.top, y, self.translation.sum(hypothesis), size=SMALL, kind=f"number {kind}".strip())
        if len(found) > FINISHED:
            canvas.text(0, y + 20, f"and {len(found) - FINISHED} more", size=SMALL, kind="faint")
