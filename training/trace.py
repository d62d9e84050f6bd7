"""Draws a run: every tensor, on the paper's own figures, in one page that any browser opens. Or one figure alone.

    python training/trace.py  # a toy of its own, trained in seconds: two words in, the same reversed out
    python training/trace.py --model runs/demo --source "she pet the dog" --target "eshay etpay ethay ogday"
    python training/trace.py --model runs/demo --source "she pet the dog" --save run.safetensors num_beams=1
    python training/trace.py --load run.safetensors --figures
    python training/trace.py --load run.safetensors --figure decoder.layers.1.cross_attn --out cross.png head=3

The last arguments are fields of GenerationConfig, for the translation, and options of the figure.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from hf_attention import Trace, trace
from hf_attention.cli import check_output_file, run
from hf_attention.recipes import GENERATION_FIELDS, fit_generation, parse_overrides
from hf_attention.toy import reversing_model
from hf_attention.translation import load_translator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of a model of ours, or its name on the Hub (default: a toy)")
    parser.add_argument("--source", action="append", metavar="TEXT", help="a sentence; may be repeated")
    parser.add_argument(
        "--target", action="append", metavar="TEXT", help="its right translation (default: the model's)"
    )
    parser.add_argument("--out", type=Path, help="the page (default: trace.html), or with --figure an .svg or .png")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the recording too, for --load")
    parser.add_argument("--load", type=Path, metavar="FILE", help="draw what --save has kept; no model is needed")
    parser.add_argument("--figure", metavar="NAME", help="draw this one instead of the page")
    parser.add_argument("--figures", action="store_true", help="print their names instead of drawing")
    parser.add_argument("--backward", action="store_true", help="also record gradients of the loss")
    parser.add_argument("--training", action="store_true", help="run with dropout, as in training")
    parser.add_argument("--label-smoothing", type=float, default=0.1, metavar="ε", help="of the loss (default: 0.1)")
    parser.add_argument("options", nargs="*", metavar="field=value", help="of GenerationConfig, or of the figure")
    arguments = parser.parse_intermixed_args()
    options = parse_overrides(arguments.options)
    drawing = {name: options.pop(name) for name in [*options] if arguments.figure and name not in GENERATION_FIELDS}
    generation = {name: fit_generation(name, value) for name, value in options.items()}
    if arguments.load and (arguments.model or arguments.source or arguments.target or arguments.save or generation):
        parser.error(
            "--load draws a run that is over: it takes no model, sentences, --save or field of GenerationConfig"
        )
    if arguments.model and not arguments.source:
        parser.error("--model needs --source, a sentence to trace")
    if arguments.target and not arguments.source:
        parser.error("--target needs --source, the sentence that it translates")
    out = arguments.out or Path(f"{arguments.figure}.svg" if arguments.figure else "trace.html")
    endings = (".svg", ".png") if arguments.figure else (".html",)
    if out.suffix.lower() not in endings:
        alone = "" if arguments.figure else " (an .svg or .png needs --figure)"
        parser.error(f"--out is {str(out)!r}, wanted a name in {' or '.join(endings)}{alone}")
    check_output_file(out)
    check_output_file(arguments.save)

    recorded = Trace.load(arguments.load) if arguments.load else record(arguments, generation)
    if arguments.save:
        recorded.save(arguments.save)
        print(f"{arguments.save}: {len(recorded)} tensors, {size(arguments.save)}")
    if arguments.figures:
        print("\n".join(recorded.figures()))
    elif arguments.figure:
        recorded.figure(arguments.figure, **drawing).save(out)
        print(f"{out}: {arguments.figure}, {size(out)}")
    else:
        recorded.to_html(out)
        print(f"{out}: {len(recorded)} tensors, {size(out)}; open it in a browser")


def record(arguments: argparse.Namespace, generation: dict[str, Any]) -> Trace:
    """The run that the arguments describe; without a model, that of the toy."""
    sources, targets = arguments.source, arguments.target
    if arguments.model:
        translator = load_translator(arguments.model)
        model, tokenizer = translator.pipeline.model, translator.tokenizer
    else:
        print("A toy of two layers, d_model 8 and two heads learns to reverse two words", file=sys.stderr)
        model, tokenizer = reversing_model()
        if not sources:
            sources, targets = ["a b", "b"], ["b a", "b"]
    recorded = trace(
        model,
        tokenizer,
        sources,
        targets,
        label_smoothing=arguments.label_smoothing,
        backward=arguments.backward,
        training=arguments.training,
        **generation,
    )
    for sentence, search in zip(recorded.info["sentences"], recorded.info["searches"], strict=True):
        print(f"{sentence['source']} → {search['text']}", file=sys.stderr)
    return recorded


def size(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.2f} MB"


if __name__ == "__main__":
    run(main)
