"""The paper's beam search: by hand, by exhaustion, by rescoring, in a batch, and what `generate()` hands over."""

import itertools
import math

import pytest
import torch
from conftest import build_model
from reversing import END, PAD, ROWS, START, log_prob, padded, train_to_reverse
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from hf_attention import VanillaTransformerForConditionalGeneration
from hf_attention.generation import cross_attentions, length_penalty
from hf_attention.model.generation_vanilla_transformer import _best


PAPER = {"search": "paper", "num_beams": 4, "length_penalty": 0.6}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
EVERYTHING |= {"output_attentions": True, "output_hidden_states": True}
TOLERANCE = {"atol": 1e-5, "rtol": 0}


def generated(ids: torch.Tensor) -> list[list[int]]:
    """What follows the start symbol, up to the end and with it; or up to the padding where it was cut off."""
    targets = [row[1:] for row in ids.tolist()]
    return [row[: row.index(END) + 1] if END in row else row for row in targets]


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    """Has half learned to reverse digits: sentences end by themselves, and hypotheses really compete."""
    return train_to_reverse(build_model(num_layers=1, d_model=32, d_ff=64, num_heads=4))


# -- By hand ----------------------------------------------------------------------------------------------------------


def test_the_penalty_is_equation_14():
    """((5 + 1) / 6)^α = 1; ((5 + 7) / 6)^0.6 = 2^0.6; ((5 + 13) / 6)^1 = 3; α = 0 is no penalty."""
    assert length_penalty(1, 0.6) == 1
    assert length_penalty(7, 0.6) == pytest.approx(1.5157166)
    assert length_penalty(13, 1.0) == 3
    assert length_penalty(40, 0.0) == 1
    torch.testing.assert_close(length_penalty(torch.tensor([1, 7]), 2.0), torch.tensor([1.0, 4.0]))


class Table(VanillaTransformerForConditionalGeneration):
    """Predicts what a function of the target so far says, {token: probability}; the rest of 1 is spread over all."""

    def __init__(self, predicts):
        super().__init__(build_model().config)
        self.predicts, self.calls = predicts, 0
        self.eval()

    def forward(self, decoder_input_ids=None, **kwargs):
        self.calls += 1
        rows = []
        for target in decoder_input_ids.tolist():
            given = self.predicts(tuple(target[1:]))
            row = torch.full((11,), (1 - sum(given.values())) / (11 - len(given))).clamp(min=1e-9)
            for token, probability in given.items():
                row[token] = probability
            rows.append(row.log())
        return Seq2SeqLMOutput(logits=torch.stack(rows)[:, None])

    def decode(self, **options):
        self.calls = 0
        return self.generate(torch.tensor([[3, END]]), use_cache=False, **options)


A, B = 3, 4


@pytest.mark.parametrize(("limit", "steps"), [(3, 1), (7, 2), (13, 5)])
def test_a_sentence_stops_when_its_best_hope_at_the_limit_is_beaten(limit, steps):
    """α = 1. Step 1 finishes the end alone: log 0.5 = -0.693. The best live one is A..., log 0.3 = -1.204.

    Limit 3 has penalty 8/6: -1.204 / 1.333 = -0.903 can't win, done. Limit 7 has penalty 2: -0.602 may win; after the
    second step it is log(0.3 · 0.8) / 2 = -0.714, done. Limit 13 has penalty 3: -0.401, -0.476, -0.550, -0.624, and
    -0.699 after the fifth.
    """
    model = Table(lambda target: {A: 0.8, B: 0.1, END: 0.1} if target else {END: 0.5, A: 0.3, B: 0.2})
    options = {"search": "paper", "num_beams": 2, "length_penalty": 1.0, "max_new_tokens": limit}
    assert model.decode(**options).tolist() == [[START, END]]
    assert model.calls == steps


def test_early_stopping_takes_the_first_k_that_finish():
    """Two finish in step 2: the end alone, and A with its end. Without it the search would go on to step 5."""
    model = Table(lambda target: {A: 0.8, B: 0.1, END: 0.1} if target else {END: 0.5, A: 0.3, B: 0.2})
    options = {"search": "paper", "num_beams": 2, "length_penalty": 1.0, "max_new_tokens": 13}
    model.decode(**options, early_stopping=True)
    assert model.calls == 2
    model.decode(**options, num_return_sequences=2)
    assert model.calls > 5  # the second best may still come


def test_where_the_penalty_rewards_short_targets_hope_is_the_next_token():
    """α = -1: log P · (5 + length) / 6. The end alone has log 0.3 = -1.204. The A that lives on could end next with
    at most log 0.6 · 7/6 = -0.596, and does: log(0.6 · 0.9) · 7/6 = -0.719. At limit 13 it would be hopeless, -1.532.
    """
    model = Table(lambda target: {A: 0.05, END: 0.9} if target else {END: 0.3, A: 0.6})
    options = {"search": "paper", "num_beams": 2, "length_penalty": -1.0, "max_new_tokens": 13}
    assert model.decode(**options).tolist() == [[START, A, END]]


def test_report_51_the_papers_and_the_stock_penalty_choose_different_winners():
    """Two translations: A and its end, log P = log 0.6 + log 0.61 = -1.005; seven B and the end, -0.916 - 7 · 0.14 =
    -1.899. α = 0.6. The paper's: -1.005 / (7/6)^0.6 = -0.916 beats -1.899 / (13/6)^0.6 = -1.194. The stock one:
    -1.899 / 8^0.6 = -0.545 beats -1.005 / 2^0.6 = -0.663.
    """
    likely = math.exp(-0.1404)

    def predicts(target):
        if not target:
            return {A: 0.6, B: 0.4}
        if target[-1] == A:
            return {END: 0.61, A: 0.1}
        return {END if len(target) == 7 else B: likely}

    model = Table(predicts)
    options = {"num_beams": 2, "length_penalty": 0.6, "max_new_tokens": 12, "output_scores": True}
    options["return_dict_in_generate"] = True
    ours, theirs = model.decode(**options, search="paper"), model.decode(**options, early_stopping="never")
    assert ours.sequences.tolist() == [[START, A, END]]
    assert theirs.sequences.tolist() == [[START, *[B] * 7, END]]
    assert float(ours.sequences_scores) == pytest.approx(-1.005 / (7 / 6) ** 0.6, abs=1e-3)
    assert float(theirs.sequences_scores) == pytest.approx(-1.899 / 8**0.6, abs=1e-3)


def test_a_target_cut_off_at_the_limit_never_beats_a_finished_one():
    """An endless A, each all but certain, against a poor but finished B."""
    after = {(): {A: 0.9, B: 0.09}, (B,): {END: 0.9}}
    model = Table(lambda target: after.get(target, {A: 0.99, END: 0.001}))
    options = {"search": "paper", "num_beams": 2, "length_penalty": 0.6, "max_new_tokens": 9}
    assert model.decode(**options).tolist() == [[START, B, END]]
    endless = Table(lambda target: {A: 0.9, B: 0.1})
    assert endless.decode(**options).tolist() == [[START, *[A] * 9]]


# -- By exhaustion and by rescoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 3.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_with_beams_for_all_it_finds_the_best_of_all_targets(seed, alpha):
    """Vocabulary of five, targets of up to four tokens: 85 end. Twice 160 candidates are all that ever are."""
    model = build_model(seed, vocab_size=5, d_model=16)
    sources = [[3, 4, 4], [4]]
    settings = {"search": "paper", "num_beams": 160, "num_return_sequences": 20, "length_penalty": alpha}
    found = model.generate(**padded(sources), **settings, max_new_tokens=4).unflatten(0, (2, 20))
    for source, answers in zip(sources, found, strict=True):
        scores = {}
        for length in range(1, 5):
            for start in itertools.product([PAD, START, 3, 4], repeat=length - 1):
                target = (*start, END)
                scores[target] = log_prob(model, source, list(target)) / ((5 + length) / 6) ** alpha
        assert len(scores) == 85
        best = sorted(scores, key=scores.get, reverse=True)[:20]
        assert generated(answers) == [list(target) for target in best]


@pytest.mark.parametrize("room", [0, 6])
def test_scores_add_up_and_the_best_comes_first(model, room):
    settings = {**PAPER, **EVERYTHING, "num_return_sequences": 4, "max_extra_tokens": room}
    out = model.generate(**padded(ROWS), **settings)
    assert type(out) is GenerateBeamEncoderDecoderOutput
    scores, lengths = out.sequences_scores.tolist(), out.beam_indices.ge(0).sum(-1).tolist()
    targets = [row[1 : length + 1] for row, length in zip(out.sequences.tolist(), lengths, strict=True)]
    for number, (target, score) in enumerate(zip(targets, scores, strict=True)):
        source = ROWS[number // 4]
        assert target[-1] == END or len(target) == len(source) + 1 + room  # cut off
        assert score == pytest.approx(log_prob(model, source, target) / ((5 + len(target)) / 6) ** 0.6, abs=1e-5)
    for first in range(0, len(targets), 4):
        four, finished = targets[first : first + 4], [END in target for target in targets[first : first + 4]]
        assert len(set(map(tuple, four))) == 4
        assert finished == sorted(finished, reverse=True), "what was cut off comes last"
        for part in (scores[first : first + sum(finished)], scores[first + sum(finished) : first + 4]):
            assert part == sorted(part, reverse=True)
    steps = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    penalties = length_penalty(torch.tensor(lengths), 0.6)
    torch.testing.assert_close(steps.sum(-1) / penalties, out.sequences_scores, **TOLERANCE)


@torch.no_grad()
def straightforward(model, source: list[int], beams: int, alpha: float, extra: int) -> tuple[list[int], float]:
    """tensor2tensor's search of one sentence in lists, every step a plain forward: it keeps k finished hypotheses, and
    stops when the best live one, at the penalty of the limit, can't beat the worst of them.
    """
    limit = len(source) + 1 + extra
    live, finished = [((), 0.0)], []
    for length in range(1, limit + 1):
        decoder = torch.tensor([[START, *target] for target, _ in live])
        ids = torch.tensor([[*source, END]] * len(live))
        steps = model(ids, decoder_input_ids=decoder, use_cache=False).logits[:, -1].log_softmax(-1).tolist()
        grown = [
            ((*target, token), log_p + step)
            for (target, log_p), row in zip(live, steps, strict=True)
            for token, step in enumerate(row)
        ]
        grown = sorted(grown, key=lambda each: -each[1])[: 2 * beams]
        finished += [(target, log_p / ((5 + length) / 6) ** alpha) for target, log_p in grown if target[-1] == END]
        finished = sorted(finished, key=lambda each: -each[1])[:beams]
        live = [each for each in grown if each[0][-1] != END][:beams]
        if finished and finished[-1][1] > live[0][1] / ((5 + limit) / 6) ** alpha:
            break
    target, score = finished[0] if finished else (live[0][0], live[0][1] / ((5 + limit) / 6) ** alpha)
    return list(target), score


@pytest.mark.parametrize("alpha", [0.6, 2.0])
def test_the_winner_is_that_of_the_straightforward_search(model, alpha):
    torch.manual_seed(1)
    rows = [torch.randint(3, 11, (1 + number % 8,)).tolist() for number in range(24)]
    settings = {"search": "paper", "num_beams": 3, "length_penalty": alpha, "max_extra_tokens": 4}
    found = generated(model.generate(**padded(rows), **settings))
    out = model.generate(**padded(rows), **settings, return_dict_in_generate=True, output_scores=True)
    for row, target, score in zip(rows, found, out.sequences_scores.tolist(), strict=True):
        expected, expected_score = straightforward(model, row, beams=3, alpha=alpha, extra=4)
        assert target[: len(expected)] == expected and not any(target[len(expected) :])
        assert score == pytest.approx(expected_score, abs=1e-5)


def test_one_beam_is_greedy_search(model):
    greedy = model.generate(**padded(ROWS), num_beams=1, do_sample=False, max_new_tokens=12)
    paper = model.generate(**padded(ROWS), search="paper", num_beams=1, max_new_tokens=12)
    assert paper.tolist() == greedy.tolist()
    assert len({len(target) for target in generated(paper)}) > 1


# -- In a batch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"return_dict_in_generate": True}, {"no_repeat_ngram_size": 2}], ids=str)
def test_report_29_a_sentence_gets_the_same_answers_alone_and_in_any_batch(model, options):
    """Without options, sentences leave the batch when they are done; processors and the output class keep them."""
    torch.manual_seed(0)
    rows = [torch.randint(3, 11, (length,)).tolist() for length in (1, 6, 2, 5, 3, 4, 1, 6)]
    settings = {**PAPER, "num_return_sequences": 2, "max_extra_tokens": 3, **options}
    together = model.generate(**padded(rows), **settings)
    together = generated(together if isinstance(together, torch.Tensor) else together.sequences)
    assert len({len(target) for target in together}) > 2
    for number, row in enumerate(rows):
        alone = model.generate(**padded([row]), **settings)
        alone = generated(alone if isinstance(alone, torch.Tensor) else alone.sequences)
        assert alone == [list(filter(None, target)) for target in together[2 * number : 2 * number + 2]]


def test_sentences_that_are_done_leave_and_those_kept_get_the_same_answers(model, monkeypatch):
    rows = []
    forward = model.forward

    def counted(*args, **kwargs):
        rows.append(len(kwargs["decoder_input_ids"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counted)
    left = model.generate(**padded(ROWS), **PAPER)
    assert rows[0] == 16 and rows[-1] < 16 and rows == sorted(rows, reverse=True)
    rows.clear()
    kept = model.generate(**padded(ROWS), **PAPER, return_dict_in_generate=True)
    assert set(rows) == {16}
    assert kept.sequences.tolist() == left.tolist()


@pytest.mark.parametrize("beams", [1, 3])
def test_the_limit_is_the_source_and_fifty(model, beams):
    """Section 6.1, for each sentence its own; both sides with their end."""
    never = {"search": "paper", "num_beams": beams, "suppress_tokens": [END, PAD]}
    out = model.generate(**padded(ROWS), **never)
    assert out[:, 1:].ne(PAD).sum(1).tolist() == [len(row) + 1 + 50 for row in ROWS]
    assert model.generate(**padded(ROWS[1:2]), **never)[0].tolist() == out[1, :53].tolist()
    shorter = model.generate(**padded(ROWS), **never, max_extra_tokens=2)
    assert shorter[:, 1:].ne(PAD).sum(1).tolist() == [len(row) + 1 + 2 for row in ROWS]
    without_mask = model.generate(padded(ROWS)["input_ids"], **never, max_extra_tokens=2)
    assert without_mask.shape == (4, 1 + 7 + 2)


def test_the_smaller_limit_holds_wherever_it_is_set(model, monkeypatch):
    never = {**PAPER, "suppress_tokens": [END]}
    source = padded(ROWS)

    def width(**options):
        return model.generate(**source, **never, **options).shape[1]

    assert width(max_new_tokens=5) == 6 and width(max_length=5) == 5
    assert width(max_new_tokens=500, max_extra_tokens=1) == 9
    assert width(max_length=20) == 20, "said in the call"
    given = GenerationConfig(**never, max_extra_tokens=4)
    assert model.generate(**source, generation_config=given).shape[1] == 12
    assert given.max_length is None, "the caller's config stays as it was"
    monkeypatch.setattr(model.generation_config, "max_length", 30)
    assert width() == 30
    monkeypatch.setattr(model.generation_config, "max_length", 20)  # what the stock Trainer leaves there
    assert width() == 58


# -- What generate() hands over ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [{"use_cache": False}, {"cache_implementation": "static"}], ids=["none", "static"])
def test_any_cache_gives_the_same_hypotheses_and_scores(model, cache):
    settings = {**PAPER, **EVERYTHING, "num_return_sequences": 4, "max_extra_tokens": 4}
    usual, other = model.generate(**padded(ROWS), **settings), model.generate(**padded(ROWS), **settings, **cache)
    assert other.sequences.tolist() == usual.sequences.tolist()
    torch.testing.assert_close(other.sequences_scores, usual.sequences_scores, **TOLERANCE)
    torch.testing.assert_close(torch.stack(other.logits), torch.stack(usual.logits), **TOLERANCE)
    looks = [torch.stack([layers[0][:, :, -1:] for layers in out.cross_attentions]) for out in (other, usual)]
    torch.testing.assert_close(*looks, **TOLERANCE)
    plain = model.generate(**padded(ROWS), **PAPER, **cache)
    assert plain.tolist() == model.generate(**padded(ROWS), **PAPER).tolist()


def test_the_cross_attention_cache_moves_only_when_a_sentence_leaves(model, monkeypatch):
    moves = []
    reorder = DynamicCache.reorder_cache

    def counted(cache, rows):
        moves.append((id(cache), len(rows)))
        reorder(cache, rows)

    monkeypatch.setattr(DynamicCache, "reorder_cache", counted)
    out = model.generate(**padded(ROWS), **PAPER, return_dict_in_generate=True)
    assert {cache for cache, _ in moves} == {id(out.cache.self_attention_cache)} and len(moves) > 2
    moves.clear()
    model.generate(**padded(ROWS[:1]), **PAPER)
    assert len({cache for cache, _ in moves[:-2]}) == 1


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("everything", [True, False])
def test_beams_that_share_one_memory_search_as_with_one_each(model, monkeypatch, implementation, everything):
    settings = {**PAPER, "num_return_sequences": 4, "max_extra_tokens": 4, "return_dict_in_generate": True}
    settings |= EVERYTHING if everything else {}
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    shared = model.generate(**padded(ROWS), **settings)
    monkeypatch.setattr(type(model), "shares_memory_under", ())
    apart = model.generate(**padded(ROWS), **settings)
    model.set_attn_implementation(before)
    rows = [len(out.cache.cross_attention_cache.layers[0].keys) for out in (shared, apart)]
    assert rows == [len(ROWS), 4 * len(ROWS)]
    assert shared.sequences.tolist() == apart.sequences.tolist()
    if everything:
        torch.testing.assert_close(shared.sequences_scores, apart.sequences_scores, **TOLERANCE)
        for ours, theirs in zip(shared.cross_attentions, apart.cross_attentions, strict=True):
            torch.testing.assert_close(torch.stack(ours), torch.stack(theirs), **TOLERANCE)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_decoder_reads_one_memory_for_several_targets(model, implementation):
    """Three targets of each sentence, with padding in the sources: as if every target had a memory of its own."""
    source, targets = padded(ROWS), torch.randint(3, 11, (3 * len(ROWS), 5), generator=torch.manual_seed(0))
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        memory = model.model.encoder(**source)[0]
        mask = source["attention_mask"]
        shared = model.model.decoder(targets, encoder_hidden_states=memory, encoder_attention_mask=mask)[0]
        memory, mask = memory.repeat_interleave(3, 0), mask.repeat_interleave(3, 0)
        apart = model.model.decoder(targets, encoder_hidden_states=memory, encoder_attention_mask=mask)[0]
    model.set_attn_implementation(before)
    torch.testing.assert_close(shared, apart, **TOLERANCE)


def test_a_processor_that_changes_nothing_changes_nothing(model):
    """With one, sentences that are done stay in the batch."""
    plain = model.generate(**padded(ROWS), **PAPER, num_return_sequences=4)
    watched = model.generate(**padded(ROWS), **PAPER, num_return_sequences=4, logits_processor=[Unchanged()])
    assert plain.tolist() == watched.tolist()


class Unchanged(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


def test_encoder_outputs_and_embeddings_stand_in_for_the_source(model):
    source = padded(ROWS)
    expected, mask = model.generate(**source, **PAPER).tolist(), source["attention_mask"]
    with torch.no_grad():
        memory = model.get_encoder()(**source).last_hidden_state
        embeddings = model.get_input_embeddings()(source["input_ids"])
    encoded = BaseModelOutput(last_hidden_state=memory)
    assert model.generate(encoder_outputs=encoded, attention_mask=mask, **PAPER).tolist() == expected
    assert model.generate(inputs_embeds=embeddings, attention_mask=mask, **PAPER).tolist() == expected


def test_a_target_may_be_begun(model):
    """`decoder_input_ids`: the search goes on from them, and length counts what it adds."""
    begun = torch.tensor([[START, 7, 8]]).repeat(4, 1)
    settings = {**PAPER, "return_dict_in_generate": True, "output_scores": True}
    out = model.generate(**padded(ROWS), **settings, decoder_input_ids=begun)
    assert out.sequences[:, :3].tolist() == begun.tolist()
    for row, score, source in zip(generated(out.sequences), out.sequences_scores.tolist(), ROWS, strict=True):
        gain = log_prob(model, source, row) - log_prob(model, source, [7, 8])
        assert score == pytest.approx(gain / ((5 + len(row) - 2) / 6) ** 0.6, abs=1e-5)


def test_attentions_and_hidden_states_come_in_the_stock_class(model):
    out = model.generate(**padded(ROWS), **PAPER, **EVERYTHING, min_new_tokens=3, max_new_tokens=3)
    rows, width = 4 * len(ROWS), 7
    assert [tuple(layer.shape) for layer in out.encoder_attentions] == [(len(ROWS), 4, width, width)]
    assert [tuple(layer.shape) for layer in out.encoder_hidden_states] == [(len(ROWS), width, 32)] * 2
    steps = (out.scores, out.logits, out.decoder_attentions, out.cross_attentions, out.decoder_hidden_states)
    assert [len(each) for each in steps] == [3] * 5
    for step in range(3):
        assert tuple(out.logits[step].shape) == tuple(out.scores[step].shape) == (rows, 11)
        assert tuple(out.decoder_attentions[step][0].shape) == (rows, 4, 1, step + 1)
        assert tuple(out.cross_attentions[step][0].shape) == (rows, 4, 1, width)
        assert [tuple(layer.shape) for layer in out.decoder_hidden_states[step]] == [(rows, 1, 32)] * 2
    plain = model.generate(**padded(ROWS), **PAPER, return_dict_in_generate=True)
    assert plain.scores is None and plain.sequences_scores is None and plain.cross_attentions is None


@pytest.mark.parametrize("options", [PAPER, {"num_beams": 4}, {"num_beams": 1}], ids=["paper", "stock", "greedy"])
def test_report_57_one_hypothesis_attentions_are_those_of_a_plain_forward(model, options):
    settings = {**options, "return_dict_in_generate": True, "max_new_tokens": 12}
    with pytest.raises(ValueError, match="output_attentions=True"):
        cross_attentions(model.generate(**padded(ROWS), **settings))
    settings["output_attentions"] = True
    out = model.generate(**padded(ROWS), **settings)
    for index, row in enumerate(padded(ROWS)["input_ids"]):
        weights, tokens = cross_attentions(out, index)
        target = generated(out.sequences[index : index + 1])[0]
        assert tokens.tolist()[: len(target)] == target
        with torch.no_grad():
            decoder = torch.tensor([[START, *target[:-1]]])
            mask = row.ne(PAD)[None].long()
            plain = model(row[None], attention_mask=mask, decoder_input_ids=decoder, output_attentions=True)
        expected = torch.cat(plain.cross_attentions)  # [layers, H, T, S]
        torch.testing.assert_close(weights[:, :, : len(target)], expected, **TOLERANCE)


class Favour(LogitsProcessor):
    """As a caller's own may: tells a row's sentence by its place, four beams each."""

    def __call__(self, input_ids, scores):
        penalised = scores - 20
        rows = torch.arange(len(scores))
        penalised[rows, 3 + rows // 4] = scores[rows, 3 + rows // 4]
        return penalised


class StopAt(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


def test_processors_and_criteria_are_honoured(model):
    long = generated(model.generate(**padded(ROWS), **PAPER, min_new_tokens=9))
    assert all(len(target) >= 9 for target in long)
    settings = {**PAPER, "logits_processor": [Favour()], "suppress_tokens": [END], "max_extra_tokens": 0}
    favoured = generated(model.generate(**padded(ROWS), **settings))  # some are done long before others
    for sentence, (row, target) in enumerate(zip(ROWS, favoured, strict=True)):
        assert target[: len(row) + 1] == [3 + sentence] * (len(row) + 1)
    stopped = model.generate(**padded([[5, 9, 4]]), **PAPER, stopping_criteria=[StopAt(9)], bad_words_ids=[[END]])
    assert stopped[0, -1] == 9 and stopped[0].tolist().count(9) == 1
    allowed = model.generate(**padded(ROWS), **PAPER, prefix_allowed_tokens_fn=lambda row, ids: [3 + row, END])
    for row, target in enumerate(generated(allowed)):
        assert set(target) <= {3 + row, END}


def test_targets_of_the_end_alone():
    model = Table(lambda target: {END: 0.9})
    assert model.decode(search="paper", num_beams=3).tolist() == [[START, END]]
    assert model.decode(search="paper", num_beams=1).tolist() == [[START, END]]
    best, second = model.decode(search="paper", num_beams=3, num_return_sequences=2).tolist()
    assert best == [START, END, PAD] and second[2] == END


def test_several_ends(model):
    """Each of them ends a hypothesis, and enough others are left to go on."""
    out = model.generate(**padded(ROWS), **PAPER, eos_token_id=[END, 9, 4], num_return_sequences=4)
    for target in out[:, 1:].tolist():
        target = [token for token in target if token != PAD]
        assert target[-1] in (END, 9, 4) and not {END, 9, 4} & set(target[:-1])


def test_several_ends_leave_k_that_live_on():
    """Three ends before A and B: two beams go on with both. α = 5 makes B and its end, log(0.08 · 0.99) / (7/6)^5 =
    -1.174, better than any end alone, log 0.25 = -1.386.
    """
    ends = {END: 0.25, 9: 0.24, 10: 0.23}
    model = Table(lambda target: {END: 0.99} if target == (B,) else {**ends, A: 0.2, B: 0.08})
    options = {"search": "paper", "num_beams": 2, "length_penalty": 5.0, "max_new_tokens": 2}
    assert model.decode(**options, eos_token_id=[END, 9, 10]).tolist() == [[START, B, END]]


def test_nothing_left_to_say_ends_the_search(model):
    """Only the end is allowed: of four hypotheses asked for there is one."""
    only = {**PAPER, "prefix_allowed_tokens_fn": lambda row, ids: [END], "return_dict_in_generate": True}
    out = model.generate(**padded([[3]]), **only, num_return_sequences=4, output_scores=True)
    assert out.sequences.tolist() == [[START, END]] + [[START, PAD]] * 3
    assert out.sequences_scores[1:].isneginf().all() and out.beam_indices[1:].tolist() == [[-1]] * 3


@pytest.mark.parametrize("words", [11, 64, 1023, 1024, 1087, 1088, 5000])
@pytest.mark.parametrize("sentences", [1, 50])
def test_the_best_by_blocks_are_the_best(words, sentences):
    """`topk` of all sums, for vocabularies with and without words that fill no block; the best are anywhere."""
    random = torch.Generator().manual_seed(0)
    log_probs, scores = torch.randn(sentences, 4, words, generator=random), torch.randn(sentences, 4, generator=random)
    log_probs[0] = torch.arange(4 * words).view(4, words)  # all of the best in the last block, or behind it
    scores[-1, 1:] = -torch.inf  # beams that hold no hypothesis
    for count in (1, 2, 8):
        totals, beam, token = _best(log_probs, scores, count)
        expected, places = (log_probs + scores[..., None]).flatten(1).topk(count)
        torch.testing.assert_close((totals, beam * words + token), (expected, places), rtol=0, atol=0)
