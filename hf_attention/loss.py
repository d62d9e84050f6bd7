"""Label smoothing (§5.4), and the loss together with the last linear layer, for some positions at a time."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable


LOGITS_AT_ONCE = 2**22  # 16 MB of float32, few enough for a cache
ROWS_AT_ONCE = 256  # at least, for fast products of matrices
NOT_COUNTED = -100


class LabelSmoothedCrossEntropy:
    """Cross entropy against smoothed labels, for our model or for the stock Trainer with any model.

        model.loss_function = LabelSmoothedCrossEntropy(0.1)  # ours: in training, the loss without all logits at once
        Seq2SeqTrainer(model=any_model, compute_loss_func=LabelSmoothedCrossEntropy(0.1))

    The first wants a Trainer without `label_smoothing_factor`, which would take the labels away, and weights that are
    whole on each device. Both give the same value and gradients.

    The target distribution is that of the work which the paper cites (Szegedy et al. 2016, section 7): 1 - ε on the
    label and ε spread evenly over the whole vocabulary V, label included. Others are in use. Losses of different
    formulas can't be compared; with ε = 0 all are plain cross entropy:

    | on the label | on each other        | where                                                 |
    | ------------ | -------------------- | ----------------------------------------------------- |
    | 1 - ε + ε/V  | ε/V                  | here, Transformers' `label_smoothing_factor`, fairseq |
    | 1 - ε        | ε/(V-1)              | tensor2tensor, less the constant entropy of that      |
    | 1 - ε        | ε/(V-2), pad nothing | JoeyNMT, the Annotated Transformer                    |
    """

    def __init__(self, epsilon: float):
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon={epsilon!r}: want a probability, 0 <= epsilon < 1.")
        self.epsilon = epsilon

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor] | torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The mean in nats over `labels` [B, T] other than -100; or their sum divided by `num_items_in_batch`.

        `outputs` are logits [B, T, V], or a model's output that holds them.
        """
        logits = outputs if isinstance(outputs, torch.Tensor) else outputs["logits"]
        total = nn.functional.cross_entropy(
            logits.flatten(0, -2).float(), labels.flatten(), label_smoothing=self.epsilon, reduction="sum"
        )
        return _mean(total, labels, num_items_in_batch)

    def from_hidden_states(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The same for the logits that `weight` [V, D], a linear layer's, makes of `hidden_states` [B, T, D]."""
        total = _LinearCrossEntropy.apply(hidden_states.flatten(0, -2), weight, labels.flatten(), self.epsilon)
        return _mean(total, labels, num_items_in_batch)


def _mean(total: torch.Tensor, labels: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
    if items is None:
        items = labels.ne(NOT_COUNTED).sum()
    return total / (items.to(total.device) if torch.is_tensor(items) else items)


class _LinearCrossEntropy(torch.autograd.Function):
    """Σ -q · log softmax(h Wᵀ) over the labels that count, q being the smoothed label.

    With respect to the logits its gradient is softmax(h Wᵀ) - q. The first part is known as soon as the logits are, so
    some rows at a time go the whole way, from hidden states to the gradients of hidden states and weight, and the next
    take their place: automatic differentiation keeps three tensors of [N, V] and goes over them twice as often. The
    second part needs no logits, only the label's row of the weight and the mean of all rows. It is added in float32,
    so that autocast, under which the first is as coarse as every product, takes nothing from it.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, epsilon: float) -> Any:
        """`hidden` [N, D], `weight` [V, D], `labels` [N]."""
        device, vocab = hidden.device.type, len(weight)
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            counted, labels = labels.ne(NOT_COUNTED)[:, None], labels.clamp(min=0)  # [N, 1], [N]
            states, wide = hidden.float() * counted, weight.float()  # what does not count adds nothing to any gradient
            matrix = weight.to(narrow)
            grad_hidden, grad_weight = torch.empty_like(states), torch.zeros_like(wide)
            normalisers = torch.empty_like(states[:, :1])  # [N, 1]: log Σ exp of the logits
            rows = max(ROWS_AT_ONCE, LOGITS_AT_ONCE // vocab)  # R
            for start in range(0, len(states), rows):
                part = slice(start, start + rows)
                logits = states[part].to(narrow) @ matrix.t()  # [R, V]
                highest = logits.amax(1, keepdim=True)  # [R, 1]
                exponentials = logits.sub_(highest).exp_()
                total = exponentials.sum(1, keepdim=True, dtype=torch.float32)  # [R, 1]
                normalisers[part] = highest + total.log()
                # Rows of softmax are those of `exponentials` over `total`: dividing the narrow side costs less.
                grad_hidden[part] = (exponentials @ matrix) / total
                grad_weight += exponentials.t() @ (states[part] / total).to(narrow)
            target = (1 - epsilon) * wide[labels] + epsilon * wide.mean(0)  # [N, D]: q W, as Σ q · logits = h · q W
            loss = ((normalisers - (states * target).sum(1, keepdim=True)) * counted).sum()
            grad_hidden = (grad_hidden - target) * counted
            grad_weight.index_add_(0, labels, states, alpha=epsilon - 1)
            grad_weight -= epsilon / vocab * states.sum(0)
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None
