"""Translates a file and scores the translations: BLEU and chrF, each with the signature to quote.

    python training/evaluate.py --model runs/base --source test.en --reference test.de --output hypotheses.de
    python training/evaluate.py --model runs/base --source test.en --reference a.de --reference b.de num_beams=5

The last arguments are fields of GenerationConfig; those not given are the model's own.
"""

import argparse
from pathlib import Path

from tqdm import tqdm

from hf_attention.cli import check_output_file, run
from hf_attention.metrics import chrf, load_bleu
from hf_attention.text_files import read_lines, write_lines
from hf_attention.translation import add_model_arguments, translator_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_arguments(parser)
    parser.add_argument("--source", type=Path, required=True, help="text to translate, a sentence a line")
    parser.add_argument(
        "--reference", type=Path, required=True, action="append", help="its translation; may be repeated"
    )
    parser.add_argument("--tokenize", default="13a", choices=["13a", "none", "intl", "char", "zh"])
    parser.add_argument("--lowercase", action="store_true", help="compare lower-cased text")
    parser.add_argument("--output", type=Path, help="where to keep the translations")
    arguments = parser.parse_intermixed_args()
    check_output_file(arguments.output)
    sources = list(read_lines(arguments.source))
    if not sources:
        raise ValueError(f"{arguments.source} is empty, wanted at least one sentence")
    references = [list(read_lines(file)) for file in arguments.reference]
    for file, lines in zip(arguments.reference, references, strict=True):
        if len(lines) != len(sources):
            raise ValueError(f"{arguments.source} has {len(sources)} lines, {file} has {len(lines)}: wanted as many")

    metric = load_bleu()
    translate = translator_from(arguments)
    hypotheses = list(tqdm(translate(sources), desc="translating", unit=" lines", total=len(sources)))
    if arguments.output:
        write_lines(arguments.output, hypotheses)
    rows = [list(row) for row in zip(*references, strict=True)]
    bleu = metric.compute(
        predictions=hypotheses, references=rows, tokenize=arguments.tokenize, lowercase=arguments.lowercase
    )
    precisions = "/".join(f"{precision:.1f}" for precision in bleu["precisions"])
    lengths = f"brevity penalty {bleu['bp']:.3f}, {bleu['sys_len']} tokens for {bleu['ref_len']}"
    print(f"BLEU {bleu['score']:.2f} ({precisions}, {lengths}) {bleu['signature']}")
    letters = chrf(hypotheses, rows, lowercase=arguments.lowercase)
    print(f"chrF {letters['score']:.2f} {letters['signature']}")


if __name__ == "__main__":
    run(main)
