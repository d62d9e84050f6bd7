"""Training through the real command: it learns, stops on mistakes, resumes bit for bit, and runs on two processes.

A tiny model of the toy's size on the generated Pig Latin corpus; every run is a process of its own, as a user's is.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import REPOSITORY
from datasets import Dataset, DatasetDict
from hub_server import Hub
from safetensors.torch import load_file

from hf_attention.toy import pig_latin_corpus, write_pig_latin


SMALL = {
    "extends": str(REPOSITORY / "configs" / "tiny.yaml"),
    "num_layers": 1,
    "d_model": 32,
    "d_ff": 64,
    "num_heads": 2,
    "vocab_size": 300,
    "tokens_per_batch": 256,
    "warmup_steps": 20,
    "max_steps": 12,
    "logging_steps": 1,
    "eval_steps": 6,
    "save_steps": 6,
    "num_beams": 1,
    "max_length": 12,
    "report_to": "none",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_pig_latin(folder, train=300, validation=7, test=5)
    return folder


def train(
    tmp_path: Path,
    corpus: Path,
    *arguments: str,
    launcher: tuple[str, ...] = (),
    environment: dict | None = None,
    **fields,
):
    """Runs training/train.py on a recipe of SMALL and `fields`; returns the finished process."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**SMALL, "data_dir": str(corpus), **fields}))
    return subprocess.run(
        [sys.executable, *launcher, str(REPOSITORY / "training" / "train.py"), str(recipe), *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(tmp_path / "hf"),
            **(environment or {}),
        },
    )


def losses(folder: Path, key: str = "loss") -> list[float]:
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name[11:]))
    return [entry[key] for entry in json.loads(states[-1].read_text())["log_history"] if key in entry]


def test_a_run_leaves_a_folder_that_loads_anywhere(tmp_path, corpus):
    done = train(tmp_path, corpus, f"output_dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    for folder in (run, run / "checkpoint-12"):
        names = {path.name for path in folder.iterdir()}
        assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
        assert {"modeling_vanilla_transformer.py", "pipeline_translation.py"} <= names
    results = json.loads((run / "results.json").read_text())
    assert 0 <= results["test_bleu"] <= 100 and "tok:13a" in results["signature"]
    assert f"test BLEU {results['test_bleu']:.2f}" in done.stdout
    assert yaml.safe_load((run / "recipe.yaml").read_text())["d_model"] == 32
    card = (run / "README.md").read_text()
    assert "pipeline_tag: translation" in card and results["signature"] in card and "warmup_steps: 20" in card
    again = train(tmp_path, corpus, f"output_dir={run}")
    assert again.returncode == 1 and "--resume" in again.stderr and again.stderr.count("\n") == 1


def test_a_run_ends_with_the_mean_of_its_last_checkpoints(tmp_path, corpus):
    fields = {"average_last": 3, "save_steps": 2, "save_total_limit": None, "eval_strategy": "no"}
    done = train(tmp_path, corpus, f"output_dir={tmp_path / 'run'}", **fields)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    kept = {folder.name: load_file(folder / "model.safetensors") for folder in run.glob("checkpoint-*")}
    assert sorted(kept) == ["checkpoint-10", "checkpoint-12", "checkpoint-8"]
    mean = load_file(run / "averaged" / "model.safetensors")
    for name, weight in mean.items():
        expected = sum(weights[name].double() for weights in kept.values()) / 3
        torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-6)
    results = json.loads((run / "results.json").read_text())
    assert results["test_loss"] != results["averaged_loss"]  # two models were scored
    assert f"test BLEU {results['averaged_bleu']:.2f} for the mean of the last 3 checkpoints" in done.stdout
    assert "mean of the last 3 checkpoints" in (run / "README.md").read_text()
    last = load_file(run / "model.safetensors")  # the run's own model stays the last one
    assert all(torch.equal(weight, kept["checkpoint-12"][name]) for name, weight in last.items())


def test_a_run_too_short_for_its_mean_says_so(tmp_path, corpus):
    done = train(tmp_path, corpus, f"output_dir={tmp_path / 'run'}", average_last=5, save_total_limit=None)
    assert done.returncode == 0 and "average_last=5, but the run has saved 2 checkpoints" in done.stderr
    assert not (tmp_path / "run" / "averaged").exists()


@pytest.mark.parametrize("muon", [False, True], ids=["Adam", "Muon"])
def test_resume_goes_on_bit_for_bit(tmp_path, corpus, muon):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = {"max_steps": 16, "save_steps": 5, "save_total_limit": None, "eval_strategy": "no", "dropout": 0.3}
    options |= {"muon": muon, "weight_decay": 0.1}
    assert train(tmp_path, corpus, f"output_dir={whole}", **options).returncode == 0
    assert train(tmp_path, corpus, f"output_dir={cut}", **options).returncode == 0
    for later in ("checkpoint-15", "checkpoint-16"):  # as if killed while writing the checkpoint of step 10
        shutil.rmtree(cut / later)
    (cut / "checkpoint-10" / "trainer_state.json").unlink()
    other = train(tmp_path, corpus, f"output_dir={cut}", "--resume", "d_model=64", **options)
    assert other.returncode == 1 and "d_model=64, but the run to resume has d_model=32" in other.stderr
    workers = {"dataloader_num_workers": 2} if muon else {}  # who makes the batches is no matter
    resumed = train(tmp_path, corpus, f"output_dir={cut}", "--resume", **options, **workers)
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint-10 is not whole" in resumed.stderr
    assert losses(cut) == losses(whole) and len(losses(whole)) == 16
    ours, theirs = load_file(cut / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_two_processes_train_as_one_with_the_same_batches(tmp_path, corpus):
    """Report 49 too: evaluation rows of different output length, 7 on two processes, neither hang nor change BLEU."""
    one, two = tmp_path / "one", tmp_path / "two"
    options = {"dropout": 0.0, "save_steps": 12}
    alone = train(tmp_path, corpus, f"output_dir={one}", "gradient_accumulation_steps=2", **options)
    launcher = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    both = train(tmp_path, corpus, f"output_dir={two}", launcher=launcher, **options)
    assert alone.returncode == both.returncode == 0, both.stderr
    assert "unused parameters" not in both.stderr
    assert losses(two) == pytest.approx(losses(one), abs=1e-5) and len(losses(one)) == 12
    assert losses(two, "eval_bleu") == pytest.approx(losses(one, "eval_bleu"), abs=1e-9)
    results = [json.loads((folder / "results.json").read_text())["test_bleu"] for folder in (one, two)]
    assert results[0] == pytest.approx(results[1], abs=1e-9)


def test_a_dataset_by_name_with_a_translation_column(tmp_path):
    """As wmt/wmt14 has it, from a folder: one column of {"en": ..., "pig": ...}, and splits that the recipe names."""
    rows = [{"translation": {"en": english, "pig": latin}} for english, latin in pig_latin_corpus(60)]
    DatasetDict({"train": Dataset.from_list(rows[:50]), "dev": Dataset.from_list(rows[50:])}).save_to_disk(
        tmp_path / "data"
    )
    fields = {"train_files": None, "validation_files": None, "test_files": None, "dataset": str(tmp_path / "data")}
    fields |= {"validation_split": None, "test_split": "dev", "eval_strategy": "no", "max_steps": 2}
    done = train(tmp_path, tmp_path, "output_dir=run", **fields)
    assert done.returncode == 0 and "test BLEU" in done.stdout, done.stderr


def test_a_finished_run_is_not_trained_on(tmp_path, corpus):
    fields = {"output_dir": "run", "max_steps": 2, "eval_strategy": "no", "bidirectional_epochs": 3}
    done = train(tmp_path, corpus, **fields)
    assert done.returncode == 0 and "bidirectional_epochs=3, but the run has 0." in done.stderr, done.stderr
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    epoch = json.loads((tmp_path / "run" / "results.json").read_text())["epoch"]
    again = train(tmp_path, corpus, "--resume", **fields)
    assert again.returncode == 0 and "nothing left to train" in again.stderr and "test BLEU" in again.stdout
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert json.loads((tmp_path / "run" / "results.json").read_text())["epoch"] == epoch > 0
    assert not (tmp_path / "run" / "checkpoint-3").exists()


MISTAKES = {
    "two kinds of batches": (["per_device_train_batch_size=2"], "tokens_per_batch=null"),
    "misspelt key": (["warmup_step=3"], "warmup_step"),
    "misspelt model field": (["d_mdoel=3"], "d_mdoel"),
    "no such file": (["train_files=[nowhere.en, train.pig]"], "nowhere.en"),
    "files of different length": (["train_files=[train.en, val.pig]"], "300 lines"),
    "no such tokenizer": (["tokenizer=nowhere"], "nowhere"),
    "nothing to resume": (["--resume"], "no whole checkpoint"),
    "folder is a file": (["output_dir=recipe.yaml"], "recipe.yaml"),
    "nothing short enough": (["max_tokens=2"], "max_tokens=2 leaves none of 300"),
    "pair longer than a batch": (["tokens_per_batch=4"], "tokens_per_batch"),
}


@pytest.mark.parametrize(("arguments", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_1(tmp_path, corpus, arguments, words):
    done = train(tmp_path, corpus, "output_dir=run", *arguments)
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and words in last and "Traceback" not in done.stderr


def test_a_finished_training_survives_a_save_that_fails(tmp_path, corpus):
    """A folder stands where the last save wants to write its weights."""
    run = tmp_path / "run"
    (run / "model.safetensors").mkdir(parents=True)
    done = train(tmp_path, corpus, f"output_dir={run}", eval_strategy="no")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    rescued = Path(next(word for word in last.split() if "rescued" in word).strip("',;."))
    saved = load_file(run / "checkpoint-12" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in load_file(rescued / "model.safetensors").items())


def test_push_to_hub_takes_model_tokenizer_code_and_card(tmp_path, corpus):
    with Hub() as hub:
        done = train(
            tmp_path,
            corpus,
            "output_dir=run",
            "push_to_hub=true",
            "hub_model_id=tester/pig-latin",
            environment=hub.environment,
        )
        assert done.returncode == 0, done.stderr
        files = hub.repositories["tester/pig-latin"].files
    assert {"model.safetensors", "tokenizer.json", "generation_config.json", "pipeline_translation.py"} <= set(files)
    card = files["README.md"].decode()
    signature = json.loads((tmp_path / "run" / "results.json").read_text())["signature"]
    assert signature in card and 'model="tester/pig-latin"' in card and "hf_token" not in card
    assert files["model.safetensors"] == (tmp_path / "run" / "model.safetensors").read_bytes()


def test_a_hub_that_cannot_be_reached_is_one_line_before_the_training(tmp_path, corpus):
    with Hub() as hub:
        environment = hub.environment
    done = train(
        tmp_path, corpus, "output_dir=run", "push_to_hub=true", "hub_model_id=tester/x", environment=environment
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "onnection refused" in done.stderr.strip().splitlines()[-1]
