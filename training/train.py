"""Trains a translation model from a recipe, scores it, and leaves a folder that loads anywhere.

python training/train.py configs/tiny.yaml
python training/train.py configs/multi30k_tiny.yaml data_dir=../multi30k max_steps=2000
python training/train.py configs/multi30k_tiny.yaml --resume
accelerate launch --multi_gpu --num_processes 2 training/train.py configs/tiny.yaml  # two CPU processes as well
"""

import argparse
import logging

from transformers import set_seed

from hf_attention.cli import run
from hf_attention.plan import plan
from hf_attention.recipes import load_recipe
from hf_attention.runs import (
    build_trainer,
    evaluate_average,
    evaluate_test,
    load_data,
    open_run,
    or_rescue,
    train,
    write_card,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML recipe, such as configs/tiny.yaml")
    parser.add_argument("overrides", nargs="*", metavar="field=value", help="fields that differ from the recipe")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in output_dir")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, read and write nothing")
    arguments = parser.parse_intermixed_args()

    recipe = load_recipe(arguments.config, arguments.overrides)
    if arguments.dry_run:
        print(plan(recipe))
        return
    main_process = recipe.training.process_index == 0
    logging.basicConfig(level=logging.INFO if main_process else logging.ERROR, format="%(message)s")
    with recipe.training.main_process_first(desc="folder"):
        checkpoint = open_run(recipe, arguments.resume)
    set_seed(recipe.training.seed)
    tokenizer, encoded = load_data(recipe)
    trainer = build_trainer(recipe, tokenizer, encoded)
    write_card(trainer, recipe, encoded, scores={})
    or_rescue(trainer, lambda: train(trainer, checkpoint))
    or_rescue(trainer, trainer.save_model)  # before anything else can fail

    test, averaged = encoded.get("test"), recipe.data.average_last
    scores = evaluate_test(trainer, test) if test is not None else {}
    if averaged is not None:
        scores |= evaluate_average(trainer, averaged, test)
    write_card(trainer, recipe, encoded, scores)
    if main_process and "test_bleu" in scores:
        print(f"test BLEU {scores['test_bleu']:.2f} ({scores['signature']})")
    if main_process and "averaged_bleu" in scores:
        print(f"test BLEU {scores['averaged_bleu']:.2f} for the mean of the last {averaged} checkpoints, in averaged/")
    if main_process:
        print(f"The model is in {recipe.training.output_dir}")
    if recipe.training.push_to_hub:
        trainer.push_to_hub()


if __name__ == "__main__":
    run(main)
