"""Models and sentences for the tests of the recorder, by what is special about them."""

import torch
from conftest import build_model


PAD, START, END = 0, 1, 2
SOURCES, TARGETS = [[3, 4, 5, 2], [6, 2]], [[7, 3, 2], [4, 5, 6, 3, 2]]
CASES = {  # fields of the model, sources, targets
    "the toy": ({"vocab_size": 5}, [[3, 4, 2], [4, 2]], [[4, 3, 2], [4, 2]]),
    "three heads, lengths that differ": ({"d_model": 12, "num_heads": 3}, SOURCES, TARGETS),
    "one sentence": ({"num_layers": 1}, [[3, 4, 5, 2]], [[7, 2]]),
    "one word": ({"num_layers": 1}, [[2]], [[2]]),
    "d_k is not d_v": ({"d_k": 3, "d_v": 5}, SOURCES, TARGETS),
    "learned positions": ({"position_encoding": "learned", "max_position_embeddings": 6}, SOURCES, TARGETS),
    "untied": ({"tie_word_embeddings": False, "num_decoder_layers": 1}, SOURCES, TARGETS),
    "no two sizes alike": ({"num_heads": 3, "d_k": 5, "d_v": 7, "d_model": 10, "d_ff": 13}, SOURCES, TARGETS),
}


def padded(sources, targets) -> dict[str, torch.Tensor]:
    """One batch, padded on the right by hand."""
    width, length = max(map(len, sources)), max(map(len, targets))
    return {
        "input_ids": torch.tensor([row + [PAD] * (width - len(row)) for row in sources]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in sources]),
        "labels": torch.tensor([row + [-100] * (length - len(row)) for row in targets]),
    }


def case(name, **more):
    fields, sources, targets = CASES[name]
    return build_model(**{**fields, **more}), sources, targets


def assert_close(what, found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5, msg=lambda message: f"{what}\n{message}")
