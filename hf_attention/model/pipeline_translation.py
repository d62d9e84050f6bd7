"""Text in, text out: `pipeline("translation")` for every encoder-decoder of Transformers.

Transformers 5 removed this task. The class below gives it back, with the inputs, options and outputs it had in
version 4. It travels inside every checkpoint we save, so it imports only torch, Transformers and the standard library.
"""

import re
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BatchEncoding, Pipeline


# `translation_en_to_de`, and for tokenizers with longer codes also `translation_eng_Latn_to_deu_Latn`.
PAIR_TASK = re.compile(r"translation_(?P<src>.+)_to_(?P<tgt>.+)")


class TranslationPipeline(Pipeline):
    """Translates sentences with any model of `AutoModelForSeq2SeqLM`.

    ```python
    translator = pipeline("translation", model="Helsinki-NLP/opus-mt-en-de")
    translator("A dog runs.")  # [{"translation_text": "Ein Hund rennt."}]
    translator(["A dog runs.", ""], batch_size=2, num_beams=4)  # a list of two such dictionaries, the second with ""
    ```

    Calling it takes a string, a list or another sequence (a column of a `datasets` table), a generator, or a torch
    dataset, and these options, which the constructor takes too:

        src_lang, tgt_lang (`str`): languages, for models of many (M2M100, NLLB, mBART), in their tokenizer's codes.
            The task's name can give them: `pipeline("translation_en_to_de", ...)`. A model whose config holds
            `task_specific_params` for the pair (T5) has the prefix and the generation options found there applied.
        truncation (`bool`): cut a source that is too long for the model; it is refused otherwise.
        clean_up_tokenization_spaces (`bool`): passed to the tokenizer's `decode`.
        return_tensors (`bool`): give `translation_token_ids`, a tensor [T], in place of the text; with
            `return_text=True`, beside it.
        batch_tokens (`int`): the most source tokens, padding included, per call of the model, for a list; 1024 if not
            given. Its sentences are sorted by length for it, and come back in order.
        batch_size (`int`): for a list, so many sentences instead; for what is read as it is consumed, sentences per
            call of the model, 1 if not given. Both change the speed, never the result.
        anything else: an option of `generate()`, above the pair's `task_specific_params` (T5), above the model's
            `generation_config`. What none of them sets is `num_beams=4` and `max_new_tokens=256`, as in version 4.

    Returns:
        For a string, `[{"translation_text": ...}]`. For a sequence, a list of such dictionaries in order. A generator
        or a torch dataset is read as it is consumed, and gives an iterator of one list per sentence. With
        `num_return_sequences` above 1, every sentence has a list of its own.

        A blank source, empty or all whitespace, gives `""` without a call of the model.

    Raises:
        ValueError: for a source that is not a string, or longer than the model's position table (computed and relative
            positions have none); for a language the tokenizer doesn't know; for a model that is no encoder-decoder.
    """

    _load_tokenizer = True
    _load_processor = False
    _load_feature_extractor = False
    _load_image_processor = False
    _load_video_processor = False

    def __init__(self, *args: Any, batch_tokens: int = 1024, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batch_tokens = _checked_batch_tokens(batch_tokens)
        if not getattr(self.model.config, "is_encoder_decoder", False) or not self.model.can_generate():
            raise ValueError(
                f"model={type(self.model).__name__}: translation wants an encoder-decoder that generates, one that "
                "AutoModelForSeq2SeqLM loads."
            )
        if self.tokenizer is None:
            raise ValueError("tokenizer=None: translation wants the tokenizer of its model.")
        self.model.eval()  # one handed over straight from training still drops out

    def __call__(self, inputs: Any, batch_tokens: int | None = None, **options: Any) -> Any:
        budget = self.batch_tokens if batch_tokens is None else _checked_batch_tokens(batch_tokens)
        if isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
            results = self._translate_list(list(inputs), budget, **options)
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        if isinstance(inputs, Iterator):  # the base class streams generators only
            inputs = (text for text in inputs)
        elif isinstance(inputs, Dataset) and isinstance(inputs, Sized) and len(inputs) == 0:
            return iter(())  # the base class looks at the first
        return super().__call__(inputs, **options)

    def _translate_list(
        self, texts: list[Any], batch_tokens: int, batch_size: int | None = None, **options: Any
    ) -> list[list[dict[str, Any]]]:
        """Translates in batches of similar length, the longest first: if one is too large for memory, it is that."""
        batch_size = self._batch_size if batch_size is None else batch_size
        if self.tokenizer.pad_token_id is None and batch_size is None:
            batch_size = 1
        strings = all(isinstance(text, str) for text in texts)  # `preprocess` says what is wrong with others
        ids = self.tokenizer(texts, verbose=False)["input_ids"] if texts and strings else [[]] * len(texts)
        waiting = sorted(range(len(texts)), key=lambda place: -len(ids[place]))
        results: list[Any] = [None] * len(texts)
        while waiting:
            size = batch_size or max(1, batch_tokens // max(1, len(ids[waiting[0]])))
            batch, waiting = waiting[:size], waiting[size:]
            self.call_count = 0  # or it takes batches for single sentences, and warns of slow use
            translated = super().__call__([texts[place] for place in batch], batch_size=len(batch), **options)
            for place, result in zip(batch, translated, strict=True):
                results[place] = result
        return results

    def _sanitize_parameters(
        self,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        truncation: Any = None,
        return_tensors: bool | None = None,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_options: Any,
    ) -> tuple[dict, dict, dict]:
        languages = _given(src_lang=src_lang, tgt_lang=tgt_lang)
        decoding = {"clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        return (
            languages | _given(truncation=truncation),
            languages | generate_options,
            _given(return_tensors=return_tensors, return_text=return_text, **decoding),
        )

    def preprocess(
        self, text: Any, src_lang: str | None = None, tgt_lang: str | None = None, truncation: Any = False
    ) -> dict[str, torch.Tensor]:
        """Encodes one sentence: `input_ids` and `attention_mask` [1, S], and what `_forward` has to know of it."""
        if not isinstance(text, str):
            raise ValueError(f"Cannot translate {text!r} of type {type(text).__name__}: want a string.")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"Cannot translate {text!r}: half of a surrogate pair is not Unicode text.")
        src_lang, tgt_lang = self._languages(src_lang, tgt_lang)
        blank = not text.strip()
        prefix = self._task_params(src_lang, tgt_lang).get("prefix") or getattr(self.model.config, "prefix", None)
        # A blank is encoded as a real word is, so that it can sit in a batch; `_forward` leaves it out.
        encoded = self._encode("a" if blank else (prefix or "") + text, src_lang, tgt_lang, truncation)
        if not blank:
            self._check_length(text, encoded["input_ids"].shape[1])
            self._check_ids(encoded["input_ids"])
        features = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        if "forced_bos_token_id" in encoded:
            features["forced_bos_token_id"] = torch.tensor([encoded["forced_bos_token_id"]])
        return {**features, "blank": torch.tensor([blank])}

    def _forward(
        self,
        features: dict[str, torch.Tensor],
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_options: Any,
    ) -> dict[str, torch.Tensor]:
        """Translates a batch: `output_ids` [B, R, T], R = `num_return_sequences`, rows of blanks all padding."""
        features = dict(features)
        blank = features.pop("blank")  # [B]
        forced = features.pop("forced_bos_token_id", None)
        if forced is not None:
            features["forced_bos_token_id"] = int(forced[0])  # one target language a call
        options = {**self._default_options(generate_options, *self._languages(src_lang, tgt_lang)), **generate_options}
        if "stop_strings" in options:
            options.setdefault("tokenizer", self.tokenizer)
        if blank.all():
            config = options.get("generation_config") or self.model.generation_config
            rows = options.get("num_return_sequences") or config.num_return_sequences or 1
            return {"output_ids": self._padding(len(blank), rows, 1)}
        inputs = {
            name: value[~blank] if isinstance(value, torch.Tensor) else value for name, value in features.items()
        }
        generated = self.model.generate(**inputs, **options)
        generated = generated if isinstance(generated, torch.Tensor) else generated.sequences
        generated = generated.unflatten(0, (len(inputs["input_ids"]), -1))  # [B - blanks, R, T]
        output = self._padding(len(blank), *generated.shape[1:]).to(generated)
        output[~blank] = generated
        return {"output_ids": output}

    def postprocess(
        self,
        outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Decodes one sentence's `output_ids` [1, R, T] to R records."""
        records = []
        for ids in outputs["output_ids"][0]:
            ids = self._without_padding(ids)
            record: dict[str, Any] = {}
            if return_tensors:
                record["translation_token_ids"] = ids
            if return_text or (return_text is None and not return_tensors):
                record["translation_text"] = self.tokenizer.decode(
                    ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            records.append(record)
        return records

    def _languages(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str | None, str | None]:
        """The pair asked for, or else the pair in the task's name."""
        named = PAIR_TASK.fullmatch(self.task or "")
        if src_lang is None and tgt_lang is None and named:
            return named["src"], named["tgt"]
        return src_lang, tgt_lang

    def _task_params(self, src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """What the model's config says of this task: T5 keeps a prefix and generation options for each pair."""
        task = f"translation_{src_lang}_to_{tgt_lang}" if src_lang and tgt_lang else "translation"
        return (getattr(self.model.config, "task_specific_params", None) or {}).get(task) or {}

    def _default_options(self, given: dict[str, Any], src_lang: str | None, tgt_lang: str | None) -> dict[str, Any]:
        """Options of `generate()` below those `given`; none where these hold a whole `generation_config`."""
        if "generation_config" in given:
            return {}
        options = {name: value for name, value in self._task_params(src_lang, tgt_lang).items() if name != "prefix"}
        model_sets = {**self.model.generation_config.to_diff_dict(), **options, **given}
        if "max_new_tokens" in given:
            options.pop("max_length", None)  # `generate()` warns when it meets both
        elif "max_length" in given:
            options.pop("max_new_tokens", None)
        elif model_sets.get("search") == "paper":
            pass  # our own model then limits each target by its source
        elif "max_length" not in model_sets and "max_new_tokens" not in model_sets:
            options["max_new_tokens"] = min(256, self._position_limit() or 256)
        if "num_beams" not in model_sets:
            options["num_beams"] = 4
        if "pad_token_id" not in model_sets and self.tokenizer.pad_token_id is not None:
            options["pad_token_id"] = self.tokenizer.pad_token_id
        return options

    def _encode(self, text: str, src_lang: str | None, tgt_lang: str | None, truncation: Any) -> BatchEncoding:
        options: dict[str, Any] = {"return_tensors": "pt", "truncation": truncation}
        limit = self._position_limit()
        if truncation and limit is not None:
            options["max_length"] = min(limit, self.tokenizer.model_max_length)
        # Tokenizers of many languages have this method for this very pipeline: it puts the codes where they belong.
        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build is None:
            return self.tokenizer(text, **options)
        if src_lang is None or tgt_lang is None:
            raise ValueError(
                f"src_lang={src_lang!r}, tgt_lang={tgt_lang!r}: this model knows many languages and wants both, in "
                "the codes of its tokenizer."
            )
        self._check_language("src_lang", src_lang)
        self._check_language("tgt_lang", tgt_lang)
        return build(text, src_lang=src_lang, tgt_lang=tgt_lang, **options)

    def _check_language(self, name: str, code: str) -> None:
        # An unknown code would become the unknown token, and the translation nonsense without a word.
        tokens = self.tokenizer.added_tokens_encoder
        known = code in getattr(self.tokenizer, "lang_code_to_id", tokens) or f"__{code}__" in tokens
        if not known:
            raise ValueError(
                f"{name}={code!r}: want a language code of the model's tokenizer, as its model card lists."
            )

    def _position_limit(self) -> int | None:
        """Tokens that the model's position table holds; None for positions that are computed, as far as it takes."""
        if not isinstance(getattr(self.model.get_encoder(), "embed_positions", None), nn.Embedding):
            return None
        config = self.model.config
        return getattr(config, "max_encoder_position_embeddings", None) or config.max_position_embeddings

    def _check_length(self, text: str, length: int) -> None:
        limit = self._position_limit()
        if limit is not None and length > limit:
            start = text if len(text) <= 60 else text[:60] + "..."
            raise ValueError(
                f"The source {start!r} has {length} tokens, and the model reads at most {limit}: split it, or pass "
                "truncation=True to have it cut."
            )

    def _check_ids(self, ids: torch.Tensor) -> None:
        known = self.model.get_input_embeddings().num_embeddings
        if int(ids.max()) >= known:
            raise ValueError(
                f"The tokenizer gives id {int(ids.max())}, and the model has {known} tokens: want the tokenizer that "
                "was trained with it."
            )

    def _padding(self, *shape: int) -> torch.Tensor:
        pad = self.tokenizer.pad_token_id
        return torch.full(shape, self.model.generation_config.pad_token_id if pad is None else pad)

    def _without_padding(self, ids: torch.Tensor) -> torch.Tensor:
        # A batch pads its shorter rows behind their end; alone, they would have no padding.
        pad = self.tokenizer.pad_token_id
        if pad is None or pad == self.tokenizer.eos_token_id:
            return ids
        content = (ids != pad).nonzero()
        return ids[: int(content[-1]) + 1 if len(content) else 0]


def _checked_batch_tokens(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"batch_tokens={given!r}: want a whole number of tokens from 1 on.")
    return given


def _given(**options: Any) -> dict[str, Any]:
    # The base class lays a call's options over the constructor's, so only what was named may be there.
    return {name: value for name, value in options.items() if value is not None}


__all__ = ["TranslationPipeline"]
