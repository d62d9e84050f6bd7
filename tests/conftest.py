"""What the tests share: a tiny model of the toy's size, with seeded weights that no symmetry makes special."""

import os
from pathlib import Path


os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is loaded from the Hub; the tests of sharing talk to loopback

import pytest
import torch

from hf_attention import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


REPOSITORY = Path(__file__).parent.parent
MULTI30K = REPOSITORY.parent / "shared" / "data" / "multi30k"

TOY = {"vocab_size": 11, "num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "dropout": 0.0}


def build_model(seed: int = 0, **fields) -> VanillaTransformerForConditionalGeneration:
    """A model in evaluation mode; norms and biases are random too, so that a test sees every parameter."""
    torch.manual_seed(seed)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**TOY, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 5)
    return model


@pytest.fixture
def toy() -> VanillaTransformerForConditionalGeneration:
    return build_model()


@pytest.fixture(scope="session")
def multi30k() -> Path:
    if not MULTI30K.is_dir():
        pytest.skip("Multi30k is not beside the repository (../shared/data/multi30k)")
    return MULTI30K
