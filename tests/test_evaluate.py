"""training/evaluate.py: what it prints is what sacrebleu's command prints for the translations it keeps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stock import REPOSITORY, run_script, tiny_marian
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from hf_attention.translation import load_translator


WORDS = ["<pad>", "<s>", "</s>", *"a the Dog cat Runs sees big , . old red house in and".split()]  # noqa: SIM905
SOURCES = [
    "a Dog Runs",
    "the big house",
    "",
    "the cat sees the red house .",
    "old",
    "a cat and a Dog in the house",
    ".",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model whose tokens are words, so that what it says has n-grams."""
    folder = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="a"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    tiny_marian(vocab_size=len(WORDS)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hypotheses(folder) -> list[str]:
    return list(load_translator(str(folder), ["num_beams=1", "max_new_tokens=40"])(SOURCES))


@pytest.fixture
def files(tmp_path, hypotheses) -> dict[str, Path]:
    """References near enough to what the model says for a BLEU between 0 and 100."""
    near = [
        " ".join("other" if place % 5 == 4 else word for place, word in enumerate(line.split())) + "."
        for line in hypotheses
    ]
    far = [" ".join(line.upper().split()[3:]) for line in hypotheses]
    texts = {"source": SOURCES, "near": near, "far": far, "short": near[:-1]}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return {name: tmp_path / name for name in texts} | {"kept": tmp_path / "kept"}


def evaluate(folder: Path, files: dict[str, Path], *arguments: object) -> int:
    options = ["--model", folder, "--source", files["source"], "num_beams=1", "max_new_tokens=40"]
    return run_script("evaluate.py", *options, *arguments)


@pytest.mark.parametrize(
    ("references", "options", "flags"),
    [
        (["near"], [], []),
        (["near", "far"], [], []),
        (["far"], ["--lowercase"], ["--lowercase", "--chrf-lowercase"]),
        (["near"], ["--tokenize", "none"], ["--tokenize", "none"]),
    ],
)
def test_prints_what_sacrebleu_prints(folder, files, hypotheses, capsys, references, options, flags):
    paths = [files[name] for name in references]
    given = [argument for path in paths for argument in ("--reference", path)]
    assert evaluate(folder, files, *given, *options, "--output", files["kept"]) == 0
    bleu, tokens, compounds, chrf = capsys.readouterr().out.splitlines()
    assert tokens.startswith("BLEU, lower-cased tokens ") and "case:lc" in tokens and "tok:none" in tokens
    assert compounds.startswith("BLEU, compounds split ") and "tok:moses-de+compounds" in compounds
    assert files["kept"].read_text(encoding="utf-8").split("\n")[:-1] == hypotheses
    command = [sys.executable, "-m", "sacrebleu", *paths, "-i", files["kept"], "-m", "bleu", "chrf", "-w", "2", *flags]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for line, metric in zip((bleu, chrf), theirs, strict=True):
        assert 0 < metric["score"] < 100
        assert line.split()[1] == f"{metric['score']:.2f}" and line.split()[-1] == metric["signature"]
    assert f"({theirs[0]['verbose_score'].split()[0]}, brevity penalty " in bleu


def test_the_script_does_not_hide_the_library_of_its_name(files):
    """Python puts a script's folder before all others, so there `import evaluate` would find the script."""
    command = [sys.executable, REPOSITORY / "training/evaluate.py", "--model", "none", "--source", files["source"]]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run([*command, "--reference", files["short"]], env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1) and "wanted as many" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--reference", "short"], 1, "source has 7 lines, {short} has 6: wanted as many"),
        (["--reference", "near", "--reference", "short"], 1, "{short} has 6"),
        (["--reference", "near", "--output", "nowhere/kept"], 1, "output is 'nowhere/kept'"),
        (["--reference", "nowhere"], 1, "nowhere: No such file"),
        (["--reference", "near", "--tokenize", "13b"], 2, "13b"),
        ([], 2, "--reference"),
        (["--reference", "near", "--hypotheses", "far"], 2, "want either --model and --source, or --hypotheses"),
    ],
)
def test_refuses_before_it_translates(files, capsys, arguments, code, message):
    arguments = [files.get(argument, argument) for argument in arguments]
    assert evaluate(Path("no/model/is/asked"), files, *arguments) == code
    printed = capsys.readouterr().err
    assert message.format(**files) in printed and "translating" not in printed
    assert code == 2 or (printed.startswith("error: ") and printed.count("\n") == 1)


def test_scores_what_was_kept_without_a_model(files, capsys):
    assert run_script("evaluate.py", "--hypotheses", files["near"], "--reference", files["near"]) == 0
    assert all(
        line.split(" (")[0].split(" nrefs")[0].endswith(" 100.00") for line in capsys.readouterr().out.splitlines()
    )


def test_an_empty_source_is_refused(files, capsys):
    files["source"].write_text("")
    files["near"].write_text("")
    assert evaluate(Path("no/model/is/asked"), files, "--reference", files["near"]) == 1
    assert f"{files['source']} is empty" in capsys.readouterr().err
