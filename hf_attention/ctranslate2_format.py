"""A model in the format of CTranslate2, a fast inference engine in C++: writing it, and translating with it.

A folder holds `model.bin`, its `config.json` and vocabulary, all CTranslate2's own, and beside them our tokenizer and
generation config, so that it translates without the model it was made from.

CTranslate2's beam search is the stock one with `early_stopping=True`: it ends with so many finished hypotheses,
`patience` times the beams, whatever may still come. The paper's (§6.1) takes the same steps, but has another formula
for length, a limit for each sentence, and another end. So for that search we ask for more hypotheses than beams, with
their log P, rank them by the formula, and search again for the few sentences that went beyond their limit. Two things
are left by which a translation may differ: a better hypothesis that would have ended later; and one that ended while
as many better ones as there are beams went on, which counts as finished in the paper's search, not here. Of 1,000
sentences of Multi30k 2 differ, both for the latter; by the stock search none.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from ctranslate2.converters import TransformersConverter
from ctranslate2.converters.transformers import ModelLoader, register_loader
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs.common_spec import LinearSpec
from ctranslate2.specs.transformer_spec import TransformerSpec
from torch import nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from .checkpoints import read_json
from .model.generation_vanilla_transformer import STOCK_MAX_LENGTH, checked_extra_tokens, length_penalty
from .translation import LineTranslator, generation_options, loaded


VOCABULARY = "shared_vocabulary.json"
QUANTIZATIONS = ("float32", "int8", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
SINUSOIDS = 2048  # rows of the table that is written: CTranslate2's own formula has sines in one half, cosines after
PATIENCE = 2  # finished hypotheses to wait for, in beams, where the search is not to stop early; with 1, 9 differ
DEFAULT_BEAMS, DEFAULT_TOKENS = 4, 256  # the translation pipeline's, where the generation config says nothing
# Fields of GenerationConfig that change what is generated, with the values at which they don't.
REFUSED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("do_sample", "min_length", "min_new_tokens", "no_repeat_ngram_size"), (None, False, 0)),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "diversity_penalty", "remove_invalid_values"), (None, False, 0)),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("num_return_sequences", "num_beam_groups"), (None, 1)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens"), (None,)),
    **dict.fromkeys(("begin_suppress_tokens", "bad_words_ids", "force_words_ids", "constraints"), (None,)),
    **dict.fromkeys(("sequence_bias", "exponential_decay_length_penalty", "watermarking_config"), (None,)),
    **dict.fromkeys(("stop_strings", "max_time", "penalty_alpha", "dola_layers"), (None,)),
}


# Writing


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str) -> None:
    """Fills a folder by CTranslate2's own converter, which loads the model and the tokenizer anew."""
    TransformersConverter(model.name_or_path).convert(str(folder), quantization=quantization, force=True)


@register_loader("VanillaTransformerConfig")
class VanillaTransformerLoader(ModelLoader):
    """Tells CTranslate2's converter where in our model its own variables are. Post-norm and ReLU as in BART's."""

    architecture_name = "AutoModelForSeq2SeqLM"

    def get_model_spec(self, model: PreTrainedModel) -> TransformerSpec:
        config = model.config
        spec = TransformerSpec.from_config(
            (config.num_layers, config.num_decoder_layers), config.num_heads, pre_norm=False
        )
        self.set_stack(spec.encoder, spec.encoder.embeddings[0], model.model.encoder)
        self.set_stack(spec.decoder, spec.decoder.embeddings, model.model.decoder)
        self.set_linear(spec.decoder.projection, model.lm_head)
        return spec

    def set_stack(self, spec: Any, embeddings: Any, stack: nn.Module) -> None:
        self.set_embeddings(embeddings, stack.embed_tokens)
        spec.scale_embeddings = math.sqrt(stack.config.d_model)
        learned = stack.config.position_encoding == "learned"
        positions = torch.arange(stack.config.max_position_embeddings if learned else SINUSOIDS)
        spec.position_encodings.encodings = stack.embed_positions(positions).float()
        for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
            self.set_attention(layer_spec.self_attention, layer.self_attn)
            self.set_layer_norm(layer_spec.self_attention.layer_norm, layer.self_attn_add_norm.norm)
            if hasattr(layer, "cross_attn"):
                self.set_attention(layer_spec.attention, layer.cross_attn)
                self.set_layer_norm(layer_spec.attention.layer_norm, layer.cross_attn_add_norm.norm)
            self.set_linear(layer_spec.ffn.linear_0, layer.feed_forward.fc1)
            self.set_linear(layer_spec.ffn.linear_1, layer.feed_forward.fc2)
            self.set_layer_norm(layer_spec.ffn.layer_norm, layer.feed_forward_add_norm.norm)

    def set_attention(self, spec: Any, attention: nn.Module) -> None:
        """Queries, keys and values in one matrix, or queries apart where keys and values come from the encoder.

        There heads have one width. Where d_k and d_v differ, the narrower get zeros: they add nothing to a product.
        """
        heads, width = attention.q_proj.out_features // attention.d_k, max(attention.d_k, attention.d_v)
        projections = []
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            projections.append(LinearSpec())
            projections[-1].weight = wider_heads(linear.weight, heads, width)
            projections[-1].bias = wider_heads(linear.bias, heads, width)
        groups = [projections] if len(spec.linear) == 2 else [projections[:1], projections[1:]]
        for linear_spec, group in zip(spec.linear, groups, strict=False):
            fuse_linear(linear_spec, group)
        spec.linear[-1].weight = wider_heads(attention.out_proj.weight.T, heads, width).T.contiguous()
        spec.linear[-1].bias = attention.out_proj.bias
        spec.queries_scale = attention.scaling  # it would take the width's

    def get_vocabulary(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        tokens = super().get_vocabulary(model, tokenizer)
        # Rows beyond the vocabulary: no token of ours is so spelt, with white space.
        return tokens + [f"no token {row}" for row in range(len(tokens), model.config.vocab_size)]

    def set_vocabulary(self, spec: TransformerSpec, tokens: list[str]) -> None:
        spec.register_source_vocabulary(tokens)
        spec.register_target_vocabulary(tokens)

    def set_config(self, config: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        start, end, pad = tokenizer.convert_ids_to_tokens(
            [model.config.decoder_start_token_id, model.config.eos_token_id, model.config.pad_token_id]
        )
        config.decoder_start_token, config.bos_token, config.eos_token = start, start, end
        config.unk_token = tokenizer.unk_token or pad  # there must be one; bytes leave nothing unknown
        learned = model.config.position_encoding == "learned"
        config.add_attribute("num_positions", model.config.max_position_embeddings if learned else SINUSOIDS)


def wider_heads(parameter: torch.Tensor, heads: int, width: int) -> torch.Tensor:
    """[H·K, ...] -> [H·width, ...], zeros behind each head's own rows."""
    by_head = parameter.unflatten(0, (heads, -1))
    wide = by_head.new_zeros(heads, width, *parameter.shape[1:])
    wide[:, : by_head.shape[1]] = by_head
    return wide.flatten(0, 1)


# Reading


@dataclass(frozen=True)
class Search:
    """A beam search as a generation config asks for it, and what CTranslate2 must be told to come to the same."""

    paper: bool  # the formula for length, and the limit of each sentence; else the stock ones
    beams: int
    alpha: float
    stop_early: bool
    extra_tokens: int
    most_tokens: int | None

    @classmethod
    def of(cls, config: GenerationConfig, start: int, end: int) -> "Search":
        """Raises ValueError for a field that CTranslate2 has not, or would understand in a way of its own."""
        for name, value in config.to_diff_dict().items():
            if name in REFUSED and value not in REFUSED[name]:
                raise ValueError(f"{name}={value!r}: the ctranslate2 backend has no such option, want it unset.")
        for name, known in (("decoder_start_token_id", start), ("eos_token_id", end)):
            if (value := getattr(config, name, None)) not in (None, known, [known]):
                raise ValueError(f"{name}={value!r}: the exported model has {known}, want that or none.")
        paper = getattr(config, "search", None) == "paper"
        unset = (None, STOCK_MAX_LENGTH) if paper else (None,)
        most = config.max_new_tokens
        if most is None and config.max_length not in unset:
            most = max(config.max_length - 1, 1)  # the start symbol counts there
        return cls(
            paper=paper,
            beams=config.num_beams or DEFAULT_BEAMS,
            alpha=1.0 if config.length_penalty is None else config.length_penalty,
            stop_early=config.early_stopping is True,
            extra_tokens=checked_extra_tokens(getattr(config, "max_extra_tokens", None)),
            most_tokens=most if most or paper else DEFAULT_TOKENS,
        )

    def limit(self, source_length: int) -> int:
        """How many tokens may be generated for a source of so many, both with their end."""
        limits = [source_length + self.extra_tokens] if self.paper else []
        return max(1, min(limits + [self.most_tokens] * (self.most_tokens is not None)))

    def best(self, hypotheses: list[list[str]], scores: list[float], end: str) -> list[str]:
        """The hypothesis to take, of those found with their log P / length^α. One cut off comes after any that ended,
        as in the paper's search; in the stock one it competes, and CTranslate2 has chosen."""
        if not self.paper:
            return hypotheses[0]

        def rank(place: int) -> tuple[bool, float]:
            tokens = hypotheses[place]
            log_prob = scores[place] * len(tokens) ** self.alpha
            return tokens[-1:] == [end], log_prob / length_penalty(len(tokens), self.alpha)

        return hypotheses[max(range(len(hypotheses)), key=rank)]

    def options(self) -> dict[str, Any]:
        """For `ctranslate2.Translator.translate_batch`."""
        patience = 1 if self.stop_early or self.beams == 1 else PATIENCE
        return {
            "beam_size": self.beams,
            "patience": patience,
            "num_hypotheses": self.beams * patience if self.paper else 1,
            "length_penalty": self.alpha,
            "return_scores": True,
            "return_end_token": True,  # else it would not count, and log P be divided by another length
            "min_decoding_length": 0,
            "max_input_length": 0,  # no limit: the source has been cut, and it was said
        }


class CTranslate2Translator(LineTranslator):
    """Translates lines with CTranslate2. The results are those of a `Translator`, but for what the module says."""

    def __init__(
        self,
        folder: Path,
        tokenizer: PreTrainedTokenizerBase,
        generation_config: GenerationConfig,
        batch_tokens: int = 4096,
        max_source_tokens: int = 1024,
    ):
        settings, self.tokens = read_json(folder / "config.json"), read_json(folder / VOCABULARY)
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self.positions, self.end = settings["num_positions"], settings["eos_token"]
        start = settings["decoder_start_token"]
        self.search = Search.of(generation_config, start=self.ids[start], end=self.ids[self.end])
        super().__init__(tokenizer, batch_tokens, max_source_tokens, self.positions)
        # On a CPU a worker for each core: several threads share one batch of a small model poorly.
        workers = 1 if ctranslate2.get_cuda_device_count() else torch.get_num_threads()
        self.engine = ctranslate2.Translator(str(folder), device="auto", inter_threads=workers, intra_threads=1)

    def translate(self, lines: list[str], lengths: list[int]) -> Iterator[str]:
        rows = self.tokenizer(lines, truncation=True)["input_ids"]
        sources = [[self.tokens[number] for number in row] for row in rows]
        limits = [min(self.search.limit(length), self.positions) for length in lengths]
        results = self._searched(sources, max(limits, default=1))
        for place, limit in enumerate(limits):
            if max(map(len, results[place].hypotheses)) > limit:
                [results[place]] = self._searched([sources[place]], limit)
        for result in results:
            best = self.search.best(result.hypotheses, result.scores, self.end)
            yield self.tokenizer.decode([self.ids[token] for token in best], skip_special_tokens=True)

    def _searched(self, sources: list[list[str]], limit: int) -> list[ctranslate2.TranslationResult]:
        """One result for each, found in batches of similar length: CTranslate2 sorts and splits by itself."""
        batches = {"max_batch_size": self.batch_tokens, "batch_type": "tokens"}
        return self.engine.translate_batch(sources, max_decoding_length=limit, **batches, **self.search.options())


def load(folder: str, overrides: Iterable[str] = (), **arguments: Any) -> CTranslate2Translator:
    """The translator of a folder that `export.py` has made. `overrides` are `field=value` of `GenerationConfig`.

    Raises:
        ValueError: no such folder, or its files are damaged; generation options that CTranslate2 has not.
    """
    for name in ("model.bin", "config.json", VOCABULARY):
        if not Path(folder, name).is_file():
            raise ValueError(f"{folder}: no {name}, wanted what training/export.py --to ctranslate2 makes")
    tokenizer = loaded(folder, "tokenizer", AutoTokenizer)
    config = loaded(folder, "generation config", GenerationConfig)
    config.update(**generation_options(overrides), allow_custom_entries=True)
    try:
        translator = CTranslate2Translator(Path(folder), tokenizer, config, **arguments)
        list(translator(["a"]))
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{folder}: no CTranslate2 model that works: {error}") from error
    return translator
