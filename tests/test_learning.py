"""A tiny model really learns, through the real command: reversing, judged by BLEU under a fresh seed, and copying."""

import json
import os
import random
import subprocess
import sys
import time

import torch
from conftest import REPOSITORY
from test_training import train
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_attention
from hf_attention import VanillaTransformerForConditionalGeneration
from hf_attention.toy import write_copying


def test_reversing_digits_is_learnt(tmp_path):
    """Reversal needs every part: positions, attention across, and an output that knows what it has said."""
    seed = time.time_ns() % 2**31  # no bound is tuned to one run; the message of a failure names it
    choose = random.Random(seed)
    rows = {" ".join(choose.choices("0123456789", k=choose.randint(4, 7))) for _ in range(4000)}
    lines = [f"{row}\t{row[::-1]}\n" for row in sorted(rows, key=lambda _: choose.random())]
    for name, part in (("test", lines[:100]), ("train", lines[100:])):
        (tmp_path / f"{name}.tsv").write_text("".join(part))
    done = train(
        tmp_path,
        tmp_path,
        f"output_dir={tmp_path / 'run'}",
        train_files=["train.tsv"],
        test_files=["test.tsv"],
        validation_files=None,
        eval_strategy="no",
        save_strategy="no",
        num_layers=2,
        d_model=64,
        d_ff=128,
        dropout=0.0,
        tokens_per_batch=1024,
        warmup_steps=150,
        lr_scheduler_type="linear",  # it ends at 0, and so the last updates settle whatever the seed has stirred
        max_steps=800,
        logging_steps=100,
        max_length=24,
        seed=seed,
        vocab_size=270,
    )
    assert done.returncode == 0, done.stderr
    bleu = json.loads((tmp_path / "run" / "results.json").read_text())["test_bleu"]
    assert bleu > 80, f"BLEU {bleu} with seed {seed}"


def test_report_62_copying_is_exact_and_starts_from_one_symbol(tmp_path):
    """configs/copy.yaml as it stands: random before, exact after; symbol 1 starts data, decoding and figure."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf")}
    write_copying(tmp_path / "runs" / "copy_corpus")
    command = [REPOSITORY / "training" / "train.py", REPOSITORY / "configs" / "copy.yaml", "eval_strategy=no"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "test BLEU 100.00" in done.stdout
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "runs" / "copy").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs" / "copy")
    assert model.config.vocab_size == len(tokenizer) == 11
    assert (model.config.pad_token_id, model.config.decoder_start_token_id) == (0, 1)

    lines = (tmp_path / "runs" / "copy_corpus" / "test.txt").read_text().splitlines()
    torch.manual_seed(0)
    untrained = VanillaTransformerForConditionalGeneration(model.config).eval()
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    copies = {
        name: tokenizer.batch_decode(each.generate(**batch, num_beams=1, max_length=12), skip_special_tokens=True)
        for name, each in (("untrained", untrained), ("trained", model))
    }
    assert copies["trained"] == lines
    assert sum(copy == line for copy, line in zip(copies["untrained"], lines, strict=True)) < len(lines) / 10

    trace = hf_attention.trace(model, tokenizer, ["3 7 10 5", lines[0]], num_beams=1)
    for row, source, search in zip(
        ["3 7 10 5", lines[0]], trace.info["sentences"], trace.info["searches"], strict=True
    ):
        assert source["target"] == search["text"] == row  # without a target, the model's own
        assert search["prompt"] == [1] and search["steps"][0]["fed"] == [[1]]
    assert trace["target.decoder_input_ids"].value[:, 0].tolist() == [1, 1]
    assert trace.info["special"]["start"] == 1
