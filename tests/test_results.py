"""The README's figures for Multi30k are those of the translations that are kept in results/, scored by sacrebleu."""

import json
import re

import pytest
import yaml
from conftest import REPOSITORY
from sacrebleu import corpus_bleu

from hf_attention.text_files import read_lines


KEPT = REPOSITORY / "results" / "multi30k_tiny"
REFERENCES = {"test2016": "test_2016_flickr", "test2017": "test_2017_flickr", "MSCOCO": "test_2017_mscoco"}


def claimed(name: str) -> float:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    row = next(line for line in readme.splitlines() if "training/train.py configs/multi30k_tiny.yaml" in line)
    return float(re.search(rf"{name} (\d+\.\d\d)", row).group(1))


@pytest.mark.parametrize("name", REFERENCES)
def test_kept_translations_have_the_bleu_of_the_readme(multi30k, name):
    hypotheses = [*read_lines(KEPT / f"{name}.de")]
    references = [*read_lines(multi30k / f"{REFERENCES[name]}.lc.norm.tok.de")]
    assert len(hypotheses) == len(references)
    assert round(corpus_bleu(hypotheses, [references], tokenize="none").score, 2) == claimed(name)


def test_the_recipe_is_the_one_that_was_run():
    """Whoever changes the recipe has to run it again, or to say in results/ that it was another."""
    run = yaml.safe_load((KEPT / "recipe.yaml").read_text(encoding="utf-8"))
    ours = yaml.safe_load((REPOSITORY / "configs" / "multi30k_tiny.yaml").read_text(encoding="utf-8"))
    elsewhere = {"extends", "data_dir", "output_dir"}
    assert {key: run.get(key) for key in ours if key not in elsewhere} == {
        key: value for key, value in ours.items() if key not in elsewhere
    }


def test_the_log_ends_where_the_recipe_does():
    state = json.loads((KEPT / "trainer_state.json").read_text(encoding="utf-8"))
    recipe = yaml.safe_load((KEPT / "recipe.yaml").read_text(encoding="utf-8"))
    assert state["global_step"] == recipe["max_steps"]
    assert max(entry["eval_bleu"] for entry in state["log_history"] if "eval_bleu" in entry) > 40
