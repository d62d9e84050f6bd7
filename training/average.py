"""Averages Trainer checkpoints (§6.1: the last 5 of a base model, the last 20 of a big one).

python training/average.py runs/base --last 5 --output runs/base/average
python training/average.py runs/base/checkpoint-90000 runs/base/checkpoint-100000 --output average
"""

import argparse
from pathlib import Path

from hf_attention.checkpoints import average_checkpoints, last_checkpoints
from hf_attention.cli import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="checkpoint folders, or one training run with --last")
    parser.add_argument("--last", type=int, metavar="N", help="take the N newest checkpoint-<step> of the run")
    parser.add_argument("--output", type=Path, required=True, help="the new model folder")
    arguments = parser.parse_args()
    folders = arguments.folders
    if arguments.last is not None:
        if len(folders) != 1:
            parser.error(f"--last takes one training run, and {len(folders)} folders are given")
        folders = last_checkpoints(folders[0], arguments.last)
    output = average_checkpoints(folders, arguments.output)
    print(f"{output}: the mean of {', '.join(map(str, folders))}")


if __name__ == "__main__":
    run(main)
