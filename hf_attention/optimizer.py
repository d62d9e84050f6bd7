"""An optimizer that needs fewer updates than Adam: Muon for the matrices of the layers, Adam for everything else."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel


class BatchedMuon(torch.optim.Muon):
    """`torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, in 0.4 of its time on a CPU.

    Matrices of one shape are made orthogonal in one operation.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[parameter.shape, parameter.device].append(parameter)
            for (shape, _), parameters in alike.items():
                means = [self._mean(parameter, group["momentum"], group["nesterov"]) for parameter in parameters]
                directions = orthogonal(torch.stack(means), group["ns_coefficients"], group["ns_steps"], group["eps"])
                rate = group["lr"] * 0.2 * max(shape) ** 0.5  # "match_rms_adamw": Liu et al. 2025, Equation 4
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=rate)
        return loss

    def _mean(self, parameter: torch.Tensor, momentum: float, nesterov: bool) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter.grad)
        mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(mean, momentum) if nesterov else mean


def orthogonal(
    matrices: torch.Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float
) -> torch.Tensor:
    """Of each of `matrices` [N, rows, columns], U S V^T, about U V^T: singular values between 0.7 and 1.2.

    Newton-Schulz iterations (Jordan et al. 2024): a X + (b X X^T + c (X X^T)^2) X, from X of norm 1, in bfloat16 where
    that is quick.
    """
    first, third, fifth = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # the smaller square
    x = x.bfloat16() if multiplies_bfloat16(x.device) else x.float()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=epsilon)
    for _ in range(steps):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=third, alpha=fifth)
        x = torch.baddbmm(x, factor, x, beta=first)
    return (x.mT if tall else x).to(matrices.dtype)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether `device` has arithmetic for bfloat16. A CPU that has none emulates it, slower than float32 by far."""
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):  # an older torch does not tell
        return True
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))  # x86, then ARM


class MuonWithAdam(torch.optim.Optimizer):
    """Muon and `torch.optim.AdamW` as one optimizer, each with its own parameters of a model.

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
            BatchedMuon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused),
        ]
        super().__init__([{"params": matrices}, *groups], {"lr": lr})
        self._share_groups()

    def _share_groups(self) -> None:
        # The very dictionaries of the parts: what a scheduler writes into them is what the parts read.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        first, *others = self.parts
        loss = first.step(closure)
        for part in others:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs: the states of Muon and AdamW, under `parts`."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()  # loading has made new ones
