"""A whole measurement: data, rounds, and the section of a Markdown file that comes of it."""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import disable_progress_bars

from ..export import export_model
from ..text_files import read_lines
from ..toy import write_pig_latin
from .compare import BASELINE, LIMIT, NEEDS, SEARCH_TITLES, TITLES, Answers, ask, choose, limit_order, take_turns
from .orders import Order, TrainingOrder, TranslationOrder, write_pairs, write_sentences
from .table import machine, profile_table, training_table, translation_table


MULTI30K = {  # lower-cased and tokenised
    "train": ("train.lc.norm.tok.en", "train.lc.norm.tok.de"),
    "test": ("test_2016_flickr.lc.norm.tok.en", "test_2016_flickr.lc.norm.tok.de"),
}
PROFILED = ["ours", BASELINE]


def measure_training(options: Namespace) -> tuple[str, str]:
    """Title and text of a comparison of trainings. Raises ValueError for options that are none."""
    disable_progress_bars()  # each process would show them
    pythons = _pythons(options.python)
    present, absent = choose([*TITLES], _wanted(options), pythons)
    for name in ("rounds", "updates", "warmup", "vocab_size", "tokens_per_batch"):
        _check_positive(name, getattr(options, name))
    with tempfile.TemporaryDirectory(prefix="hf_attention-benchmark-") as folder:
        source, target, data = _pair(options, "train", folder)
        _tell(f"data: {data}")
        data += f", {write_pairs(Path(folder), source, target, options.vocab_size)}"
        _tell(data)

        def order(name: str, turn: int) -> Order:
            if name == LIMIT:
                return limit_order(folder, options.bf16)
            return TrainingOrder(
                contender=name,
                folder=folder,
                recipe=str(options.recipe),
                shape=options.shape,
                tokens_per_batch=options.tokens_per_batch,
                warmup=options.warmup,
                updates=options.updates,
                seed=turn + 1,
                bf16=options.bf16,
                profile=options.profile,
            )

        answers = _rounds(present, order, options, pythons, absent)
    precision = "bfloat16 autocast" if options.bf16 else "float32"
    if options.profile:
        title = f"Profile of training: {options.shape}, {precision}"
        body = profile_table({TITLES[name]: turns[0]["times"] for name, turns in answers.items()})
    else:
        title = f"Training: {options.shape}, {precision}"
        limits = [turn["limit"] for turn in answers.pop(LIMIT)]
        body = f"{training_table(answers, TITLES, limits, BASELINE)}\n\n{_limit(limits)}"
    how = (
        f"{data}; about {options.tokens_per_batch:,} tokens a side in a batch, padding included, or as many sentences "
        f"as that makes on the average; {options.updates} updates behind {options.warmup} that warm up."
    )
    return title, _body(body, how, options, answers, absent)


def measure_translation(options: Namespace) -> tuple[str, str]:
    """Title and text of a comparison of beam searches. Raises ValueError for options that are none."""
    pythons = _pythons(options.python)
    present, absent = choose([*SEARCH_TITLES], _wanted(options), pythons)
    for name in ("rounds", "beams", "batch_size", "alone"):
        _check_positive(name, getattr(options, name))
    with tempfile.TemporaryDirectory(prefix="hf_attention-benchmark-") as folder:
        source, _, data = _pair(options, "test", folder)
        lines = [*read_lines(source)][: options.sentences]
        data += f", {write_sentences(Path(folder), options.model, lines)}"
        _tell(data)
        if any(NEEDS.get(name) == "ctranslate2" for name in present):
            export_model(options.model, "ctranslate2", Path(folder, "ctranslate2"), "float32")

        def order(name: str, turn: int) -> Order:
            if name == LIMIT:
                return limit_order(folder, bf16=False)
            return TranslationOrder(
                contender=name,
                folder=folder,
                model=options.model,
                beams=options.beams,
                batch_size=options.batch_size,
                alone=options.alone,
                profile=options.profile,
            )

        answers = _rounds(present, order, options, pythons, absent)
    how = f"{data}; beam {options.beams}, batches of {options.batch_size} sorted by length, the same weights in all."
    model = Path(options.model).name
    if options.profile:
        columns = {}
        for name, turns in answers.items():
            columns[SEARCH_TITLES[name]] = turns[0]["times"]
            columns[f"{SEARCH_TITLES[name]}, one alone"] = turns[0]["times_alone"]
        return f"Profile of beam search: {model}", _body(profile_table(columns), how, options, answers, absent)
    limits = [turn["limit"] for turn in answers.pop(LIMIT)]
    body = f"{translation_table(answers, SEARCH_TITLES, limits, BASELINE, 'ours')}\n\n{_limit(limits)}"
    return f"Beam search: {model}", _body(body, how, options, answers, absent)


def _rounds(
    present: list[str], order: Any, options: Namespace, pythons: Mapping[str, str], absent: dict[str, str]
) -> Answers:
    for name, why in absent.items():
        _tell(f"{name}: {why}")
    if options.profile:
        return {name: [ask(order(name, 0), pythons.get(name, sys.executable))] for name in present}
    return take_turns([LIMIT, *present], order, options.rounds, pythons, _tell, absent)


def _body(table: str, how: str, options: Namespace, answers: Answers, absent: Mapping[str, str]) -> str:
    turns = [turn for turns in answers.values() for turn in turns]
    versions = {name: version for turn in turns for name, version in turn["versions"].items()}
    once = "Recorded once" if options.profile else "One round"
    rounds = once if options.profile or options.rounds == 1 else f"Medians of {options.rounds} rounds, taken in turns"
    lines = [
        table,
        f"{rounds}, each measurement in a process of its own. {how}",
        f"{machine(turns[0]['threads'])}; {', '.join(f'{name} {version}' for name, version in versions.items())}.",
    ]
    if absent:
        lines.append(f"Not measured: {'; '.join(f'{name}, {why}' for name, why in absent.items())}.")
    return "\n\n".join(lines)


def _limit(limits: list[float]) -> str:
    low, high = min(limits) / 1e9, max(limits) / 1e9
    return (
        f"The limit is what products of 2048 x 2048 matrices reach here: {low:,.0f} to {high:,.0f} GFLOP/s. A share "
        "of it counts the products that real tokens need, and no padding (`hf_attention/benchmark/flops.py`)."
    )


def _pair(options: Namespace, split: str, folder: str) -> tuple[Path, Path, str]:
    """Source and target file, and a word about them: the user's, Multi30k's or generated ones."""
    given = [file for file in (options.source, options.target) if file is not None]
    if options.multi30k is not None:
        if given:
            raise ValueError("data are --multi30k and files: want one of the two")
        source, target = (Path(options.multi30k, name) for name in MULTI30K[split])
        name = "Multi30k En→De"
    elif given:
        if split == "train" and len(given) != 2:
            raise ValueError("one of --source and --target is missing: want aligned files of both")
        source, target = Path(options.source or given[0]), Path(options.target or given[0])
        name = source.name
    else:
        write_pig_latin(folder)
        source, target = Path(folder, f"{split}.en"), Path(folder, f"{split}.pig")
        name = "generated Pig Latin"
    for file in (source, target):
        if not file.is_file():
            raise ValueError(f"{file}: no such file")
    return source, target, name


def _wanted(options: Namespace) -> str | None:
    return ",".join(PROFILED) if options.profile and options.contenders is None else options.contenders


def _pythons(given: list[str]) -> dict[str, str]:
    pythons = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals:
            raise ValueError(f"--python is {text!r}, wanted contender=path")
        pythons[name] = path
    return pythons


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}, wanted at least 1")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
