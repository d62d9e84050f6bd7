"""A recorded search against plain forward passes: every probability, every choice, every fate, and the winner."""

import copy
import json

import pytest
import torch
from conftest import build_model
from reversing import END, PAD, START, train_to_reverse
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from hf_attention import VanillaTransformerForConditionalGeneration, trace
from hf_attention.tracing import search as tracing_search
from hf_attention.tracing.search import record_searches
from hf_attention.tracing.sentences import Sentences
from hf_attention.tracing.settings import Settings


SOURCES = [[3, 4, 5, 6, 7, 2], [10, 2], [9, 9, 4, 2]]
SEARCHES = {
    "paper greedy": {"search": "paper", "num_beams": 1, "length_penalty": 0.6},
    "paper": {"search": "paper", "num_beams": 4, "length_penalty": 0.6},
    "paper, two": {"search": "paper", "num_beams": 2, "length_penalty": -1.0},
    "paper, many": {"search": "paper", "num_beams": 8, "length_penalty": 1.0, "early_stopping": True},
    "stock greedy": {"search": "stock", "num_beams": 1, "max_new_tokens": 12},
    "stock": {"search": "stock", "num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 12},
    "stock, never": {"search": "stock", "num_beams": 3, "early_stopping": "never", "max_new_tokens": 6},
    "cut off": {"search": "paper", "num_beams": 3, "length_penalty": 0.6, "max_new_tokens": 2},
    "stock, cut off": {"search": "stock", "num_beams": 3, "length_penalty": 0.6, "max_new_tokens": 2},
    "stock greedy, cut off": {"search": "stock", "num_beams": 1, "max_new_tokens": 2},
}
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    """Has half learned to reverse digits: sentences end by themselves, and hypotheses really compete."""
    return train_to_reverse(build_model(num_decoder_layers=2, num_layers=1, d_model=32, d_ff=64, num_heads=4))


def recorded(model, sources=SOURCES, **options):
    return record_searches(model, Sentences(model, None, sources), options)


def translations(model, sentences, options):
    searches, _ = record_searches(model, sentences, options)
    return tracing_search.translations(searches, Settings(model, options).ends, END)


@pytest.fixture(scope="module", params=SEARCHES)
def searched(request, model):
    """[(source, record, cross-attention)] of each source, and the options."""
    searches, tensors = recorded(model, **SEARCHES[request.param])
    return list(zip(SOURCES, searches, tensors, strict=True)), SEARCHES[request.param]


@torch.no_grad()
def plain_log_probs(model, source: list[int], targets: list[list[int]]) -> torch.Tensor:
    """log p of every word after each target [targets, longest + 1, words], by one plain pass without cache."""
    longest = max(map(len, targets))
    decoder = torch.tensor([[START, *target, *[PAD] * (longest - len(target))] for target in targets])
    sources = torch.tensor([source]).expand(len(targets), -1)
    logits = model(input_ids=sources, decoder_input_ids=decoder, use_cache=False).logits
    return logits.double().log_softmax(-1)


def after(log_probs: torch.Tensor, row: int, target: list[int]) -> torch.Tensor:
    return log_probs[row, len(target)]


def penalty(options, length: int) -> float:
    """§6.1 after Wu et al., Equation 14; the stock search's; and none where greedy search compares nothing."""
    alpha = options.get("length_penalty", 1.0)
    if options["search"] == "paper":
        return ((5 + length) / 6) ** alpha
    return 1.0 if options["num_beams"] == 1 else length**alpha


# -- What is said of hypotheses ---------------------------------------------------------------------------------------


def test_probabilities_and_scores_are_those_of_plain_forward_passes(model, searched):
    for source, search, _ in searched[0]:
        hypotheses = search["hypotheses"]
        log_probs = plain_log_probs(model, source, [each["tokens"] for each in hypotheses])
        for row, each in enumerate(hypotheses):
            tokens = each["tokens"]
            total = sum(float(log_probs[row, i, token]) for i, token in enumerate(tokens))
            assert each["log_prob"] == pytest.approx(total, abs=1e-4)
            assert each["length"] == len(tokens)
            if tokens:
                assert each["penalty"] == pytest.approx(penalty(searched[1], len(tokens)))
                assert each["score"] == pytest.approx(total / penalty(searched[1], len(tokens)), abs=1e-4)


def test_hypotheses_are_a_tree_in_order_of_appearance(searched):
    for _, search, _ in searched[0]:
        hypotheses = search["hypotheses"]
        assert [each["id"] for each in hypotheses] == list(range(len(hypotheses)))
        prompt = {"id": 0, "parent": None, "step": None, "token": START, "tokens": [], "log_prob": 0.0, "length": 0}
        assert hypotheses[0] == {**prompt, "penalty": 1.0, "score": 0.0, "fate": "live"}
        for each in hypotheses[1:]:
            parent = hypotheses[each["parent"]]
            assert each["tokens"] == [*parent["tokens"], each["token"]]
            assert each["length"] == each["step"] + 1 == parent["length"] + 1
            assert parent["fate"] == "live"
        assert len({tuple(each["tokens"]) for each in hypotheses}) == len(hypotheses)
        went_on = {live for step in search["steps"] for live in step["live"]}
        assert {each["id"] for each in hypotheses if each["fate"] == "live"} == went_on


def test_every_candidate_is_a_hypothesis_and_says_the_same(searched):
    for _, search, _ in searched[0]:
        hypotheses = search["hypotheses"]
        candidates = [(i, each) for i, step in enumerate(search["steps"]) for each in step["candidates"]]
        assert [each["hypothesis"] for _, each in candidates] == list(range(1, len(hypotheses)))
        for step, each in candidates:
            it, parent = hypotheses[each["hypothesis"]], hypotheses[each["parent"]]
            assert (it["step"], it["parent"], it["token"]) == (step, each["parent"], each["token"])
            assert (it["log_prob"], it["penalty"], it["score"]) == (each["total"], each["penalty"], each["score"])
            assert each["total"] == pytest.approx(parent["log_prob"] + each["log_prob"], abs=1e-5)


# -- What is said of steps --------------------------------------------------------------------------------------------


def test_what_was_fed_and_what_the_cache_held(searched):
    for _, search, _ in searched[0]:
        assert search["prompt"] == [START]
        for i, step in enumerate(search["steps"]):
            assert step["length"] == step["cache_length"] == i
            last = [search["hypotheses"][live]["token"] for live in step["live"]]
            assert step["fed"] == [[token] for token in last]
            assert all(search["hypotheses"][live]["length"] == i for live in step["live"])
        assert search["steps"][0]["live"] == [0]


def test_without_a_cache_everything_is_fed_again(model):
    for search in recorded(model, search="paper", num_beams=2, use_cache=False)[0]:
        for step in search["steps"]:
            assert step["cache_length"] == 0
            assert step["fed"] == [[START, *search["hypotheses"][live]["tokens"]] for live in step["live"]]
    with_cache = recorded(model, search="paper", num_beams=2)[0]
    without = recorded(model, search="paper", num_beams=2, use_cache=False)[0]
    assert [search["tokens"] for search in with_cache] == [search["tokens"] for search in without]


def test_the_top_tokens_are_the_most_probable_ones(model, searched):
    for source, search, _ in searched[0]:
        for step in search["steps"]:
            targets = [search["hypotheses"][live]["tokens"] for live in step["live"]]
            log_probs = plain_log_probs(model, source, targets)
            for row, (target, top) in enumerate(zip(targets, step["top"], strict=True)):
                best = after(log_probs, row, target).exp().sort(descending=True)
                assert [each["token"] for each in top] == best.indices[:5].tolist()
                found = torch.tensor([each["probability"] for each in top]).double()
                torch.testing.assert_close(found, best.values[:5], **TOLERANCE)
                assert found.sum() <= 1 + 1e-6


def test_candidates_are_the_best_of_all_live_hypotheses_and_words(model, searched):
    """By brute force over both. Greedy search looks at the best only, beam search at 2k, the ends included."""
    beams = searched[1]["num_beams"]
    wanted = 1 if beams == 1 else 2 * beams
    for source, search, _ in searched[0]:
        for step in search["steps"]:
            targets = [search["hypotheses"][live]["tokens"] for live in step["live"]]
            log_probs = plain_log_probs(model, source, targets)
            everything = sorted(
                (
                    (search["hypotheses"][live]["log_prob"] + float(log_prob), live, token)
                    for row, live in enumerate(step["live"])
                    for token, log_prob in enumerate(after(log_probs, row, targets[row]))
                ),
                reverse=True,
            )[:wanted]
            assert [each["total"] for each in step["candidates"]] == pytest.approx(
                [total for total, _, _ in everything], abs=1e-4
            )
            assert {(each["parent"], each["token"]) for each in step["candidates"]} == {
                (live, token) for _, live, token in everything
            }


def test_the_best_live_on_the_ended_are_finished_and_the_dropped_are_worse(searched):
    beams = searched[1]["num_beams"]
    for _, search, _ in searched[0]:
        steps = search["steps"]
        for i, step in enumerate(steps):
            going_on = [each for each in step["candidates"] if each["token"] != END]
            live = [each["hypothesis"] for each in step["candidates"] if each["fate"] == "live"]
            finished = [each for each in step["candidates"] if each["fate"] == "finished"]
            assert all(each["token"] == END for each in finished)
            if searched[1]["search"] == "paper":
                assert len(finished) == sum(each["token"] == END for each in step["candidates"])
            else:  # only ends among the k best count
                assert finished == [each for each in step["candidates"][:beams] if each["token"] == END]
            if i + 1 < len(steps):
                assert live == [each["hypothesis"] for each in going_on[:beams]]
                assert sorted(steps[i + 1]["live"]) == live
            dropped = [each for each in going_on if each["fate"] == "dropped"]
            kept = [each["total"] for each in going_on if each["fate"] == "live"]
            assert all(each["total"] <= min(kept, default=0) for each in dropped)
            assert len(live) + len(finished) + sum(e["fate"] == "dropped" for e in step["candidates"]) == len(
                step["candidates"]
            )


def test_what_the_search_did_not_go_on_with_has_a_fate_that_says_why(searched):
    for _, search, _ in searched[0]:
        hypotheses, last = search["hypotheses"], len(search["steps"]) - 1
        at_the_limit = len(search["steps"]) == search["limit"]
        for each in hypotheses[1:]:
            if each["fate"] == "cut off":
                assert at_the_limit and each["step"] == last and each["token"] != END
            elif each["fate"] == "finished":
                assert each["token"] == END
            else:
                assert each["fate"] in ("live", "dropped", "winner")
        assert [each["id"] for each in hypotheses if each["fate"] == "winner"] == [search["winner"]]
        # At the limit the paper's search has its k best that have not ended, the stock search its k best of all.
        candidates, beams = search["steps"][-1]["candidates"], search["beams"]
        left = candidates[:beams] if search["search"] == "stock" else [e for e in candidates if e["token"] != END]
        left = [each for each in left[:beams] if each["token"] != END] if at_the_limit else []
        assert left == [each for each in candidates if each["fate"] == "live"]
        assert {hypotheses[each["hypothesis"]]["fate"] for each in left} <= {"cut off", "winner"}


# -- The winner -------------------------------------------------------------------------------------------------------


def test_the_winner_is_what_generate_returns_with_its_score(model, searched):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    for source, search, _ in searched[0]:
        out = eager.generate(torch.tensor([source]), **searched[1], return_dict_in_generate=True, output_scores=True)
        assert [START, *search["tokens"]] == out.sequences[0].tolist()
        winner = search["hypotheses"][search["winner"]]
        assert winner["tokens"] == search["tokens"]
        if out.get("sequences_scores") is not None:
            assert winner["score"] == pytest.approx(float(out.sequences_scores[0]), abs=1e-5)
        if out.get("beam_indices") is not None:  # the rows that predicted it: each parent stood in its row
            rows, each = out.beam_indices[0].tolist(), winner
            while each["parent"] is not None:
                step = search["steps"][each["step"]]
                assert step["live"].index(each["parent"]) == rows[each["step"]]
                each = search["hypotheses"][each["parent"]]


def test_no_finished_hypothesis_scores_better_than_the_winner(searched):
    for _, search, _ in searched[0]:
        winner = search["hypotheses"][search["winner"]]
        finished, cut_off = (
            [each for each in search["hypotheses"] if each["fate"] == fate] for fate in ("finished", "cut off")
        )
        if search["search"] == "paper":  # what was cut off is returned only where nothing has finished
            rivals = finished if winner["token"] == END else cut_off
            assert rivals is finished or not finished
        else:
            rivals = finished + cut_off
        assert all(each["score"] <= winner["score"] for each in rivals)


def test_the_searches_were_worth_recording(searched):
    """Else the tests above would be true of nothing: hypotheses compete, end at different lengths, and are dropped."""
    fates = {each["fate"] for _, search, _ in searched[0] for each in search["hypotheses"]}
    if searched[1]["num_beams"] > 1:
        assert "dropped" in fates
        assert "cut off" in fates if searched[1].get("max_new_tokens") == 2 else "finished" in fates
    assert "winner" in fates and "live" in fates


def test_the_record_says_which_search_it_was(searched):
    for source, search, _ in searched[0]:
        options = searched[1]
        assert (search["search"], search["beams"]) == (options["search"], options["num_beams"])
        assert search["alpha"] == (
            0 if options["search"] == "stock" and options["num_beams"] == 1 else options.get("length_penalty", 1.0)
        )
        assert search["limit"] == options.get("max_new_tokens", len(source) + 50)
        assert search["text"] == " ".join(str(token) for token in search["tokens"] if token != END)
        json.dumps(search, allow_nan=False)


@torch.no_grad()
@pytest.mark.parametrize("search", ["paper", "stock"])
def test_greedy_search_is_the_argmax_of_plain_forwards(model, search):
    for source, record in zip(SOURCES, recorded(model, search=search, num_beams=1, max_new_tokens=9)[0], strict=True):
        target = [START]
        while END not in target and len(target) < 10:
            logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([target]), use_cache=False).logits
            target.append(int(logits[0, -1].argmax()))
        assert record["tokens"] == target[1:]
        assert [step["live"] for step in record["steps"]] == [[i] for i in range(len(target) - 1)]
        assert all(len(step["candidates"]) == 1 for step in record["steps"])


@torch.no_grad()
def test_report_57_the_winners_cross_attention_is_that_of_a_teacher_forced_pass(model, searched):
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    for i, (source, search, tensor) in enumerate(searched[0]):
        decoder = torch.tensor([[START, *search["tokens"][:-1]]])
        out = eager(torch.tensor([source]), decoder_input_ids=decoder, output_attentions=True)
        assert (tensor.name, tensor.axes) == (f"search.{i}.cross_attention", ("N", "H", "T", "S"))
        assert tensor.shape == (2, 4, len(search["tokens"]), len(source))
        torch.testing.assert_close(tensor.value, torch.cat(out.cross_attentions), **TOLERANCE)


# -- Limits and odd corners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "options", "beams", "limit"),
    [
        ({}, {"search": "paper"}, 3, 4 + 50),
        ({"max_length": 20}, {"search": "paper"}, 1, 4 + 50),  # the library's default, which nobody has asked for
        ({}, {"search": "paper", "max_length": 20}, 1, 19),
        ({}, {"search": "paper", "max_extra_tokens": 2}, 1, 4 + 2),
        ({"search": "paper", "max_extra_tokens": 0}, {}, 3, 4),
        ({"search": "paper", "max_extra_tokens": 0}, {"max_extra_tokens": 1}, 1, 5),
        ({"search": "paper", "max_length": 5}, {}, 3, 4),
        ({"search": "paper"}, {"max_new_tokens": 3, "max_extra_tokens": 7}, 3, 3),
        ({}, {}, 1, 20),
        ({}, {}, 3, 20),
        ({"max_length": 7}, {}, 3, 6),
        ({"max_length": 7}, {"max_new_tokens": 3}, 1, 3),
        ({"search": "paper", "max_new_tokens": 3}, {"search": "stock"}, 3, 3),
    ],
    ids=str,
)
def test_the_limit_is_where_a_translation_without_end_is_cut_off(saved, options, beams, limit):
    model = build_model(num_layers=1)
    for name, value in saved.items():
        setattr(model.generation_config, name, value)
    options = {**options, "num_beams": beams, "suppress_tokens": [END]}
    source = [9, 9, 4, 2]
    (search,), (tensor,) = recorded(model, [source], **options)
    assert search["limit"] == len(search["tokens"]) == len(search["steps"]) == tensor.shape[2] == limit
    assert END not in search["tokens"]
    fates = [search["hypotheses"][each["hypothesis"]]["fate"] for each in search["steps"][-1]["candidates"]]
    assert sorted(fates[:beams]) == ["cut off"] * (beams - 1) + ["winner"]
    assert set(fates[beams:]) <= {"dropped"}
    assert [each["fate"] for each in search["steps"][-1]["candidates"]][:beams] == ["live"] * beams
    assert translations(model, Sentences(model, None, [source]), options) == [[*search["tokens"], END]]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("search", ["paper", "stock"])
def test_an_empty_translation_is_its_end(model, search, beams):
    options = {"search": search, "num_beams": beams, "suppress_tokens": [i for i in range(11) if i != END]}
    (record,), (tensor,) = recorded(model, [[3, 2]], **options)
    assert record["tokens"] == [END] and record["text"] == "" and tensor.shape == (2, 4, 1, 2)
    assert len(record["hypotheses"]) == 2 and len(record["steps"]) == 1
    assert [each["token"] for each in record["steps"][0]["top"][0]] == [END]
    assert translations(model, Sentences(model, None, [[3, 2]]), options) == [[END]]
    found = trace(model, None, [[3, 2]], search=search, num_beams=beams, suppress_tokens=options["suppress_tokens"])
    assert found["target.labels"].value.tolist() == [[END]]
    assert found.info["searches"] == [record]


@pytest.mark.parametrize("search", ["paper", "stock"])
def test_more_beams_than_candidates_are_places_without_hypothesis(search):
    """Vocabulary of 5, 16 beams: the first step has 5 candidates, the second 5 for each that goes on: at most 20."""
    model = build_model(vocab_size=5, num_layers=1)
    (record,), _ = recorded(model, [[3, 4, 2]], search=search, num_beams=16, max_new_tokens=4)
    assert [len(step["live"]) for step in record["steps"][:2]] == [1, 4]
    assert [len(step["candidates"]) for step in record["steps"][:2]] == [5, 20]
    targets = [each["tokens"] for each in record["hypotheses"]]
    assert len(set(map(tuple, targets))) == len(targets)
    log_probs = plain_log_probs(model, [3, 4, 2], targets)
    for row, each in enumerate(record["hypotheses"]):
        total = sum(float(log_probs[row, i, token]) for i, token in enumerate(each["tokens"]))
        assert each["log_prob"] == pytest.approx(total, abs=1e-4)
        assert END not in each["tokens"][:-1]


@pytest.mark.parametrize("search", ["paper", "stock"])
def test_any_of_several_ends_finishes(model, search):
    options = {"search": search, "num_beams": 3, "eos_token_id": [2, 9], "max_new_tokens": 8}
    searches, _ = recorded(model, **options)
    for record in searches:
        assert not any({2, 9} & set(each["tokens"][:-1]) for each in record["hypotheses"])
        assert {each["token"] for each in record["hypotheses"] if each["fate"] == "finished"} <= {2, 9}
    ends = {each["token"] for record in searches for each in record["hypotheses"] if each["fate"] == "finished"}
    assert ends == {2, 9}
    for record, target in zip(searches, translations(model, Sentences(model, None, SOURCES), options), strict=True):
        assert target == record["tokens"]


def test_processors_change_the_probabilities_that_are_recorded(model):
    (record,), _ = recorded(model, [[9, 9, 4, 2]], search="paper", num_beams=3, no_repeat_ngram_size=1)
    for each in record["hypotheses"]:
        assert len(set(each["tokens"])) == len(each["tokens"])
    assert all(option["probability"] > 0 for step in record["steps"] for top in step["top"] for option in top)


ADJUSTED = {
    "repetition_penalty": 1.8,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": [5, 6],
    "bad_words_ids": [[9]],
    "min_new_tokens": 7,
    "min_length": 8,
    "begin_suppress_tokens": [9],
    "forced_bos_token_id": 4,
    "forced_eos_token_id": END,
    "sequence_bias": [[[9], -4.0]],
    "encoder_no_repeat_ngram_size": 1,
    "encoder_repetition_penalty": 1.5,
    "exponential_decay_length_penalty": [1, 1.5],
}


@torch.no_grad()
@pytest.mark.parametrize("option", ADJUSTED)
@pytest.mark.parametrize("options", ["paper", "stock", "stock greedy"])
def test_what_made_log_probabilities_another_than_the_models_is_named(model, options, option):
    """And it did: of some step, the best tokens or their probabilities are not those of a plain forward pass."""
    options = {**SEARCHES[options], "max_new_tokens": 8, option: ADJUSTED[option]}
    if option == "forced_eos_token_id":
        options["max_new_tokens"] = 2  # it forces what stands at the limit
    source = [9, 9, 4, 2]
    (record,), _ = recorded(model, [source], **options)
    targets = [each["tokens"] for each in record["hypotheses"]]
    log_probs = plain_log_probs(model, source, targets)
    same = []
    for step in record["steps"]:
        for live, top in zip(step["live"], step["top"], strict=True):
            best = after(log_probs, live, targets[live]).exp().topk(5)
            own = [
                (token, pytest.approx(value, abs=1e-5))
                for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
            same.append([(each["token"], each["probability"]) for each in top] == own)
    assert not all(same)
    assert record["adjusted"] == {option: ADJUSTED[option]}
    json.dumps(record, allow_nan=False)


def test_what_changes_nothing_is_not_named(model, searched):
    assert all(search["adjusted"] == {} for _, search, _ in searched[0])
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "suppress_tokens": None}
    for extra in (neutral, {"no_repeat_ngram_size": 60}):  # no target is as long as that
        (search,), _ = recorded(model, SOURCES[:1], **searched[1], **extra)
        assert search["adjusted"] == {}


def test_what_adjusts_is_found_in_the_models_config_and_named_as_it_was_given(model):
    saved = copy.deepcopy(model)
    saved.generation_config.repetition_penalty = 1.3
    (search,), _ = recorded(saved, SOURCES[:1], search="paper", num_beams=2, sequence_bias={(9,): -2.0})
    assert search["adjusted"] == {"repetition_penalty": 1.3, "sequence_bias": "{(9,): -2.0}"}


def test_of_several_returned_the_best_is_the_winner(model):
    options = {"search": "paper", "num_beams": 4, "length_penalty": 0.6}
    for source in SOURCES:
        (one,), _ = recorded(model, [source], **options)
        (three,), (tensor,) = recorded(model, [source], **options, num_return_sequences=3)
        assert one["tokens"] == three["tokens"] and tensor.shape[2] == len(three["tokens"])


def test_report_29_each_source_is_searched_for_itself(model):
    together = recorded(model, search="paper", num_beams=3)
    for i, source in enumerate(SOURCES):
        (alone,), (tensor,) = recorded(model, [source], search="paper", num_beams=3)
        assert together[0][i] == alone
        assert torch.equal(together[1][i].value, tensor.value)


@pytest.mark.parametrize("search", ["paper", "stock"])
@pytest.mark.parametrize("beams", [1, 3])
def test_bfloat16(model, search, beams):
    low = copy.deepcopy(model).to(torch.bfloat16)
    searches, tensors = recorded(low, search=search, num_beams=beams, max_new_tokens=8)
    assert {tensor.value.dtype for tensor in tensors} == {torch.bfloat16}
    exact, _ = recorded(model, search=search, num_beams=1, max_new_tokens=8)
    for record in searches:
        assert record["winner"] in range(len(record["hypotheses"])) and len(record["steps"]) <= 8
    first = [[step["top"][0][0] for step in record["steps"]][0]["probability"] for record in searches]
    assert first == pytest.approx([r["steps"][0]["top"][0][0]["probability"] for r in exact], abs=0.05)


# -- Through trace(), and what it refuses -----------------------------------------------------------------------------


def test_the_models_own_generation_config_is_used(model):
    model = copy.deepcopy(model)
    model.generation_config.search, model.generation_config.num_beams = "paper", 3
    model.generation_config.length_penalty = 0.6
    own = trace(model, None, SOURCES).info["searches"]
    assert [(search["search"], search["beams"], search["alpha"]) for search in own] == [("paper", 3, 0.6)] * 3
    other = trace(model, None, SOURCES, search="stock", num_beams=2, max_new_tokens=9).info["searches"]
    assert [(search["search"], search["beams"], search["limit"]) for search in other] == [("stock", 2, 9)] * 3
    assert trace(model, None, SOURCES, search=False).info["searches"] == []


def test_a_source_is_translated_once_also_where_no_target_is_given(model, monkeypatch):
    asked, generate = [], model.generate
    monkeypatch.setattr(model, "generate", lambda **arguments: asked.append(arguments) or generate(**arguments))
    trace(model, None, SOURCES, num_beams=2)
    assert len(asked) == len(SOURCES)


def test_translations_are_the_winners(model):
    options = {"search": "paper", "num_beams": 3}
    sentences = Sentences(model, None, SOURCES)
    winners = [search["tokens"] for search in recorded(model, **options)[0]]
    assert translations(model, sentences, options) == winners
    found = trace(model, None, SOURCES, **options)
    assert [[token for token in row if token != -100] for row in found["target.labels"].value.tolist()] == winners


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "do_sample is True, wanted False"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups is 2, wanted 1"),
        ({"penalty_alpha": 0.6}, "penalty_alpha is 0.6, wanted 0"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3, wanted None"),
        ({"stop_strings": ["a"]}, r"stop_strings is \['a'\], wanted None"),
        ({"max_time": 1.0}, "max_time is 1.0, wanted None"),
        ({"guidance_scale": 2.0}, "guidance_scale is 2.0, wanted 1"),
        ({"decoder_input_ids": torch.tensor([[1, 3]])}, "decoder_input_ids is no option of a search that can be trac"),
        ({"assistant_model": "a model"}, "assistant_model is no option"),
        ({"custom_generate": "a function"}, "custom_generate is no option"),
        ({"streamer": "a streamer"}, "streamer is no option"),
        ({"logits_processor": LogitsProcessorList()}, "logits_processor is no option"),
        ({"stopping_criteria": StoppingCriteriaList()}, "stopping_criteria is no option"),
        ({"generation_config": GenerationConfig()}, "generation_config is no option"),
        ({"num_beems": 2}, "num_beems is no option .*, wanted fields of a generation config, such as num_beams"),
        ({"search": "beam"}, "search is 'beam', wanted one of paper, stock"),
        ({"num_beams": 0}, "num_beams is 0, wanted a whole number from 1 on"),
        ({"num_beams": 2.5}, "num_beams is 2.5, wanted a whole number from 1 on"),
        ({"num_beams": True}, "num_beams is True, wanted a whole number"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_trace_cannot_follow_is_refused_by_name(model, options, message):
    sentences = Sentences(model, None, SOURCES)
    for ask in (record_searches, translations):
        with pytest.raises(ValueError, match=message):
            ask(model, sentences, options)


def test_a_config_that_samples_is_refused_and_can_be_overruled(model):
    model = copy.deepcopy(model)
    model.generation_config.do_sample = True
    with pytest.raises(ValueError, match="do_sample is True, wanted False"):
        recorded(model)
    recorded(model, do_sample=False, max_new_tokens=3)


class Liar(VanillaTransformerForConditionalGeneration):
    """Returns another translation than it searched for, or another score."""

    lie = ""

    def generate(self, *args, **kwargs):
        out = super().generate(*args, **kwargs)
        if self.lie == "sequence":
            out.sequences[0, 1] = 3 if out.sequences[0, 1] != 3 else 4
        if self.lie == "score":
            out.sequences_scores += 0.01
        return out


@pytest.mark.parametrize(("lie", "message"), [("sequence", "not seen to finish"), ("score", "scored its answer")])
def test_the_winner_is_checked_and_not_assumed(model, lie, message):
    liar = Liar(model.config).eval()
    liar.load_state_dict(model.state_dict())
    recorded(liar, search="paper", num_beams=1)
    liar.lie = lie
    with pytest.raises(RuntimeError, match=message):
        recorded(liar, search="paper", num_beams=1)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("search", ["paper", "stock"])
def test_a_search_changes_nothing_about_the_model(model, search, implementation):
    """Nor does its mode change the search: it is recorded without dropout."""
    expected = recorded(model, search=search, num_beams=2, max_new_tokens=6)
    noisy = build_model(**{**model.config.to_diff_dict(), "dropout": 0.5})
    noisy.load_state_dict(model.state_dict())
    noisy.set_attn_implementation(implementation)
    noisy.train()
    noisy.lm_head.eval()
    before = [module.training for module in noisy.modules()]
    generator, config = torch.get_rng_state(), noisy.generation_config.to_dict()
    found = recorded(noisy, search=search, num_beams=2, max_new_tokens=6)
    assert found[0] == expected[0]
    assert all(torch.equal(a.value, b.value) for a, b in zip(found[1], expected[1], strict=True))
    assert [module.training for module in noisy.modules()] == before
    assert torch.equal(torch.get_rng_state(), generator)
    assert noisy.config._attn_implementation == implementation
    assert noisy.generation_config.to_dict() == config
    assert not noisy._forward_pre_hooks
    with pytest.raises(ValueError, match="max_extra_tokens"):
        recorded(noisy, search="paper", max_extra_tokens=-1)
    assert [module.training for module in noisy.modules()] == before and not noisy._forward_pre_hooks
