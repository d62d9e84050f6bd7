"""Our logits against two implementations that are not ours: a plain NumPy one, and stock Marian with our weights."""

import numpy as np
import pytest
import torch
from conftest import build_model
from reference import Reference

from hf_attention.benchmark.twins import marian_twin


SHAPES = {
    "toy": {},
    "three heads": {"d_model": 12, "num_heads": 3, "vocab_size": 23},
    "row B": {"d_k": 3, "d_v": 5},
    "learned": {"position_encoding": "learned", "max_position_embeddings": 16},
    "untied": {"tie_word_embeddings": False},
    "more decoder": {"num_layers": 1, "num_decoder_layers": 3},
}
SOURCES = [[3, 7, 4, 9, 2], [8, 2], [5, 5, 6, 2]]
TARGETS = [[4, 6, 2], [7, 8, 9, 10, 3, 2], [2]]


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def batch() -> dict[str, torch.Tensor]:
    source = padded(SOURCES, 0)
    return {"input_ids": source, "attention_mask": (source != 0).long(), "labels": padded(TARGETS, -100)}


@pytest.mark.parametrize("attn_implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("fields", SHAPES.values(), ids=SHAPES)
def test_logits_equal_the_plain_reference(fields, attn_implementation):
    model = build_model(**fields)
    model.set_attn_implementation(attn_implementation)
    config = model.config
    reference = Reference(model.state_dict(), config.num_heads, config.d_k, config.d_v)
    with torch.no_grad():
        logits = model(**batch()).logits.numpy()
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = reference.logits(source, [config.decoder_start_token_id, *target[:-1]])
        np.testing.assert_allclose(logits[row, : len(target)], expected, atol=1e-5)


def test_loss_equals_the_hand_sum():
    """Cross entropy over the reference's logits: the mean of -log softmax at every label that is not -100."""
    model = build_model()
    reference = Reference(model.state_dict(), 2, 4, 4)
    losses = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        logits = reference.logits(source, [1, *target[:-1]])
        losses += [np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, target, strict=True)]
    assert len(losses) == 10
    assert model(**batch()).loss.item() == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("fields", [{}, {"d_model": 64, "num_heads": 4, "d_ff": 128, "vocab_size": 100}])
def test_stock_marian_with_our_weights_gives_our_logits(fields):
    model = build_model(**fields)
    marian = marian_twin(model, positions=32)
    with torch.no_grad():
        ours, theirs = model(**batch()), marian(**batch())
    real = batch()["labels"] != -100
    torch.testing.assert_close(ours.logits[real], theirs.logits[real], atol=1e-5, rtol=0)
    generated = [
        m.generate(batch()["input_ids"], attention_mask=batch()["attention_mask"], num_beams=4, max_new_tokens=12)
        for m in (model, marian)
    ]
    assert generated[0].tolist() == generated[1].tolist()
