"""hf_attention.toy: the founding example to the letter, and corpora without overlap."""

import re
import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer

from hf_attention.toy import (
    copy_corpus,
    pig_latin,
    pig_latin_corpus,
    reversing_model,
    write_copying,
    write_pig_latin,
)


@pytest.mark.parametrize(
    ("english", "latin"),
    [
        ("she pet the dog", "eshay etpay ethay ogday"),  # the founding text's own example
        ("a", "away"),
        ("apple", "appleway"),
        ("I see", "Iway eesay"),
        ("She said: the U.S., or NASA?", "Eshay aidsay: ethay Uway.Say., orway ASANAY?"),
        ("USA", "USAWAY"),
        ("McDonald don't", "onaldMcDay on'tday"),
        ("The queen's square street", "Ethay een'squay aresquay eetstray"),
        ("yes my hmm", "esyay ymay hmmay"),
        ("  3 dogs,\tx2_y ", "  3 ogsday,\txay2_yay "),
        ("", ""),
    ],
)
def test_pig_latin(english, latin):
    assert pig_latin(english) == latin


def test_a_corpus_is_distinct_reproducible_and_large_in_words():
    corpus = pig_latin_corpus(5000, seed=1)
    english = [sentence for sentence, _ in corpus]
    assert len(set(english)) == 5000
    assert corpus == pig_latin_corpus(5000, seed=1)
    assert corpus[:4000] == pig_latin_corpus(4000, seed=1)
    assert set(english) != {sentence for sentence, _ in pig_latin_corpus(5000, seed=2)}
    assert len({word for sentence in english for word in sentence.split()}) > 250
    for sentence, latin in corpus:
        assert re.fullmatch("[a-z]+( [a-z]+)*", sentence)
        assert [len(word) for word in latin.split()] == [
            len(word) + (3 if word[0] in "aeiou" else 2) for word in sentence.split()
        ]


@pytest.mark.parametrize("size", [0, -1, 2.0, True, 1_000_001])
def test_an_impossible_size_is_named(size):
    with pytest.raises(ValueError, match="size is"):
        pig_latin_corpus(size)


def test_written_files_are_aligned_and_share_no_sentence(tmp_path):
    write_pig_latin(tmp_path / "new", train=50, validation=7, test=5)
    names = ["test.en", "test.pig", "train.en", "train.pig", "val.en", "val.pig"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    lines = {name: (tmp_path / "new" / name).read_text().splitlines() for name in names}
    assert [len(lines[name]) for name in names] == [5, 5, 50, 50, 7, 7]
    assert len({*lines["train.en"], *lines["val.en"], *lines["test.en"]}) == 62
    assert [pig_latin(line) for line in lines["test.en"]] == lines["test.pig"]


def test_report_62_the_start_token_is_in_no_example_and_each_ends_once():
    corpus = copy_corpus(200, seed=3)
    assert corpus == copy_corpus(200, seed=3) != copy_corpus(200, seed=4)
    assert {token for row in corpus for token in row["input_ids"][:-1]} == set(range(3, 11))
    for row in corpus:
        assert row["input_ids"] == row["labels"]
        assert len(row["labels"]) == 10 and row["labels"][-1] == 2
    with pytest.raises(ValueError, match="vocab_size is 3"):
        copy_corpus(1, vocab_size=3)


def test_sequences_of_many_lengths():
    corpus = copy_corpus(200, length=5, shortest=2)
    assert {len(row["labels"]) for row in corpus} == {3, 4, 5, 6}  # and the end token
    with pytest.raises(ValueError, match="shortest is 6"):
        copy_corpus(1, length=5, shortest=6)


def test_report_62_the_copy_task_in_files(tmp_path):
    """Eleven ids, none of the written ones padding, start or end, and each text is that of its ids."""
    subprocess.run([sys.executable, "-m", "hf_attention.toy", tmp_path / "copy", "--task", "copy"], check=True)
    lines = {name: (tmp_path / "copy" / f"{name}.txt").read_text().splitlines() for name in ("train", "val", "test")}
    assert {name: len(part) for name, part in lines.items()} == {"train": 10_000, "val": 200, "test": 200}
    unseen = {*lines["val"], *lines["test"]}
    assert len(unseen) == 400 and not unseen & {*lines["train"]}
    assert {len(line.split()) for line in lines["train"]} == set(range(1, 10))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "copy" / "tokenizer")
    assert len(tokenizer) == 11
    everything = lines["train"] + [*unseen]
    for line, ids in zip(everything, tokenizer(everything)["input_ids"], strict=True):
        assert ids == [*map(int, line.split()), 2]
    assert {word for line in everything for word in line.split()} == {str(symbol) for symbol in range(3, 11)}
    write_copying(tmp_path / "again")
    assert (tmp_path / "again" / "train.txt").read_text().splitlines() == lines["train"]


def test_the_model_to_follow_by_hand_reverses():
    torch.manual_seed(5)
    random = torch.get_rng_state()
    model, tokenizer = reversing_model()
    assert (model.generation_config.search, model.generation_config.num_beams) == ("paper", 2)
    assert torch.equal(torch.get_rng_state(), random) and not model.training
    config = model.config
    assert (config.vocab_size, config.d_model, config.num_heads, config.num_layers) == (5, 8, 2, 2)
    texts = ["a", "b", "a a", "a b", "b a", "b b"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    for num_beams in (1, 2):
        ids = model.generate(**batch, num_beams=num_beams)
        assert tokenizer.batch_decode(ids, skip_special_tokens=True) == [text[::-1] for text in texts]
    again, _ = reversing_model()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), again.parameters(), strict=True))
