"""The plan that `--dry-run` prints: the paper's numbers for its two models, by hand."""

import pytest
from conftest import REPOSITORY

from hf_attention.plan import learning_rates, plan
from hf_attention.recipes import load_recipe


CONFIGS = REPOSITORY / "configs"


def test_the_schedule_of_base_at_steps_1_4000_and_100000():
    """§5.3, Equation 3: 512^-0.5 · 4000^-1.5, then 512^-0.5 · step^-0.5."""
    rates = learning_rates(load_recipe(CONFIGS / "base.yaml"))
    expected = {1: 512**-0.5 * 4000**-1.5, 4000: (512 * 4000) ** -0.5, 100_000: (512 * 100_000) ** -0.5}
    assert rates == pytest.approx(expected, rel=1e-6)


def test_base_on_one_device_and_accumulated():
    text = plan(load_recipe(CONFIGS / "base.yaml"))
    assert "wmt/wmt14, en → de" in text and "63,082,496" in text and "37,000 pieces" in text
    assert "25,000 x 1 devices x 1 accumulated = 25,000 tokens a side" in text
    assert "1.75e-07 at 1, 0.000699 at 4,000, 0.00014 at 100,000" in text
    assert "0.94 GiB for weights" in text  # 63,082,496 · 16 / 2^30
    assert "6.89 GiB for the scores" in text  # 2 · 25,000 · 37,000 · 4 / 2^30
    small = plan(load_recipe(CONFIGS / "base.yaml", ["tokens_per_batch=3125", "gradient_accumulation_steps=8"]))
    assert "3,125 x 1 devices x 8 accumulated = 25,000 tokens a side" in small


def test_big_and_sentence_batches():
    assert "0.000494 at 4,000" in plan(load_recipe(CONFIGS / "big.yaml"))
    plain = ["tokens_per_batch=null", "per_device_train_batch_size=32", "max_steps=-1", "num_train_epochs=3"]
    text = plan(load_recipe(CONFIGS / "base.yaml", plain))
    assert "32 x 1 devices x 1 accumulated = 32 sentences" in text and "3 epochs" in text


def test_muon_keeps_one_moment_for_a_matrix():
    """In bytes (63,082,496 · 4 - 44,040,192) · 4: base has 18 · 4 · 512² + 12 · 2 · 512 · 2048 weights in matrices."""
    text = plan(load_recipe(CONFIGS / "base.yaml", ["muon=true"]))
    assert "0.78 GiB for weights, gradients and Muon's moment or Adam's two" in text


def test_epochs_in_both_directions_are_part_of_the_plan():
    text = plan(load_recipe(CONFIGS / "multi30k_tiny.yaml", ["bidirectional_epochs=30"]))
    assert "in both directions for the first 30 epochs" in text
    assert "in both directions" not in plan(load_recipe(CONFIGS / "base.yaml"))
