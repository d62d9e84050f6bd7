"""Candidates, parents and fates of a search, worked out from what was seen of it; `search` says what each field is."""

import math
from typing import Any

import torch

from .sentences import TOP
from .settings import Settings


class Tree:
    """The hypotheses of one search, grown step by step from `prompt`, the ids that the decoder starts with."""

    def __init__(self, settings: Settings, prompt: list[int]):
        self.settings, self.prompt = settings, prompt
        self.hypotheses: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self._ids: dict[tuple[int, ...], int] = {}  # by tokens: no two hypotheses have the same
        self._add(None, None, prompt, 0.0, "dropped")

    def _add(self, parent: int | None, step: int | None, tokens: list[int], log_prob: float, fate: str) -> int:
        made = tokens[len(self.prompt) :]
        penalty = self.settings.penalty(len(made))
        place = {"id": len(self.hypotheses), "parent": parent, "step": step, "token": tokens[-1], "tokens": made}
        numbers = {"log_prob": log_prob, "length": len(made), "penalty": penalty, "score": log_prob / penalty}
        self.hypotheses.append({**place, **numbers, "fate": fate})
        return self._ids.setdefault(tuple(tokens), len(self.hypotheses) - 1)

    def grow(
        self,
        rows: list[list[int]],
        candidates: list[list[int]],
        fed: list[list[int]],
        cache_length: int,
        log_probs: torch.Tensor,
    ) -> None:
        """One step: the ids in each row of the batch and of each candidate, and of all words log p [rows, words]."""
        index = len(self.steps)
        # A row without a hypothesis repeats another one, or one that has ended.
        live: dict[int, int] = {}
        for row, tokens in enumerate(rows):
            found = self._ids.get(tuple(tokens))
            ended = index > 0 and tokens[-1] in self.settings.ends
            if found is not None and found not in live and not ended:
                live[found] = row
                self.hypotheses[found]["fate"] = "live"
        chosen = []
        for place, tokens in enumerate(candidates):
            parent, token = self._ids.get(tuple(tokens[:-1])), tokens[-1]
            if parent is None or parent not in live or tuple(tokens) in self._ids:
                continue  # it goes on from a row without a hypothesis
            log_prob = log_probs[live[parent], token]
            if log_prob.isinf():
                continue  # it may not be, and only fills a place
            total = float(self.hypotheses[parent]["log_prob"] + log_prob)  # in float32, as the search adds it up
            # The stock search takes an end only from one of the k best candidates.
            counts = self.settings.search == "paper" or place < self.settings.beams
            fate = "finished" if token in self.settings.ends and counts else "dropped"
            added = self._add(parent, index, tokens, total, fate)
            numbers = {"log_prob": float(log_prob), "total": total}
            numbers |= {name: self.hypotheses[added][name] for name in ("penalty", "score")}
            chosen.append({"parent": parent, "token": token, **numbers, "fate": fate, "hypothesis": added})
        self.steps.append(
            {
                "length": index,
                "fed": [fed[row] for row in live.values()],
                "cache_length": cache_length,
                "live": list(live),
                "top": [_top(log_probs[row]) for row in live.values()],
                "candidates": chosen,
            }
        )

    def finish(self, limit: int, winner_tokens: list[int], winner_score: float | None) -> int:
        """The last fates, given what `generate()` returned; the winner's id.

        Raises:
            RuntimeError: what was seen does not lead to what was returned: the record would be wrong.
        """
        if len(self.steps) >= limit:
            self._cut_off()
        for candidate in (candidate for step in self.steps for candidate in step["candidates"]):
            if self.hypotheses[candidate["hypothesis"]]["fate"] in ("live", "cut off"):
                candidate["fate"] = "live"
        winner = self._ids.get((*self.prompt, *winner_tokens))
        if winner is None or self.hypotheses[winner]["fate"] not in ("finished", "cut off"):
            raise RuntimeError(f"generate() returned {winner_tokens}, which was not seen to finish")
        score = self.hypotheses[winner]["score"]
        if winner_score is not None and not math.isclose(score, winner_score, rel_tol=1e-4, abs_tol=1e-5):
            raise RuntimeError(f"generate() scored its answer {winner_score}, and what was seen makes {score}")
        self.hypotheses[winner]["fate"] = "winner"
        return winner

    def _cut_off(self) -> None:
        """At the limit the stock search takes the k best candidates, ended or not; the paper's, k that have not."""
        candidates = self.steps[-1]["candidates"]
        count = self.settings.beams
        if self.settings.search == "stock":
            count -= sum(candidate["fate"] == "finished" for candidate in candidates)
        left = [each["hypothesis"] for each in candidates if each["token"] not in self.settings.ends]
        for hypothesis in left[:count]:
            self.hypotheses[hypothesis]["fate"] = "cut off"


def _top(log_probs: torch.Tensor) -> list[dict[str, Any]]:
    best = log_probs.topk(min(TOP, len(log_probs)))
    pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
    return [{"token": token, "probability": probability} for token, probability in pairs if probability > 0]
