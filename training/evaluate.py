"""Translates a file and scores the translations: every BLEU of the literature and chrF, each with what to quote.

    python training/evaluate.py --model runs/base --source test.en --reference test.de --output hypotheses.de
    python training/evaluate.py --model runs/base --source test.en --reference a.de --reference b.de num_beams=5
    python training/evaluate.py --hypotheses hypotheses.de --reference test.de  # scores what was kept

The last arguments are fields of GenerationConfig; those not given are the model's own.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

from hf_attention.cli import check_output_file, run
from hf_attention.scores import scores
from hf_attention.text_files import read_lines, write_lines
from hf_attention.translation import add_model_arguments, translator_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser, required=False)
    parser.add_argument("--source", type=Path, help="text to translate, a sentence a line")
    parser.add_argument("--hypotheses", type=Path, help="translations to score, instead of --model and --source")
    parser.add_argument(
        "--reference", type=Path, required=True, action="append", help="the right translation; may be repeated"
    )
    parser.add_argument("--tokenize", default="13a", choices=["13a", "none", "intl", "char", "zh"])
    parser.add_argument("--lowercase", action="store_true", help="compare lower-cased text")
    parser.add_argument("--language", default="de", help="of the references, for the tokens of split compounds")
    parser.add_argument("--output", type=Path, help="where to keep the translations")
    arguments = parser.parse_intermixed_args()
    if (arguments.hypotheses is None) == (arguments.model is None or arguments.source is None):
        parser.error("want either --model and --source, or --hypotheses")
    check_output_file(arguments.output)
    given = arguments.hypotheses or arguments.source
    lines = list(read_lines(given))
    if not lines:
        raise ValueError(f"{given} is empty, wanted at least one sentence")
    references = [list(read_lines(file)) for file in arguments.reference]
    for file, reference in zip(arguments.reference, references, strict=True):
        if len(reference) != len(lines):
            raise ValueError(f"{given} has {len(lines)} lines, {file} has {len(reference)}: wanted as many")

    if arguments.hypotheses is None:
        translate = translator_from(arguments)
        lines = list(tqdm(translate(lines), desc="translating", unit=" lines", total=len(lines)))
    if arguments.output:
        write_lines(arguments.output, lines)
    rows = [list(row) for row in zip(*references, strict=True)]
    for score in scores(lines, rows, arguments.tokenize, arguments.lowercase, arguments.language):
        detail = f"({score.detail}) " if score.detail else ""
        print(f"{score.name} {score.value:.2f} {detail}{score.signature}")


if __name__ == "__main__":
    run(main)
