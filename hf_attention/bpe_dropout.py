"""BPE dropout (Provilkov et al. 2020): in each epoch, some words of the training text in smaller pieces."""

import json
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase


@dataclass
class Sentences:
    """Token ids of many sentences, one after another. `ids` [tokens], `lengths` [sentences]."""

    ids: np.ndarray
    lengths: np.ndarray

    def __post_init__(self) -> None:
        self.starts = np.cumsum(self.lengths) - self.lengths  # [sentences]

    def __getitem__(self, index: int) -> list[int]:
        start = self.starts[index]
        return self.ids[start : start + self.lengths[index]].tolist()


class BpeDropout:
    """Undoes merges of byte pairs, the last one of a piece first, each with the probability `p`.

    Provilkov et al. leave merges out while a word is put together, and what was left out may come again, so that most
    often the last merge is missing. Here a piece is taken apart, from the whole towards its bytes. That needs ids and
    no text, and with p = 0.1 gives nearly as many pieces (Multi30k, 6,000 in the vocabulary: 18.1 for a sentence of
    16.4, and theirs 18.5). Unlike the dropout in `tokenizers` it takes its random numbers from a generator that it is
    given, so that a run can be repeated, and resumed.

    Args:
        tokenizer: a fast tokenizer of byte pairs.
        p: probability that a merge is undone, 0 <= p < 1; 0.1 in the paper.

    `ValueError`: another kind of tokenizer, or p out of range.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, p: float):
        if not 0 <= p < 1:
            raise ValueError(f"bpe_dropout={p!r}: want a probability, 0 <= p < 1.")
        backend = getattr(tokenizer, "backend_tokenizer", None)
        model = json.loads(backend.to_str())["model"] if backend is not None else {}
        if model.get("type") != "BPE":
            raise ValueError(f"bpe_dropout={p!r} wants a tokenizer of byte pairs, got {model.get('type')}.")
        self.p = p
        ids = model["vocab"]
        self.parts = np.full((len(tokenizer), 2), -1, dtype=np.int32)  # [V, 2], -1 where nothing was merged
        for left, right in reversed(model["merges"]):  # where two merges give the same piece, the earlier one made it
            self.parts[ids[left + right]] = ids[left], ids[right]

    def __call__(self, sentences: Sentences, random: np.random.Generator) -> Sentences:
        """The same text, in as many pieces as chance will have it."""
        ids = sentences.ids
        owner = np.repeat(np.arange(len(sentences.lengths)), sentences.lengths)  # [tokens]
        open_ = np.ones(len(ids), dtype=bool)  # not yet spared
        while open_.any():
            undone = open_ & (self.parts[ids, 0] >= 0) & (random.random(len(ids)) < self.p)
            count = 1 + undone
            first = (np.cumsum(count) - count)[undone]
            parts = self.parts[ids[undone]]
            ids, owner = np.repeat(ids, count), np.repeat(owner, count)
            open_ = np.zeros(len(ids), dtype=bool)
            for side, place in enumerate((first, first + 1)):
                ids[place], open_[place] = parts[:, side], True
        return Sentences(ids, np.bincount(owner, minlength=len(sentences.lengths)))
