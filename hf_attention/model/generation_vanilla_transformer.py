"""The paper's beam search (§6.1, after Wu et al. 2016), for `generate()` of any encoder-decoder.

A decoder predicts one token at a time, so a translation is searched for from left to right. Each sentence has k live
hypotheses, equally long. A step predicts what may follow them and takes the best candidates of all k together. Those
that end join the list of finished ones; the best k of the others live on. Finished hypotheses compete by

    score = log P(target | source) / ((5 + length) / 6)^α           (Wu et al., Equation 14, without its coverage term)

where length counts the generated tokens, the end included, the start symbol not. Without the division short targets
would always win, as every further token costs probability. The stock search divides by length^α: for the same α, a
much stronger reward for length.

A sentence is done when its best live hypothesis can't beat the last of those that would be returned: its log P can
only fall, and the most that length can still do for it is the penalty at its limit. The limit is the source's length
plus 50, for each sentence of a batch its own.

Two ways in, both by `custom_generate`, which `generate()` documents for decoding loops of one's own:

    model.generate(**batch, search="paper", num_beams=4, length_penalty=0.6)  # our model; or in its generation_config
    marian.generate(**batch, custom_generate=beam_search, num_beams=4, length_penalty=0.6)  # any encoder-decoder

Shapes: B sentences in the batch, k beams, C candidates, N hypotheses, L tokens so far, the start symbol included, V
the vocabulary. A row is a place in the model's batch: `sentence · k + beam`.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateBeamEncoderDecoderOutput


SEARCHES = ("paper", "stock")
EXTRA_TOKENS = 50  # §6.1: "maximum output length during inference to input length + 50"
# The limit that `generate()` takes when nobody has set one, and that the stock Trainer writes into the model's config.
STOCK_MAX_LENGTH = 20
NONE = -torch.inf  # the score of a place that holds no hypothesis


def length_penalty(length: Any, alpha: float) -> Any:
    """Wu et al. 2016, Equation 14: ((5 + length) / 6)^α, for one length or a tensor of them; 1 at length 1."""
    return ((5 + length) / 6) ** alpha


@dataclass(eq=False)
class Hypotheses:
    """N hypotheses for each of B sentences."""

    tokens: torch.Tensor  # [B, N, L], padded behind the end
    rows: torch.Tensor  # [B, N, generated]: the row that predicted each token, -1 behind the end
    scores: torch.Tensor  # [B, N]: log P of live hypotheses, divided by the penalty of finished ones

    def take(self, places: torch.Tensor) -> "Hypotheses":
        """Of each sentence the hypotheses at `places` [B, M], in that order."""
        sentence = torch.arange(len(places), device=places.device)[:, None]
        return Hypotheses(self.tokens[sentence, places], self.rows[sentence, places], self.scores[sentence, places])

    def best(self, count: int) -> "Hypotheses":
        return self.take(self.scores.topk(count).indices)

    def scored(self, scores: torch.Tensor) -> "Hypotheses":
        return replace(self, scores=scores)

    def grown(self, token: Any, row: Any) -> "Hypotheses":
        """One token longer; `token` and `row` are [B, N], or a number for all."""
        token, row = (torch.as_tensor(part, device=self.rows.device).expand_as(self.scores) for part in (token, row))
        tokens = torch.cat([self.tokens, token[..., None]], dim=-1)
        return replace(self, tokens=tokens, rows=torch.cat([self.rows, row[..., None]], dim=-1))

    def of(self, sentences: torch.Tensor) -> "Hypotheses":
        return Hypotheses(self.tokens[sentences], self.rows[sentences], self.scores[sentences])

    def __add__(self, others: "Hypotheses") -> "Hypotheses":
        return Hypotheses(
            torch.cat([self.tokens, others.tokens], dim=1),
            torch.cat([self.rows, others.rows], dim=1),
            torch.cat([self.scores, others.scores], dim=1),
        )


def beam_search(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    max_extra_tokens: int | None = None,
    **state: Any,
) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
    """The decoding loop that `generate(custom_generate=beam_search)` calls when all is prepared.

    The stock fields mean what they mean in the stock search: `num_beams` (k; 1 is greedy search), `length_penalty`
    (α, in the formula above), `num_return_sequences`, `early_stopping=True` (done at k finished hypotheses; any other
    value is the rule above), `max_length`, `max_new_tokens` and all `output_...`.

    Args:
        input_ids: the first tokens of the target, [B·k, L], as a rule the start symbol.
        logits_processor: changes the log-probabilities of a step, as in the stock search.
        stopping_criteria: what they stop counts as finished. Only the length is no end: a hypothesis cut off at its
            limit is returned where fewer have finished than were asked for.
        max_extra_tokens: by how many tokens a target may be longer than its source, both with their end. Not given:
            the generation config's, or else 50. The smaller of this limit and `max_length` holds.
        state: what else the model is given at every step: `encoder_outputs`, `attention_mask`, `cache`, ...

    Returns:
        Token ids [B · num_return_sequences, L], the best of a sentence first, padded behind the end; in the stock
        output class with `return_dict_in_generate`.

    Raises:
        ValueError: the model is no encoder-decoder, or it was asked for what this search does not do.
    """
    config = generation_config
    beams, alpha, returned = config.num_beams, config.length_penalty, config.num_return_sequences
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    padding = ends[0] if config.pad_token_id is None else config.pad_token_id
    # As many candidates as it takes for k of them to go on, even if all beams like to end best. One beam is greedy
    # search, where only the best token counts.
    candidate_count = (1 + len(ends)) * beams if beams > 1 else 1
    prompt = input_ids.shape[1]
    limits = _limits(model, config, max_extra_tokens, stopping_criteria.max_length - prompt, state)  # [B]
    stops = StoppingCriteriaList(each for each in stopping_criteria if not isinstance(each, MaxLengthCriteria))
    history = _history(config)
    decoder = _decoder(model, config, prompt, state)

    tokens = input_ids.unflatten(0, (-1, beams))  # [B, k, L]
    finished = Hypotheses(tokens, tokens[..., :0], torch.full(tokens.shape[:2], NONE, device=tokens.device))
    live = finished.scored(finished.scores.clone())
    live.scores[:, 0] = 0.0  # log 1. The k prompts are equal, and so would be all that follows: only one may go on
    sentences = torch.arange(len(tokens), device=tokens.device)  # [B], where each stands in the caller's batch
    answers: list[Hypotheses | None] = [None] * len(tokens)
    # Who is done leaves the batch, unless somebody counts on rows that stay where they are: processors may keep
    # something for each of them, and the output class holds all steps of all rows.
    may_leave = not logits_processor and not config.return_dict_in_generate

    length = 0  # of the generated part
    while None in answers:
        outputs = decoder.step(live.tokens.flatten(0, 1))
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits[:, -1]
        logits = logits.to(tokens.device, torch.float32)  # [B·k, V]
        log_probs = logits.log_softmax(-1)
        if logits_processor:
            log_probs = logits_processor(live.tokens.flatten(0, 1), log_probs)
        for name, steps in history.items():
            steps.append({**outputs, "logits": logits, "scores": log_probs}[name])

        # The best candidates of all beams together. log P of a hypothesis is the sum over its tokens.
        totals, beam, token = _best(log_probs.unflatten(0, (-1, beams)), live.scores, candidate_count)
        candidates = live.take(beam).grown(token, sentences[:, None] * beams + beam)
        length += 1

        # They have ended, or live on.
        ended = stops(candidates.tokens.flatten(0, 1), tuple(history.get("scores", ())) or None).view_as(totals)
        scores = (totals / length_penalty(length, alpha)).masked_fill(~ended, NONE)
        finished = (finished.grown(padding, -1) + candidates.scored(scores)).best(beams)
        live = candidates.scored(totals.masked_fill(ended, NONE)).best(beams)

        # Done is who has no hope left, or no room.
        best_length = limits if alpha > 0 else torch.full_like(limits, length + 1)  # where the penalty helps most
        hope = live.scores[:, 0] / length_penalty(best_length, alpha)
        done = (hope <= finished.scores[:, returned - 1]) | (length >= limits)
        if config.early_stopping is True:
            done |= finished.scores[:, -1] > NONE

        # Answers are put away, and the state follows the hypotheses that live on.
        stay = torch.arange(len(done), device=done.device)
        if done.any():  # of a step, the only look at the device
            cut_off = live.scored(live.scores / length_penalty(length, alpha))
            ranked = _ranked(finished, cut_off, returned, padding)
            for place in done.nonzero()[:, 0]:
                if answers[sentences[place]] is None:
                    answers[sentences[place]] = ranked.of(place[None])
            if may_leave:  # the last ones take the places of those who leave, so that few move
                going = (~done).nonzero()[:, 0]
                stay, gaps = stay[: len(going)], done[: len(going)]
                stay[gaps] = going[going >= len(going)]
        decoder.follow(live.rows[:, :, -1] % beams, stay)
        if len(stay) < len(done):
            live, finished, limits, sentences = live.of(stay), finished.of(stay), limits[stay], sentences[stay]

    return _output(config, answers, prompt, padding, history, decoder)


def _decoder(model: PreTrainedModel, config: GenerationConfig, prompt: int, state: dict[str, Any]) -> Any:
    """What predicts the next position: a model's own quick way, where it has one and nobody looks inside."""
    quick = getattr(model, "quick_decoder", None)
    asked = config.return_dict_in_generate or config.cache_implementation is not None or prompt > 1
    if quick is None or asked or not quick.serves(model, state):
        return CachedDecoder(model, state, config.num_beams)
    shared = _shared_memory(state, config.num_beams)
    return quick(model, shared["encoder_outputs"][0], shared.get("attention_mask"), config.num_beams)


def _limits(
    model: PreTrainedModel, config: GenerationConfig, extra: int | None, absolute: int, state: dict[str, Any]
) -> torch.Tensor:
    """How many tokens may be generated for each sentence, [B]. Refuses what this search does not do."""
    if not model.config.is_encoder_decoder:
        raise ValueError(f"{type(model).__name__} has no source to measure by: this search wants an encoder-decoder.")
    if config.do_sample:
        raise ValueError("do_sample=True: the paper's search does not sample, want do_sample=False or search='stock'.")
    extra = checked_extra_tokens(getattr(config, "max_extra_tokens", None) if extra is None else extra)
    memory, mask = state["encoder_outputs"][0], state.get("attention_mask")
    width = torch.full_like(memory[:, 0, 0], memory.shape[1], dtype=torch.long)
    sources = width if mask is None else mask.long().sum(dim=-1)
    return (sources[:: config.num_beams] + extra).clamp(min=1, max=absolute)


class CachedDecoder:
    """One more position at a time, from any encoder-decoder and the cache that `generate()` has made for it.

    `generate()` repeats the source for every beam. So would be the keys and values of cross-attention, although they
    never differ: k times the memory, and k times the reading of it at every step. A model says in
    `shares_memory_under` with which attention its k beams can share one row of it.

    Args:
        state: what the model is given at every step: `encoder_outputs`, `attention_mask`, `cache`, ...
        beams: k.
    """

    def __init__(self, model: PreTrainedModel, state: dict[str, Any], beams: int):
        self.model = model
        shares = model.config._attn_implementation in getattr(model, "shares_memory_under", ())
        self.state = _shared_memory(state, beams) if shares and beams > 1 else state

    def step(self, tokens: torch.Tensor) -> Any:
        """The model's output for what its cache has not seen of `tokens` [B·k, L]."""
        cache = self.state.get("cache")
        new = tokens.shape[1] - (0 if cache is None else int(cache.get_seq_length()))
        inputs = self.model.prepare_inputs_for_generation(tokens, next_sequence_length=new, **self.state)
        outputs = self.model(**inputs, return_dict=True)
        # The one private call: the library's own loops, and the models that differ, keep their state by this hook.
        self.state = self.model._update_model_kwargs_for_generation(outputs, self.state, is_encoder_decoder=True)
        return outputs

    def follow(self, beam: torch.Tensor, stay: torch.Tensor) -> None:
        """Goes on with the sentences that `stay`, each beam from where `beam` [B, k] says.

        Self-attention has seen another target in each beam. The source, and so the cross-attention's keys and values,
        is the same in all beams of a sentence: nothing to do for them until a sentence leaves. Its rows are those of
        the memory: [B·k, S, D], or [B, S, D] where the beams share it.
        """
        sentences, beams = beam.shape
        rows = (stay[:, None] * beams + beam[stay]).flatten()
        cache = self.state.get("cache")
        if cache is not None:
            getattr(cache, "self_attention_cache", cache).reorder_cache(rows)
        if len(stay) == sentences:
            return
        memory = self.state["encoder_outputs"]
        shared = len(memory[0]) < sentences * beams
        if hasattr(cache, "cross_attention_cache"):
            cache.cross_attention_cache.reorder_cache(stay if shared else rows)

        def part(value: Any, of_source: bool) -> Any:
            length, chosen = (sentences, stay) if shared and of_source else (sentences * beams, rows)
            whole = isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == length
            return value[chosen] if whole else value

        memory = type(memory)(**{name: part(value, True) for name, value in memory.items()})
        self.state = {name: part(value, name == "attention_mask") for name, value in self.state.items()}
        self.state["encoder_outputs"] = memory


def _shared_memory(state: dict[str, Any], beams: int) -> dict[str, Any]:
    """The state with one row of the source for each sentence, [B, S, D]."""
    memory = state["encoder_outputs"]
    memory = type(memory)(**{**memory, "last_hidden_state": memory[0][::beams]})
    state = state | {"encoder_outputs": memory}
    if state.get("attention_mask") is not None:
        state["attention_mask"] = state["attention_mask"][::beams]
    return state


def _best(
    log_probs: torch.Tensor, scores: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The C best of all that may follow a sentence's hypotheses: log P, beam and token, [B, C] each.

    What `topk` says of the sums of `scores` [B, k] and `log_probs` [B, k, V], in a fraction of the time: the best are
    in the blocks of words with the best maxima.
    """
    sentences, beams, words = log_probs.shape
    width, blocks = 64, words // 64
    if blocks < 2 * count or sentences < 4:  # of few it is not worth the operations
        best, token = log_probs.topk(min(count, words))
        totals, places = (best + scores[..., None]).flatten(1).topk(count)
        return totals, places // best.shape[-1], token.flatten(1).gather(1, places)
    maxima = log_probs.unfold(-1, width, width).amax(-1) + scores[..., None]  # [B, k, blocks]
    best = maxima.flatten(1).topk(count).indices  # [B, C]
    words_of, beam_of = (torch.arange(size, device=best.device) for size in (words, beams))
    inside = ((best // blocks) * words + (best % blocks) * width)[..., None] + words_of[:width]  # [B, C, 64]
    behind = beam_of[:, None] * words + words_of[blocks * width :]  # [k, ...], what fills no block
    places = torch.cat([inside.flatten(1), behind.flatten().expand(sentences, -1)], dim=1)  # in k·V
    totals = log_probs.flatten(1).gather(1, places) + scores.gather(1, places // words)
    totals, chosen = totals.topk(count)
    places = places.gather(1, chosen)
    return totals, places // words, places % words


def _ranked(finished: Hypotheses, cut_off: Hypotheses, count: int, padding: int) -> Hypotheses:
    """The `count` best finished hypotheses of each sentence; where there are fewer, the best that were cut off."""
    both = finished + cut_off
    best = both.take(both.scores.eq(NONE).int().argsort(dim=1, stable=True)[:, :count])  # each half is sorted already
    nobody, generated = best.scores.eq(NONE)[..., None], best.rows.shape[-1]
    best.tokens[..., -generated:].masked_fill_(nobody, padding)
    best.rows.masked_fill_(nobody, -1)
    return best


def _history(config: GenerationConfig) -> dict[str, list[Any]]:
    """What of each step the caller wants to see, under its name in the output class."""
    wanted = {
        "scores": config.output_scores,
        "logits": config.output_logits,
        "decoder_attentions": config.output_attentions,
        "cross_attentions": config.output_attentions,
        "decoder_hidden_states": config.output_hidden_states,
    }
    return {name: [] for name, flag in wanted.items() if flag and config.return_dict_in_generate}


def _output(
    config: GenerationConfig,
    answers: list[Any],
    prompt: int,
    padding: int,
    history: dict[str, list[Any]],
    decoder: Any,
) -> GenerateBeamEncoderDecoderOutput | torch.LongTensor:
    """The answers as one tensor of the longest's length, or in the stock output class."""
    generated = max(int(answer.rows.ge(0).sum(dim=-1).max()) for answer in answers)
    sequences = [pad(each.tokens, (0, prompt + generated - each.tokens.shape[-1]), value=padding) for each in answers]
    sequences = torch.cat(sequences).flatten(0, 1)  # [B · num_return_sequences, L]; `pad` by less than 0 crops
    if not config.return_dict_in_generate:
        return sequences
    rows = [pad(each.rows, (0, generated - each.rows.shape[-1]), value=-1) for each in answers]
    state = decoder.state
    memory = state["encoder_outputs"]
    return GenerateBeamEncoderDecoderOutput(
        sequences=sequences,
        sequences_scores=torch.cat([each.scores for each in answers]).flatten() if config.output_scores else None,
        beam_indices=torch.cat(rows).flatten(0, 1),
        encoder_attentions=memory.get("attentions") if config.output_attentions else None,
        encoder_hidden_states=memory.get("hidden_states") if config.output_hidden_states else None,
        cache=state.get("cache"),
        **{name: tuple(steps) for name, steps in history.items()},
    )


def with_search(
    model: PreTrainedModel, inputs: torch.Tensor | None, config: GenerationConfig | None, options: dict[str, Any]
) -> tuple[GenerationConfig | None, dict[str, Any]]:
    """`generation_config` and the other arguments of a `generate()` call, with the search that they ask for.

    `search="paper"` becomes `custom_generate=beam_search`; without it, or with `search="stock"`, all stays as it is.
    Looked for where `generate()` looks for any field: in the call, in its `generation_config`, in the model's.

    Raises:
        ValueError: an unknown search, or arguments that it can't serve.
    """

    def asked(name: str) -> Any:
        places = (options.get(name), getattr(config, name, None), getattr(model.generation_config, name, None))
        return next((value for value in places if value is not None), None)

    search = asked("search")
    options = {name: value for name, value in options.items() if name != "search"}
    if search not in (None, *SEARCHES):
        raise ValueError(f"search={search!r}: want one of {', '.join(SEARCHES)}.")
    if search != "paper" or options.get("custom_generate") is not None:
        return config, options
    for name in ("assistant_model", "prompt_lookup_num_tokens", "stop_strings", "streamer", "synced_gpus"):
        if asked(name):  # the library takes these away from any `custom_generate`
            raise ValueError(f"{name} does not go with search='paper': want search='stock', or no {name}.")
    options["custom_generate"] = beam_search
    unlimited = options.get("max_length") is None and asked("max_length") in (None, STOCK_MAX_LENGTH)
    if unlimited and asked("max_new_tokens") is None:
        memory, begun = options.get("encoder_outputs"), options.get("decoder_input_ids")
        sources = [inputs, *map(options.get, ("input_ids", "inputs_embeds")), None if memory is None else memory[0]]
        source = next((tensor.shape[1] for tensor in sources if tensor is not None), 0)
        room = 1 if begun is None else 1 + begun.shape[1]
        room += source + checked_extra_tokens(asked("max_extra_tokens"))  # for the longest: the search measures each
        if config is None:
            options["max_length"] = room
        else:
            config = copy.deepcopy(config)
            config.max_length = room
    return config, options


def checked_extra_tokens(given: int | None) -> int:
    """`max_extra_tokens`, or the paper's 50 for None; a `ValueError` for what is no such number."""
    if given is None:
        return EXTRA_TOKENS
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise ValueError(f"max_extra_tokens={given!r}: want a whole number from 0 on.")
    return given
