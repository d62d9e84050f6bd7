"""Translates lines: as many out as in, in order, whatever is in them.

    python training/translate.py --model runs/base --input news.en --output news.de
    echo "A dog runs." | python training/translate.py --model runs/base num_beams=8 max_new_tokens=100
    python training/translate.py --backend ctranslate2 --model runs/base_int8 --input news.en  # of training/export.py

The last arguments are fields of GenerationConfig; those not given are the model's own.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from hf_attention.cli import check_output_file, run
from hf_attention.text_files import read_lines, write_lines
from hf_attention.translation import add_model_arguments, translator_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--input", type=Path, help="text, a sentence a line (default: stdin)")
    parser.add_argument("--output", type=Path, help="written when all is translated (default: stdout, as it comes)")
    arguments = parser.parse_intermixed_args()
    total = None
    if arguments.input:
        if arguments.input.is_file():
            with open(arguments.input, "rb") as file:
                total = sum(1 for _ in file)
        elif not arguments.input.exists():
            raise ValueError(f"{arguments.input}: no such file")
    check_output_file(arguments.output)

    translate = translator_from(arguments)
    lines = translate(read_lines(arguments.input or "/dev/stdin", replace_bad=True))
    progress = tqdm(lines, desc="translating", unit=" lines", total=total)
    if arguments.output:
        write_lines(arguments.output, progress)
    else:
        sys.stdout.reconfigure(encoding="utf-8")
        for line in progress:
            print(line, flush=True)


if __name__ == "__main__":
    run(main)
