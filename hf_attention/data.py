"""From sentence pairs to batches of about as many tokens each (section 5.1), for the stock `Seq2SeqTrainer`."""

import logging
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np
import pyarrow.compute
import torch
from datasets import Dataset
from transformers import BatchEncoding, DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from .bpe_dropout import BpeDropout, Sentences
from .tokenization import check_not_negative, check_positive


logger = logging.getLogger(__name__)

Example = dict[str, list[int]]


def encode_pairs(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None, drop: bool = True
) -> Dataset:
    """Columns "input_ids" and "labels" for the columns "source" and "target"; each row ends in the end token.

    Pairs with a blank side, or with more than `max_tokens` tokens on one (the end token counts), are counted in a
    warning and left out. Without `drop`, as for a test set, they are counted and stay, in place and whole. Nothing is
    ever cut. `datasets` keeps the result on disk, so the same call is quick the next time.
    """
    if max_tokens is not None:
        check_positive("max_tokens", max_tokens)
    if missing := {"source", "target"} - set(pairs.column_names):
        raise ValueError(f"pairs have no column {sorted(missing)}, they have {pairs.column_names}")
    if tokenizer.eos_token_id is None or tokenizer("a")["input_ids"][-1] != tokenizer.eos_token_id:
        raise ValueError(f"the tokenizer does not end a text with its end token {tokenizer.eos_token!r}")
    pairs = _keep(pairs, drop, "a blank side", _both_written)
    encoded = pairs.map(
        _encode,
        batched=True,
        remove_columns=pairs.column_names,
        fn_kwargs={"tokenizer": tokenizer},
        desc="Encoding",
    )
    if max_tokens is None:
        return encoded
    return _keep(encoded, drop, f"more than {max_tokens} tokens on a side", _both_short, max_tokens=max_tokens)


def _encode(batch: dict[str, list[str | None]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
    source, target = ([text or "" for text in batch[column]] for column in ("source", "target"))
    return {"input_ids": tokenizer(source)["input_ids"], "labels": tokenizer(text_target=target)["input_ids"]}


def _both_written(batch: dict[str, list[str | None]]) -> list[bool]:
    return [
        bool((source or "").strip() and (target or "").strip())
        for source, target in zip(batch["source"], batch["target"], strict=True)
    ]


def _both_short(batch: dict[str, list[list[int]]], max_tokens: int) -> list[bool]:
    return [
        max(len(source), len(target)) <= max_tokens
        for source, target in zip(batch["input_ids"], batch["labels"], strict=True)
    ]


def _keep(dataset: Dataset, drop: bool, fault: str, faultless: Callable[..., list[bool]], **arguments) -> Dataset:
    kept = dataset.filter(faultless, batched=True, fn_kwargs=arguments, desc=f"Looking for {fault}")
    if faulty := len(dataset) - len(kept):
        logger.warning("%d of %d pairs %s: %s", faulty, len(dataset), "dropped" if drop else "kept", fault)
    return kept if drop else dataset


class BatchPlan:
    """Which pairs share a batch, from nothing but their lengths.

    Pairs are put in order of the longer of their two sides, and the row is cut, greedily, wherever one more pair would
    make rows x longest side exceed `tokens_per_batch`. The budget asks for no other order, so the cuts hold for every
    epoch, which thus has the same number of batches, while each epoch lines up pairs of the same longer side anew.

    Among those, pairs with a similar shorter side should be neighbours. They are sorted by source length minus target
    length, each moved by up to one token at random so that batches differ between epochs, up and down in turns so that
    a batch at the border of two lengths holds similar pairs as well. On Multi30k English-German, 4.0 % of the tokens
    in batches of 4096 are padding, where sorting by target and then source length leaves 6.7 %.

    Args:
        source_lengths, target_lengths: [pairs] tokens of each side, the end token included.
        tokens_per_batch: the most tokens on each side of a batch, padding included.
        seed: with the epoch, all that the order depends on.
        multiple_of: large batches are halved until the number of batches is a multiple of this.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        tokens_per_batch: int,
        seed: int = 0,
        multiple_of: int = 1,
    ):
        check_positive("tokens_per_batch", tokens_per_batch)
        check_positive("multiple_of", multiple_of)
        check_not_negative("seed", seed)
        if len(source_lengths) == 0:
            raise ValueError("no pairs to make batches of")
        self.tokens_per_batch, self.seed = tokens_per_batch, seed
        self.measure(source_lengths, target_lengths)
        worst = int(self.longer.argmax())
        if self.longer[worst] > tokens_per_batch:
            raise ValueError(
                f"pair {worst} has {self.source_lengths[worst]} source and {self.target_lengths[worst]} target tokens"
                f", more than tokens_per_batch, {tokens_per_batch}"
            )
        self.cuts = _halve(self._cut(np.sort(self.longer)), multiple_of)  # [batches + 1]

    def __len__(self) -> int:
        return len(self.cuts) - 1

    def measure(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> None:
        """The pairs' lengths from now on. The cuts stay, for a Trainer counts on as many batches in each epoch."""
        self.source_lengths = np.asarray(source_lengths, dtype=np.int32)
        self.target_lengths = np.asarray(target_lengths, dtype=np.int32)
        self.longer = np.maximum(self.source_lengths, self.target_lengths)

    def _cut(self, longer: np.ndarray) -> np.ndarray:
        """Where batches begin in the sorted lengths; a batch's last pair is its longest and so says its size."""
        cuts = [0]
        while (start := cuts[-1]) < len(longer):
            candidates = longer[start : start + self.tokens_per_batch // max(int(longer[start]), 1)]
            padded = candidates * np.arange(1, len(candidates) + 1, dtype=np.int64)  # never decreases
            cuts.append(start + int(np.searchsorted(padded, self.tokens_per_batch, side="right")))
        return np.array(cuts)

    def order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """[pairs] the line-up of this epoch, to be cut at `cuts`; [batches] the order of those batches."""
        random = np.random.default_rng([self.seed, epoch])
        place = random.uniform(-1, 1, len(self.longer))
        place += self.source_lengths
        place -= self.target_lengths
        np.negative(place, out=place, where=(self.longer + epoch) % 2 == 1)
        place /= 2 * int(self.longer.max()) + 4  # now between -1/2 and 1/2: it decides among equal lengths only
        place += self.longer
        return np.argsort(place, kind="stable"), random.permutation(len(self))

    def padding(self, epoch: int = 0) -> float:
        """The share of padding among all tokens, source and target, of an epoch."""
        order, _ = self.order(epoch)
        rows = np.diff(self.cuts)
        real, padded = 0, 0
        for lengths in (self.source_lengths, self.target_lengths):
            real += int(lengths.sum(dtype=np.int64))
            padded += int((np.maximum.reduceat(lengths[order], self.cuts[:-1]) * rows).sum())
        return 1 - real / padded


def _halve(cuts: np.ndarray, multiple_of: int) -> np.ndarray:
    """More cuts, in the middle of the batches with the most rows; as they are where only single rows are left."""
    while (len(cuts) - 1) % multiple_of:
        rows = np.diff(cuts)
        largest = int(rows.argmax())
        if rows[largest] == 1:
            break
        cuts = np.insert(cuts, largest + 1, cuts[largest] + rows[largest] // 2)
    return cuts


class TokenBatches(torch.utils.data.Dataset):
    """A dataset whose items are whole batches, so that the stock Trainer trains on token batches.

        Seq2SeqTrainer(
            args=Seq2SeqTrainingArguments(
                per_device_train_batch_size=1,  # item, that is: one batch
                train_sampling_strategy="sequential",  # the batches come shuffled already
            ),
            train_dataset=TokenBatches(encoded, tokens_per_batch=25_000),
            data_collator=BatchCollator(tokenizer, model=model),
        )

    Every pair comes once in an epoch. What is in a batch (see `BatchPlan`) and the order of the batches depend on the
    seed and the epoch, and the Trainer says when a new epoch begins through `set_epoch`. Therefore "sequential": with
    the default "random", Accelerate tells a sampler of its own about the epoch and, on several processes or in the
    epoch that is resumed, not the dataset. Training is sound then too, but a resumed run is not the uninterrupted one.

    Each process takes every n-th batch. If n does not divide their number, Accelerate gives the last processes the
    first batches of the epoch once more, and accumulation ends the epoch with a smaller update. `multiple_of` = number
    of processes * `gradient_accumulation_steps` avoids both, and two processes then do what one does that accumulates
    twice as many batches.

    Args:
        dataset: columns "input_ids" and "labels", as `encode_pairs` makes them; or examples that hold these two.
        tokens_per_batch: the most source tokens and the most target tokens in a batch, padding included; section 5.1
            has 25,000 of each in an update (times devices, times accumulation).
        seed: of the shuffling, and of `bpe_dropout`.
        multiple_of: the number of batches is a multiple of this, where there are pairs enough.
        bpe_dropout: takes the pairs into other pieces for each epoch. Batches are then made of the lengths of that
            epoch; as many as in the first, so that some are over the budget, by a token a row or so. All ids stand in
            memory, 12 bytes each.
        bidirectional_epochs: for so many epochs from the first on, half of the pairs, others in each, are turned
            around, target to source: the model learns both directions before it learns one (Ding et al. 2021). Which
            is meant it sees by the language of the source.

    `ValueError`: no pairs, a column missing, or a pair longer than `tokens_per_batch`.
    """

    def __init__(
        self,
        dataset: Dataset | Iterable[Example],
        tokens_per_batch: int,
        seed: int = 0,
        multiple_of: int = 1,
        bpe_dropout: BpeDropout | None = None,
        bidirectional_epochs: int = 0,
    ):
        if not isinstance(dataset, Dataset):
            dataset = Dataset.from_list([dict(example) for example in dataset])
        check_not_negative("bidirectional_epochs", bidirectional_epochs)
        if missing := {"input_ids", "labels"} - set(dataset.column_names):
            raise ValueError(f"the dataset has no column {sorted(missing)}, it has {dataset.column_names}")
        self.dataset = dataset.select_columns(["input_ids", "labels"]).with_format(None)
        self.bpe_dropout, self.bidirectional_epochs = bpe_dropout, bidirectional_epochs
        lengths = _lengths(self.dataset)
        if bpe_dropout is not None:
            self._whole = [
                Sentences(_ids(self.dataset, column), length)
                for column, length in zip(("input_ids", "labels"), lengths, strict=True)
            ]
            lengths = [side.lengths for side in self._segment(seed, epoch=0)]
        self.plan = BatchPlan(*lengths, tokens_per_batch, seed, multiple_of)
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see it change
        self._planned: tuple[int, np.ndarray, np.ndarray] | None = None
        self._turned: np.ndarray | None = None  # [pairs] whether a pair is turned around in this epoch
        logger.info(
            "%d pairs in %d batches of at most %d tokens a side, %.1f %% padding",
            len(dataset),
            len(self.plan),
            tokens_per_batch,
            100 * self.plan.padding(),
        )

    def __len__(self) -> int:
        return len(self.plan)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> list[Example]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        epoch = int(self._epoch)
        if self._planned is None or self._planned[0] != epoch:
            self._line_up(epoch)
        _, pairs, batches = self._planned
        start, end = self.plan.cuts[batches[index]], self.plan.cuts[batches[index] + 1]
        chosen = pairs[start:end].tolist()
        if self.bpe_dropout is not None:
            sides = [[side[pair] for pair in chosen] for side in self._pieces]
        else:
            columns = self.dataset[chosen]
            sides = [columns["input_ids"], columns["labels"]]
        turned = [False] * len(chosen) if self._turned is None else self._turned[chosen].tolist()
        return [
            {"input_ids": target, "labels": source} if turn else {"input_ids": source, "labels": target}
            for source, target, turn in zip(*sides, turned, strict=True)
        ]

    def _line_up(self, epoch: int) -> None:
        lengths = None
        if self.bpe_dropout is not None:
            self._pieces = self._segment(self.plan.seed, epoch)
            lengths = [side.lengths for side in self._pieces]
        elif self.bidirectional_epochs:
            lengths = _lengths(self.dataset)
        self._turned = None
        if epoch < self.bidirectional_epochs:
            random = np.random.default_rng([self.plan.seed, epoch, 2])  # neither the plan's numbers nor the pieces'
            self._turned = random.random(len(self.dataset)) < 0.5
            lengths = np.where(self._turned, lengths[::-1], lengths)
        if lengths is not None:
            self.plan.measure(*lengths)
        self._planned = (epoch, *self.plan.order(epoch))

    def _segment(self, seed: int, epoch: int) -> list[Sentences]:
        random = np.random.default_rng([seed, epoch, 1])  # not the plan's numbers
        return [self.bpe_dropout(side, random) for side in self._whole]


def _ids(dataset: Dataset, column: str) -> np.ndarray:
    """[tokens] of all rows, one after another."""
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=100_000)
    return np.concatenate([pyarrow.compute.list_flatten(t[column]).to_numpy().astype(np.int32) for t in tables])


def _lengths(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """[pairs] tokens of "input_ids" and of "labels", from Arrow's offsets: the ids themselves are not read."""
    lengths = np.empty((2, len(dataset)), dtype=np.int32)
    start = 0
    for table in dataset.with_format("arrow").iter(batch_size=100_000):
        for row, column in zip(lengths, ("input_ids", "labels"), strict=True):
            row[start : start + len(table)] = pyarrow.compute.list_value_length(table[column])
        start += len(table)
    return lengths[0], lengths[1]


class BatchCollator:
    """Pads an item of `TokenBatches`, or several, or as many plain examples (at evaluation), to one batch of tensors.

    Returns `input_ids`, `attention_mask` [B, S]; `labels` [B, T], padded with -100; and `decoder_input_ids` [B, T],
    the labels shifted right behind the start token, by the model's own `prepare_decoder_input_ids_from_labels`. With
    label smoothing the Trainer takes the labels away before the model sees them, so `model` is not optional here.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None):
        if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
            raise ValueError(
                f"model is {type(model).__name__}, wanted the sequence-to-sequence model that is trained: "
                "BatchCollator(tokenizer, model=model) shifts the labels into its decoder inputs"
            )
        self._pad = DataCollatorForSeq2Seq(tokenizer, model=model)

    def __call__(self, features: list[Example] | list[list[Example]]) -> BatchEncoding:
        examples = list(chain.from_iterable(features)) if isinstance(features[0], list) else features
        return self._pad(examples)
