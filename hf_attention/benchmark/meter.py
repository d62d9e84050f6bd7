"""Counts the real tokens of the batches that a training sees, and takes the time of those behind the warm-up."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from ..model import VanillaTransformerConfig
from .flops import synchronize, training_flops


class Meter:
    """`saw` a batch, `updated` the weights, in turns; then `measured` tells.

    Real tokens are those of source and target with their ends, without padding and without the start symbol.
    """

    def __init__(self, warmup: int, updates: int, device: torch.device):
        self.warmup, self.updates, self.device = warmup, updates, device
        self.batches: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # [B] source and target tokens, cells in all
        self.marks: list[float] = []

    def saw(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """`source` [B, S] and `target` [B, T]: True at real tokens."""
        self.batches.append((source.sum(1), target.sum(1), source.numel() + target.numel()))

    def updated(self) -> None:
        if len(self.marks) + 1 in (self.warmup, self.warmup + self.updates):
            synchronize(self.device)
        self.marks.append(time.perf_counter())

    def measured(self, config: VanillaTransformerConfig) -> dict[str, Any]:
        """Seconds, real tokens, padding's share and floating-point operations of the updates behind the warm-up."""
        if not len(self.batches) == len(self.marks) == self.warmup + self.updates:
            raise RuntimeError(f"{len(self.batches)} batches and {len(self.marks)} updates, wanted equally many")
        sources, targets, cells = zip(*self.batches[self.warmup :], strict=True)
        source, target = torch.cat(sources).cpu(), torch.cat(targets).cpu()
        tokens = int(source.sum() + target.sum())
        return {
            "seconds": self.marks[-1] - self.marks[self.warmup - 1],
            "tokens": tokens,
            "padding": 1 - tokens / sum(cells),
            "flops": training_flops(config, source, target),
        }

    def watch(self, trainer: Trainer) -> None:
        """Has a stock Trainer tell this meter what it does; the model's own inputs say what is in a batch."""
        model = trainer.model
        pad, end = model.config.pad_token_id, model.config.eos_token_id

        def saw(module: nn.Module, arguments: tuple, inputs: Mapping[str, torch.Tensor]) -> None:
            if inputs.get("labels") is not None:
                target = inputs["labels"] != -100
            else:  # shifted right: the start symbol stands for the end, which only rows with padding still show
                target = (inputs["decoder_input_ids"] != pad) & (inputs["decoder_input_ids"] != end)
            self.saw(inputs["attention_mask"].bool(), target)

        model.register_forward_pre_hook(saw, with_kwargs=True)
        trainer.add_callback(_Updates(self))


class _Updates(TrainerCallback):
    def __init__(self, meter: Meter):
        self.meter = meter

    def on_step_end(self, *arguments: Any, **state: Any) -> None:
        self.meter.updated()


def peak_memory() -> int | None:
    """Bytes that this process has held at most: of the GPU where there is one, else of the machine, where it says."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):  # `getrusage` begins with the peak of the process that started this one
            return int(line.split()[1]) * 1024
    return None
