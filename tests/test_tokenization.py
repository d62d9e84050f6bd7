"""hf_attention.tokenization: round trips, one vocabulary, and what AutoTokenizer makes of the saved folder."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedConfig

from hf_attention.tokenization import check_vocabulary, train_tokenizer, word_tokenizer


REPOSITORY = Path(__file__).parents[1]
SENTENCES = ["the dog sees the cat", "der Hund sieht die Katze", "a dog, a cat!", "Ein Hund, 3 Katzen!"] * 5
TEXTS = [
    "",
    " ",
    "a",
    " a",
    "a ",
    "   two  spaces,   three   ",
    "\n",
    "\tone\r\n\n two \t",
    "</s>",
    "<pad> </s><s>",
    "a </s> b",
    "▁",
    "Ġthe ĠĊ",
    "\x00",
    "a\x00\x85\u2028b",
    "e\u0301 \u00e9",
    "👩‍👩‍👧 👍🏽",
    "日本語 עברית ไทย",
    "\ufeffa",
    "\U0010ffff\ufffd",
    "a , b ' s n't .",
    "Ein Hund, 3 Katzen!",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(SENTENCES), 280, show_progress=False)


@pytest.fixture(scope="module", params=["trained", "loaded", "beside a config"])
def any_tokenizer(request, tokenizer, tmp_path_factory):
    if request.param == "trained":
        return tokenizer
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    if request.param == "beside a config":
        (folder / "config.json").write_text(json.dumps({"model_type": "vanilla_transformer", "vocab_size": 280}))
    return AutoTokenizer.from_pretrained(folder)


def decoded(tokenizer, text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back_and_ends_once(any_tokenizer, text):
    ids = any_tokenizer(text)["input_ids"]
    assert any_tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids[-1] == 2
    assert not {0, 1, 2} & set(ids[:-1])


def test_report_6_every_character_of_the_basic_plane_comes_back(any_tokenizer):
    text = "".join(chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000)
    assert decoded(any_tokenizer, text) == text


def test_report_6_auto_tokenizer_changes_nothing(tokenizer, any_tokenizer):
    assert any_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert any_tokenizer.special_tokens_map == tokenizer.special_tokens_map
    assert any_tokenizer.model_input_names == ["input_ids", "attention_mask"]
    assert any_tokenizer.padding_side == "right"
    assert any_tokenizer(SENTENCES) == tokenizer(SENTENCES)


def test_report_6_two_hundred_pieces_build_the_smallest_vocabulary(caplog):
    tokenizer = train_tokenizer(iter(SENTENCES), 200, show_progress=False)
    assert len(tokenizer) == 259
    assert "200" in caplog.text and "259" in caplog.text
    assert tokenizer("Ein Hund, 3 Katzen!")["input_ids"][-1] == 2
    assert decoded(tokenizer, "Ein Hund, 3 Katzen!") == "Ein Hund, 3 Katzen!"


def test_special_tokens(any_tokenizer):
    assert any_tokenizer.convert_tokens_to_ids(["<pad>", "<s>", "</s>"]) == [0, 1, 2]
    assert (any_tokenizer.pad_token_id, any_tokenizer.bos_token_id, any_tokenizer.eos_token_id) == (0, 1, 2)
    assert any_tokenizer.unk_token is None


def test_a_word_has_the_same_pieces_anywhere(any_tokenizer):
    first, *_, last = any_tokenizer.tokenize("dog the dog")
    assert first == last
    assert any_tokenizer.tokenize("dog")[0] == first


def test_targets_pairs_and_padding(any_tokenizer):
    assert any_tokenizer(text_target="the dog")["input_ids"] == any_tokenizer("the dog")["input_ids"]
    both = any_tokenizer("the dog", text_target="a cat")
    assert both["labels"] == any_tokenizer("a cat")["input_ids"]
    batch = any_tokenizer(["the dog", ""], padding=True)
    width = len(batch["input_ids"][0])
    assert batch["input_ids"][1] == [2] + [0] * (width - 1)
    assert batch["attention_mask"][1] == [1] + [0] * (width - 1)
    assert "token_type_ids" not in batch


def test_report_56_the_end_survives_truncation(any_tokenizer):
    full = any_tokenizer("the dog sees the cat")["input_ids"]
    cut = any_tokenizer("the dog sees the cat", truncation=True, max_length=3)["input_ids"]
    assert cut == [*full[:2], 2]


def test_files_stream_into_the_same_vocabulary_as_their_text(tmp_path):
    (tmp_path / "a").write_text("\n".join(SENTENCES), encoding="utf-8")
    (tmp_path / "b").write_text("und noch ein Hund\n" * 3, encoding="utf-8")
    from_files = train_tokenizer([tmp_path / "a", str(tmp_path / "b")], 290, show_progress=False)
    from_text = train_tokenizer(iter([*SENTENCES, *["und noch ein Hund"] * 3]), 290, show_progress=False)
    assert from_files.get_vocab() == from_text.get_vocab()
    one = train_tokenizer(str(tmp_path / "a"), 280, show_progress=False)
    assert one.get_vocab() == train_tokenizer(iter(SENTENCES), 280, show_progress=False).get_vocab()


def test_a_corpus_too_small_for_the_vocabulary_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = train_tokenizer(iter(["ab ab"]), 5000, show_progress=False)
    # " a" and " ab" are all the pieces that two words of two letters can add to the 259
    assert len(tokenizer) == 261
    assert "5000" in caplog.text and "261" in caplog.text


@pytest.mark.parametrize("vocab_size", [0, -1, True, 300.0, "300", None])
def test_a_wrong_vocab_size_is_named(vocab_size):
    with pytest.raises(ValueError, match="vocab_size"):
        train_tokenizer(iter(SENTENCES), vocab_size, show_progress=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [([], "no text"), (["", " \t"], "no text"), (["a", 3], "text 2 is 3"), (["a", "b\ud800"], "text 2 .* surrogate")],
)
def test_text_that_cannot_be_learnt(text, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(iter(text), 300, show_progress=False)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin1").write_bytes("gut\nschön\n".encode("latin-1"))
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="latin1, line 2: not UTF-8 .byte 0xf6 after 3"):
        train_tokenizer(tmp_path / "latin1", 300, show_progress=False)
    with pytest.raises(ValueError, match="no text"):
        train_tokenizer([tmp_path / "empty"], 300, show_progress=False)
    with pytest.raises(ValueError, match="missing: no such file"):
        train_tokenizer([tmp_path / "missing"], 300, show_progress=False)
    with pytest.raises(ValueError, match="directory"):
        train_tokenizer(tmp_path, 300, show_progress=False)


def config(vocab_size=280, pad=0, start=1, end=2):
    class Config(PreTrainedConfig):
        model_type = "of_this_test"

    made = Config(pad_token_id=pad, bos_token_id=start, eos_token_id=end)
    made.vocab_size = vocab_size
    return made


def test_vocabulary_and_config_agree(tokenizer):
    check_vocabulary(tokenizer, config())
    check_vocabulary(tokenizer, config(vocab_size=384))  # rounded up to a multiple of 128


@pytest.mark.parametrize(
    ("wrong", "numbers"),
    [
        ({"vocab_size": 279}, ("279", "280")),
        ({"vocab_size": 37000}, ("37000", "280")),
        ({"pad": 3}, ("pad_token_id", "3", "0")),
        ({"end": 1}, ("eos_token_id", "1", "2")),
        ({"start": None}, ("bos_token_id", "None", "1")),
    ],
)
def test_vocabulary_and_config_disagree(tokenizer, wrong, numbers):
    with pytest.raises(ValueError) as refused:
        check_vocabulary(tokenizer, config(**wrong))
    assert all(number in str(refused.value) for number in numbers)


def build(*arguments, **kwargs):
    command = [sys.executable, str(REPOSITORY / "training/build_tokenizer.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=REPOSITORY, **kwargs)


def test_the_script_writes_a_tokenizer_that_loads_and_is_the_same_in_every_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    text = tmp_path / "text"
    text.write_text("\n" + "\n".join(SENTENCES), encoding="utf-8")
    result = build(text, "--vocab-size", 280, "--output", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "280 pieces" in result.stdout
    assert "the dog sees the cat -> Ġthe Ġdog" in result.stdout
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    here = train_tokenizer(text, 280, show_progress=False)
    assert loaded.backend_tokenizer.to_str() == here.backend_tokenizer.to_str()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text"]


def test_the_script_ends_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    result = build(tmp_path / "missing", "--vocab-size", 280, "--output", tmp_path / "out")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert build("--vocab-size", "many", "--output", "x", "y").returncode == 2


def test_a_list_of_sentences_is_text_and_a_list_of_names_is_files():
    lines = ["ein hund, zwei katzen", "hunde"]
    assert train_tokenizer(lines, 270).get_vocab() == train_tokenizer(iter(lines), 270).get_vocab()
    with pytest.raises(ValueError, match=r"train\.en: no such file"):
        train_tokenizer(["train.en", "train.de"], 270)


def test_whole_words_have_the_ids_they_are_listed_with(tmp_path):
    word_tokenizer([str(token) for token in range(3, 11)]).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 11 and tokenizer.convert_ids_to_tokens(range(4)) == ["<pad>", "<s>", "</s>", "3"]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    for ids in (tokenizer("  3 10\t7\n")["input_ids"], tokenizer(text_target="3 10 7")["input_ids"]):
        assert ids == [3, 10, 7, 2]
    assert tokenizer.decode([1, 3, 10, 7, 2, 0], skip_special_tokens=True) == "3 10 7"
    assert tokenizer("310 3, a </s> 4 1")["input_ids"] == [4, 2]  # what is no word has no token
    regular = word_tokenizer(["a.c", "(", "a|b"])
    assert regular("abc a.c a ( b a|b")["input_ids"] == [3, 4, 5, 2]


@pytest.mark.parametrize("words", [[], ["a", "a"], ["a b"], [""], ["</s>"]], ids=repr)
def test_words_that_make_no_vocabulary(words):
    with pytest.raises(ValueError, match="words are"):
        word_tokenizer(words)
