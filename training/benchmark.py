"""Measures ours against others: the same data, shape and precision, in turns, and prints a table.

    python training/benchmark.py train --shape tiny --multi30k ../multi30k --write docs/benchmark.md
    python training/benchmark.py train --shape base --bf16 --source train.en --target train.de
    python training/benchmark.py translate --model runs/multi30k_tiny/averaged --multi30k ../multi30k
    python training/benchmark.py train --shape tiny --profile    # where the time of an update goes

Stock Marian and torch.nn.Transformer always take part; fairseq, JoeyNMT, Eole and CTranslate2 where they are
installed, or in an environment of their own that has this package's requirements too: --python joeynmt=bin/python. Let
the machine do nothing else meanwhile.
"""

import argparse
from pathlib import Path

from hf_attention.benchmark.measure import measure_training, measure_translation
from hf_attention.benchmark.orders import SHAPES
from hf_attention.benchmark.table import write_section
from hf_attention.cli import check_output_file, run


RECIPE = Path(__file__).parents[1] / "configs" / "base.yaml"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True, help="what is measured; each has a --help")
    for kind in (train := kinds.add_parser("train"), translate := kinds.add_parser("translate")):
        kind.add_argument("--source", type=Path, help="text, a sentence a line; without any, Pig Latin is generated")
        kind.add_argument("--target", type=Path, help="its translation, line by line (train)")
        kind.add_argument("--multi30k", type=Path, help="instead: the folder of Multi30k's text files")
        kind.add_argument("--contenders", help="which of them, comma-separated (default: all that are there)")
        kind.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="where a contender is")
        kind.add_argument("--rounds", type=int, default=5)
        kind.add_argument("--profile", action="store_true", help="say where the time goes, of ours and stock Marian")
        kind.add_argument("--write", type=Path, help="Markdown file whose section of this name is written anew")
    train.add_argument("--shape", choices=SHAPES, default="tiny")
    train.add_argument("--recipe", type=Path, default=RECIPE, help="ours, but for shape and data (configs/base.yaml)")
    train.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    train.add_argument("--updates", type=int, default=20, help="that are measured in a round")
    train.add_argument("--warmup", type=int, default=3, help="updates before those")
    train.add_argument("--tokens-per-batch", type=int, default=4096, help="of a side, padding included")
    train.add_argument("--vocab-size", type=int, default=10_000)
    translate.add_argument("--model", required=True, help="folder of a trained model of ours, or its name on the Hub")
    translate.add_argument("--sentences", type=int, help="the first of them (default: all)")
    translate.add_argument("--batch-size", type=int, default=64)
    translate.add_argument("--beams", type=int, default=4)
    translate.add_argument("--alone", type=int, default=40, help="sentences translated one by one, for the latency")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    check_output_file(options.write)
    title, body = (measure_training if options.kind == "train" else measure_translation)(options)
    print(f"## {title}\n\n{body}")
    if options.write:
        write_section(options.write, title, body)


if __name__ == "__main__":
    run(main)
