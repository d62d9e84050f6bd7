"""Time line and beam tree: what they print, worked out again from the model and the formulas."""

import copy
import re
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from conftest import build_model
from svg import HOSTILE, of, overlaps, read, texts
from transformers import PreTrainedModel

from hf_attention import Trace, trace
from hf_attention.figures import draw, names


PAIRS = [[3, 4, 5, 2], [6, 2]], [[3, 2], [4, 2]]
RUNS = {
    "greedy": {"num_beams": 1, "search": "paper", "max_extra_tokens": 5},
    "four beams": {"num_beams": 4, "search": "paper", "length_penalty": 0.6, "max_extra_tokens": 5},
    "stock": {"num_beams": 4, "search": "stock", "length_penalty": 0.8, "max_new_tokens": 8},
    "stock greedy": {"num_beams": 1, "search": "stock", "max_new_tokens": 8},
}
SEEDS = {"greedy": 7, "stock greedy": 7}  # otherwise 0: of these, some hypotheses end and others are cut off
EXACT = 5.1e-4  # what is printed has three decimals


@dataclass(eq=False)
class Run:
    """A model, a trace of its translations, and what the model says to them without a cache."""

    name: str
    model: PreTrainedModel
    made: Trace

    @property
    def searches(self):
        return list(enumerate(self.made.info["searches"]))

    def source(self, index):
        return torch.tensor([PAIRS[0][index]])

    def total(self, index, tokens):
        rows = log_probs(self, index, tuple(tokens))
        return sum(float(rows[place, token]) for place, token in enumerate(tokens))

    def penalty(self, index, length):
        alpha = RUNS[self.name].get("length_penalty", 1.0)
        if RUNS[self.name]["search"] == "paper":
            return ((5 + length) / 6) ** alpha
        return length**alpha if RUNS[self.name]["num_beams"] > 1 else 1.0  # stock greedy search compares nothing


@cache
def log_probs(run, index, tokens):
    """The log-probabilities of what may follow each of these generated tokens, by one call without a cache."""
    prompt = run.made.info["searches"][index]["prompt"]
    with torch.no_grad():
        logits = run.model(run.source(index), decoder_input_ids=torch.tensor([[*prompt, *tokens]])).logits[0]
    return logits.log_softmax(-1)[len(prompt) - 1 :]


@cache
def ran(name):
    model = build_model(seed=SEEDS.get(name, 0))
    return Run(name, model, trace(model, None, *PAIRS, **RUNS[name]))


@pytest.fixture(params=RUNS, name="run", scope="module")
def a_run(request):
    return ran(request.param)


def number(text):
    return float(text.replace("−", "-"))


def nodes(drawn):
    """The texts of each hypothesis on the tree, its box, and its fate."""
    found = {}
    for each in drawn:
        group = each.within("hypothesis")
        if group is not None:
            node = found.setdefault(int(group.get("data-hypothesis")), {"fate": group.get("data-fate"), "lines": []})
            if each.element.tag == "rect":
                node["box"] = each
            else:
                node["lines"].append(each.text)
    return found


def test_numbers_of_the_tree_are_the_models_and_the_formulas(run):
    made = run.made
    for index, search in run.searches:
        drawn = nodes(read(draw(made, f"search.{index}.tree")))
        ended = 0
        for place, node in drawn.items():
            tokens = search["hypotheses"][place]["tokens"]
            if not tokens:
                continue
            log_p = run.total(index, tokens)
            assert node["lines"][0] == made.token(tokens[-1])
            numbers = [number(text) for text in re.findall(r"[−]?\d+\.\d+", " ".join(node["lines"][1:]))]
            assert numbers[0] == pytest.approx(log_p, abs=EXACT + 1e-4)
            if node["fate"] in ("live", "dropped"):
                assert len(numbers) == 1
            else:
                divisor = run.penalty(index, len(tokens))
                assert numbers[1:] == pytest.approx([divisor, log_p / divisor], abs=EXACT + 1e-4)
                ended += 1
        assert ended


def test_the_header_says_the_penalty_of_each_length(run):
    made = run.made
    heads = [each for each in of(read(draw(made, "search.0.tree")), "text") if each.within("hypothesis") is None]
    tops = sorted({each.y for each in heads})
    at = tops.index(next(each.y for each in heads if each.text == "penalty"))
    lengths, penalties = ([each.text for each in heads if each.y == y][1:] for y in tops[at - 1 : at + 1])
    assert lengths == [str(length + 1) for length in range(len(made.info["searches"][0]["steps"]))]
    for length, divisor in zip(lengths, penalties, strict=True):
        assert number(divisor) == pytest.approx(run.penalty(0, int(length)), abs=EXACT)


def test_every_candidate_is_drawn_or_counted(run):
    """All that lived on or ended; of the dropped one a step, and how many more there were."""
    made = run.made
    for index, search in run.searches:
        drawn = read(draw(made, f"search.{index}.tree"))
        shown = nodes(drawn)
        counted = sum(int(text[1:].split()[0]) for text in texts(drawn) if re.fullmatch(r"\+\d+ more", text))
        assert len(shown) + counted == 1 + sum(len(step["candidates"]) for step in search["steps"])
        for step in search["steps"]:
            for candidate in step["candidates"]:
                if candidate["fate"] != "dropped":
                    assert candidate["hypothesis"] in shown
            left = [each for each in step["candidates"] if each["fate"] == "dropped"]
            drawn_of_it = [each for each in left if each["hypothesis"] in shown]
            assert len(drawn_of_it) == min(1, len(left))
            if left:
                assert drawn_of_it[0]["total"] == max(each["total"] for each in left)


def test_lines_go_to_the_parent_and_do_not_cross(run):
    made = run.made
    for index, search in run.searches:
        drawn = read(draw(made, f"search.{index}.tree"))
        shown = nodes(drawn)
        lines = of(drawn, "path", "arc")
        assert sorted(int(line.data_child) for line in lines) == sorted(set(shown) - {0})
        ends = []
        for line in lines:
            parent, child = (search["hypotheses"][int(line.data_parent)], search["hypotheses"][int(line.data_child)])
            assert child["tokens"][:-1] == parent["tokens"]
            (x0, y0), *_, (x1, y1) = line.points
            above, below = shown[parent["id"]]["box"], shown[child["id"]]["box"]
            assert (x0, y0) == pytest.approx((above.x + above.width, above.y + above.height / 2), abs=0.02)
            assert (x1, y1) == pytest.approx((below.x, below.y + below.height / 2), abs=0.02)
            ends.append((x0, y0, x1, y1))
        for x0, y0, x1, y1 in ends:
            for other in ends:
                if other[0] == x0 and other[2] == x1:
                    assert (y0 - other[1]) * (y1 - other[3]) >= 0
        boxes = [node["box"] for node in shown.values()]
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                assert one.x != other.x or one.y >= other.y + other.height or other.y >= one.y + one.height


def test_the_winner_is_the_models_answer(run):
    """Named, dark, and the way to it bold from its first token on."""
    made = run.made
    for index, search in run.searches:
        answer = run.model.generate(run.source(index), **RUNS[run.name])[0].tolist()[1:]
        drawn = read(draw(made, f"search.{index}.tree"))
        shown = nodes(drawn)
        (winner,) = [place for place, node in shown.items() if "winner" in node["lines"]]
        assert search["hypotheses"][winner]["tokens"] == answer
        way = [place for place, node in shown.items() if "strong" in node["box"].kind]
        assert [search["hypotheses"][place]["tokens"] for place in sorted(way)] == [
            answer[:length] for length in range(len(answer) + 1)
        ]
        at_limit = len(answer) == search["limit"] and answer[-1] != run.model.config.eos_token_id
        assert ("cut off" in shown[winner]["lines"]) == at_limit


def test_the_rules_of_the_search_are_said(run):
    made = run.made
    search = made.info["searches"][0]
    for name in ("steps", "tree"):
        written = " ".join(texts(read(draw(made, f"search.0.{name}"))))
        assert f"at most {search['limit']}" in written
        assert ("k = 4" in written) == (search["beams"] == 4)
        formula = {
            "greedy": "score = log P / ((5 + length) / 6) ",
            "four beams": "score = log P / ((5 + length) / 6)^0.6 ",
            "stock": "score = log P / length^0.8 ",
            "stock greedy": "score = log P ·",
        }
        assert formula[run.name] in written


def rows(drawn):
    """The options of each row of the time line: {(step, row): [(token, probability as printed, mark, its box)]}."""
    found = {}
    heights = {}
    for each in of(drawn, "text"):
        group, step = each.within("option"), each.within("step")
        if group is None:
            continue
        index = int(step.get("data-step"))
        option = heights.setdefault((index, id(group)), {"group": group, "texts": [], "y": each.y, "x": each.x})
        option["texts"].append(each.text)
    for (index, _), option in heights.items():
        found.setdefault(index, []).append(option)
    return found


def test_time_line_says_what_was_fed_and_cached(run):
    made = run.made
    for index, search in run.searches:
        drawn = read(draw(made, f"search.{index}.steps"))
        written = {}
        for each in of(drawn, "text"):
            if each.within("step") is not None and each.within("option") is None:
                written.setdefault(int(each.within("step").get("data-step")), []).append(each.text)
        assert len(written) == len(search["steps"])
        for place, said in written.items():
            live = [search["hypotheses"][hypothesis] for hypothesis in search["steps"][place]["live"]]
            assert said[:2] == [str(place + 1), str(place)]  # the cache holds all but the last token
            for row, hypothesis in enumerate(live):
                part = said[2:][row * (4 if len(live) > 1 else 3) :]
                tokens = search["prompt"] + hypothesis["tokens"]
                assert part[0] == made.token(tokens[-1])
                before = " ".join(made.token(token) for token in tokens[:-1])
                assert part[1] == before or before.endswith(part[1].removeprefix("… "))
                log_p = run.total(index, hypothesis["tokens"])
                assert number(part[-1] if len(live) == 1 else part[3]) == pytest.approx(log_p, abs=EXACT + 1e-4)


def test_time_line_says_the_probabilities(run):
    """The five most probable tokens of each live hypothesis, as the model has them in one uncached call."""
    made = run.made
    for index, search in run.searches:
        options = rows(read(draw(made, f"search.{index}.steps")))
        for place, step in enumerate(search["steps"]):
            found = sorted(options[place], key=lambda option: (option["y"], option["x"]))
            for hypothesis in step["live"]:
                tokens = search["hypotheses"][hypothesis]["tokens"]
                best = log_probs(run, index, tuple(tokens))[len(tokens)].exp().topk(5)
                mine, found = found[:5], found[5:]
                likely = zip(mine, best.indices.tolist(), best.values.tolist(), strict=True)
                for option, token, probability in likely:
                    assert option["texts"][0] == made.token(token)
                    printed = number(option["texts"][1])
                    assert printed == pytest.approx(probability, abs=EXACT + 1e-5)
                    if probability < 0.0099:  # then by two digits that count
                        assert printed == pytest.approx(probability, rel=0.051)
                    assert float(option["group"].get("data-probability")) == pytest.approx(probability, abs=1e-5)


def test_time_line_says_what_became_of_them(run):
    """`→ 2` is read in row 2 of the next step; what ended is said, too."""
    made = run.made
    for index, search in run.searches:
        options = rows(read(draw(made, f"search.{index}.steps")))
        for place, step in enumerate(search["steps"]):
            found = sorted(options[place], key=lambda option: (option["y"], option["x"]))
            marks = [mark for option in found for mark in option["texts"][2:]]
            following = search["steps"][place + 1]["live"] if place + 1 < len(search["steps"]) else []
            goes_on = [mark for mark in marks if mark.startswith("→")]
            assert len(goes_on) == len(following)
            for option in found:
                mark = (option["texts"][2:] or [""])[0]
                if re.fullmatch(r"→ \d", mark):
                    token = search["hypotheses"][following[int(mark[2:]) - 1]]["token"]
                    assert option["texts"][0] == made.token(token)
            fates = [search["hypotheses"][each["hypothesis"]]["fate"] for each in step["candidates"]]
            assert sorted(mark for mark in marks if mark and mark[0] != "→") == sorted(
                {"finished": "ended", "winner": "winner", "cut off": "limit"}[fate]
                for fate in fates
                if fate not in ("live", "dropped")
            )


def test_time_line_compares_what_has_ended(run):
    """Sorted by score, the winner first and bold, with the sum that makes the score."""
    made = run.made
    for index, search in run.searches:
        drawn = read(draw(made, f"search.{index}.steps"))
        sums = [each for each in of(drawn, "text", "number") if " = " in each.text]
        scores = []
        for each in sums:
            log_p, divisor, score = (number(part) for part in re.findall(r"[−]?\d+\.\d+", each.text))
            rounding = EXACT * (1 + (1 + abs(log_p) / divisor) / divisor)
            assert score == pytest.approx(log_p / divisor, abs=rounding)
            scores.append(score)
        cut_off = ["cut off at the limit" in each.text for each in sums]
        for rank in (False, True):  # a search takes what was cut off only in need
            ranked = [score for score, cut in zip(scores, cut_off, strict=True) if cut == rank]
            assert ranked == sorted(ranked, reverse=True)
        assert "bold" in sums[0].kind
        winner = search["hypotheses"][search["winner"]]
        log_p, divisor = run.total(index, winner["tokens"]), run.penalty(index, len(winner["tokens"]))
        assert scores[0] == pytest.approx(log_p / divisor, abs=EXACT + 1e-4)


@pytest.mark.parametrize("figure", ["steps", "tree"])
def test_no_text_lies_on_another(run, figure):
    made = run.made
    for index in range(2):
        assert overlaps(read(draw(made, f"search.{index}.{figure}"))) == []


@pytest.mark.parametrize("figure", ["steps", "tree"])
def test_a_long_search_is_drawn_in_part_and_says_so(figure):
    model = build_model(vocab_size=5)
    made = trace(model, None, [[3, 2]], [[3, 2]], num_beams=1, max_new_tokens=60, min_new_tokens=60)
    assert "and 20 more steps" in texts(read(draw(made, f"search.0.{figure}")))


@pytest.mark.parametrize("search", ["paper", "stock"])
def test_what_is_not_the_models_own_is_said(search):
    """With a repetition penalty a log-probability is multiplied: the number shown is no probability of the model's."""
    options = {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2, "suppress_tokens": [6, 7] + [9] * 40}
    plain, adjusted = (
        trace(build_model(), None, *PAIRS, search=search, num_beams=2, max_new_tokens=6, **each)
        for each in ({}, options)
    )
    for figure in ("steps", "tree"):
        drawn = read(draw(adjusted, f"search.0.{figure}"))
        (said,) = [text for text in texts(drawn) if text.startswith("after ")]
        assert "after repetition_penalty=1.8, no_repeat_ngram_size=2, suppress_tokens=[6, 7, 9," in said
        assert said.endswith("…, which changed the model's own probabilities")
        assert overlaps(drawn) == []
        assert not [text for text in texts(read(draw(plain, f"search.0.{figure}"))) if "after " in text]
    said, plainly = (texts(read(draw(made, "search.0.steps"))) for made in (adjusted, plain))
    assert "adjusted log P" in said and "log P so far" in plainly
    assert not [text for text in said if "probable" in text] and [text for text in plainly if "most probable" in text]


def test_small_probabilities_have_two_digits_beside_any_token(by_hand):
    """Their logarithm can be worked out: log 0.0021 is −6.17, log 0.002 would be −6.21."""
    step = by_hand.info["searches"][0]["steps"][1]
    step["top"][1] = [{"token": token, "probability": p} for token, p in ((6, 0.9978), (3, 0.00214), (4, 7.12e-5))]
    by_hand.info["vocabulary"]["4"] = "w" * 30
    drawn = read(draw(by_hand, "search.0.steps"))
    said = [option["texts"] for option in rows(drawn)[1]]
    assert said[-2] == ["3", "0.0021"] and said[-1][1] == "7.1e−05"
    assert overlaps(drawn) == []


def test_each_translation_has_its_figures():
    made = ran("greedy").made
    assert [name for name in names(made) if name.startswith("search.") and not name.endswith("arcs")] == [
        f"search.{index}.{figure}" for index in (0, 1) for figure in ("steps", "tree")
    ]
    without = trace(build_model(vocab_size=5), None, [[3, 2]], [[3, 2]], search=False)
    assert not [name for name in names(without) if name.startswith("search.")]


def hypothesis(id, parent, step, tokens, log_prob, alpha, fate):
    length = len(tokens)
    divisor = ((5 + length) / 6) ** alpha if length else 1.0
    parts = {"log_prob": log_prob, "length": length, "penalty": divisor, "score": log_prob / divisor, "fate": fate}
    return {"id": id, "parent": parent, "step": step, "token": tokens[-1] if tokens else 1, "tokens": tokens, **parts}


@pytest.fixture
def by_hand():
    """Two beams that swap places: the second best after one token wins. α = 1, so a length of 7 halves."""
    made = copy.deepcopy(ran("greedy").made)
    tree = [
        hypothesis(0, None, None, [], 0.0, 1.0, "live"),
        hypothesis(1, 0, 0, [3], -0.5, 1.0, "live"),
        hypothesis(2, 0, 0, [4], -1.0, 1.0, "live"),
        hypothesis(3, 0, 0, [5], -2.0, 1.0, "dropped"),
        hypothesis(4, 2, 1, [4, 6], -1.25, 1.0, "live"),
        hypothesis(5, 1, 1, [3, 2], -1.75, 1.0, "finished"),
        hypothesis(6, 1, 1, [3, 6], -1.5, 1.0, "dropped"),
        hypothesis(7, 4, 2, [4, 6, 2], -1.75, 1.0, "winner"),
    ]

    def candidate(place, fate):
        node = tree[place]
        own = node["log_prob"] - tree[node["parent"]]["log_prob"]
        whole = {"parent": node["parent"], "token": node["token"], "log_prob": own, "total": node["log_prob"]}
        return {**whole, "penalty": node["penalty"], "score": node["score"], "fate": fate, "hypothesis": place}

    def top(*pairs):
        return [{"token": token, "probability": probability} for token, probability in pairs]

    steps = [
        {"length": 0, "fed": [[1]], "cache_length": 0, "live": [0], "top": [top((3, 0.6065), (4, 0.3679))],
         "candidates": [candidate(1, "live"), candidate(2, "live"), candidate(3, "dropped")]},
        {"length": 1, "fed": [[3], [4]], "cache_length": 1, "live": [1, 2],
         "top": [top((6, 0.3679), (2, 0.2865)), top((6, 0.7788), (3, 0.1))],
         "candidates": [candidate(4, "live"), candidate(6, "live"), candidate(5, "finished")]},
        {"length": 2, "fed": [[6]], "cache_length": 2, "live": [4], "top": [top((2, 0.6065), (9, 0.2))],
         "candidates": [candidate(7, "finished")]},
    ]  # fmt: skip
    search = {"search": "paper", "beams": 2, "alpha": 1.0, "limit": 9, "adjusted": {}, "prompt": [1]}
    made.info["searches"] = [
        {**search, "steps": steps, "hypotheses": tree, "winner": 7, "tokens": [4, 6, 2], "text": "4 6"}
    ]
    return made


def test_a_tree_by_hand(by_hand):
    """-1.75 after three tokens is -1.75 / (8/6) = -1.3125; after two -1.75 / (7/6) = -1.5: the longer one wins."""
    shown = nodes(read(draw(by_hand, "search.0.tree")))
    assert shown[7]["lines"] == ["</s>", "−1.750 / 1.333", "= −1.312", "winner"]
    assert shown[5]["lines"] == ["</s>", "−1.750 / 1.167", "= −1.500"]
    assert shown[2]["lines"] == ["4", "−1.000"]
    assert {place for place, node in shown.items() if "strong" in node["box"].kind} == {0, 2, 4, 7}
    assert {place for place, node in shown.items() if "dashed" in node["box"].kind} == {3, 6}


def test_a_time_line_by_hand(by_hand):
    options = rows(read(draw(by_hand, "search.0.steps")))
    said = {place: [option["texts"] for option in found] for place, found in options.items()}
    assert said[0] == [["3", "0.607", "→ 1"], ["4", "0.368", "→ 2"]]
    assert said[1] == [["6", "0.368"], ["</s>", "0.286", "ended"], ["6", "0.779", "→"], ["3", "0.100"]]
    assert said[2] == [["</s>", "0.607", "winner"], ["9", "0.200"]]


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE)
def test_any_token_can_be_written(token):
    made = copy.deepcopy(ran("four beams").made)
    made.info["vocabulary"] = dict.fromkeys(made.info["vocabulary"], token)
    for search in made.info["searches"]:
        search["text"] = token * 30
    for figure in ("steps", "tree"):
        drawn = read(draw(made, f"search.1.{figure}"))
        assert overlaps(drawn) == []
        if 0 < len(token) < 5 and token.isprintable():
            assert token in texts(drawn)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("search.2.tree", {}, "no figure 'search.2.tree'"),
        ("search.0.tree", {"sentence": 0}, "sentence"),
        ("search.0.steps", {"beam": 1}, "beam"),
    ],
)
def test_a_bad_option_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        draw(ran("greedy").made, name, **options)
