"""What README.md shows is run as it stands, in a copy of the checkout; only the training is cut short."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from stock import run_script


README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
SHORT = "max_steps=4 warmup_steps=2 eval_strategy=no num_layers=1 d_model=32 d_ff=32 num_beams=2 max_length=8"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Configs and scripts at their places, and what the quickstart made with them."""
    folder = tmp_path_factory.mktemp("checkout")
    for part in ("configs", "training"):
        shutil.copytree(REPOSITORY / part, folder / part)
    return folder


def run(command: str, folder: Path, stdin: str | None = None) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, input=stdin, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_quickstart_translate_and_see(checkout, monkeypatch):
    quickstart = next(block for block in blocks("bash") if "hf_attention.toy" in block)
    activate, *commands = quickstart.strip().splitlines()
    assert activate == "source .venv/bin/activate"  # the environment that runs this test
    outputs = [run(command.replace("tiny.yaml", f"tiny.yaml {SHORT}"), checkout) for command in commands]
    assert "test BLEU" in outputs[1] and "The model is in runs/tiny" in outputs[1]
    assert outputs[2].count("\n") == 1
    assert outputs[3].startswith("trace.html: ") and (checkout / "trace.html").exists()
    assert re.match(r"BLEU \d+\.\d+ .*tok:13a", outputs[4]) and "chrF" in outputs[4]

    snippet = next(block for block in blocks("python") if "pipeline(" in block)
    shown = re.sub(r"^(translator\(.*?\))\s+#.*$", r"print(\1)", snippet, flags=re.MULTILINE)
    one, two = run("python -", checkout, stdin=shown).splitlines()
    assert one.startswith("[{'translation_text': ") and two.endswith("{'translation_text': ''}]")

    monkeypatch.chdir(checkout)
    see = next(block for block in blocks("bash") if "--figure" in block)
    for line in see.strip().splitlines():
        script, *arguments = shlex.split(line, comments=True)[1:]
        assert run_script(Path(script).name, *arguments) == 0
    (checkout / "trace.html").unlink()
    run("python -", checkout, stdin=next(block for block in blocks("python") if "hf_attention.trace" in block))
    assert all((checkout / name).exists() for name in ("arcs.svg", "trace.html", "attention.svg", "run.safetensors"))


@pytest.mark.slow
def test_make_demo_ends_with_a_page(checkout):
    said = run(f"python training/demo.py {SHORT}", checkout)
    page = checkout / "runs" / "demo" / "trace.html"
    assert f"open {page} in a browser" in said and page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_train_on_your_own_corpus(checkout, tmp_path):
    for part in ("train", "val", "test"):
        for language in ("en", "de"):
            (checkout / f"{part}.{language}").write_text("".join(f"{part} a b c {i}\n" for i in range(50)))
    recipe = next(block for block in blocks("yaml") if "train_files" in block)
    (checkout / "mine.yaml").write_text(recipe)
    run(f"python training/train.py mine.yaml {SHORT} save_steps=1", checkout)
    average = next(line for block in blocks("bash") for line in block.splitlines() if "average.py" in line)
    run(average.replace("--last 5", "--last 4"), checkout)
    assert (checkout / "runs" / "mine_averaged" / "model.safetensors").exists()


def test_without_recipes(checkout, tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("".join(f"a b c {i}\n" for i in range(50)))
    snippet = next(block for block in blocks("python") if "Seq2SeqTrainer(" in block)
    small = snippet.replace("vocab_size=len(tokenizer)", "vocab_size=len(tokenizer), d_model=32, num_layers=1")
    small = small.replace("100_000", "3") + "\nprint(trainer.train().global_step)\n"
    assert run("python -", tmp_path, stdin=small).splitlines()[-1] == "3"


def test_links_and_files_exist():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (REPOSITORY / target).exists(), target
    for script in re.findall(r"training/(\w+\.py)", README):
        assert (REPOSITORY / "training" / script).exists(), script
