"""The Transformer of "Attention Is All You Need", at home in Hugging Face Transformers 5.

`import hf_attention` tells the Auto classes about `vanilla_transformer` and gives `pipeline("translation")` back, for
every encoder-decoder. The other public names load their module, and what that imports, when they are first used.
"""

import importlib

from .model import (
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .version import __version__


_LAZY = {
    "BatchCollator": "data",
    "BpeDropout": "bpe_dropout",
    "DropoutWarmup": "dropout",
    "KeepForAveraging": "checkpoints",
    "LabelSmoothedCrossEntropy": "loss",
    "MuonWithAdam": "optimizer",
    "TokenBatches": "data",
    "Trace": "tracing.trace",
    "average_checkpoints": "checkpoints",
    "beam_search": "generation",
    "check_vocabulary": "tokenization",
    "compute_metrics": "metrics",
    "cross_attentions": "generation",
    "export_model": "export",
    "last_checkpoints": "checkpoints",
    "load_bleu": "metrics",
    "prepare_sharing": "sharing",
    "trace": "tracing.recorder",
    "train_tokenizer": "tokenization",
    "write_model_card": "sharing",
}

__all__ = [
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "__version__",
    *_LAZY,
]


def __getattr__(name: str) -> object:  # PEP 562
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
