"""A recipe: one flat YAML file, and `field=value` overrides, become the argument objects of the stock library.

Every key is a field of `VanillaTransformerConfig`, `Seq2SeqTrainingArguments`, `GenerationConfig` or `DataArguments`.
`extends: base.yaml` starts from another file, so that a recipe states only its difference, and `rows:` makes a file a
table of such differences, of which `row=NAME` picks one. A misspelt key, a value of a wrong type or an impossible
combination is a `ValueError` before anything is read, downloaded or trained.
"""

import dataclasses
import difflib
import enum
import logging
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from sacrebleu import BLEU
from transformers import GenerationConfig, Seq2SeqTrainingArguments
from transformers.trainer_utils import IntervalStrategy
from transformers.training_args import OptimizerNames

from .model.configuration_vanilla_transformer import OWN_FIELDS, VanillaTransformerConfig
from .model.generation_vanilla_transformer import SEARCHES, checked_extra_tokens
from .optimizer import multiplies_bfloat16


logger = logging.getLogger(__name__)

PAIR_FILES = (".tsv", ".jsonl", ".json", ".parquet", ".arrow")
NOT_HERE = {  # fields of Seq2SeqTrainingArguments that only scripts read, and what takes their place in this one
    "resume_from_checkpoint": "--resume",
    "do_train": "training is what this is for",
    "do_eval": "eval_strategy",
    "do_predict": "test_files",
}
POSITIVE = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "num_train_epochs",
)

# What a generation config may hold: the stock fields, and the two that choose the paper's search.
GENERATION_FIELDS = {**GenerationConfig().to_dict(), "search": None, "max_extra_tokens": None}


@dataclass
class DataArguments:
    """Where the sentence pairs come from, how they become batches, and how the run is judged.

    Args:
        train_files, validation_files, test_files: two aligned text files [source, target], or one file of TSV or JSON
            lines. Relative to `data_dir`. Validation and test may be missing.
        data_dir: folder of those files.
        dataset, dataset_config: instead of files, a name that `datasets` knows, or a folder it reads.
        train_split, validation_split, test_split: the dataset's splits; null where it has none.
        source_lang, target_lang: language codes, for the model card.
        source_column, target_column: keys of JSON lines, or of a dataset's `translation`; the language codes if not
            given.
        tokenizer: folder of a trained tokenizer. Without it, one with `vocab_size` entries is trained on the training
            pairs and kept in the output folder.
        max_tokens: training and validation pairs with a longer side, in tokens, are dropped and counted.
        tokens_per_batch: source tokens, and target tokens, of one batch on one device, padding included (§5.1). None:
            batches of `per_device_train_batch_size` sentences.
        bpe_dropout: probability that a merge of byte pairs is undone, anew in each epoch (Provilkov et al. 2020), to
            regularise training on a small corpus; wants `tokens_per_batch`.
        bidirectional_epochs: epochs, the first ones, in which half of the pairs, others in each, are turned around, so
            that a small corpus teaches more than one direction holds (Ding et al. 2021); wants `tokens_per_batch`.
        dropout_warmup_steps: updates over which `dropout` rises from 0 to its value, for where much of it would delay
            the beginning (Morerio et al. 2017).
        muon: whether the layers' matrices are trained by Muon, which needs fewer updates, and only the rest by Adam
            (`hf_attention.MuonWithAdam`), with the recipe's Adam fields, rate and schedule.
        average_last: of how many of the last checkpoints the run keeps the weights and, at its end, writes and scores
            the mean (§6.1). None: only `save_total_limit` says what is kept, and nothing is averaged.
        bleu_tokenize, bleu_lowercase: sacrebleu's settings for the figures of this run; `none` for text that is
            tokenised already.
    """

    train_files: list[str] | str | None = None
    validation_files: list[str] | str | None = None
    test_files: list[str] | str | None = None
    data_dir: str = "."
    dataset: str | None = None
    dataset_config: str | None = None
    train_split: str = "train"
    validation_split: str | None = "validation"
    test_split: str | None = "test"
    source_lang: str = "en"
    target_lang: str = "de"
    source_column: str | None = None
    target_column: str | None = None
    tokenizer: str | None = None
    max_tokens: int = 256
    tokens_per_batch: int | None = 25000
    bpe_dropout: float = 0.0
    bidirectional_epochs: int = 0
    dropout_warmup_steps: int = 0
    muon: bool = False
    average_last: int | None = None
    bleu_tokenize: str = "13a"
    bleu_lowercase: bool = False

    def __post_init__(self) -> None:
        if (self.dataset is None) == (self.train_files is None):
            raise ValueError("no training pairs, or two sources of them: want either dataset or train_files.")
        for name in ("max_tokens", "tokens_per_batch"):
            value = getattr(self, name)
            if value is not None and value < 2:  # one word and its end of sentence
                raise ValueError(f"{name}={value}: want at least 2.")
        if not 0 <= self.bpe_dropout < 1 or (self.bpe_dropout and self.tokens_per_batch is None):
            raise ValueError(f"bpe_dropout={self.bpe_dropout}: want 0 <= p < 1, and 0 without tokens_per_batch.")
        epochs = self.bidirectional_epochs
        if epochs < 0 or (epochs and self.tokens_per_batch is None):
            raise ValueError(f"bidirectional_epochs={epochs}: want 0 or more, and 0 without tokens_per_batch.")
        if self.dropout_warmup_steps < 0:
            raise ValueError(f"dropout_warmup_steps={self.dropout_warmup_steps}: want 0 or more.")
        if self.average_last is not None and self.average_last < 1:
            raise ValueError(f"average_last={self.average_last}: want at least 1 checkpoint, or null.")
        if self.bleu_tokenize not in BLEU.TOKENIZERS:
            raise ValueError(f"bleu_tokenize={self.bleu_tokenize!r}: want one of {', '.join(BLEU.TOKENIZERS)}.")
        for split in ("train", "validation", "test"):
            names = getattr(self, f"{split}_files")
            names = [names] if isinstance(names, str) else names
            setattr(self, f"{split}_files", names)
            if names is None or (len(names) == 2 and all(isinstance(name, str) for name in names)):
                continue
            if len(names) != 1 or Path(str(names[0])).suffix.lower() not in PAIR_FILES:
                raise ValueError(
                    f"{split}_files={names}: want [source, target], or one file of pairs, {', '.join(PAIR_FILES)}."
                )

    def files(self, split: str) -> list[Path] | None:
        """The paths of `train`, `validation` or `test`, or None where the recipe has none."""
        names = getattr(self, f"{split}_files")
        return None if names is None else [Path(self.data_dir, name) for name in names]

    def has(self, split: str) -> bool:
        """Whether the recipe names pairs for `train`, `validation` or `test`."""
        return getattr(self, f"{split}_files" if self.dataset is None else f"{split}_split") is not None


@dataclass
class Recipe:
    """What a run is made from. `given` holds the keys as they were read, for the model card."""

    config: VanillaTransformerConfig
    training: Seq2SeqTrainingArguments
    generation: GenerationConfig
    data: DataArguments
    given: dict[str, Any]


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Reads `path`, applies overrides such as `"d_model=256"`, and builds the argument objects.

    Raises:
        ValueError: a file that can't be read, a key that is no field, a value that doesn't fit. It names them.
    """
    given, overriding = _read(Path(path)), parse_overrides(overrides)
    if "extends" in overriding:
        raise ValueError(f"extends={overriding['extends']!r}: want it in the recipe's file.")
    rows, row = given.pop("rows", None), overriding.pop("row", None)
    if rows is not None:
        if row not in rows:
            raise ValueError(f"{path} is a table: want row=... with one of {', '.join(rows)}, got {row!r}.")
        given |= rows[row] | {"output_dir": f"{given.get('output_dir')}/{row}"}
    elif row is not None:
        raise ValueError(f"row={row!r}: {path} has no rows.")
    return build_recipe(given | overriding)


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """`["num_beams=4", "length_penalty=0.6"]` as {"num_beams": 4, "length_penalty": 0.6}; values are YAML."""
    given = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{override!r}: want field=value.")
        try:
            given[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{override!r}: the value is not YAML.") from error
    return given


def build_recipe(given: Mapping[str, Any]) -> Recipe:
    """As `load_recipe`, from a mapping."""
    training_types = typing.get_type_hints(Seq2SeqTrainingArguments)
    data_types = typing.get_type_hints(DataArguments)
    model: dict[str, Any] = {}
    training: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    data: dict[str, Any] = {}
    training_fields = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
    for key, value in given.items():
        if key in OWN_FIELDS:
            model[key] = value  # the config checks its own
        elif key in training_fields:
            if value is not None:  # null: the library's default, or for learning_rate the paper's
                training[key] = fit(key, value, training_types[key])
        elif key in data_types:
            data[key] = fit(key, value, data_types[key])
        elif key in GENERATION_FIELDS:
            generation[key] = fit_generation(key, value)
        else:
            known = [*OWN_FIELDS, *training_fields, *data_types, *GENERATION_FIELDS, "extends"]
            similar = difflib.get_close_matches(key, known, n=1)
            hint = f": did you mean {similar[0]!r}?" if similar else "."
            raise ValueError(
                f"{key}={value!r} is no field of the model's config, Seq2SeqTrainingArguments, GenerationConfig or "
                f"DataArguments{hint}"
            )
    config, pairs = VanillaTransformerConfig(**model), DataArguments(**data)
    recipe = Recipe(
        config=config,
        training=_training_arguments(training, config, pairs),
        generation=_generation_config(generation, config),
        data=pairs,
        given=dict(given),
    )
    _check_together(recipe)
    return recipe


def _check_together(recipe: Recipe) -> None:
    """What each object accepts and the run would stumble over, hours later, at its first evaluation."""
    limit, averaged = recipe.training.save_total_limit, recipe.data.average_last
    if limit is not None and averaged is not None and limit < averaged:
        raise ValueError(f"save_total_limit={limit} keeps fewer checkpoints than average_last={averaged}: want null.")
    strategy = IntervalStrategy(recipe.training.eval_strategy).value
    if strategy != "no" and not recipe.data.has("validation"):
        raise ValueError(
            f"eval_strategy={strategy} and no validation pairs: want validation_files, or eval_strategy=no."
        )
    if recipe.data.muon:
        optim = OptimizerNames(recipe.training.optim).value
        if optim not in ("adamw_torch", "adamw_torch_fused"):
            raise ValueError(f"muon=true with optim={optim}: want adamw_torch for the rest.")
        if recipe.training.fsdp or recipe.training.deepspeed:
            raise ValueError("muon=true with fsdp or deepspeed: Muon wants whole matrices on each device.")
    limit = recipe.config.max_position_embeddings
    if recipe.config.position_encoding == "learned":
        if recipe.data.bpe_dropout:
            raise ValueError(f"bpe_dropout={recipe.data.bpe_dropout} makes sentences longer: want it 0.")
        for name, value in (("max_tokens", recipe.data.max_tokens), ("max_length", recipe.generation.max_length)):
            if value is not None and value > limit:
                raise ValueError(f"{name}={value}, but learned positions end at max_position_embeddings={limit}.")


def peak_learning_rate(d_model: int, warmup_steps: float) -> float:
    """§5.3, Equation 3 at its highest, step = warmup_steps: (d_model · warmup_steps)^-0.5."""
    return (d_model * warmup_steps) ** -0.5


def fit(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that `hint` allows; YAML reads 5e-4 as text, so numbers may come as text.

    Raises:
        ValueError: it doesn't fit. The message names field, value and what is wanted.
    """
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if value is False and str in options and bool not in options:
        value = "no"  # YAML reads `eval_strategy: no` as false
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is typing.Literal and value in typing.get_args(option):
            return value
        if not isinstance(kind, type) or (isinstance(value, bool) and kind is not bool):  # to Python, True is an int
            continue
        if kind in (int, float):
            number = _number(value)
            if number is not None and (kind is float or number.is_integer()):
                return kind(number)
        elif isinstance(value, kind) or (issubclass(kind, enum.Enum) and isinstance(value, str)):
            return value
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise ValueError(f"{name}={value!r}: want {wanted.replace('NoneType', 'null')}.")


def fit_generation(name: str, value: Any) -> Any:
    """`value` for a field of GenerationConfig, which declares no types and says nothing of most values.

    Raises:
        ValueError: it is no field, or the value doesn't fit.
    """
    if name not in GENERATION_FIELDS:
        similar = difflib.get_close_matches(name, GENERATION_FIELDS, n=1)
        hint = f": did you mean {similar[0]!r}?" if similar else "."
        raise ValueError(f"{name}={value!r} is no field of GenerationConfig{hint}")
    takes_words = ("early_stopping", "cache_implementation", "stop_strings", "search")
    counts = ("num_beams", "num_return_sequences", "max_length", "max_new_tokens")
    if name in counts and value is not None:
        number = _number(value)
        if isinstance(value, bool) or number is None or not number.is_integer() or number < 1:
            raise ValueError(f"{name}={value!r}: want a positive integer.")
        return int(number)
    if isinstance(value, str) and name not in takes_words:
        value = fit(name, value, float)
        value = int(value) if value.is_integer() else value
    if name == "max_extra_tokens":
        checked_extra_tokens(value)
    if name == "search" and value not in (None, *SEARCHES):
        raise ValueError(f"search={value!r}: want one of {', '.join(SEARCHES)}.")
    return value


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _training_arguments(
    given: dict[str, Any], config: VanillaTransformerConfig, data: DataArguments
) -> Seq2SeqTrainingArguments:
    if not given.get("output_dir"):
        raise ValueError("output_dir is missing: want the folder that the run is saved to.")
    for name, instead in NOT_HERE.items():
        if name in given:
            raise ValueError(f"{name}={given[name]!r} has no effect here: want {instead}.")
    for name in POSITIVE:
        if given.get(name, 1) <= 0:
            raise ValueError(f"{name}={given[name]!r}: want a positive number.")
    if given.get("max_steps") == 0:
        raise ValueError("max_steps=0: want a positive number, or -1 for num_train_epochs.")
    if not 0 <= given.get("label_smoothing_factor", 0) < 1:
        raise ValueError(f"label_smoothing_factor={given['label_smoothing_factor']!r}: want 0 <= factor < 1.")
    warmup_steps = given.get("warmup_steps", 0)
    if given.get("learning_rate") is None and warmup_steps >= 1:
        given["learning_rate"] = peak_learning_rate(config.d_model, warmup_steps)
    elif given.get("learning_rate") is None:
        raise ValueError(f"learning_rate is missing, and §5.3 gives none for warmup_steps={warmup_steps:g}: want one.")
    elif warmup_steps == 0:
        logger.warning("warmup_steps=0: post-norm rarely trains without warm-up (§5.3: 4000 steps).")
    if data.tokens_per_batch is not None:
        if given.get("per_device_train_batch_size", 1) != 1:
            raise ValueError(
                f"per_device_train_batch_size={given['per_device_train_batch_size']} and tokens_per_batch exclude "
                "each other: a token batch is one item of the loader. For batches of sentences: tokens_per_batch=null."
            )
        given["per_device_train_batch_size"] = 1
        given.setdefault("train_sampling_strategy", "sequential")  # token batches shuffle themselves
    gpu = torch.cuda.is_available() and not given.get("use_cpu")
    workers = given.get("dataloader_num_workers", 2 if gpu else 0)
    defaults = {
        "remove_unused_columns": False,  # a batch of token batches has no columns
        "use_cpu": not gpu and not torch.backends.mps.is_available(),  # several processes ask
        "ddp_find_unused_parameters": False,  # there are none, and looking for them costs a pass over the graph
        "logging_nan_inf_filter": False,  # waits for the device at every step, to log a mean in the place of a NaN
        # A GPU finds its batches made, in memory from which they come by themselves.
        "dataloader_pin_memory": gpu,
        "accelerator_config": {"non_blocking": gpu},
        "dataloader_num_workers": workers,
        "dataloader_persistent_workers": workers > 0,
    }
    arguments = Seq2SeqTrainingArguments(**{**defaults, **given})
    if arguments.bf16 and arguments.use_cpu and not multiplies_bfloat16(torch.device("cpu")):
        logger.warning("bf16=true: this CPU has no bfloat16 arithmetic and emulates it slowly: want bf16=false.")
    return arguments


def _generation_config(given: dict[str, Any], config: VanillaTransformerConfig) -> GenerationConfig:
    if given.get("num_beams", 1) == 1:  # greedy; a base recipe's beam options would make the config invalid
        given = {name: value for name, value in given.items() if name not in ("length_penalty", "early_stopping")}
    ids = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    generation = GenerationConfig(**given, **{name: getattr(config, name) for name in ids})
    generation.validate(strict=True)
    return generation


class OneOfEach(yaml.SafeLoader):
    """Safe YAML in which a key that is given twice is an error; of two values one would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ValueError(f"{path}: extends itself.")
    try:
        given = yaml.load(path.read_text(encoding="utf-8"), OneOfEach)
    except OSError as error:
        by = f" ({seen[-1]} extends it; the path is relative to that file)" if seen else ""
        raise ValueError(f"{path}: {error.strerror}{by}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if given is None:
        given = {}
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise ValueError(f"{path}: want lines of `field: value`.")
    parent = given.pop("extends", None)
    if parent is None:
        return given
    return {**_read(path.parent / str(parent), (*seen, path.resolve())), **given}
