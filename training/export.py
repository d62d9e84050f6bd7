"""Writes a trained model in another engine's format.

    python training/export.py --model runs/base/averaged --to ctranslate2 --quantization int8 --output runs/base_int8
    python training/translate.py --backend ctranslate2 --model runs/base_int8 --input news.en --output news.de
    python training/export.py --model runs/base/averaged --to onnx --output runs/base_onnx

Both need `pip install '.[export]'`. `translate.py` and `evaluate.py` read what CTranslate2 does; ONNX is for ONNX
Runtime, in whatever language, by `encoder.onnx` and `decoder.onnx`.
"""

import argparse
from pathlib import Path

from hf_attention.cli import run
from hf_attention.export import FORMATS, export_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a model that training/train.py has made")
    parser.add_argument("--to", required=True, choices=FORMATS)
    parser.add_argument("--output", type=Path, required=True, help="the new folder")
    parser.add_argument("--quantization", help="of CTranslate2's weights: float32 (default), int8, float16, ...")
    arguments = parser.parse_args()
    print(export_model(arguments.model, arguments.to, arguments.output, arguments.quantization))


if __name__ == "__main__":
    run(main)
