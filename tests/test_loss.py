"""Label smoothing: the hand sum, the stock smoother, and the inputs that break other implementations."""

import math

import pytest
import torch
from conftest import build_model
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention import loss as loss_module
from hf_attention.loss import LabelSmoothedCrossEntropy


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_report_31_the_hand_sum():
    """V = 4, one token, label 2, logits ln 1, ln 2, ln 3, ln 4, so p = 0.1, 0.2, 0.3, 0.4; ε = 0.2 puts 0.85 on it."""
    row = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]).log()
    expected = -(0.05 * math.log(0.1) + 0.05 * math.log(0.2) + 0.85 * math.log(0.3) + 0.05 * math.log(0.4))
    loss = LabelSmoothedCrossEntropy(0.2)({"logits": row}, torch.tensor([[2]]))
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_no_smoothing_is_plain_cross_entropy():
    labels = torch.tensor([[3, 1, -100], [0, -100, -100]])
    loss = LabelSmoothedCrossEntropy(0.0)({"logits": logits(2, 3, 7)}, labels)
    expected = torch.nn.functional.cross_entropy(logits(2, 3, 7).flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_floor_is_the_entropy_of_the_smoothed_target():
    """Shared figures: V = 11, ε = 0.1, ε/V on all: 0.514 nats, reached where the prediction is the smoothed target."""
    target = torch.full((11,), 0.1 / 11)
    target[4] += 0.9
    loss = LabelSmoothedCrossEntropy(0.1)({"logits": target.log()[None, None]}, torch.tensor([[4]]))
    assert loss.item() == pytest.approx(0.514, abs=5e-4)


BATCHES = {
    "padded": (logits(2, 5, 11), torch.tensor([[4, 2, -100, -100, -100], [3, 9, 8, 7, 2]])),
    "report 30: no pads": (logits(2, 3, 11), torch.tensor([[4, 5, 2], [3, 9, 2]])),
    "report 30: one token": (logits(1, 1, 11), torch.tensor([[2]])),
    "report 30: huge logits": (logits(1, 4, 11).sign() * 1e4, torch.tensor([[4, 5, 6, 2]])),
}


@pytest.mark.parametrize(("scores", "labels"), BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("items", [None, 17, torch.tensor(17)], ids=["mean", "int", "tensor"])
def test_value_and_gradient_are_the_stock_smoothers(scores, labels, items):
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    loss = LabelSmoothedCrossEntropy(0.1)({"logits": ours}, labels, items)
    stock = LabelSmoother(epsilon=0.1)({"logits": theirs}, labels, num_items_in_batch=items)
    assert loss.isfinite()
    torch.testing.assert_close(loss, stock, rtol=1e-5, atol=1e-5)
    loss.backward()
    stock.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 100], ids="{} rows at once".format)
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("items", [None, 17, torch.tensor(17)], ids=["mean", "int", "tensor"])
def test_with_the_last_layer_value_and_gradients_are_those_of_the_stock_formula(monkeypatch, rows, epsilon, items):
    """V = 11, D = 6, two sentences of 5 labels, 3 of them padding; the stock smoother on automatic differentiation."""
    monkeypatch.setattr(loss_module, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", 1)
    labels = torch.tensor([[4, 2, -100, -100, -100], [3, 9, 8, 7, 2]])
    leaves = [
        tensor for _ in range(2) for tensor in (logits(2, 5, 6).requires_grad_(), logits(11, 6).requires_grad_())
    ]
    ours = LabelSmoothedCrossEntropy(epsilon).from_hidden_states(leaves[0], leaves[1], labels, items)
    stock = LabelSmoother(epsilon)({"logits": leaves[2] @ leaves[3].t()}, labels, num_items_in_batch=items)
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
    (2 * ours).backward()
    (2 * stock).backward()
    for mine, theirs in zip(leaves[:2], leaves[2:], strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-6)


def test_with_the_last_layer_huge_logits_stay_finite():
    """Report 30: logits of ±1e4, a word of probability 0 as the label."""
    hidden, weight = torch.tensor([[[1e4]]], requires_grad=True), torch.tensor([[1.0], [-1.0]], requires_grad=True)
    loss = LabelSmoothedCrossEntropy(0.0).from_hidden_states(hidden, weight, torch.tensor([[1]]))
    loss.backward()
    assert loss.item() == 2e4  # log(e^1e4 + e^-1e4) + 1e4
    assert hidden.grad.item() == 2.0  # Σ (p - q) w = 1 · 1 - 1 · -1
    assert weight.grad.tolist() == [[1e4], [-1e4]]


def test_under_autocast_it_multiplies_in_the_narrow_type():
    """bfloat16 has 8 bits: softmax is off by 2^-9 of itself, next to nothing where it is flat. Labels are exact."""
    hidden, weight, labels = logits(1, 64, 32), 0.02 * logits(1000, 32).flip(0), torch.arange(64)[None]
    loss, gradients = {}, {}
    for narrow in (False, True):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=narrow):
            loss[narrow] = LabelSmoothedCrossEntropy(0.1).from_hidden_states(*leaves, labels)
        loss[narrow].backward()
        gradients[narrow] = leaves[1].grad
    assert loss[True].dtype == gradients[True].dtype == torch.float32
    assert 0 < (loss[True] - loss[False]).abs() < 0.01
    assert 0 < (gradients[True] - gradients[False]).norm() < 2**-11 * gradients[False].norm()


def test_in_training_our_model_makes_no_logits_and_has_the_same_gradients():
    batch = {"input_ids": torch.tensor([[3, 4, 2], [5, 2, 0]]), "labels": torch.tensor([[6, 2, -100], [7, 8, 2]])}
    batch["attention_mask"] = batch["input_ids"].ne(0).long()
    gradients = []
    for fused in (True, False):
        model = build_model(dropout=0.0).train()
        if fused:
            model.loss_function = LabelSmoothedCrossEntropy(0.1)
        outputs = model(**batch, num_items_in_batch=5)
        assert (outputs.logits is None) == fused
        loss = outputs.loss if fused else LabelSmoother(0.1)(outputs, batch["labels"], num_items_in_batch=5)
        loss.backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-5, atol=1e-6, msg=name)
    model.loss_function = LabelSmoothedCrossEntropy(0.1)
    evaluated = model.eval()(**batch)
    torch.testing.assert_close(evaluated.loss, LabelSmoother(0.1)(evaluated, batch["labels"]))


def test_a_wrong_epsilon_is_named():
    with pytest.raises(ValueError, match="epsilon=1"):
        LabelSmoothedCrossEntropy(1.0)
