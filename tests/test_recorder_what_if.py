"""What a trace says of another target word: what moved, where first, and what no position may look at."""

import copy

import pytest
import torch
from conftest import build_model
from recorded import CASES, END, PAD, START, case, padded

from hf_attention import trace


@pytest.mark.parametrize("name", [name for name in CASES if name != "one word"])
def test_changing_a_later_target_word_moves_nothing_before_it(name):
    model, sources, targets = case(name)
    found = trace(model, None, sources, targets, search=False)
    what_if = found.info["counterfactual"]
    sentence, place = what_if["sentence"], what_if["label_position"]
    assert what_if["from"] == targets[sentence][place] != what_if["to"]
    assert what_if["to"] not in (PAD, START, END) and what_if["decoder_position"] == place + 1
    changed = copy.deepcopy(targets)
    changed[sentence][place] = what_if["to"]

    # Two untraced runs.
    model.set_attn_implementation("eager")
    with torch.no_grad():
        first, second = (
            model(**padded(sources, each), output_hidden_states=True, output_attentions=True)
            for each in (targets, changed)
        )
    moved = {row["name"]: row["first"] for row in what_if["moved"]}
    pairs = {"lm_head.logits": (first.logits, second.logits), "decoder.output": None}
    hidden = zip(first.decoder_hidden_states[1:], second.decoder_hidden_states[1:], strict=True)
    for layer, states in enumerate(hidden):
        pairs[f"decoder.layers.{layer}.feed_forward_add_norm.output"] = pairs["decoder.output"] = states
    for kind, attentions in (("self", "decoder_attentions"), ("cross", "cross_attentions")):
        for layer, weights in enumerate(zip(first[attentions], second[attentions], strict=True)):
            pairs[f"decoder.layers.{layer}.{kind}_attn.weights"] = [each.transpose(1, 2) for each in weights]
    for tensor, (before, after) in pairs.items():
        assert torch.equal(before[:, : place + 1], after[:, : place + 1])
        assert not torch.equal(before[sentence, place + 1], after[sentence, place + 1])
        assert moved[tensor] == place + 1
    assert torch.equal(first.encoder_last_hidden_state, second.encoder_last_hidden_state)

    # The label itself is the first to move, and then what is read after it.
    assert all(where is None or where >= place for where in moved.values())
    at_the_label = {name for name, where in moved.items() if where == place}
    assert at_the_label <= {"target.labels", "loss.targets", "loss.per_token", "loss.plain_per_token"}
    assert {name for name, where in moved.items() if where is None} <= {
        *("loss.plain", "loss.total"),
        *(f"decoder.layers.{i}.self_attn.{part}" for i in range(2) for part in ("products", "scores")),
    }
    assert not [name for name in moved if name.startswith(("encoder.", "source."))]
    expected = {name for name in found if name.startswith(("decoder.", "lm_head.", "loss."))}
    assert expected == {name for name in [*moved, *what_if["still"]] if not name.startswith("target.")}


def test_what_moves_where_nobody_may_look_is_counted():
    """Keys of later words do move the scores of earlier queries; the look-ahead mask then hides exactly these."""
    model, sources, _ = case("one sentence")
    targets, changed = [[7, 3, 4, 2]], [[7, 3, 5, 2]]
    first, second = (trace(model, None, sources, each, search=False) for each in (targets, changed))
    what_if = first.info["counterfactual"]
    assert (what_if["label_position"], what_if["from"], what_if["to"]) == (2, 4, 5)
    hidden = {row["name"]: row["hidden"] for row in what_if["moved"]}
    for part in ("products", "scores"):
        name = f"decoder.layers.0.self_attn.{part}"
        differ = first[name].value.ne(second[name].value)
        assert hidden[name] == int(differ[..., :3, 3].sum()) == 2 * 3  # heads × earlier queries
    assert not any(count for name, count in hidden.items() if not name.endswith(("products", "scores")))


@pytest.mark.parametrize(
    ("vocabulary", "targets"), [(5, [[2]]), (4, [[3, 3, 2]]), (5, [[2], [2]]), (5, [[1, 0, 2]]), (5, [[3]])]
)
def test_without_a_word_to_change_there_is_no_counterfactual(vocabulary, targets):
    model = build_model(vocab_size=vocabulary, num_layers=1)
    found = trace(model, None, [[3, 2]] * len(targets), targets, search=False)
    assert found.info["counterfactual"] is None


def test_the_word_that_changes_is_one_that_is_read_by_a_position_that_counts():
    """The word 3 of the first target is its last label: no further prediction depends on it."""
    found = trace(build_model(num_layers=1), None, [[3, 2]] * 2, [[3], [4, 5, 2]], search=False)
    what_if = found.info["counterfactual"]
    assert (what_if["sentence"], what_if["label_position"], what_if["from"]) == (1, 1, 5)
