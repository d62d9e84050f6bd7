"""Label smoothing (§5.4) for the stock Trainer, in one pass over the logits."""

from collections.abc import Mapping

import torch
from torch import nn


class LabelSmoothedCrossEntropy:
    """For `Seq2SeqTrainer(compute_loss_func=LabelSmoothedCrossEntropy(0.1))`.

    The target distribution is that of the work which the paper cites (Szegedy et al. 2016, section 7): 1 - ε on the
    label and ε spread evenly over the whole vocabulary V, label included. Others are in use. Losses of different
    formulas can't be compared; with ε = 0 all are plain cross entropy:

    | on the label | on each other        | where                                                 |
    | ------------ | -------------------- | ----------------------------------------------------- |
    | 1 - ε + ε/V  | ε/V                  | here, Transformers' `label_smoothing_factor`, fairseq |
    | 1 - ε        | ε/(V-1)              | tensor2tensor, less the constant entropy of that      |
    | 1 - ε        | ε/(V-2), pad nothing | JoeyNMT, the Annotated Transformer                    |

    The value is the stock `LabelSmoother`'s, to rounding; it costs fewer passes over [B, T, V], the largest tensor of
    a training step.
    """

    def __init__(self, epsilon: float):
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon={epsilon!r}: want a probability, 0 <= epsilon < 1.")
        self.epsilon = epsilon

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The mean in nats over `labels` [B, T] other than -100; or their sum divided by `num_items_in_batch`."""
        total = nn.functional.cross_entropy(
            outputs["logits"].flatten(0, -2).float(), labels.flatten(), label_smoothing=self.epsilon, reduction="sum"
        )
        if num_items_in_batch is None:
            num_items_in_batch = labels.ne(-100).sum()
        elif torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(total.device)
        return total / num_items_in_batch
