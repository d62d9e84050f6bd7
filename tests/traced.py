"""Traces of tiny models for the tests of figures and page: the toy, and one in which no two sizes are the same."""

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


def toy_trace(**options) -> Trace:
    return trace(toy_model(), None, SOURCES, TARGETS, num_beams=2, max_new_tokens=4, **options)


def odd_trace(**options) -> Trace:
    return trace(odd_model(), None, ODD_SOURCES, ODD_TARGETS, max_new_tokens=4, **options)
