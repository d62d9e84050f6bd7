"""Label smoothing: the hand sum, the stock smoother, and the inputs that break other implementations."""

import math

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

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


def test_a_wrong_epsilon_is_named():
    with pytest.raises(ValueError, match="epsilon=1"):
        LabelSmoothedCrossEntropy(1.0)
