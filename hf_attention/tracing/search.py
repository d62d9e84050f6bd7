"""Records how the model translates: greedy or beam search, step by step.

The search itself is `generate()`'s, one source at a time; nothing of it is written here once more. It is watched
through what `generate()` offers to everybody: a logits processor is shown the live hypotheses of every step, a
stopping criterion the candidates, a forward hook what the decoder is fed and what its cache holds; the output has the
log-probabilities, before and after what changes them, and the winner.

`record_searches` gives plain data, as JSON holds it, for each source:

    search      "paper" (§6.1) or "stock", the library's
    beams       k; 1 is greedy search
    alpha       α of the length penalty: ((5 + length) / 6)^α, in the stock search length^α; 0 in stock greedy search
    limit       the most tokens that may be generated
    adjusted    {option: value} of `generate()`'s options that change log-probabilities, such as repetition_penalty, if
                those of this run are not the model's own; otherwise {}. All probabilities and log_probs below are what
                the search went by: where `adjusted` is not empty, numbers that need not add up to 1
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

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from ..generation import cross_attentions
from .hooks import in_mode
from .sentences import Sentences
from .settings import Settings
from .trace import TracedTensor
from .tree import Tree


Output = GenerateBeamEncoderDecoderOutput | GenerateEncoderDecoderOutput

EVERYTHING = dict.fromkeys(("return_dict_in_generate", "output_scores", "output_logits", "output_attentions"), True)


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


def translations(searches: list[dict[str, Any]], ends: set[int], end: int) -> list[list[int]]:
    """The winners as target ids. One that was cut off, with none of the `ends`, gets `end`, too."""
    found = [search["tokens"] for search in searches]
    return [tokens if tokens[-1] in ends else [*tokens, end] for tokens in found]


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


def _record(settings: Settings, limit: int, seen: Observer, output: Output, winner: list[int]) -> dict[str, Any]:
    tree = Tree(settings, seen.rows[0][0])
    adjusted = False
    # On Apple's GPUs the stock greedy search runs a step too far, and takes that back from its output.
    computed = output.scores or (), output.logits or ()
    steps = zip(seen.rows, seen.candidates, seen.fed, seen.cached, *computed, strict=False)
    for rows, candidates, fed, cached, scores, logits in steps:
        log_probs = scores.float().cpu()  # [rows, words]
        if settings.search == "stock" and settings.beams == 1:
            log_probs = log_probs.log_softmax(-1)  # stock greedy search compares logits
        own = logits.float().cpu().log_softmax(-1)
        adjusted = adjusted or not torch.allclose(log_probs, own, rtol=1e-5, atol=1e-6, equal_nan=True)
        tree.grow(rows, candidates, fed, cached, log_probs)
    scored = output.get("sequences_scores")
    return {
        "search": settings.search,
        "beams": settings.beams,
        "alpha": settings.alpha,
        "limit": limit,
        "adjusted": settings.adjusting() if adjusted else {},
        "prompt": tree.prompt,
        "steps": tree.steps,
        "hypotheses": tree.hypotheses,
        "winner": tree.finish(limit, winner, None if scored is None else float(scored[0])),
        "tokens": winner,
    }


def _generate(model: PreTrainedModel, arguments: dict[str, Any]) -> Output:
    generate: Any = model.generate
    return generate(**{**arguments, **EVERYTHING})


def _source(sentences: Sentences, index: int) -> dict[str, torch.Tensor]:
    batch = sentences.batch(slice(index, index + 1))
    return {name: batch[name] for name in ("input_ids", "attention_mask")}
