"""training/trace.py as its users run it: a page, a recording, single figures, and one line for a mistake."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import build_model
from stock import REPOSITORY, run_script, save_stock
from transformers import GPT2Config, GPT2LMHeadModel

from hf_attention import Trace, trace
from hf_attention.tokenization import word_tokenizer


def shell(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, REPOSITORY / "training" / "trace.py", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`model`, untrained, of five words; `other`, a stock Marian; `run.safetensors`, a recording of the first."""
    folder = tmp_path_factory.mktemp("trace")
    model, tokenizer = build_model(vocab_size=8, max_position_embeddings=6), word_tokenizer(["a", "b", "c", "d", "e"])
    model.generation_config.max_length = 6
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    save_stock(folder / "other")
    GPT2LMHeadModel(
        GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2)
    ).save_pretrained(folder / "decoder_only")
    trace(model, tokenizer, "a b", "b c a").save(folder / "run.safetensors")
    return folder


def test_without_arguments_a_toy_is_drawn(tmp_path):
    done = shell(tmp_path, "--save", "toy.safetensors")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert f"trace.html: 191 tensors, {len(page.encode()) / 1e6:.2f} MB; open it in a browser\n" in done.stdout
    assert len(page.encode()) < 2e6  # small enough to mail
    assert "a b → b a\n" in done.stderr and "b → b\n" in done.stderr
    recorded = Trace.load(tmp_path / "toy.safetensors")
    attention = recorded.within("encoder.layers.0.self_attn")
    shapes = {tensor.name.rpartition(".")[2]: tensor.shape for tensor in attention}
    assert (shapes["input"], shapes["q_split"], shapes["q_heads"]) == ((2, 3, 8), (2, 3, 2, 4), (2, 2, 3, 4))
    assert recorded.sizes["W"] == 5 and recorded["source.attention_mask"].value.tolist() == [[1, 1, 1], [1, 1, 0]]
    best = recorded["lm_head.logits"].value.argmax(-1)
    counted = recorded["loss.counted"].value
    assert torch.equal(best[counted], recorded["target.labels"].value[counted])
    assert [search["text"] for search in recorded.info["searches"]] == ["b a", "b"]


def test_a_model_its_sentences_and_options(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--model", folder / "model", "--source", "a b c", "--source", "d", "--target", "b", "--target", "a e"]
    options = ["--backward", "--label-smoothing", "0.2", "num_beams=3", "--save", "run.safetensors", "--out", "a.html"]
    assert run_script("trace.py", *arguments, *options) == 0
    recorded = Trace.load("run.safetensors")
    assert [each["source"] for each in recorded.info["sentences"]] == ["a b c", "d"]
    assert [each["target"] for each in recorded.info["sentences"]] == ["b", "a e"]
    assert [each["beams"] for each in recorded.info["searches"]] == [3, 3]
    assert recorded.info["loss"] == {"smoothing": 0.2} and recorded["encoder.output"].gradient is not None
    assert recorded.info["mode"]["training"] is False and Path("a.html").stat().st_size > 10_000

    assert run_script("trace.py", "--model", folder / "model", "--source", "a b", "--training", "--figures") == 0
    assert not Path("trace.html").exists()


def test_figures_are_drawn_from_a_recording_alone(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    load = ["--load", folder / "run.safetensors"]
    assert run_script("trace.py", *load, "--figures") == 0
    names = capsys.readouterr().out.split()
    assert names == Trace.load(folder / "run.safetensors").figures() and "architecture" in names
    figure = ["--figure", "encoder.layers.1.self_attn"]
    assert run_script("trace.py", *load, *figure) == 0
    assert run_script("trace.py", *load, *figure, "--out", "second.svg", "head=1") == 0
    first, second = (Path(name).read_text() for name in ("encoder.layers.1.self_attn.svg", "second.svg"))
    assert first.startswith("<svg") and second.startswith("<svg") and first != second
    pytest.importorskip("resvg_py", reason="needs the painter: pip install -e '.[png]'")
    assert run_script("trace.py", *load, "--figure", "loss", "--out", "loss.png") == 0
    assert Path("loss.png").read_bytes().startswith(b"\x89PNG")
    assert run_script("trace.py", *load, "--out", "page.html") == 0 and Path("page.html").exists()


MISTAKES = {
    "no such model": ("--model nowhere --source a", "nowhere: no such folder"),
    "not our model": ("--model other --source a", "MarianMTModel"),
    "no encoder-decoder": ("--model decoder_only --source a", "no encoder-decoder"),
    "empty sentence": ("--model model --source ' '", "sources[0] is ' '"),
    "untokenisable target": ("--model model --source a --target zebra", "targets[0] is 'zebra'"),
    "fewer targets": ("--model model --source a --source b --target a", "2 sources and 1 targets"),
    "no such field": ("--model model --source a num_beam=2", "num_beam=2 is no field"),
    "no folder": ("--model model --source a --out nowhere/trace.html", "nowhere/trace.html"),
    "no folder to save to": ("--load run.safetensors --out nowhere/x.html", "nowhere/x.html"),
    "no trace": ("--load model/config.json", "model/config.json: no trace"),
    "another safetensors": ("--load model/model.safetensors", "model/model.safetensors: a file without a trace"),
    "no such figure": ("--load run.safetensors --figure encoder.layers.9.self_attn", "no figure"),
    "no such head": ("--load run.safetensors --figure encoder.layers.0.self_attn head=5", "head is 5"),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line(folder, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    assert run_script("trace.py", *shlex.split(arguments)) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and words in last
    assert {path.name for path in folder.iterdir()} == before


def test_a_mistake_in_the_shell(folder):
    done = shell(folder, "--model", "model", "--source", "a x")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: sources[0] is 'a x'")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--load", "run.safetensors", "--source", "a"],
        ["--load", "run.safetensors", "num_beams=2"],
        ["--model", "model"],
        ["--target", "a"],
        ["--out", "trace.svg"],
        ["--load", "run.safetensors", "--figure", "loss", "--out", "loss.html"],
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_wrong_usage(folder, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    assert run_script("trace.py", *arguments) == 2
