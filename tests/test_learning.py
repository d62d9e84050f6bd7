"""A tiny model really learns: reversing digits, through the real command, judged by BLEU under a fresh seed."""

import json
import random
import time

from test_training import train


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
        max_steps=600,
        logging_steps=100,
        max_length=24,
        seed=seed,
        vocab_size=270,
    )
    assert done.returncode == 0, done.stderr
    bleu = json.loads((tmp_path / "run" / "results.json").read_text())["test_bleu"]
    assert bleu > 80, f"BLEU {bleu} with seed {seed}"
