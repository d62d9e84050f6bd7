"""The README's figures for Multi30k are those of the translations that are kept in results/, scored by sacrebleu."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY
from sacrebleu import corpus_bleu

from hf_attention.recipes import DataArguments
from hf_attention.text_files import read_lines


REFERENCES = {"test2016": "test_2016_flickr", "test2017": "test_2017_flickr", "MSCOCO": "test_2017_mscoco"}
# The runs that are kept, by what only their row of the README says.
RUNS = {"multi30k_tiny": "`python training/train.py configs/multi30k_tiny.yaml", "multi30k_base": "d_model=512"}
ELSEWHERE = {"extends", "data_dir", "output_dir"}  # where a run lies says nothing of what it is


def kept(run: str) -> Path:
    return REPOSITORY / "results" / run


def row(run: str) -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return next(line for line in readme.splitlines() if line.startswith("|") and RUNS[run] in line)


def recipe(run: str) -> dict:
    return yaml.safe_load((kept(run) / "recipe.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", REFERENCES)
def test_kept_translations_have_the_bleu_of_the_readme(multi30k, run, name):
    hypotheses = [*read_lines(kept(run) / f"{name}.de")]
    references = [*read_lines(multi30k / f"{REFERENCES[name]}.lc.norm.tok.de")]
    assert len(hypotheses) == len(references)
    claimed = float(re.search(rf"{name} (\d+\.\d\d)", row(run)).group(1))
    assert round(corpus_bleu(hypotheses, [references], tokenize="none").score, 2) == claimed


@pytest.mark.parametrize("run", RUNS)
def test_the_recipe_is_the_one_that_was_run(run):
    """Whoever changes the recipe has to run it again, or to say in results/ that it was another."""
    ours = yaml.safe_load((REPOSITORY / "configs" / "multi30k_tiny.yaml").read_text(encoding="utf-8"))
    command = row(run).split("`")[1]
    ours |= {name: yaml.safe_load(value) for name, value in re.findall(r"(\w+)=(\S+)", command)}
    given = {field.name: field.default for field in dataclasses.fields(DataArguments)} | recipe(run)
    assert {key: given.get(key) for key in ours if key not in ELSEWHERE} == {
        key: value for key, value in ours.items() if key not in ELSEWHERE
    }


@pytest.mark.parametrize(("run", "least"), [("multi30k_tiny", 40), ("multi30k_base", 32)])
def test_the_log_ends_where_the_recipe_does(run, least):
    state = json.loads((kept(run) / "trainer_state.json").read_text(encoding="utf-8"))
    assert state["global_step"] == recipe(run)["max_steps"]
    assert max(entry["eval_bleu"] for entry in state["log_history"] if "eval_bleu" in entry) > least
