"""Sentence pairs from wherever they lie, as a `datasets.Dataset` of two string columns, "source" and "target"."""

import json
import os
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Value, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError

from .text_files import read_lines


PAIR = Features({"source": Value("string"), "target": Value("string")})
Pair = dict[str, str]


def load_pairs(
    data: str | Path,
    target_file: str | Path | None = None,
    source: str = "source",
    target: str = "target",
    config: str | None = None,
    split: str = "train",
    cache_dir: str | Path | None = None,
) -> Dataset:
    """Sentence pairs; `datasets` reads them once and keeps them on disk, so a corpus may be larger than memory.

    Args:
        data: what to read, told apart by what it is:
            a text file, with `target_file`: line N of one is the translation of line N of the other;
            a `.tsv` file: source, tab, target;
            a `.jsonl` or `.json` file: an object a line, with keys `source` and `target` or, in "translation", these;
            a `.parquet` or `.arrow` file, a folder of `save_to_disk`, or any other name or folder `datasets` knows:
            columns `source` and `target` or, in a column "translation", these.
        source, target: the keys or columns, such as "en" and "de". Text and TSV files have none.
        config, split: for `datasets`, such as "de-en" and "validation" with `data="wmt/wmt14"`.
        cache_dir: where `datasets` keeps what it has read, if not in its usual place.

    `ValueError`: a file that cannot be read, is not UTF-8, holds no pair or has a bad line (named); files of different
    length (with both counts); a key, column, config or split that does not exist.
    """
    suffix = Path(data).suffix.lower()
    if target_file is not None:
        return _through_cache(_aligned, [data, target_file], [], cache_dir)
    if suffix == ".tsv":
        return _through_cache(_tab_separated, [data], [], cache_dir)
    if suffix in (".jsonl", ".json"):
        return _through_cache(_json_lines, [data], [source, target], cache_dir)
    if suffix in (".parquet", ".arrow"):
        files = {"data_files": {split: os.fspath(data)}}
        return _two_columns(_from_datasets(data, suffix[1:], None, split, cache_dir, **files), source, target, data)
    if Path(data).is_file():
        raise ValueError(f"{data}: a text file of sources needs its target_file (or is it a .tsv or .jsonl file?)")
    return _two_columns(_from_datasets(data, os.fspath(data), config, split, cache_dir), source, target, data)


def _through_cache(
    reader: Callable[..., Iterator[Pair]], files: list[str | Path], keys: list[str], cache_dir: str | Path | None
) -> Dataset:
    arguments = {  # tuples: `datasets` would take a list for one of shards
        "reader": reader,
        "files": tuple(os.path.abspath(file) for file in files),
        "keys": tuple(keys),
        "stamps": tuple(_stamp(file) for file in files),
    }
    try:
        return Dataset.from_generator(_read, features=PAIR, gen_kwargs=arguments, cache_dir=cache_dir)
    except DatasetGenerationError as error:
        raise error.__cause__ if isinstance(error.__cause__, (ValueError, OSError)) else error from None


def _stamp(file: str | Path) -> tuple[int, int]:
    """Size and time of change: what makes `datasets` read a file again that it has in its cache."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns


def _read(reader: Callable[..., Iterator[Pair]], files: tuple, keys: tuple, stamps: tuple) -> Iterator[Pair]:
    empty = True
    for pair in reader(*files, *keys):
        empty = False
        yield pair
    if empty:
        raise ValueError(f"{' and '.join(files)}: no sentence pairs")


def _aligned(source_file: str, target_file: str) -> Iterator[Pair]:
    sources, targets = 0, 0
    for source, target in zip_longest(read_lines(source_file), read_lines(target_file)):
        sources += source is not None
        targets += target is not None
        if sources == targets:  # behind the end of the shorter file, only counting goes on
            yield {"source": source, "target": target}
    if sources != targets:
        raise ValueError(f"{source_file} has {sources} lines, {target_file} has {targets}: wanted as many in both")


def _tab_separated(file: str) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(file), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise ValueError(f"{file}, line {number}: {len(fields)} fields, wanted 2 (source, tab, target)")
        yield {"source": fields[0], "target": fields[1]}


def _json_lines(file: str, source: str, target: str) -> Iterator[Pair]:
    for number, line in enumerate(read_lines(file), start=1):
        where = f"{file}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON ({error})") from error
        if isinstance(row, dict) and isinstance(row.get("translation"), dict):
            row = row["translation"]
        if not isinstance(row, dict):
            raise ValueError(f"{where}: {line[:40]!r}, wanted an object with keys {source!r} and {target!r}")
        yield {"source": _string(row, source, where), "target": _string(row, target, where)}


def _string(row: dict, key: str, where: str) -> str:
    if key not in row:
        raise ValueError(f"{where}: no key {key!r}, it has {', '.join(map(repr, row)) or 'none'}")
    text = row[key]
    if not isinstance(text, str):
        raise ValueError(f"{where}: {key!r} is {text!r}, wanted a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {key!r} is {text!r}: half of a surrogate pair is not Unicode text") from error
    return text


def _from_datasets(
    data: str | Path, name: str, config: str | None, split: str, cache_dir: str | Path | None, **files: dict
) -> Dataset:
    """A split that `datasets` reads by itself; what goes wrong there is the user's name, split, config or file."""
    folder = Path(data)
    try:
        if (folder / "state.json").is_file():  # one split, saved by save_to_disk
            return load_from_disk(folder)
        if (folder / "dataset_dict.json").is_file():
            splits: DatasetDict = load_from_disk(folder)
            if split not in splits:
                raise ValueError(f"no split {split!r}, it has {', '.join(map(repr, splits))}")
            return splits[split]
        return load_dataset(name, config, split=split, cache_dir=cache_dir, **files)
    except (ValueError, OSError, RuntimeError, DatasetGenerationError) as error:
        reason = error.__cause__ if isinstance(error, DatasetGenerationError) else error
        raise ValueError(f"{data}: {reason}") from error


def _two_columns(dataset: Dataset, source: str, target: str, data: str | Path) -> Dataset:
    """The two columns under our names. Nothing is copied, unless the file keeps its strings in another Arrow type."""
    prefix = ""
    if "translation" in dataset.column_names:
        dataset = dataset.select_columns("translation").flatten()
        prefix = "translation."
    for column in (source, target):
        feature = dataset.features.get(prefix + column)
        if feature is None:
            known = ", ".join(repr(name.removeprefix(prefix)) for name in dataset.column_names)
            raise ValueError(f"{data}: no column {column!r}, it has {known}")
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            raise ValueError(f"{data}: column {column!r} is of type {feature}, wanted strings")
    dataset = dataset.select_columns([prefix + source, prefix + target])
    dataset = dataset.rename_columns({prefix + source: "source", prefix + target: "target"})
    return dataset if dataset.features == PAIR else dataset.cast(PAIR)
