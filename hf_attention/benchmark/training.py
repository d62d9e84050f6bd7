"""Contenders of a training: ours and stock Marian through the stock Trainer, and models in a plain loop of their own.

The plain loop is generous to those it serves: our token batches, fused Adam, nothing logged. What differs between them
is model and loss.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

from ..data import BatchCollator
from ..model import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from ..recipes import load_recipe
from ..runs import build_trainer
from .meter import Meter
from .orders import SHAPES, SMOOTHING, TrainingOrder
from .peers import eole, fairseq, joeynmt
from .profiles import ProfilingMeter
from .twins import Batch, TorchTransformer, marian


Loss = Callable[[Batch], torch.Tensor]
Build = Callable[[VanillaTransformerConfig], tuple[nn.Module, Loss]]


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(order: TrainingOrder) -> dict[str, Any]:
    """What `Meter.measured` says of this order, or `times` of its profile."""
    set_seed(order.seed)
    if order.profile:
        recorder = ProfilingMeter(order.warmup, order.updates, device())
        TRAININGS[order.contender](order, recorder)
        return {"times": recorder.times}
    meter = Meter(order.warmup, order.updates, device())
    TRAININGS[order.contender](order, meter)
    return meter.measured(order.config())


def ours(order: TrainingOrder, meter: Meter) -> None:
    """What `training/train.py RECIPE` does, to the call of `train()`."""
    tokenizer = order.tokenizer()
    fields: dict[str, Any] = {
        **SHAPES[order.shape],
        "vocab_size": len(tokenizer),
        "dataset": None,
        "dataset_config": None,
        "train_files": ["pairs", "pairs"],  # not read: the pairs are encoded already
        "tokens_per_batch": order.tokens_per_batch,
        "average_last": None,
        "max_steps": order.warmup + order.updates,
        "eval_strategy": "no",
        "seed": order.seed,
        "bf16": order.bf16,
        **_quiet(order),
    }
    recipe = load_recipe(order.recipe, [f"{name}={json.dumps(value)}" for name, value in fields.items()])
    trainer = build_trainer(recipe, tokenizer, {"train": order.pairs()})
    meter.watch(trainer)
    trainer.train()


def stock_marian(order: TrainingOrder, meter: Meter, sampling: str = "random") -> None:
    """Stock Marian as its users train it: batches of sentences, on the average as many tokens as in one of ours."""
    tokenizer, model, pairs = order.tokenizer(), marian(order.config()), order.pairs()
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            per_device_train_batch_size=max(1, round(len(pairs) / len(order.batches()))),
            train_sampling_strategy=sampling,
            label_smoothing_factor=SMOOTHING,
            learning_rate=1e-4,
            max_steps=order.warmup + order.updates,
            seed=order.seed,
            bf16=order.bf16,
            use_cpu=meter.device.type == "cpu",
            dataloader_pin_memory=meter.device.type != "cpu",
            **_quiet(order),
        ),
        train_dataset=pairs,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    meter.watch(trainer)
    trainer.train()


def _quiet(order: TrainingOrder) -> dict[str, Any]:
    return {
        "output_dir": str(Path(order.folder, "run")),
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def in_a_loop(build: Build) -> Callable[[TrainingOrder, Meter], None]:
    """A contender that is a model with its loss, trained here."""

    def run(order: TrainingOrder, meter: Meter) -> None:
        config = order.config()
        model, loss = build(config)
        model.to(meter.device).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
        for batch in itertools.islice(batches(order, config), order.warmup + order.updates):
            meter.saw(batch["attention_mask"].bool(), batch["labels"] != -100)
            batch = {name: tensor.to(meter.device, non_blocking=True) for name, tensor in batch.items()}
            with torch.autocast(meter.device.type, torch.bfloat16, enabled=order.bf16):
                value = loss(batch)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            meter.updated()

    return run


def batches(order: TrainingOrder, config: VanillaTransformerConfig) -> Iterator[dict[str, torch.Tensor]]:
    """The token batches that our own training would see, epoch after epoch."""
    with torch.device("meta"):
        shifts_right = VanillaTransformerForConditionalGeneration(config)
    collate, pairs = BatchCollator(order.tokenizer(), model=shifts_right), order.batches()
    for epoch in itertools.count():
        pairs.set_epoch(epoch)
        for index in range(len(pairs)):
            yield dict(collate([pairs[index]]))


def smoothed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """PyTorch's own: the mean over labels [B, T] other than -100."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING)


def marian_and_loss(config: VanillaTransformerConfig) -> tuple[nn.Module, Loss]:
    model = marian(config)

    def loss(batch: Batch) -> torch.Tensor:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "decoder_input_ids")}
        return smoothed_cross_entropy(model(**inputs, use_cache=False).logits, batch["labels"])

    return model, loss


def torch_and_loss(config: VanillaTransformerConfig) -> tuple[nn.Module, Loss]:
    model = TorchTransformer(config)

    def loss(batch: Batch) -> torch.Tensor:
        logits = model(batch["input_ids"], batch["attention_mask"], batch["decoder_input_ids"])
        return smoothed_cross_entropy(logits, batch["labels"])

    return model, loss


TRAININGS: dict[str, Callable[[TrainingOrder, Meter], None]] = {
    "ours": ours,
    "marian": stock_marian,
    "marian-grouped": lambda order, meter: stock_marian(order, meter, "group_by_length"),
    "marian-loop": in_a_loop(marian_and_loss),
    "torch": in_a_loop(torch_and_loss),
    "fairseq": in_a_loop(fairseq),
    "joeynmt": in_a_loop(joeynmt),
    "eole": in_a_loop(eole),
}
