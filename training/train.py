"""Trains a translation model from a recipe, scores it, and leaves a folder that loads anywhere.

python training/train.py configs/tiny.yaml
python training/train.py configs/multi30k_tiny.yaml data_dir=../multi30k max_steps=2000
python training/train.py configs/multi30k_tiny.yaml --resume
accelerate launch --cpu --num_processes 2 training/train.py configs/tiny.yaml tokens_per_batch=1024
"""

import argparse
import logging
from pathlib import Path

from transformers import set_seed

from hf_attention.cli import run
from hf_attention.recipes import load_recipe
from hf_attention.runs import build_trainer, evaluate_test, open_run, or_rescue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML recipe, such as configs/tiny.yaml")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="fields that differ from the recipe")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in output_dir")
    arguments = parser.parse_args()

    recipe = load_recipe(arguments.config, arguments.overrides)
    main_process = recipe.training.process_index == 0
    logging.basicConfig(level=logging.INFO if main_process else logging.ERROR, format="%(message)s")
    with recipe.training.main_process_first(desc="folder"):
        checkpoint = open_run(recipe, arguments.resume or not main_process)
    set_seed(recipe.training.seed)
    trainer, test = build_trainer(recipe)
    or_rescue(trainer, lambda: trainer.train(resume_from_checkpoint=checkpoint))

    folder = Path(recipe.training.output_dir)
    or_rescue(trainer, trainer.save_model)  # before anything else can fail
    if test is not None:
        scores = evaluate_test(trainer, test, folder / "results.json")
        trainer.log_metrics("test", {name: value for name, value in scores.items() if name != "signature"})
        if main_process and "test_bleu" in scores:
            print(f"test BLEU {scores['test_bleu']:.2f} ({scores['signature']})")
    if main_process:
        print(f"The model is in {folder}")


if __name__ == "__main__":
    run(main)
