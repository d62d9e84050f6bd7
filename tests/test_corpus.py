"""hf_attention.corpus and text_files: every way in gives the same pairs, and a bad corpus says where it is bad."""

import json
import subprocess
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, DatasetDict, Features, Translation

from hf_attention.corpus import load_pairs
from hf_attention.text_files import read_lines, write_lines


SOURCES = ["a dog", "", "two\u2028lines\x85in\x0bone\rline", "quoted \"it\", 'so'", " b "]
TARGETS = ["ein Hund", "leer", "zwei Zeilen", "zitiert", "   "]
PAIRS = [{"source": source, "target": target} for source, target in zip(SOURCES, TARGETS, strict=True)]
MULTI30K = Path(__file__).parents[2] / "shared/data/multi30k"


@pytest.fixture(autouse=True)
def quiet_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def as_text(folder):
    write_lines(folder / "a.en", SOURCES)
    write_lines(folder / "a.de", TARGETS)
    return {"data": folder / "a.en", "target_file": folder / "a.de"}


def as_tsv(folder):
    write_lines(folder / "a.tsv", [f"{pair['source']}\t{pair['target']}" for pair in PAIRS])
    return {"data": folder / "a.tsv"}


def as_json_lines(folder):
    write_lines(folder / "a.jsonl", [json.dumps(pair) for pair in PAIRS])
    return {"data": str(folder / "a.jsonl")}


def as_translations_in_json(folder):
    rows = [{"id": 1, "translation": {"en": pair["source"], "de": pair["target"]}} for pair in PAIRS]
    write_lines(folder / "a.json", [json.dumps(row) for row in rows])
    return {"data": folder / "a.json", "source": "en", "target": "de"}


def as_parquet(folder):
    Dataset.from_list([{"en": pair["source"], "de": pair["target"]} for pair in PAIRS]).to_parquet(
        folder / "a.parquet"
    )
    return {"data": folder / "a.parquet", "source": "en", "target": "de"}


def wmt_like():
    rows = [{"translation": {"en": pair["source"], "de": pair["target"]}} for pair in PAIRS]
    return Dataset.from_list(rows, features=Features({"translation": Translation(languages=("de", "en"))}))


def as_folder_of_parquet(folder):
    wmt_like().to_parquet(folder / "data/train.parquet")
    return {"data": folder / "data", "source": "en", "target": "de"}


def as_saved_split(folder):
    wmt_like().save_to_disk(folder / "saved")
    return {"data": folder / "saved", "source": "en", "target": "de"}


def as_saved_splits(folder):
    DatasetDict(test=wmt_like()).save_to_disk(folder / "saved")
    return {"data": folder / "saved", "source": "en", "target": "de", "split": "test"}


WAYS = [as_text, as_tsv, as_json_lines, as_translations_in_json, as_parquet, as_folder_of_parquet]
WAYS += [as_saved_split, as_saved_splits]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_pairs(way, tmp_path):
    dataset = load_pairs(**way(tmp_path))
    assert dataset.column_names == ["source", "target"]
    assert dataset.to_list() == PAIRS


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path):
    where = as_tsv(tmp_path)
    first = load_pairs(**where)
    assert load_pairs(**where).cache_files == first.cache_files
    write_lines(tmp_path / "a.tsv", ["x\ty", "longer\tlänger"])
    assert load_pairs(**where).to_list() == [{"source": "x", "target": "y"}, {"source": "longer", "target": "länger"}]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs Multi30k beside the repository")
def test_multi30k_has_the_lines_that_wc_counts():
    files = [MULTI30K / "val.en", MULTI30K / "val.de"]
    dataset = load_pairs(*files)
    counted = subprocess.run(["wc", "-l", *files], capture_output=True, text=True).stdout.split()
    assert counted[0] == counted[2] == str(len(dataset)) == "1014"


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1cf\n".encode(), ["a\u2028b\x85c\x0bd\x0ce\x1cf"]),
    ],
)
def test_lines_end_at_newlines_only(tmp_path, raw, lines):
    (tmp_path / "text").write_bytes(raw)
    assert list(read_lines(tmp_path / "text")) == lines


def test_written_lines_come_back_or_nothing_is_written(tmp_path):
    write_lines(tmp_path / "text", ["a", "", "ü\u2028\r."])
    assert (tmp_path / "text").read_bytes() == "a\n\nü\u2028\r.\n".encode()
    with pytest.raises(ValueError, match="more than one line"):
        write_lines(tmp_path / "text", ["b", "c\nd"])
    assert list(tmp_path.iterdir()) == [tmp_path / "text"]
    assert list(read_lines(tmp_path / "text")) == ["a", "", "ü\u2028\r."]


def test_files_of_different_length_are_refused_with_both_counts(tmp_path):
    (tmp_path / "long").write_text("a\nb\nc")
    (tmp_path / "short").write_text("x\n")
    for files in (["long", "short"], ["short", "long"]):
        with pytest.raises(ValueError) as refused:
            load_pairs(*(tmp_path / file for file in files))
        assert "long has 3" in str(refused.value) and "short has 1" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.tsv", b"a\tb\nc\n", "a.tsv, line 2: 1 fields, wanted 2"),
        ("a.tsv", b"a\tb\tc\n", "a.tsv, line 1: 3 fields, wanted 2"),
        ("a.tsv", b"a\tb\nc\t\xfc\n", "a.tsv, line 2: not UTF-8"),
        ("a.tsv", b"", "a.tsv: no sentence pairs"),
        ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": \n', "a.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"source": "a", "goal": "b"}\n', "line 1: no key 'target', it has 'source', 'goal'"),
        ("a.jsonl", b'{"source": "a", "target": null}\n', "line 1: 'target' is None, wanted a string"),
        ("a.jsonl", b'["a", "b"]\n', "line 1: .*wanted an object"),
        ("a.jsonl", b'{"source": "a", "target": "\\ud83d"}\n', "line 1: 'target' .*surrogate"),
        ("a.en", b"a\n", "a.en: .*target_file"),
        ("a.parquet", b"not parquet", "a.parquet: "),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        load_pairs(tmp_path / name)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no.tsv: No such file"):
        load_pairs(tmp_path / "no.tsv")
    with pytest.raises(ValueError, match="no.en: No such file"):
        load_pairs(tmp_path / "no.en", tmp_path / "no.de")
    with pytest.raises(ValueError, match="no-such-name"):
        load_pairs(str(tmp_path / "no-such-name"))
    saved = as_saved_splits(tmp_path)
    with pytest.raises(ValueError, match="no column 'fr', it has 'de', 'en'"):
        load_pairs(**saved | {"source": "fr"})
    with pytest.raises(ValueError, match="no split 'train', it has 'test'"):
        load_pairs(**saved | {"split": "train"})
    Dataset.from_dict({"source": [1], "target": ["a"]}).to_parquet(tmp_path / "numbers.parquet")
    with pytest.raises(ValueError, match="column 'source' is of type .*int64.*, wanted strings"):
        load_pairs(tmp_path / "numbers.parquet")
