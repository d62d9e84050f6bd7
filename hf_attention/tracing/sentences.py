"""Sentence pairs on their way into a trace: text to ids, ids to one batch, ids to the words of figures."""

import operator
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .trace import TracedTensor


WHOLE_VOCABULARY = 256  # up to here a trace keeps every token's spelling; beyond, those that occur
TOP = 5  # of a row of logits, as many best tokens are spelt out
WORD_STARTS = ("Ġ", "▁")  # how byte-level BPE and SentencePiece write the space in front of a word


class Sentences:
    """The pairs of one trace. Ids end in the tokenizer's end symbol, and do not begin with the start symbol."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, sources: str | Sequence[Any]
    ):
        self.model, self.tokenizer = model, tokenizer
        if tokenizer is not None and len(tokenizer) > model.config.vocab_size:
            raise ValueError(
                f"tokenizer has {len(tokenizer)} tokens and the model vocab_size={model.config.vocab_size}, "
                "wanted the tokenizer that the model was trained with"
            )
        self.sources = self._ids("source", sources)
        self.targets: list[list[int]] = []

    def add_targets(self, targets: str | Sequence[Any]) -> None:
        self.targets = self._ids("target", targets)
        if len(self.targets) != len(self.sources):
            raise ValueError(
                f"{len(self.sources)} sources and {len(self.targets)} targets, wanted a target for each source"
            )

    def batch(self, which: slice = slice(None)) -> dict[str, torch.Tensor]:
        """What the Trainer's collator makes of the pairs: `input_ids`, `attention_mask` [B, S] and `labels` [B, T]."""
        sources = _padded(self.sources[which], self.model.config.pad_token_id)
        lengths = torch.tensor([len(ids) for ids in self.sources[which]])
        batch = {"input_ids": sources, "attention_mask": (torch.arange(sources.shape[1]) < lengths[:, None]).long()}
        if self.targets:
            batch["labels"] = _padded(self.targets[which], -100)
        return {name: value.to(self.model.device) for name, value in batch.items()}

    def words(self, tensors: Iterable[TracedTensor], extra_ids: Iterable[int] = ()) -> dict[str, Any]:
        """The parts of `Trace.info` that spell things out: `sentences`, `vocabulary`, `special`."""
        config = self.model.config
        start = config.decoder_start_token_id
        shown = {start, config.pad_token_id, config.eos_token_id, *extra_ids}
        shown |= {token for ids in self.sources + self.targets for token in ids}
        for tensor in tensors:
            if tensor.axes[-1:] == ("W",):
                shown |= set(tensor.value.float().topk(min(TOP, tensor.shape[-1])).indices.flatten().tolist())
        if config.vocab_size <= WHOLE_VOCABULARY:
            shown = set(range(config.vocab_size))
        spelt = {token: self.spell(token) for token in sorted(shown)}
        sentences = [
            {
                "source": self.text(source),
                "target": self.text(target),
                "source_tokens": [spelt[token] for token in source],
                "decoder_tokens": [spelt[token] for token in [start, *target[:-1]]],
                "label_tokens": [spelt[token] for token in target],
            }
            for source, target in zip(self.sources, self.targets, strict=True)
        ]
        special = {"pad": config.pad_token_id, "start": start, "end": config.eos_token_id}
        return {
            "sentences": sentences,
            "vocabulary": {str(token): word for token, word in spelt.items()},
            "special": special,
        }

    def spell(self, token: int) -> str:
        """A token as a reader knows it: `dog` begins a word, `·s` goes on with one, `␣` is the space in front of one.

        Without a tokenizer, the id.
        """
        if self.tokenizer is None or token >= len(self.tokenizer):
            config = self.model.config
            names = {config.eos_token_id: "</s>", config.decoder_start_token_id: "<s>", config.pad_token_id: "<pad>"}
            return names.get(token, str(token))
        raw = str(self.tokenizer.convert_ids_to_tokens(token))
        if token in self.tokenizer.all_special_ids:
            return raw
        if raw in WORD_STARTS:
            return "␣"
        text = str(self.tokenizer.decode([token], clean_up_tokenization_spaces=False))
        if not text.strip() or "\ufffd" in text:  # a part of a letter
            return raw
        if _begins_a_word(raw) or not self._marks_words:
            return text.strip()
        return f"·{text.strip()}"

    @cached_property
    def _marks_words(self) -> bool:
        return self.tokenizer is not None and any(map(_begins_a_word, self.tokenizer.get_vocab()))

    def text(self, ids: list[int]) -> str:
        """The sentence that the ids make; without a tokenizer the ids, less the end."""
        if self.tokenizer is None:
            return " ".join(self.spell(token) for token in ids if token != self.model.config.eos_token_id)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _ids(self, side: str, sentences: str | Sequence[Any]) -> list[list[int]]:
        if isinstance(sentences, str):
            sentences = [sentences]
        if not isinstance(sentences, Iterable):
            raise ValueError(f"{side}s is {sentences!r}, wanted a sentence, or a list of sentences")
        sentences = list(sentences)
        if not sentences:
            raise ValueError(f"no {side}s, wanted at least one sentence")
        return [self._checked(f"{side}s[{i}]", side, sentence) for i, sentence in enumerate(sentences)]

    def _checked(self, where: str, side: str, sentence: Any) -> list[int]:
        if not isinstance(sentence, str):
            return self._checked_ids(where, sentence)
        if not sentence.strip():
            raise ValueError(f"{where} is {sentence!r}, wanted a sentence with something in it")
        if self.tokenizer is None:
            raise ValueError(f"{where} is text, wanted token ids, as there is no tokenizer")
        encoding = self.tokenizer(**{"text_target" if side == "target" else "text": sentence})
        if not self._spells(sentence, encoding):
            bad = [word for word in sentence.split() if not self._spells(word, self.tokenizer(word))]
            what = f": it has nothing for {', '.join(map(repr, bad[:5]))}" if bad else ""
            raise ValueError(f"{where} is {sentence!r}, which this vocabulary cannot spell{what}")
        return list(encoding["input_ids"])

    def _spells(self, text: str, encoding: Any) -> bool:
        """Whether all of the text is in its tokens: a vocabulary without an unknown token leaves out what it lacks."""
        assert self.tokenizer is not None
        ids = encoding["input_ids"]
        unknown = self.tokenizer.unk_token_id
        if not set(ids) - set(self.tokenizer.all_special_ids) or (unknown is not None and unknown in ids):
            return False
        if not encoding.encodings:  # a tokenizer in Python keeps no account of what became of each letter
            return True
        parts = zip(encoding.encodings[0].tokens, encoding.encodings[0].offsets, strict=True)
        kept = {at for token, place in parts if token not in WORD_STARTS for at in range(*place)}
        # Marks and invisible characters may go: normalizers drop them on purpose.
        return all(at in kept or unicodedata.category(letter)[0] in "CMZ" for at, letter in enumerate(text))

    def _checked_ids(self, where: str, ids: Any) -> list[int]:
        size = self.model.config.vocab_size
        try:
            ids = [operator.index(token) for token in ids]  # not int(): that would take 3.7 for 3
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where} is {ids!r}, wanted text or a list of token ids") from error
        bad = [token for token in ids if not 0 <= token < size]
        if not ids or bad:
            raise ValueError(f"{where} is {ids!r}, wanted token ids from 0 to {size - 1}, at least one")
        return ids


def _begins_a_word(token: str) -> bool:
    return token.startswith(WORD_STARTS)


def _padded(rows: list[list[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows])
