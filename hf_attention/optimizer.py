"""An optimizer that needs fewer updates than Adam: Muon for the matrices of the layers, Adam for everything else."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel


class MuonWithAdam(torch.optim.Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer, each with its own parameters of a model.

    Muon (Jordan et al. 2024) moves a weight matrix by the mean of its gradients made orthogonal, as far in the
    directions that the gradient hardly has as in those it is full of. It is for matrices of hidden layers; embedding,
    output layer, biases and layer norms stay with Adam. Its step is scaled to the size of Adam's (Liu et al. 2025,
    "Muon is Scalable for LLM Training"), so both have one rate and one schedule.

    ```python
    trainer = Seq2SeqTrainer(model=model, ..., optimizers=(MuonWithAdam(model, lr=3e-3), None))
    ```

    Args:
        model: its linear layers but the output layer are for Muon.
        lr: learning rate of both.
        betas, eps, fused: of AdamW.
        weight_decay: of both; as in the stock Trainer, none for biases and layer norms.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        weight_decay: float = 0.0,
        fused: bool | None = None,
    ):
        embeddings = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
        linear = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)} - embeddings
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if id(parameter) in linear]
        others = [parameter for parameter in trained if id(parameter) not in linear]
        tables = [parameter for parameter in others if parameter.ndim > 1]
        vectors = [parameter for parameter in others if parameter.ndim <= 1]
        groups = [{"params": tables, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused),
        ]
        super().__init__([{"params": matrices}, *groups], {"lr": lr})
        self._share_groups()

    def _share_groups(self) -> None:
        # The very dictionaries of the parts: what a scheduler writes into them is what the parts read.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs: the states of Muon and AdamW, under `parts`."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()  # loading has made new ones
