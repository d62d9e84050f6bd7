"""One translation out of a trace's searches, in the words that its figures share."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..tracing.trace import Trace
from .canvas import Canvas
from .writing import number, shorten


MOST_STEPS = 40  # of a longer search, as many first steps are drawn
WIDE, OPTION = 760.0, 240.0  # pixels: of the headings, of an option in them


class Translation:
    """Translation `index` of a trace; see `tracing.search` for what `record` holds."""

    def __init__(self, trace: Trace, index: int):
        self.index = index
        self.record: dict[str, Any] = trace.info["searches"][index]
        self.hypotheses: list[dict[str, Any]] = self.record["hypotheses"]
        self.steps: list[dict[str, Any]] = self.record["steps"][:MOST_STEPS]
        self.winner = self.hypotheses[self.record["winner"]]
        self._trace = trace

    @property
    def title(self) -> str:
        beams = self.record["beams"]
        return f"Translation {self.index}: " + (f"beam search, k = {beams}" if beams > 1 else "greedy search")

    @property
    def formula(self) -> str:
        alpha = self.record["alpha"]
        if not alpha:
            return "score = log P"
        penalty = "((5 + length) / 6)" if self.record["search"] == "paper" else "length"
        return f"score = log P / {penalty}" + (f"^{alpha:g}" if alpha != 1 else "")

    @property
    def adjusted(self) -> str:
        """`repetition_penalty=1.8, ...`: what made probabilities and log P others than the model's own, or nothing."""
        return ", ".join(shorten(f"{name}={value}", OPTION, 11) for name, value in self.record["adjusted"].items())

    @property
    def result(self) -> str:
        return f"{self.record['text']} ({self.sum(self.winner)})"

    def sum(self, hypothesis: dict[str, Any]) -> str:
        """How its score came about."""
        parts = (number(hypothesis[name]) for name in ("log_prob", "penalty", "score"))
        return "{} / {} = {}".format(*parts) + (", cut off at the limit" if self.is_cut_off(hypothesis) else "")

    def is_cut_off(self, hypothesis: dict[str, Any]) -> bool:
        """Whether it is over without an end; that happens only at the limit."""
        fate = hypothesis["fate"]
        return fate == "cut off" or (fate == "winner" and hypothesis["id"] not in self._ended)

    @cached_property
    def _ended(self) -> set[int]:
        """The hypotheses that a step saw end, the winner among them if it did."""
        candidates = (candidate for step in self.record["steps"] for candidate in step["candidates"])
        return {each["hypothesis"] for each in candidates if each["fate"] == "finished"}

    def finished(self) -> list[dict[str, Any]]:
        """Those that have ended, the best first; then those that were cut off, as a search takes them only in need."""
        found = [each for each in self.hypotheses if each["fate"] in ("winner", "finished", "cut off")]
        return sorted(found, key=lambda each: (each["fate"] != "winner", each["fate"] == "cut off", -each["score"]))

    @property
    def hidden_steps(self) -> int:
        return len(self.record["steps"]) - len(self.steps)

    def word(self, token: int) -> str:
        return self._trace.token(token)

    def words(self, tokens: Sequence[int]) -> str:
        return " ".join(map(self.word, tokens))

    def tokens(self, hypothesis: int) -> list[int]:
        """All that the decoder reads of it: the prompt, and what has been generated."""
        return [*self.record["prompt"], *self.hypotheses[hypothesis]["tokens"]]

    def lineage(self) -> set[int]:
        """The winner, and what it grew out of."""
        found, at = set(), self.winner["id"]
        while at is not None:
            found.add(at)
            at = self.hypotheses[at]["parent"]
        return found

    def head(self, canvas: Canvas) -> float:
        """Title and rules of the search; the height that they take."""
        source = self._trace.info["sentences"][self.index]["source"]
        canvas.text(0, 0, self.title, size=15, kind="bold")
        canvas.text(0, 21, shorten(f"{source}  →  {self.record['text']}", WIDE, 12), size=12)
        rules = [self.formula, f"length: generated tokens, at most {self.record['limit']}"]
        rules.append({"paper": "the paper's search", "stock": "the library's own search"}[self.record["search"]])
        canvas.text(0, 39, " · ".join(rules), size=11, kind="faint")
        if not self.adjusted:
            return 39
        canvas.text(0, 57, f"after {self.adjusted}, which changed the model's own probabilities", size=11, kind="bold")
        return 57
