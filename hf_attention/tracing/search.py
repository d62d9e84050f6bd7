"""Records how the model translates: greedy or beam search, step by step.

The search itself is `generate()`'s, one source at a time; nothing of it is written here once more. It is watched
through what `generate()` offers to everybody: a logits processor is shown the live hypotheses of every step, a
stopping criterion the candidates, a forward hook what the decoder is fed and what its cache holds; the output has the
log-probabilities and the winner.

`record_searches` gives plain data, as JSON holds it, for each source:

    search      "paper" (§6.1) or "stock", the library's
    beams       k; 1 is greedy search
    alpha       α of the length penalty: ((5 + length) / 6)^α, in the stock search length^α; 0 in stock greedy search
    limit       the most tokens that may be generated
    prompt      ids that the decoder starts with: the start symbol
    steps       [{length, fed, cache_length, live, top, candidates}], one for each call of the decoder:
        length        tokens generated before it
        fed           for each live hypothesis the ids that the decoder was given
        cache_length  target positions that its cache held already
        live          ids of the live hypotheses, in the order of their rows
        top           for each live hypothesis its best next tokens [{token, probability}], the best first
        candidates    [{parent, token, log_prob, total, penalty, score, fate, hypothesis}]: what the step chose from,
                      the best first. log_prob is that of the token, total that of all tokens, score total / penalty;
                      fate is what the step decided: "finished" (ended), "live" (one of the k best others), "dropped"
    hypotheses  [{id, parent, step, token, tokens, log_prob, length, penalty, score, fate}], in order of appearance: 0
                is the prompt, and each candidate is one. tokens are those generated, log_prob their total. fate is
                how it ended: "live" (a step asked what may follow it, though none of that need have been among the
                best), "finished", "dropped" (also where the search stopped as no live hypothesis could win any more),
                "cut off" (at the limit, without an end), or "winner"
    winner      id of the hypothesis that `generate()` returned
    tokens      its ids
    text        its text
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from ..generation import cross_attentions, length_penalty
from ..model.generation_vanilla_transformer import SEARCHES, STOCK_MAX_LENGTH, checked_extra_tokens
from .hooks import in_mode
from .sentences import TOP, Sentences
from .trace import TracedTensor


Output = GenerateBeamEncoderDecoderOutput | GenerateEncoderDecoderOutput

# What `generate()` understands beyond the fields of the library's generation config.
OURS = {"search", "max_extra_tokens"}
# Fields that make it something else than one greedy or beam search, and the value that they do nothing with.
UNSEEN = {
    "do_sample": False,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "use_mtp": False,
    "token_healing": False,
    **dict.fromkeys(("constraints", "force_words_ids", "prompt_lookup_num_tokens", "assistant_early_exit")),
    **dict.fromkeys(("dola_layers", "stop_strings", "max_time")),
}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True}


def translations(model: PreTrainedModel, sentences: Sentences, generation: dict[str, Any]) -> list[list[int]]:
    """The model's own translations of the sources, as target ids; one that was cut off gets an end, too.

    Raises:
        ValueError: options in `generation` that a trace can't follow.
    """
    ends = Settings(model, generation).ends
    found = []
    with in_mode(model, training=False):
        for i in range(len(sentences.sources)):
            output = _generate(model, {**_source(sentences, i), **generation})
            tokens = cross_attentions(output)[1].tolist()
            found.append(tokens if tokens[-1] in ends else [*tokens, model.config.eos_token_id])
    return found


def record_searches(
    model: PreTrainedModel, sentences: Sentences, generation: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[TracedTensor]]:
    """A record for each source, and the winner's cross-attention `search.<i>.cross_attention` [N, H, T, S].

    `generation` are options of `generate()` that go before the model's generation config. Attention is computed as by
    `eager`, since no other implementation shows its weights. Nothing random happens.

    Raises:
        ValueError: options that a trace can't follow: sampling, a prompt, another model's help.
    """
    settings = Settings(model, generation)
    searches, tensors = [], []
    with in_mode(model, training=False):
        for i, source in enumerate(sentences.sources):
            seen = Observer()
            output = seen.watch(model, {**_source(sentences, i), **generation})
            weights, winner = cross_attentions(output)
            search = _record(settings, settings.limit(len(source)), seen, output, winner.tolist())
            searches.append({**search, "text": sentences.text(search["tokens"])})
            name, symbol = f"search.{i}.cross_attention", "softmax(Q_i K_iᵀ/√d_k) of each layer and head"
            tensors.append(TracedTensor(name, ("N", "H", "T", "S"), symbol, weights.detach().cpu()))
    return searches, tensors


class Settings:
    """How `generate()` will search, asked where it looks itself: the call's options, then the model's config.

    Raises:
        ValueError: options that a trace can't follow.
    """

    def __init__(self, model: PreTrainedModel, generation: dict[str, Any]):
        unknown = sorted(set(generation) - OURS - {name for name in vars(GenerationConfig()) if name[0] != "_"})
        if unknown:
            raise ValueError(
                f"{unknown[0]} is no option of a search that can be traced, wanted fields of a generation config, "
                "such as num_beams or max_new_tokens"
            )
        self._given, self._model = generation, model
        self._config = copy.deepcopy(model.generation_config)
        self._config.update(**generation)
        for name, neutral in UNSEEN.items():
            value = getattr(self._config, name, None)
            if value is not None and value != neutral:
                raise ValueError(
                    f"{name} is {value!r}, wanted {neutral!r}: a trace follows plain greedy and beam search only"
                )
        self.search = self._asked("search", "stock")
        if self.search not in SEARCHES:
            raise ValueError(f"search is {self.search!r}, wanted one of {', '.join(SEARCHES)}")
        self.beams = self._asked("num_beams", 1)
        if not isinstance(self.beams, int) or isinstance(self.beams, bool) or self.beams < 1:
            raise ValueError(f"num_beams is {self.beams!r}, wanted a whole number from 1 on")
        # The stock greedy search has one hypothesis and compares it with none.
        self.alpha = 0.0 if self.search == "stock" and self.beams == 1 else float(self._asked("length_penalty", 1.0))
        ends = self._config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def limit(self, source_length: int) -> int:
        """The most tokens that may be generated for a source of so many tokens."""
        max_new_tokens, max_length = self._asked("max_new_tokens"), self._asked("max_length")
        unset = max_length is None or (
            # Written into many a config by the library, without anybody's having asked for it.
            self.search == "paper" and max_length == STOCK_MAX_LENGTH and self._given.get("max_length") is None
        )
        absolute = None if unset else max_length - 1  # less the start symbol
        if max_new_tokens is not None:
            absolute = max_new_tokens
        if self.search == "paper":
            room = max(1, source_length + checked_extra_tokens(self._asked("max_extra_tokens")))
            return room if absolute is None else min(room, absolute)
        if absolute is None:
            return min(STOCK_MAX_LENGTH + 1, self._model.config.max_position_embeddings) - 1
        return absolute

    def penalty(self, length: int) -> float:
        """What log P of a hypothesis of `length` generated tokens is divided by."""
        if length == 0:
            return 1.0
        return float(length_penalty(length, self.alpha) if self.search == "paper" else length**self.alpha)

    def _asked(self, name: str, default: Any = None) -> Any:
        found = (self._given.get(name), getattr(self._config, name, None))
        return next((value for value in found if value is not None), default)


@dataclass
class Observer:
    """What was seen of one call of `generate()`, a list item for each step."""

    rows: list[list[list[int]]] = field(default_factory=list)  # ids of each row of the decoder's batch
    candidates: list[list[list[int]]] = field(default_factory=list)  # ids of each candidate, the best first
    fed: list[list[list[int]]] = field(default_factory=list)  # ids given to the decoder, for each row
    cached: list[int] = field(default_factory=list)  # positions held by the cache before

    def watch(self, model: PreTrainedModel, arguments: dict[str, Any]) -> Output:
        def before(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            cache = kwargs.get("cache")
            self.fed.append(kwargs["decoder_input_ids"].tolist())
            self.cached.append(0 if cache is None else int(cache.get_seq_length()))

        handle = model.register_forward_pre_hook(before, with_kwargs=True)
        shown: dict[str, Any] = {"logits_processor": LogitsProcessorList([_Rows(self)])}
        shown["stopping_criteria"] = StoppingCriteriaList([_Candidates(self)])
        try:
            return _generate(model, {**arguments, **shown})
        finally:
            handle.remove()


class _Rows(LogitsProcessor):
    """Is shown the hypotheses before each step, and changes nothing."""

    def __init__(self, seen: Observer):
        self.seen = seen

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self.seen.rows.append(input_ids.tolist())
        return scores


class _Candidates(StoppingCriteria):
    """Is shown the hypotheses after each step, and stops none."""

    def __init__(self, seen: Observer):
        self.seen = seen

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> Any:
        self.seen.candidates.append(input_ids.tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _record(
    settings: Settings, limit: int, seen: Observer, output: Output, winner_tokens: list[int]
) -> dict[str, Any]:
    """Candidates, parents and fates, out of what was seen; checked against what `generate()` returned."""
    prompt = seen.rows[0][0]
    hypotheses: list[dict[str, Any]] = []
    ids: dict[tuple[int, ...], int] = {}  # of hypotheses, by their tokens: no two have the same

    def add(parent: int | None, step: int | None, tokens: list[int], log_prob: float, fate: str) -> int:
        made, penalty = tokens[len(prompt) :], settings.penalty(len(tokens) - len(prompt))
        place = {"id": len(hypotheses), "parent": parent, "step": step, "token": tokens[-1], "tokens": made}
        numbers = {"log_prob": log_prob, "length": len(made), "penalty": penalty, "score": log_prob / penalty}
        hypotheses.append({**place, **numbers, "fate": fate})
        return ids.setdefault(tuple(tokens), len(hypotheses) - 1)

    add(None, None, prompt, 0.0, "dropped")
    steps = []
    for index, scores in enumerate(output.scores or ()):
        log_probs = scores.float().cpu()  # [rows, words]
        if settings.search == "stock" and settings.beams == 1:
            log_probs = log_probs.log_softmax(-1)  # stock greedy search compares logits
        # A row without a hypothesis repeats another one, or one that has ended.
        rows: dict[int, int] = {}
        for row, tokens in enumerate(seen.rows[index]):
            found = ids.get(tuple(tokens))
            ended = index > 0 and tokens[-1] in settings.ends
            if found is not None and found not in rows and not ended:
                rows[found] = row
                hypotheses[found]["fate"] = "live"
        step: dict[str, Any] = {"length": index, "fed": [seen.fed[index][row] for row in rows.values()]}
        step |= {"cache_length": seen.cached[index], "live": list(rows)}
        step |= {"top": [_top(log_probs[row]) for row in rows.values()], "candidates": []}
        for place, tokens in enumerate(seen.candidates[index]):
            parent, token = ids.get(tuple(tokens[:-1])), tokens[-1]
            if parent is None or parent not in rows or tuple(tokens) in ids:
                continue  # it goes on from a row without a hypothesis
            log_prob = log_probs[rows[parent], token]
            if log_prob.isinf():
                continue  # it may not be, and only fills a place
            total = float(hypotheses[parent]["log_prob"] + log_prob)  # in float32, as the search adds it up
            # The stock search takes an end only from one of the k best candidates.
            ended = token in settings.ends
            counts = settings.search == "paper" or place < settings.beams
            added = add(parent, index, tokens, total, "finished" if ended and counts else "dropped")
            numbers = {name: hypotheses[added][name] for name in ("penalty", "score")}
            step["candidates"].append(
                {"parent": parent, "token": token, "log_prob": float(log_prob), "total": total, **numbers}
                | {"fate": "finished" if ended and counts else "dropped", "hypothesis": added}
            )
        steps.append(step)

    if len(steps) >= limit:
        left = [each["hypothesis"] for each in steps[-1]["candidates"] if each["token"] not in settings.ends]
        # At the limit the stock search takes the k best candidates, ended or not; the paper's keeps k that have not.
        count = settings.beams
        if settings.search == "stock":
            count -= sum(hypotheses[each["hypothesis"]]["fate"] == "finished" for each in steps[-1]["candidates"])
        for hypothesis in left[:count]:
            hypotheses[hypothesis]["fate"] = "cut off"
    for step in steps:
        for candidate in step["candidates"]:
            if hypotheses[candidate["hypothesis"]]["fate"] in ("live", "cut off"):
                candidate["fate"] = "live"
    winner = _checked_winner(ids.get((*prompt, *winner_tokens)), hypotheses, output)
    hypotheses[winner]["fate"] = "winner"
    return {
        "search": settings.search,
        "beams": settings.beams,
        "alpha": settings.alpha,
        "limit": limit,
        "prompt": prompt,
        "steps": steps,
        "hypotheses": hypotheses,
        "winner": winner,
        "tokens": winner_tokens,
    }


def _top(log_probs: torch.Tensor) -> list[dict[str, Any]]:
    best = log_probs.topk(min(TOP, len(log_probs)))
    pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
    return [{"token": token, "probability": probability} for token, probability in pairs if probability > 0]


def _checked_winner(winner: int | None, hypotheses: list[dict[str, Any]], output: Output) -> int:
    """The hypothesis that `generate()` returned, with the score that it gave; else the record would be wrong."""
    if winner is None or hypotheses[winner]["fate"] not in ("finished", "cut off"):
        raise RuntimeError(f"generate() returned {output.sequences[0].tolist()}, which was not seen to finish")
    returned = output.get("sequences_scores")
    score = hypotheses[winner]["score"]
    if returned is not None and not math.isclose(score, float(returned[0]), rel_tol=1e-4, abs_tol=1e-5):
        raise RuntimeError(f"generate() scored its answer {float(returned[0])}, and what was seen makes {score}")
    return winner


def _generate(model: PreTrainedModel, arguments: dict[str, Any]) -> Output:
    generate: Any = model.generate
    return generate(**{**arguments, **EVERYTHING})


def _source(sentences: Sentences, index: int) -> dict[str, torch.Tensor]:
    batch = sentences.batch(slice(index, index + 1))
    return {name: batch[name] for name in ("input_ids", "attention_mask")}
