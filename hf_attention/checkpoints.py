"""Checkpoint averaging (§6.1: "averaging the last 5 checkpoints"), from files to files: no model is built."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FOR_TRAINING = (".pt", ".pth", ".bin", "trainer_state.json")  # what only going on with the training needs
LEFT_BEHIND = (".safetensors", *FOR_TRAINING)  # by an average: also the weights that went into it
VOCABULARIES = ("vocab.json", "vocab.txt", "merges.txt", "*.spm", "*.model")  # where it is not in tokenizer.json
FREE_FIELDS = ("dropout", "transformers_version", "_name_or_path")  # config fields, by their ends, that may differ


def last_checkpoints(run_folder: str | Path, n: int) -> list[Path]:
    """The newest `n` folders `checkpoint-<step>` of a Trainer's output folder, by step, oldest first.

    ValueError: no such folder, or fewer than `n` of them in it.
    """
    run_folder = Path(run_folder)
    check_count(n)
    if not run_folder.is_dir():
        raise ValueError(f"{run_folder}: no such folder, wanted the output_dir of a training run")
    found = checkpoints_of(run_folder)
    if len(found) < n:
        raise ValueError(
            f"{run_folder} holds {len(found)} checkpoints, wanted the last {n}: train longer, save more often, or keep"
            " more of them with save_total_limit"
        )
    return found[-n:]


def check_count(n: int) -> None:
    """ValueError unless `n` is a number of checkpoints to average."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is {n!r}, wanted at least 1 checkpoint")


def checkpoints_of(run_folder: Path) -> list[Path]:
    """All folders `checkpoint-<step>` in it, by step, oldest first."""
    steps = {
        int(match[1]): folder
        for folder in run_folder.iterdir()
        if (match := re.fullmatch(r"checkpoint-(\d+)", folder.name)) and folder.is_dir()
    }
    return [steps[step] for step in sorted(steps)]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path) -> Path:
    """Writes a model folder whose every weight is the mean of that weight in `folders`, and returns its path.

    The mean is exact to float32 (summed in float64, rounded once), stored in the weights' own type and in the same
    files as the last folder's, so that one matrix in three places stays one. Config, generation config, tokenizer and
    code are the last folder's; optimizer and Trainer state are left behind. Needs the memory of one weights file.

    ValueError, with nothing written: no `folders`, one that is missing or has no weights, or two that differ in their
    vocabulary, their config, or the names, shapes or types of their weights; an `output` that is there already.
    """
    output = Path(output)
    if len(folders) == 0:
        raise ValueError("folders is empty, wanted at least one checkpoint")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} is there already, wanted a new folder: averaging overwrites nothing")
    checkpoints = [Checkpoint(Path(folder)) for folder in folders]
    for checkpoint in checkpoints[:-1]:
        check_alike(checkpoint, checkpoints[-1])
    with written_beside(output) as beside:
        for file in checkpoints[-1].folder.iterdir():
            if file.is_file() and not file.name.endswith(LEFT_BEHIND):
                shutil.copy2(file, beside)
        write_mean(checkpoints, beside)
    return output


class KeepForAveraging(TrainerCallback):
    """For a stock Trainer: keeps on disk what an average of the last `n` checkpoints needs, and no more.

        Seq2SeqTrainer(..., callbacks=[KeepForAveraging(5)])  # and no save_total_limit in its arguments

    After each save the newest checkpoint is whole, to resume from. The n - 1 before it keep their weights, tokenizer
    and code but lose the optimizer's state, which is twice as large as the weights; older ones go. The best
    checkpoint of `load_best_model_at_end` stays whole.
    """

    def __init__(self, n: int):
        check_count(n)
        self.n = n

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if args.save_total_limit is not None and args.save_total_limit < self.n:
            raise ValueError(
                f"save_total_limit is {args.save_total_limit}, wanted none, or at least the {self.n} to be averaged"
            )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        if not state.is_world_process_zero:
            return
        *earlier, _ = checkpoints_of(Path(args.output_dir))
        best = Path(state.best_model_checkpoint).name if state.best_model_checkpoint else None
        for age, folder in enumerate(reversed(earlier), start=1):
            if folder.name == best:
                continue
            if age >= self.n:
                shutil.rmtree(folder)
                continue
            # First of all what says that it is whole: a run that is stopped here must not be resumed from a half.
            for file in sorted(folder.iterdir(), key=lambda file: file.name != "trainer_state.json"):
                if file.is_file() and file.name.endswith(FOR_TRAINING):
                    file.unlink()


class Checkpoint:
    """A folder's weights, open but not read. `handles`: file name to file; `files`: name of a weight to file name."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder, wanted a checkpoint")
        sharded = (folder / INDEX).exists()
        if not sharded and not (folder / WEIGHTS).exists():
            raise ValueError(f"{folder}: no weights, wanted {WEIGHTS} or {INDEX}")
        self.handles: dict[str, safe_open] = {}
        self.files: dict[str, str] = {}
        for file in sorted(set(read_json(folder / INDEX)["weight_map"].values())) if sharded else [WEIGHTS]:
            try:
                self.handles[file] = safe_open(folder / file, "pt")
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{folder / file}: not a whole safetensors file ({error})") from error
            self.files |= dict.fromkeys(self.handles[file].keys(), file)

    def tensor(self, name: str) -> torch.Tensor:
        return self.handles[self.files[name]].get_tensor(name)

    def kind(self, name: str) -> str:
        """Type and shape of a weight, which the file's header tells."""
        header = self.handles[self.files[name]].get_slice(name)
        return f"{header.get_dtype()} {header.get_shape()}"

    def config(self) -> dict:
        fields = read_json(self.folder / "config.json")
        return {name: value for name, value in fields.items() if not name.endswith(FREE_FIELDS)}

    def vocabulary(self) -> dict[str, object]:
        """What gives text its ids. (tokenizer.json also remembers the padding and truncation it last did.)"""
        found: dict[str, object] = {
            file.name: file.read_bytes() for pattern in VOCABULARIES for file in self.folder.glob(pattern)
        }
        if (self.folder / "tokenizer.json").exists():
            tokenizer = read_json(self.folder / "tokenizer.json")
            found["tokenizer.json"] = [tokenizer.get("model"), tokenizer.get("added_tokens")]
        return found


def check_alike(one: Checkpoint, other: Checkpoint) -> None:
    """ValueError with both folders and the first thing in which they differ."""
    for having, lacking in ((one, other), (other, one)):
        if missing := sorted(having.files.keys() - lacking.files.keys()):
            raise ValueError(f"{lacking.folder} has no weight {missing[0]}, which {having.folder} has")
    for name in one.files:
        if one.kind(name) != other.kind(name):
            raise ValueError(f"{name} is {one.kind(name)} in {one.folder} and {other.kind(name)} in {other.folder}")
    ours, theirs = one.config(), other.config()
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            raise ValueError(
                f"config field {field} is {ours.get(field)!r} in {one.folder} and {theirs.get(field)!r} in"
                f" {other.folder}"
            )
    if one.vocabulary() != other.vocabulary():
        raise ValueError(f"{one.folder} and {other.folder} have different vocabularies: their ids are other words")


def write_mean(checkpoints: list[Checkpoint], output: Path) -> None:
    last = checkpoints[-1]
    with tqdm(total=len(last.files), desc=f"averaging {len(checkpoints)} checkpoints", unit=" weights") as progress:
        for file, handle in last.handles.items():
            means = {}
            for name in handle.keys():  # noqa: SIM118  (a handle is no dictionary)
                means[name] = mean(checkpoints, name)
                progress.update()
            save_file(means, output / file, metadata=handle.metadata())


def mean(checkpoints: list[Checkpoint], name: str) -> torch.Tensor:
    """In float64, where n equal float32 numbers add up and divide back to that number. Integers: the last ones."""
    weight = checkpoints[-1].tensor(name)
    if not weight.is_floating_point():
        return weight
    total = weight.to(torch.float64, copy=True)
    for checkpoint in checkpoints[:-1]:
        total += checkpoint.tensor(name)
    return (total / len(checkpoints)).to(weight.dtype)


@contextmanager
def written_beside(output: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `output` at the end, or nothing if there is an error."""
    beside = output.with_name(f".{output.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
    beside.mkdir(parents=True)
    try:
        yield beside
        beside.replace(output)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
