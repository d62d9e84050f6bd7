"""Traces of tiny models for the tests of figures and page: the toy, and one in which no two sizes are the same."""

import torch
from conftest import build_model

from hf_attention import Trace, trace


SOURCES, TARGETS = [[3, 4, 2], [4, 2]], [[4, 3, 2], [4, 2]]
ODD = {"d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 7, "d_ff": 20, "position_encoding": "learned",
       "max_position_embeddings": 64, "vocab_size": 9}  # fmt: skip
ODD_SOURCES, ODD_TARGETS = [[3, 4, 5, 6, 2]], [[7, 8, 3, 2]]


def toy_model():
    return build_model(vocab_size=5, num_layers=2)


def odd_model():
    """d_k ≠ d_v, 3 heads, learned positions; with sentences of different length and a batch of 1."""
    return build_model(num_layers=1, **ODD)


def base_model(num_layers: int = 1):
    """A layer of the base model, or more, with its 37,000 words."""
    return build_model(vocab_size=37000, num_layers=num_layers, d_model=512, d_ff=2048, num_heads=8)


def base_ids() -> tuple[list[list[int]], list[list[int]]]:
    """Sources and targets of 20 tokens and fewer."""
    words = torch.randint(3, 37000, (4, 19), generator=torch.Generator().manual_seed(0)).tolist()
    return [[*words[0], 2], [*words[1][5:], 2]], [[*words[2], 2], [*words[3][3:], 2]]


def toy_trace(**options) -> Trace:
    return trace(toy_model(), None, SOURCES, TARGETS, num_beams=2, max_new_tokens=4, **options)


def odd_trace(**options) -> Trace:
    return trace(odd_model(), None, ODD_SOURCES, ODD_TARGETS, max_new_tokens=4, **options)
