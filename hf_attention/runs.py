"""A training run from its recipe: its folder, its data and tokenizer, its Trainer, and what it leaves behind."""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from .bpe_dropout import BpeDropout
from .checkpoints import KeepForAveraging, average_checkpoints, checkpoints_of, last_checkpoints
from .corpus import load_pairs
from .data import BatchCollator, TokenBatches, encode_pairs
from .dropout import DropoutWarmup, quicken
from .loss import LabelSmoothedCrossEntropy
from .metrics import compute_metrics
from .model import VanillaTransformerForConditionalGeneration
from .model.configuration_vanilla_transformer import OWN_FIELDS
from .optimizer import MuonWithAdam
from .recipes import DataArguments, Recipe
from .sharing import prepare_sharing
from .text_files import replacing, write_lines
from .tokenization import check_vocabulary, save_tokenizer, train_tokenizer


logger = logging.getLogger(__name__)

RECIPE, TOKENIZER_FOLDER, AVERAGE_FOLDER, RESULTS = "recipe.yaml", "tokenizer", "averaged", "results.json"


def open_run(recipe: Recipe, resume: bool) -> str | None:
    """Makes the run's folder and writes the recipe into it. Returns the checkpoint to go on from, if `resume`.

    Raises:
        ValueError: the folder holds a run and `resume` is False, or there is nothing to resume, or it can't be made.
    """
    folder = Path(recipe.training.output_dir)
    last = last_whole_checkpoint(folder)
    if recipe.training.process_index > 0:  # the first process has looked, and made it
        return last if resume else None
    if resume and last is None:
        raise ValueError(f"output_dir={str(folder)!r} holds no whole checkpoint to resume from.")
    if not resume and (last is not None or (folder / "model.safetensors").is_file()):
        raise ValueError(
            f"output_dir={str(folder)!r} holds a run already: --resume goes on with it, another output_dir= is new."
        )
    if (folder / "README.md").exists() and not (folder / RECIPE).exists():
        raise ValueError(f"output_dir={str(folder)!r} has a README.md of something else: want a folder for the run.")
    given = {key: value for key, value in recipe.given.items() if not key.endswith("_token")}  # the Hub's are secrets
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if resume and (folder / RECIPE).exists():
            _compare(yaml.safe_load((folder / RECIPE).read_text(encoding="utf-8")), given)
        with replacing(folder / RECIPE) as file:
            yaml.safe_dump(given, file, sort_keys=False, allow_unicode=True)
    except OSError as error:
        raise ValueError(f"output_dir={str(folder)!r}: {error.strerror}.") from error
    return last


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint in a run's folder; one that a killed process has left half written is passed over."""
    for checkpoint in reversed(checkpoints_of(folder) if folder.is_dir() else []):
        try:
            _state(checkpoint)  # the Trainer writes it last
            return str(checkpoint)
        except (OSError, ValueError):
            logger.warning("%s is not whole: the run was stopped while writing it", checkpoint)
    return None


def _compare(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Another model can't go on from these weights; another anything else can, but not as if never stopped."""
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    for key in changed:
        if key in OWN_FIELDS:
            raise ValueError(f"{key}={now.get(key)!r}, but the run to resume has {key}={before.get(key)!r}.")
        logger.warning("Resuming with %s=%r; the run began with %r", key, now.get(key), before.get(key))


def load_split(data: DataArguments, split: str) -> Dataset | None:
    """The pairs of `train`, `validation` or `test`, columns "source" and "target"; None where the recipe has none."""
    source, target = data.source_column or data.source_lang, data.target_column or data.target_lang
    if data.dataset is not None:
        name = getattr(data, f"{split}_split")
        options = {"source": source, "target": target, "config": data.dataset_config}
        return load_pairs(data.dataset, split=name, **options) if name is not None else None
    files = data.files(split)
    if files is None:
        return None
    return load_pairs(*files) if len(files) == 2 else load_pairs(files[0], source=source, target=target)


def load_tokenizer(recipe: Recipe, train: Dataset) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer, or the one that the run keeps in its folder, trained on `train` the first time.

    The config's `vocab_size` becomes that of a tokenizer trained here: a small corpus may have fewer pieces to give.
    """
    given = recipe.data.tokenizer
    folder = Path(given) if given is not None else Path(recipe.training.output_dir, TOKENIZER_FOLDER)
    if given is not None and not folder.is_dir():
        raise ValueError(f"tokenizer={given!r} is no folder: want one that training/build_tokenizer.py has written.")
    if not folder.is_dir():
        logger.info("Training a tokenizer with vocab_size=%d on %d pairs", recipe.config.vocab_size, len(train))
        save_tokenizer(train_tokenizer(_texts(train), recipe.config.vocab_size), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if given is None:
        recipe.config.vocab_size = len(tokenizer)
    check_vocabulary(tokenizer, recipe.config)
    return tokenizer


def _texts(pairs: Dataset) -> Iterator[str]:
    for batch in pairs.iter(batch_size=1000):
        yield from chain(batch["source"], batch["target"])


def load_data(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, dict[str, Dataset]]:
    """The tokenizer, and the encoded splits that the recipe names; the first process works, the others read on."""
    with recipe.training.main_process_first(desc="data"):
        pairs = {split: load_split(recipe.data, split) for split in ("train", "validation", "test")}
        tokenizer = load_tokenizer(recipe, pairs["train"])
        encoded = {
            split: encode_pairs(part, tokenizer, recipe.data.max_tokens, drop=split == "train")
            for split, part in pairs.items()
            if part is not None
        }
    if len(encoded["train"]) == 0:
        raise ValueError(f"max_tokens={recipe.data.max_tokens} leaves none of {len(pairs['train'])} training pairs.")
    return tokenizer, encoded


def build_trainer(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, encoded: dict[str, Dataset]) -> Seq2SeqTrainer:
    """Everything the recipe names, put together into the stock Trainer."""
    data, training = recipe.data, recipe.training
    train = encoded["train"]
    if data.tokens_per_batch is not None:
        updates_share = training.world_size * training.gradient_accumulation_steps
        dropout = BpeDropout(tokenizer, data.bpe_dropout) if data.bpe_dropout else None
        train = TokenBatches(
            train, data.tokens_per_batch, training.seed, updates_share, dropout, data.bidirectional_epochs
        )
        steps, updates = training.max_steps, len(train) / updates_share  # of the run, and of an epoch
        epochs = steps / updates if steps > 0 else training.num_train_epochs
        if 0 < epochs <= data.bidirectional_epochs:
            message = "bidirectional_epochs=%d, but the run has %.1f epochs: none is for one direction alone"
            logger.warning(message, data.bidirectional_epochs, epochs)
    model = VanillaTransformerForConditionalGeneration(recipe.config)
    model.generation_config = training.generation_config = recipe.generation
    quicken(model)
    metrics = compute_metrics(tokenizer, data.bleu_tokenize, data.bleu_lowercase)
    loss = LabelSmoothedCrossEntropy(training.label_smoothing_factor)
    sharded = training.fsdp or training.deepspeed  # then no process has the whole of the last layer's matrix
    if not sharded:
        model.loss_function = loss
    callbacks: list[TrainerCallback] = [metrics]
    if data.average_last:
        callbacks.append(KeepForAveraging(data.average_last))
    if data.dropout_warmup_steps:
        callbacks.append(DropoutWarmup(data.dropout_warmup_steps))
    trainer = Seq2SeqTrainer(
        model=model,
        args=training,
        train_dataset=train,
        eval_dataset=encoded.get("validation"),
        data_collator=BatchCollator(tokenizer, model=model),
        processing_class=tokenizer,
        compute_loss_func=loss if sharded else None,
        compute_metrics=metrics if training.predict_with_generate else None,
        callbacks=callbacks,
        optimizers=(_muon(model, training) if data.muon else None, None),
    )
    if not sharded:
        trainer.label_smoother = None  # it would take the labels away from the model, whose loss smooths them
    return trainer


def _muon(model: VanillaTransformerForConditionalGeneration, training: Seq2SeqTrainingArguments) -> MuonWithAdam:
    return MuonWithAdam(
        model,
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        weight_decay=training.weight_decay,
        fused=training.optim == "adamw_torch_fused",
    )


def train(trainer: Seq2SeqTrainer, checkpoint: str | None) -> None:
    """Trains, from a checkpoint on if one is given. One that has all its steps behind it is loaded, nothing more."""
    if checkpoint is None or not _is_last(checkpoint, trainer.args):
        trainer.train(resume_from_checkpoint=checkpoint)
        return
    logger.info("%s is the last of this run: there is nothing left to train", checkpoint)
    state = _state(checkpoint)
    trainer.state.epoch, trainer.state.global_step = state["epoch"], state["global_step"]  # scores name their epoch
    trainer.model.load_state_dict(type(trainer.model).from_pretrained(checkpoint).state_dict())


def _is_last(checkpoint: str, training: Seq2SeqTrainingArguments) -> bool:
    state = _state(checkpoint)
    if training.max_steps > 0:
        return state["global_step"] >= training.max_steps
    return state["global_step"] >= state["max_steps"] and state["num_train_epochs"] >= training.num_train_epochs


def _state(checkpoint: str | Path) -> dict[str, Any]:
    return json.loads(Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8"))


def evaluate_test(trainer: Seq2SeqTrainer, test: Dataset, name: str = "test") -> dict[str, Any]:
    """Scores the test set: loss, BLEU and its signature, also added to `results.json`; `name` begins their names."""
    scores: dict[str, Any] = trainer.evaluate(test, metric_key_prefix=name)
    scores["signature"] = trainer.compute_metrics.signature if trainer.compute_metrics else None
    if trainer.is_world_process_zero():
        results = Path(trainer.args.output_dir, RESULTS)
        before = json.loads(results.read_text(encoding="utf-8")) if name != "test" and results.exists() else {}
        write_lines(results, json.dumps({**before, **scores}, indent=2).splitlines())
    return scores


def evaluate_average(trainer: Seq2SeqTrainer, n: int, test: Dataset | None) -> dict[str, Any]:
    """Writes the mean of the last `n` checkpoints to `averaged/` and scores it; the trainer keeps its own weights.

    Nothing but a warning if the run has saved fewer: a short trial of a recipe is no reason to fail at its end.
    """
    folder = Path(trainer.args.output_dir)
    if len(checkpoints_of(folder)) < n:
        logger.warning("average_last=%d, but the run has saved %d checkpoints", n, len(checkpoints_of(folder)))
        return {}
    output = folder / AVERAGE_FOLDER
    if trainer.is_world_process_zero():
        shutil.rmtree(output, ignore_errors=True)  # the mean of a run that went on since
        average_checkpoints(last_checkpoints(folder, n), output)
    trainer.accelerator.wait_for_everyone()
    if test is None:
        return {}
    model, mean = trainer.model, type(trainer.model).from_pretrained(output)
    last = {name: weight.cpu().clone() for name, weight in model.state_dict().items()}
    model.load_state_dict(mean.state_dict())
    scores = evaluate_test(trainer, test, AVERAGE_FOLDER)
    model.load_state_dict(last)
    return scores


def write_card(trainer: Seq2SeqTrainer, recipe: Recipe, encoded: dict[str, Dataset], scores: dict[str, Any]) -> None:
    """The model card, for now and for every push: data, recipe, and BLEU with its signature once there is one."""
    data = recipe.data
    source = data.dataset or ", ".join(data.train_files or ())
    names = {"test_bleu": "test", f"{AVERAGE_FOLDER}_bleu": f"test, mean of the last {data.average_last} checkpoints"}
    bleu = {name: scores[key] for key, name in names.items() if key in scores}
    prepare_sharing(
        trainer,
        title=Path(recipe.training.output_dir).resolve().name,
        languages=[data.source_lang, data.target_lang],
        data=f"{source}: {len(encoded['train'])} sentence pairs for training. Vocabulary: "
        f"{trainer.model.config.vocab_size} pieces, shared.",
        recipe=recipe.given,
        results=bleu,
        signature=scores.get("signature"),
        dataset_ids=[data.dataset] if data.dataset else [],
        example=trainer.processing_class.decode(encoded["train"][0]["input_ids"], skip_special_tokens=True),
    )


def or_rescue(trainer: Seq2SeqTrainer, step: Callable[[], Any]) -> Any:
    """Runs `step`; if it fails, saves the weights elsewhere before the error goes on: no training is lost.

    Raises:
        ValueError: `step` failed after some training. The message says where the model is now.
    """
    try:
        return step()
    except Exception as error:  # a full disk, a failing evaluation, a device out of memory: the weights are still here
        if trainer.state.global_step == 0:
            raise
        folder = tempfile.mkdtemp(prefix="hf_attention-rescued-")
        trainer.save_model(folder)
        raise ValueError(
            f"{error}; the model of step {trainer.state.global_step} is in {folder} instead, and the last checkpoint "
            f"is {last_whole_checkpoint(Path(trainer.args.output_dir))}."
        ) from error
