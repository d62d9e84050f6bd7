"""Learns the shared vocabulary of a corpus and saves it as a tokenizer that `AutoTokenizer` loads.

python training/build_tokenizer.py train.en train.de --vocab-size 10000 --output runs/tokenizer
"""

import argparse
import os
from pathlib import Path

from hf_attention.cli import run
from hf_attention.text_files import read_lines
from hf_attention.tokenization import save_tokenizer, train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="UTF-8 text of both languages, a sentence a line")
    parser.add_argument("--vocab-size", type=int, required=True, help="pieces and special tokens (37000 in the paper)")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    if arguments.output.exists() and not arguments.output.is_dir():
        raise ValueError(f"--output is {str(arguments.output)!r}, wanted a folder")  # asked before the long work

    tokenizer = train_tokenizer(arguments.files, arguments.vocab_size)
    save_tokenizer(tokenizer, arguments.output)

    example = next(line for path in arguments.files for line in read_lines(path) if line.strip())
    print(f"{arguments.output}{os.sep}: {len(tokenizer)} pieces from {len(arguments.files)} files")
    print(f"{example} -> {' '.join(tokenizer(example).tokens())}")


if __name__ == "__main__":
    run(main)
