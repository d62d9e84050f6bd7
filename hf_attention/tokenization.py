"""One vocabulary for source and target (section 5.1): byte pairs, or whole words, in a stock fast tokenizer."""

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .text_files import read_lines


logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")  # ids 0, 1, 2, as in our config
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256  # every byte is a piece, so no text needs an unknown token
LARGEST_SURPLUS = 127  # embedding rows beyond the vocabulary: enough to round it up to a multiple of 8, 64 or 128

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def train_tokenizer(
    files_or_iterator: str | Path | Sequence[str | Path] | Iterable[str],
    vocab_size: int,
    min_frequency: int = 2,
    show_progress: bool = True,
) -> PreTrainedTokenizerFast:
    """Learns one BPE from the text of both languages.

    Args:
        files_or_iterator: UTF-8 files, one path or a list or tuple of paths, read line by line and never held in
            memory; or a list of sentences, or any other iterable, whose strings are the text itself.
        vocab_size: the pieces, the 256 bytes and the three special tokens together; 37,000 in the paper.
        min_frequency: how often two pieces must meet to become one.

    Returns a tokenizer whose ids end in `</s>`, on the source side and with `text_target=` alike, and whose
    `decode(ids, skip_special_tokens=True)` gives back exactly the text that went in. "</s>" in a text is four
    characters, not the end token. The same text gives the same vocabulary.

    A `vocab_size` that cannot be met (fewer than 259, or more than the text has to offer) is a warning that says both
    numbers. `ValueError`: `vocab_size` is no positive integer; no text at all; a file that is missing or not UTF-8.
    """
    check_positive("vocab_size", vocab_size)
    check_positive("min_frequency", min_frequency)
    if vocab_size < SMALLEST_VOCABULARY:
        logger.warning(
            "vocab_size is %d, the smallest possible is %d (256 bytes, 3 special tokens): building that",
            vocab_size,
            SMALLEST_VOCABULARY,
        )
    backend = _untrained()
    backend.train_from_iterator(
        _checked_text(files_or_iterator),
        BpeTrainer(
            vocab_size=max(vocab_size, SMALLEST_VOCABULARY),
            min_frequency=min_frequency,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=show_progress,
        ),
    )
    if backend.get_vocab_size() < vocab_size:
        logger.warning("vocab_size is %d, the text is enough for %d only", vocab_size, backend.get_vocab_size())
    return _as_stock_tokenizer(backend)


def _untrained() -> Tokenizer:
    """A space in front of the text gives its first word the pieces it has anywhere else; the decoder takes it away."""
    backend = Tokenizer(BPE())
    backend.normalizer = normalizers.Prepend(" ")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # its own skips text that has one already
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", left=1, right=0)])
    return backend


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """A vocabulary of whole words, for generated tasks: the three special tokens and then `words`, in their order.

    A text is its words with white space between them. What else it holds has no token and is left out, so that the
    vocabulary needs no entry for unknown words. Ids end in `</s>`, as those of `train_tokenizer` do. `ValueError`: a
    word that is blank, has white space in it, comes twice or is a special token; or no words.
    """
    vocabulary = {word: token for token, word in enumerate([*SPECIAL_TOKENS, *words])}
    if (
        not words
        or any(word.split() != [word] for word in words)
        or len(vocabulary) < len(SPECIAL_TOKENS) + len(words)
    ):
        raise ValueError(f"words are {list(words)}, wanted different ones without white space, none a special token")
    backend = Tokenizer(WordLevel(vocabulary))
    known = Regex(rf"(?<!\S)(?:{'|'.join(map(re.escape, words))})(?!\S)")
    backend.pre_tokenizer = pre_tokenizers.Split(known, behavior="removed", invert=True)
    return _as_stock_tokenizer(backend)


def _as_stock_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    pad, start, end = SPECIAL_TOKENS
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, SPECIAL_TOKENS.index(end))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=start,
        eos_token=end,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # "</s>" in a text is text
        clean_up_tokenization_spaces=False,
    )


def _checked_text(files_or_iterator: str | Path | Sequence[str | Path] | Iterable[str]) -> Iterator[str]:
    """The text line by line; `ValueError` when there is none, or when a line is no Unicode text."""
    empty = True
    for number, line in enumerate(_text(files_or_iterator), start=1):
        if not isinstance(line, str):
            raise ValueError(f"text {number} is {line!r}, wanted a string")
        if _HALF_A_PAIR.search(line):
            raise ValueError(f"text {number} is {line!r}: half of a surrogate pair is not Unicode text")
        empty = empty and not line.strip()
        yield line
    if empty:
        raise ValueError("no text to learn a vocabulary from: every line is blank, or there is none")


def _text(files_or_iterator: str | Path | Sequence[str | Path] | Iterable[str]) -> Iterable[str]:
    if isinstance(files_or_iterator, (str, os.PathLike)):
        files_or_iterator = [files_or_iterator]
    if not isinstance(files_or_iterator, (list, tuple)):
        return files_or_iterator
    missing = [path for path in files_or_iterator if not os.path.exists(path)]
    if len(missing) == len(files_or_iterator) and any(isinstance(text, str) and " " in text for text in missing):
        return files_or_iterator  # sentences: no file has such a name, and some hold several words
    if missing:
        raise ValueError(f"{missing[0]}: no such file (a list names files; pass text as an iterator, `iter(lines)`)")
    return (line for path in files_or_iterator for line in read_lines(path))


def check_positive(name: str, value: int) -> None:
    """`ValueError` unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, wanted a positive integer")


def check_not_negative(name: str, value: int) -> None:
    """`ValueError` unless `value` is a positive integer or 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}, wanted an integer that is not negative")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Beside and renamed: whole where the folder is new, file by file where it exists, so nobody reads half a file."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
        whole = Path(beside, folder.name)
        tokenizer.save_pretrained(whole)
        if not folder.exists():
            os.replace(whole, folder)
            return
        for file in whole.iterdir():
            os.replace(file, folder / file.name)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """`ValueError`, with both numbers, unless `tokenizer` and a model of this `config` mean the same by an id.

    The model may have up to 127 rows more than the tokenizer has pieces: people round the vocabulary up for speed.
    """
    if not len(tokenizer) <= config.vocab_size <= len(tokenizer) + LARGEST_SURPLUS:
        raise ValueError(
            f"vocab_size is {config.vocab_size} in the model's config, but the tokenizer has {len(tokenizer)} pieces: "
            f"wanted {len(tokenizer)}, or up to {LARGEST_SURPLUS} more"
        )
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        ours, theirs = getattr(tokenizer, name), getattr(config, name)
        if ours != theirs:
            raise ValueError(f"{name} is {theirs} in the model's config, but {ours} in the tokenizer")
