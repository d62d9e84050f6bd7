"""Lines in, as many lines out: what `training/translate.py` and `training/evaluate.py` share."""

import argparse
import importlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attention.cli import into_heap
from hf_attention.model import TranslationPipeline, VanillaTransformerForConditionalGeneration
from hf_attention.recipes import fit_generation, parse_overrides


logger = logging.getLogger(__name__)

WINDOW_LINES, WINDOW_CHARACTERS = 4096, 2**22  # read before the first is translated: bounds memory
BACKENDS = ("transformers", "ctranslate2")
LINE_BREAKS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")  # wherever str.splitlines would end a line


class LineTranslator(ABC):
    """Lines in, as many lines out, whatever translates them: `translate` says how.

    Args:
        batch_tokens: source tokens of a batch, padding included. A single longer line makes a batch of its own.
        max_source_tokens: what a longer line is cut to, with a warning; less if the model has fewer `positions`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int = 4096,
        max_source_tokens: int = 1024,
        positions: int | None = None,
    ):
        for name, value in (("batch_tokens", batch_tokens), ("max_source_tokens", max_source_tokens)):
            if value < 2:
                raise ValueError(f"{name} is {value}, wanted at least 2: a word and the end of its sentence")
        self.tokenizer, self.batch_tokens = tokenizer, batch_tokens
        self.limit = min(max_source_tokens, tokenizer.model_max_length, positions or max_source_tokens)
        tokenizer.model_max_length = self.limit  # where `truncation=True` cuts

    def __call__(self, lines: Iterable[str]) -> Iterator[str]:
        """One line out for every line in, in order, none with a line break in it; a blank line for a blank line."""
        first = 1
        for window in windows(lines):
            yield from self._window(window, first)
            first += len(window)

    def _window(self, lines: list[str], first: int) -> list[str]:
        lengths = [len(ids) for ids in self.tokenizer(lines, verbose=False)["input_ids"]]
        cut = [number for number, length in enumerate(lengths) if length > self.limit]
        if cut:
            logger.warning(
                "line %d: %d tokens, cut to %d%s", first + cut[0], lengths[cut[0]], self.limit,
                f" (as are {len(cut) - 1} of the lines that follow)" if len(cut) > 1 else "",
            )  # fmt: skip
        lengths = [min(length, self.limit) for length in lengths]
        translations = [""] * len(lines)
        wordy = [number for number, line in enumerate(lines) if line.strip() and lengths[number]]
        translated = self.translate([lines[number] for number in wordy], [lengths[number] for number in wordy])
        for number, text in zip(wordy, translated, strict=True):
            translations[number] = LINE_BREAKS.sub(" ", text)
        return translations

    @abstractmethod
    def translate(self, lines: list[str], lengths: list[int]) -> Iterable[str]:
        """The translations of lines, none blank, in order; `lengths` in tokens, as they are cut."""


class Translator(LineTranslator):
    """Translates lines with any encoder-decoder, in batches of similar length; a line alone gives the same text.

    Args:
        batch_tokens, max_source_tokens: of `LineTranslator`.
        options: of `TranslationPipeline`: `src_lang`, `tgt_lang` and those of `generate()`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int = 4096,
        max_source_tokens: int = 1024,
        **options: Any,
    ):
        returned = options.get("num_return_sequences") or model.generation_config.num_return_sequences or 1
        if returned != 1:
            raise ValueError(f"num_return_sequences is {returned!r}, wanted 1: a line has one translation")
        self.pipeline = TranslationPipeline(model=model, tokenizer=tokenizer, truncation=True, **options)
        super().__init__(tokenizer, batch_tokens, max_source_tokens, self.pipeline._position_limit())

    def translate(self, lines: list[str], lengths: list[int]) -> list[str]:
        return [result["translation_text"] for result in self.pipeline(lines, batch_tokens=self.batch_tokens)]


def load_translator(folder: str, overrides: Iterable[str] = (), **arguments: Any) -> Translator:
    """The `Translator` of a saved model (a folder, or else a name on the Hub).

    `overrides` are `field=value` of `GenerationConfig`, `arguments` those of `Translator`.

    Raises:
        ValueError: no model there, none that translates, one whose files are damaged or do not belong together, no
            tokenizer, a field that GenerationConfig has not, or values with which not even one word gets translated.
    """
    options = generation_options(overrides)
    model, tokenizer = load_model(folder)
    if options.get("search") == "paper" and not isinstance(model, VanillaTransformerForConditionalGeneration):
        raise ValueError(f"search=paper is for our own models: {folder} is a {model.config.model_type}")
    model.generation_config.update(**options, allow_custom_entries=True)  # `search` is one; their names are known good
    translator = Translator(into_heap(model.eval()), tokenizer, **arguments)
    try:
        translator.pipeline("a")
    except Exception as error:  # whatever it is, it is better known before the long work
        given = " and ".join([f"{name}={value}" for name, value in arguments.items()] + [*overrides])
        raise ValueError(f"{folder} translates nothing with {given or 'its own options'}: {error}") from error
    return translator


def load_model(folder: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A saved encoder-decoder and its tokenizer; ValueError, as that of `load_translator`, for what is none."""
    if Path(folder, "model.bin").is_file() and Path(folder, "shared_vocabulary.json").is_file():
        raise ValueError(f"{folder} is a model for CTranslate2: translate with --backend ctranslate2")
    config = loaded(folder, "model", AutoConfig)
    if not config.is_encoder_decoder:
        raise ValueError(f"{folder}: a {config.model_type} model is no encoder-decoder, and does not translate")
    tokenizer = loaded(folder, "tokenizer", AutoTokenizer)
    model, information = loaded(folder, "model", AutoModelForSeq2SeqLM, output_loading_info=True)
    if information["missing_keys"]:
        raise ValueError(f"{folder}: no weight {min(information['missing_keys'])} in the model's files")
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise ValueError(f"{folder}: the tokenizer has {len(tokenizer)} tokens and the model {known}, wanted no more")
    return model, tokenizer


def generation_options(overrides: Iterable[str]) -> dict[str, Any]:
    """What `field=value` of `GenerationConfig` say, to be laid over a model's own."""
    options = {name: fit_generation(name, value) for name, value in parse_overrides(overrides).items()}
    if "max_new_tokens" in options:
        options.setdefault("max_length", None)  # the model's own, which generate() would warn of at every batch
    return options


def windows(lines: Iterable[str]) -> Iterator[list[str]]:
    """The lines in runs that memory holds. An error in reading comes after what was read before it."""
    window, characters, failure = [], 0, None
    lines = iter(lines)
    while failure is None:
        try:
            line = next(lines)
        except (StopIteration, ValueError) as error:
            failure = error
        else:
            window.append(line)
            characters += len(line)
        if window and (failure or len(window) == WINDOW_LINES or characters >= WINDOW_CHARACTERS):
            yield window
            window, characters = [], 0
    if isinstance(failure, ValueError):
        raise failure


def add_model_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """What a script asks for that loads a `Translator`."""
    parser.add_argument("--model", required=required, help="folder of a saved encoder-decoder, or its name on the Hub")
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help="what runs the model")
    parser.add_argument("--src-lang", help="language of the text, for models of many, in their tokenizer's codes")
    parser.add_argument("--tgt-lang", help="language to translate to, likewise")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="source tokens of a batch, padding included")
    parser.add_argument("--max-source-tokens", type=int, default=1024, help="longer lines are cut, with a warning")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="of GenerationConfig")


def translator_from(arguments: argparse.Namespace) -> LineTranslator:
    """The translator that those arguments describe. ImportError: the backend is not installed."""
    sizes = {"batch_tokens": arguments.batch_tokens, "max_source_tokens": arguments.max_source_tokens}
    languages = {"src_lang": arguments.src_lang, "tgt_lang": arguments.tgt_lang}
    languages = {name: code for name, code in languages.items() if code is not None}
    if arguments.backend == "transformers":
        return load_translator(arguments.model, arguments.overrides, **sizes, **languages)
    if languages:
        raise ValueError(f"{', '.join(languages)}: for models of many languages, which {arguments.backend} has not")
    return import_format(arguments.backend).load(arguments.model, arguments.overrides, **sizes)


def import_format(name: str) -> ModuleType:
    """The module of a format that models are exported to. ImportError: what it needs is not installed."""
    try:
        return importlib.import_module(f".{name}_format", __package__)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error.name} is not installed, which {name} needs: pip install '.[export]'") from error


def loaded(folder: str, what: str, auto_class: Any, **options: Any) -> Any:
    try:
        return auto_class.from_pretrained(folder, **options)
    except Exception as error:  # of many kinds, from as many libraries, and all about this folder
        where = "" if Path(folder).is_dir() else "no such folder, and on the Hub "
        raise ValueError(f"{folder}: {where}no {what} that loads: {error}") from error
