"""A saved model in another engine's format, in a folder of its own: `training/export.py`."""

from pathlib import Path

from .checkpoints import written_beside
from .model import VanillaTransformerForConditionalGeneration
from .translation import import_format, load_model


FORMATS = ("ctranslate2", "onnx")


def export_model(model_folder: str, to: str, output: str | Path, quantization: str | None = None) -> Path:
    """Writes the model in `to`'s format, its tokenizer and its generation config to a new folder, and returns that.

    Args:
        model_folder: a saved model of ours, or its name on the Hub.
        to: one of `FORMATS`. What the folders hold and how to use them: `ctranslate2_format.py`, `onnx_format.py`.
        quantization: how CTranslate2 keeps the weights: `float32` if not given, `int8` and so on.

    Raises:
        ValueError: an unknown format or quantization, an `output` that is there already, no model of ours.
        ImportError: what the format needs is not installed.
    """
    output = Path(output)
    if to not in FORMATS:
        raise ValueError(f"to is {to!r}, wanted one of {', '.join(FORMATS)}")
    if output.exists():
        raise ValueError(f"{output} is there already, wanted a new folder: an export overwrites nothing")
    writer = import_format(to)
    if quantization not in (None, *writer.QUANTIZATIONS):
        raise ValueError(f"quantization is {quantization!r}, wanted one of {', '.join(writer.QUANTIZATIONS)}")
    model, tokenizer = load_model(model_folder)
    if not isinstance(model, VanillaTransformerForConditionalGeneration):
        raise ValueError(f"{model_folder} is a {model.config.model_type}, wanted a model of ours")
    with written_beside(output) as beside:
        writer.write(model.eval(), tokenizer, beside, quantization or writer.QUANTIZATIONS[0])
        tokenizer.save_pretrained(beside)
        model.generation_config.save_pretrained(beside)
    return output
