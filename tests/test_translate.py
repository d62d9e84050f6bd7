"""hf_attention.translation and training/translate.py, on a stock model: truth is its generate(), line by line."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import build_model
from stock import REPOSITORY, byte_tokenizer, run_script, save_stock, tiny_marian
from tokenizers.normalizers import Replace
from transformers import GPT2Config, GPT2LMHeadModel

from hf_attention import translation
from hf_attention.translation import Translator, load_translator


NASTY = [
    "a plain line",
    "",
    "  \t ",
    "tab\tin it",
    "carriage\rreturn inside",
    "line\u2028separator, paragraph\u2029separator, next\x85line",
    "form\x0cfeed, vertical\x0btab, \x1cfile separator",
    "NUL \x00 inside",
    "\u2028",
    "😀 👩‍👩‍👧 e\u0301 \ufeff \u202e",
    "<pad> <s> </s> are text",
    "-",
    "long " * 60,
    "a plain line",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_stock(tmp_path_factory.mktemp("stock"))


def alone(line: str, **options) -> str:
    """What stock generate() makes of one sentence."""
    if not line.strip():
        return ""
    tokenizer, model = byte_tokenizer(), tiny_marian()
    ids = model.generate(**tokenizer(line, return_tensors="pt"), **options)[0]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    breaks = {character for character in text if len(f"a{character}b".splitlines()) == 2}
    runs = itertools.groupby(text, key=lambda character: character in breaks)
    return "".join(" " if broken else "".join(run) for broken, run in runs)


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def translate(folder: Path, *arguments: object) -> int:
    return run_script("translate.py", "--model", folder, *arguments)


@pytest.mark.parametrize("batch_tokens", [2, 300, 100_000])
def test_as_many_lines_out_each_as_if_alone(folder, tmp_path, batch_tokens):
    source, output = write(tmp_path / "source", NASTY), tmp_path / "output"
    assert translate(folder, "--input", source, "--output", output, "--batch-tokens", batch_tokens, "num_beams=2") == 0
    text = output.read_bytes().decode()
    assert text.count("\n") == len(text.splitlines()) == len(NASTY)
    assert text.split("\n")[:-1] == [alone(line, num_beams=2) for line in NASTY]


def test_generation_options_reach_generate(folder, tmp_path):
    source, output = write(tmp_path / "source", NASTY[-1:]), tmp_path / "output"
    options = {"num_beams": 3, "length_penalty": -2.0, "max_new_tokens": 7}
    overrides = [f"{name}={value}" for name, value in options.items()]
    assert translate(folder, *overrides, "--input", source, "--output", output) == 0
    expected = alone(NASTY[-1], **options, max_length=None)
    assert output.read_text() == expected + "\n" and expected != alone(NASTY[-1])


def test_report_55_blank_lines_give_blank_lines(folder, monkeypatch):
    translator = load_translator(str(folder))
    monkeypatch.setattr(translator.pipeline.model, "generate", None)  # not even called
    assert list(translator(["", "  ", "\t", "\u2028"])) == ["", "", "", ""]
    assert list(translator([])) == []


def test_a_line_of_no_tokens_is_a_blank_one(folder, tmp_path):
    """As where a tokenizer drops what it doesn't know, and adds no end of sentence."""
    shutil.copytree(folder, tmp_path / "no_end")
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    tokenizer.backend_tokenizer.normalizer = Replace("\u200b", "")
    tokenizer.save_pretrained(tmp_path / "no_end")
    translated = list(load_translator(str(tmp_path / "no_end"), ["num_beams=1"])(["a", "\u200b", "a"]))
    assert translated[1] == "" and translated[0] == translated[2] != ""


def test_order_is_kept_across_windows(folder, monkeypatch):
    translator = load_translator(str(folder), ["num_beams=1"])
    lines = ["b" * (number * 7 % 11) for number in range(11)]
    at_once = list(translator(lines))
    monkeypatch.setattr(translation, "WINDOW_LINES", 4)
    assert list(translator(lines)) == at_once == [alone(line, num_beams=1) for line in lines]


@pytest.mark.parametrize(("limit", "value", "line"), [("WINDOW_LINES", 5, "a"), ("WINDOW_CHARACTERS", 50, "a" * 10)])
def test_no_more_than_a_window_is_read_ahead(folder, monkeypatch, limit, value, line):
    translator = load_translator(str(folder), ["num_beams=1", "max_new_tokens=1"])
    monkeypatch.setattr(translation, limit, value)
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield line

    for written, _ in enumerate(itertools.islice(translator(endless()), 23), 1):
        assert written <= read <= written + 4


def test_a_long_line_is_cut_and_said(folder, caplog):
    translator = load_translator(str(folder), ["num_beams=1"], max_source_tokens=10)
    results = list(translator(["short", "", "nine byte", "123456789 and more", "another long line"]))
    assert results[3] == alone("123456789", num_beams=1)  # nine bytes and </s>
    assert results[2] == alone("nine byte", num_beams=1)
    [message] = [record.getMessage() for record in caplog.records if record.name == "hf_attention.translation"]
    assert message == "line 4: 19 tokens, cut to 10 (as are 1 of the lines that follow)"


def test_a_line_longer_than_the_positions_of_the_model(folder, caplog):
    line = "x" * 600  # the model has 512 positions
    [result] = load_translator(str(folder), ["num_beams=1"], max_source_tokens=5000)([line])
    assert result == alone("x" * 511, num_beams=1)
    assert "line 1: 601 tokens, cut to 512" in caplog.text


def test_line_breaks_in_a_translation_become_blanks():
    model, tokenizer = tiny_marian(), byte_tokenizer()
    model.final_logits_bias[0, tokenizer("\n")["input_ids"][0]] = 1e4
    assert list(Translator(model, tokenizer, num_beams=1)(["a", "b c"])) == [" ", " "]


def test_our_own_model(tmp_path):
    """Sinusoids have no end: no limit but the one asked for."""
    model, tokenizer = build_model(vocab_size=259), byte_tokenizer(model_max_length=10**30)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    lines = ["Ein Hund, 3 Katzen!", "", "b " * 400]
    translated = list(load_translator(str(tmp_path), ["num_beams=1", "max_new_tokens=9"])(lines))
    for line, result in zip(lines, translated, strict=True):
        if line:
            ids = model.generate(**tokenizer(line, return_tensors="pt"), num_beams=1, max_new_tokens=9)[0]
            line = tokenizer.decode(ids, skip_special_tokens=True)
        assert result == line


# files and streams


def test_a_line_that_is_not_utf8_is_named_and_still_a_line(folder, tmp_path, capsys, caplog):
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_bytes(b"good\nbad \xff\nalso \xfe\n")
    assert translate(folder, "--input", source, "--output", output, "num_beams=1") == 0
    assert f"{source}, line 2: not UTF-8 (byte 0xff after 4 good ones)" in caplog.text and "line 3" not in caplog.text
    assert output.read_text().count("\n") == 3


def test_what_is_no_file_is_written_to_and_not_replaced(folder, tmp_path):
    source = write(tmp_path / "source", ["a"])
    real, link, pipe = write(tmp_path / "real", ["old"]), tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    assert translate(folder, "--input", source, "--output", link, "num_beams=1") == 0
    assert link.is_symlink() and real.read_text() == alone("a", num_beams=1) + "\n"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert translate(folder, "--input", source, "--output", pipe, "num_beams=1") == 0
    assert pipe.is_fifo() and os.read(reader, 1000).decode() == real.read_text()
    os.close(reader)


def test_lines_before_an_error_of_the_stream_are_translated(folder):
    def lines():
        yield from ["a", "", "b"]
        raise ValueError("line 4: not UTF-8")

    translated = load_translator(str(folder), ["num_beams=1"])(lines())
    assert list(itertools.islice(translated, 3)) == [alone("a", num_beams=1), "", alone("b", num_beams=1)]
    with pytest.raises(ValueError, match="line 4"):
        next(translated)


def test_a_file_is_replaced_by_its_own_translation(folder, tmp_path):
    text = write(tmp_path / "text", ["a b", "", "c"])
    assert translate(folder, "--input", text, "--output", text, "num_beams=1") == 0
    assert text.read_text().split("\n") == [alone("a b", num_beams=1), "", alone("c", num_beams=1), ""]


def test_stdin_to_stdout(folder, tmp_path, capfdbinary):
    """Also without a line end at the end, and with those of Windows."""
    (tmp_path / "source").write_bytes("Größe\r\n\r\n\x00\u2028 b".encode())
    before = os.dup(0)
    with open(tmp_path / "source", "rb") as source:
        os.dup2(source.fileno(), 0)
    try:
        assert translate(folder, "num_beams=1") == 0
    finally:
        os.dup2(before, 0)
        os.close(before)
    out, err = capfdbinary.readouterr()
    assert out.decode().split("\n") == [alone("Größe", num_beams=1), "", alone("\x00\u2028 b", num_beams=1), ""]
    assert b"translating: 3 lines" in err


def test_a_reader_that_has_seen_enough_is_no_error(folder):
    """And neither is a locale that knows no Unicode."""
    read_end, write_end = os.pipe()
    command = [sys.executable, REPOSITORY / "training/translate.py", "--model", folder, "num_beams=1"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "ascii"}
    pipes = {"stdin": subprocess.PIPE, "stdout": write_end, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, **pipes)
    os.close(write_end)
    process.stdin.write(b"a\n" * 4096)  # one window
    process.stdin.flush()
    with open(read_end, "rb") as reader:
        assert reader.readline().decode() == alone("a", num_beams=1) + "\n"
    _, err = process.communicate(b"a\n" * 4096)
    assert process.returncode == 128 + signal.SIGPIPE
    assert not any(word in err for word in (b"Error", b"error", b"Traceback"))


# refused


def gpt2(folder: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=259, n_positions=8, n_embd=8, n_layer=1, n_head=1)).save_pretrained(folder)


def without_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "no such folder"),
        (lambda folder: (folder / "config.json").unlink(), "no model that loads"),
        (lambda folder: (folder / "config.json").write_text("{"), "no model that loads"),
        (gpt2, "a gpt2 model is no encoder-decoder"),
        (lambda folder: [file.unlink() for file in folder.glob("tokenizer*")], "no tokenizer that loads"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no model that loads"),
        (lambda folder: os.truncate(folder / "model.safetensors", 9000), "no model that loads"),
        (without_a_weight, "no weight model.encoder.layers.0.fc1.weight in the model's files"),
        (
            lambda folder: tiny_marian(vocab_size=200).save_pretrained(folder),
            "the tokenizer has 259 tokens and the model 200",
        ),
        (lambda folder: tiny_marian(vocab_size=300).config.save_pretrained(folder), "no model that loads"),
    ],
)
def test_a_folder_that_does_not_translate_is_one_line(folder, tmp_path, capsys, change, message):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    change(broken)
    capsys.readouterr()
    assert translate(broken, "--input", write(tmp_path / "source", ["a"])) == 1
    *_, line = capsys.readouterr().err.rstrip("\n").split("\n")
    assert line.startswith(f"error: {broken}") and message in line


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_beam=4", "num_beam=4 is no field of GenerationConfig: did you mean 'num_beams'"),
        ("num_beams", "'num_beams': want field=value"),
        ("num_beams=x", "num_beams='x': want a positive integer"),
        ("top_k=-1 do_sample=true", "translates nothing with"),
        ("max_new_tokens=0", "max_new_tokens"),
        ("num_return_sequences=2", "num_return_sequences"),
        ("num_beams=[", "not YAML"),
    ],
)
def test_generation_options_that_make_no_sense(folder, override, message):
    with pytest.raises(ValueError, match=message):
        load_translator(str(folder), override.split())


@pytest.mark.parametrize("name", ["batch_tokens", "max_source_tokens"])
def test_sizes_that_hold_no_word(folder, name):
    with pytest.raises(ValueError, match=f"{name} is 1, wanted at least 2"):
        load_translator(str(folder), **{name: 1})


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "FOLDER", "--input", "nowhere"], 1, "nowhere"),
        (["--model", "FOLDER", "--input", "SOURCE", "--output", "nowhere/output"], 1, "output is 'nowhere/output'"),
        (["--input", "SOURCE"], 2, "--model"),
        (["--model", "FOLDER", "--beam", "4"], 2, "--beam"),
    ],
)
def test_command_refuses(folder, tmp_path, capsys, arguments, code, message):
    values = {"FOLDER": folder, "SOURCE": write(tmp_path / "source", ["a"])}
    assert run_script("translate.py", *(values.get(argument, argument) for argument in arguments)) == code
    printed = capsys.readouterr().err
    assert message in printed and "Traceback" not in printed


def test_the_stock_model_is_worth_testing_with():
    """Its translations are not blank, and most lines have one of their own."""
    translations = {alone(line, num_beams=2) for line in NASTY if line.strip()}
    assert len(translations) > len(NASTY) / 2 and "" not in translations
