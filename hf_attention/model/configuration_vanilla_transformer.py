"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017): its Table 3's columns."""

import copy
import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.utils import logging


if TYPE_CHECKING:  # never run: the library's copier reads these lines, and takes the files wherever it takes this one
    from .modeling_vanilla_transformer import VanillaTransformerModel  # noqa: F401
    from .pipeline_translation import TranslationPipeline  # noqa: F401

logger = logging.get_logger(__name__)

# What a saved `config.json` says of the code beside it, as `file.Class`.
AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
}
CUSTOM_PIPELINES = {
    "translation": {"impl": "pipeline_translation.TranslationPipeline", "pt": ["AutoModelForSeq2SeqLM"]}
}
CODE_FILES = (
    "configuration_vanilla_transformer.py",
    "decoding_vanilla_transformer.py",
    "generation_vanilla_transformer.py",
    "modeling_vanilla_transformer.py",
    "pipeline_translation.py",
)

PositionEncoding = Literal["sinusoidal", "learned"]

# What Transformers itself hands to, or writes beside, the dataclass fields of any config.
STOCK_NAMES = {
    "_attn_implementation",
    "_commit_hash",
    "_experts_implementation",
    "_name_or_path",
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "torch_dtype",
}


class VanillaTransformerConfig(PreTrainedConfig):
    """The shape of a `vanilla_transformer`. Defaults are the paper's base model (Table 3, first row).

    Args:
        vocab_size (`int`): size of the vocabulary that source and target share (§5.1: about 37,000 for En-De).
        num_layers (`int`): N, layers of the encoder, and of the decoder unless `num_decoder_layers` says otherwise.
        num_decoder_layers (`int`, *optional*): layers of the decoder; `num_layers` if not given.
        d_model (`int`): width of every embedding and sub-layer output.
        d_ff (`int`): inner width of the position-wise feed-forward network (§3.3).
        num_heads (`int`): h, the parallel attention heads (§3.2.2).
        d_k (`int`, *optional*): width of a head's queries and keys; `d_model / num_heads` if not given (row B).
        d_v (`int`, *optional*): width of a head's values; `d_model / num_heads` if not given.
        dropout (`float`): P_drop, applied where §5.4 says and nowhere else, 0 <= P_drop < 1.
        position_encoding (`str`): `"sinusoidal"` (§3.5) or `"learned"` (row E).
        max_position_embeddings (`int`): rows of the learned position table; sinusoids know no limit and ignore it.
        tie_word_embeddings (`bool`): one matrix for both embeddings and the last linear layer (§3.4).
        use_cache (`bool`): whether the decoder returns its keys and values for step-by-step decoding.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): ids below `vocab_size`. The decoder's
            input is the labels shifted right behind `decoder_start_token_id`. Padding may not share an id with the end
            of sentence: the loss would skip the end and decoding would never stop.

    Raises:
        ValueError: a field of a wrong type, an impossible combination, or a name that is no field. It names the field,
            the value and what is wanted.
    """

    model_type = "vanilla_transformer"
    keys_to_ignore_at_inference = ["cache"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
    }
    # Heads, inner units and the vocabulary are split over the devices; what leaves a sub-layer is whole again.
    base_model_tp_plan = {
        "encoder.embed_tokens": "embedding_rowwise",
        "decoder.embed_tokens": "embedding_rowwise",
    } | {
        f"{stack}.layers.*.{part}": style
        for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "cross_attn"]))
        for part, style in {
            **{f"{attention}.{proj}_proj": "colwise" for attention in attentions for proj in "qkv"},
            **{f"{attention}.out_proj": "rowwise" for attention in attentions},
            "feed_forward.fc1": "colwise",
            "feed_forward.fc2": "rowwise",
        }.items()
    }
    base_model_fsdp_plan = {"encoder.layers.*": "free_full_weight", "decoder.layers.*": "free_full_weight"}

    vocab_size: int = 37000
    num_layers: int = 6
    num_decoder_layers: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    position_encoding: PositionEncoding = "sinusoidal"
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int = 0
    bos_token_id: int | None = 1
    eos_token_id: int = 2
    decoder_start_token_id: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown_names(kwargs)
        self._read_stock_names(kwargs)
        self.check()
        if self.pad_token_id == self.eos_token_id:
            message = (
                f"pad_token_id={self.pad_token_id} is also eos_token_id: want two ids, or the end of a sentence would "
                "count as padding and decoding would never learn to stop."
            )
            if self.transformers_version is None:
                raise ValueError(message)
            logger.warning(message)  # a saved model is not lost for it
        if self.num_decoder_layers is None:
            self.num_decoder_layers = self.num_layers
        self.d_k = self.d_k or self.d_model // self.num_heads
        self.d_v = self.d_v or self.d_model // self.num_heads
        if __name__.startswith("hf_attention."):
            # The installed package has registered model and pipeline. `pipeline()` would want the folder's copy, and
            # trust. Every save names the code anew.
            kwargs.pop("auto_map", None)
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> "VanillaTransformerConfig":
        """As the stock method; the decoder's half counts the decoder's layers, which is how caches learn theirs."""
        config: Any = super().get_text_config(decoder=decoder, encoder=encoder)
        if decoder and not encoder:  # the stock method has made a copy
            config.num_layers = self.num_decoder_layers
        return config

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """As the stock method, with the code of model and pipeline beside `config.json`, which names it.

        The folder then loads with `trust_remote_code=True` where this package is not installed. Every save of a model,
        the Trainer's included, comes through here, before the weights: code that can't be copied is a warning.
        """
        saved = copy.copy(self)  # what only the file should say
        if type(self).__module__ == __name__ and _copy_code(Path(save_directory)):
            saved.auto_map, saved.custom_pipelines = copy.deepcopy((AUTO_MAP, CUSTOM_PIPELINES))
        super(VanillaTransformerConfig, saved).save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    def _refuse_unknown_names(self, extra: dict[str, Any]) -> None:
        # A file may hold what a newer Transformers, or another tool, has written into it; code may not. The file is
        # still refused where the name looks like one of ours, mistyped by hand.
        from_file = self.transformers_version is not None
        known = STOCK_NAMES | set(self.attribute_map) | (set(GenerationConfig().to_dict()) if from_file else set())
        fields = list(type(self).__dataclass_fields__)
        for name, value in extra.items():
            if name in known:
                continue
            similar = difflib.get_close_matches(name, fields, n=1, cutoff=0.75)
            if from_file and not similar:
                logger.warning(f"config field {name}={value!r} is unknown to this version and has no effect.")
                continue
            hint = f"did you mean {similar[0]!r}?" if similar else f"the fields are {', '.join(OWN_FIELDS)}."
            raise ValueError(f"{name}={value!r} is not a field of {type(self).__name__}: {hint}")

    def _read_stock_names(self, extra: dict[str, Any]) -> None:
        """`hidden_size=64` is `d_model=64`, and counts before the fields that follow from it."""
        for alias, name in self.attribute_map.items():
            if alias in extra:
                value, ours = extra.pop(alias), getattr(self, name)
                if ours not in (value, getattr(type(self), name)):
                    raise ValueError(f"{alias}={value!r} and {name}={ours!r} are two values for one field.")
                setattr(self, name, value)

    def check(self) -> None:
        """Raises the `ValueError` of the class docstring for values that changed after construction.

        One id for padding and end is refused where a config is made, not where one is changed or loaded: a model that
        is not trained again runs with it.
        """
        optional = ("num_decoder_layers", "d_k", "d_v")
        for name in ("vocab_size", "num_layers", "d_model", "d_ff", "num_heads", "max_position_embeddings", *optional):
            value = getattr(self, name)
            if not (_is_int(value) and value > 0) and not (value is None and name in optional):
                raise ValueError(f"{name}={value!r}: want a positive integer{' or None' * (name in optional)}.")
        for name in ("tie_word_embeddings", "use_cache"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name}={value!r}: want true or false.")
        if isinstance(self.dtype, str) and not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"dtype={self.dtype!r}: want a dtype of torch, such as 'float32' or 'bfloat16'.")
        if self.is_encoder_decoder is not True:
            raise ValueError(f"is_encoder_decoder={self.is_encoder_decoder!r}: this model is an encoder-decoder.")
        if not isinstance(self.dropout, (int, float)) or isinstance(self.dropout, bool) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r}: want a probability, 0 <= dropout < 1.")
        if self.position_encoding not in get_args(PositionEncoding):
            raise ValueError(
                f"position_encoding={self.position_encoding!r}: want one of {', '.join(get_args(PositionEncoding))}."
            )
        if self.position_encoding == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model={self.d_model}: want an even number; sines and cosines come in pairs (§3.5).")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide d_model={self.d_model}: want a divisor, or d_k and d_v."
            )
        for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            if value is None and name == "bos_token_id":
                continue
            if not _is_int(value) or not 0 <= value < self.vocab_size:
                raise ValueError(f"{name}={value!r}: want an id from 0 to vocab_size - 1 = {self.vocab_size - 1}.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _copy_code(folder: Path) -> bool:
    """Puts `CODE_FILES` into the folder, each written beside and renamed; False, with a warning, if that failed."""
    try:
        for name in CODE_FILES:
            code, beside = Path(__file__).with_name(name).read_bytes(), folder / f".{name}.{os.getpid()}"
            folder.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(code)
            beside.replace(folder / name)
    except OSError as error:
        logger.warning(f"{folder} is saved without the model's code, and loads only where hf_attention is: {error}")
        return False
    return True


OWN_FIELDS = [name for name in VanillaTransformerConfig.__annotations__ if name != "is_encoder_decoder"]

__all__ = ["VanillaTransformerConfig"]
