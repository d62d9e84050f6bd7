"""What `import hf_attention` registers, what it leaves alone, and what it costs."""

import re

import fresh
import pytest
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipeline, pipelines

import hf_attention
from hf_attention import (
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)


TINY = {"vocab_size": 11, "d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1}


def test_auto_classes_know_the_model():
    config = AutoConfig.for_model("vanilla_transformer", **TINY)
    assert type(config) is VanillaTransformerConfig
    assert type(AutoModel.from_config(config)) is VanillaTransformerModel
    assert type(AutoModelForSeq2SeqLM.from_config(config)) is VanillaTransformerForConditionalGeneration


# -- The task ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["translation", "translation_en_to_de", "translation_eng_Latn_to_deu_Latn"])
def test_the_task_is_back_under_all_its_names(task):
    name, info, _ = pipelines.check_task(task)
    assert name == "translation"
    assert info["impl"] is TranslationPipeline
    assert info["pt"] == (AutoModelForSeq2SeqLM,)


# A Transformers that has no such table, or refuses translation elsewhere, has changed what we undo: look again.
def test_transformers_still_refuses_removed_tasks_from_the_table_we_edit(tmp_path):
    before = fresh.result("from transformers import pipelines; result = pipelines.REMOVED_TASKS", tmp_path)
    assert "translation" in before
    assert {task: text for task, text in before.items() if task != "translation"} == pipelines.REMOVED_TASKS


def test_no_other_task_changes():
    for task in pipelines.REMOVED_TASKS:
        with pytest.raises(KeyError, match="has been removed"):
            pipelines.check_task(task)
    assert pipelines.check_task("ner")[0] == "token-classification"
    for unknown in ("translation_", "translation_en_de", "translate", "translation_to_"):
        with pytest.raises(KeyError, match="Unknown task"):
            pipelines.check_task(unknown)


def test_without_a_model_the_pairs_of_version_4_have_its_default():
    _, info, pair = pipelines.check_task("translation_en_to_de")
    assert pipelines.get_default_model_and_revision(info, pair) == ("google-t5/t5-base", "a9723ea")


@pytest.mark.parametrize("task", ["translation", "translation_ja_to_ko"])
def test_without_a_model_other_names_say_there_is_no_default(task):
    with pytest.raises(ValueError, match="default"):
        pipeline(task)


AGAIN = """
import contextlib, importlib, io, logging, sys
import hf_attention, hf_attention.model
import transformers
from transformers import pipelines
text = io.StringIO()
transformers.logging.set_verbosity_info()
logging.getLogger("transformers").addHandler(logging.StreamHandler(text))
checks = []
for _ in range(2):
    importlib.reload(hf_attention.model)
    importlib.reload(hf_attention)
    for name in [name for name in sys.modules if name.partition(".")[0] == "hf_attention"]:
        del sys.modules[name]
    import hf_attention, hf_attention.model
    info = pipelines.check_task("translation_en_to_de")[1]
    checks.append(info["impl"] is hf_attention.TranslationPipeline)
silent = text.getvalue()

class Theirs(transformers.Pipeline):
    pass

pipelines.PIPELINE_REGISTRY.supported_tasks["translation"] = {"impl": Theirs, "pt": ()}
importlib.reload(hf_attention.model)
result = {"checks": checks, "silent": silent, "clash": text.getvalue()}

del pipelines.REMOVED_TASKS  # Transformers before 5.20 had no such table
importlib.reload(hf_attention.model)
result["without_table"] = pipelines.PIPELINE_REGISTRY.check_task("translation")[0]
"""


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    return fresh.result(AGAIN, tmp_path_factory.mktemp("again"))


def test_importing_again_is_silent_and_registers_the_newest(again):
    assert again["checks"] == [True, True]
    assert again["silent"] == ""


def test_a_pipeline_that_others_registered_gives_way_with_a_warning(again):
    assert "translation is already registered" in again["clash"]


def test_a_transformers_without_the_table_works_too(again):
    assert again["without_table"] == "translation"


# -- The package ------------------------------------------------------------------------------------------------------


def test_importing_loads_nothing_that_only_training_needs(tmp_path):
    code = """
import sys, hf_attention
result = sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if "hf_attention" in n})
"""
    loaded = fresh.result(code, tmp_path)
    assert not {"datasets", "evaluate", "sacrebleu", "pandas", "peft"} & set(loaded)
    ours = [name for name in loaded if name.startswith("hf_attention.")]
    assert [name for name in ours if not name.startswith("hf_attention.model")] == ["hf_attention.version"]


@pytest.mark.parametrize("name", hf_attention.__all__)
def test_every_public_name_is_there(name):
    assert getattr(hf_attention, name) is not None
    assert name in dir(hf_attention)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="hf_attention.*no attribute 'Transformer'"):
        hf_attention.Transformer  # noqa: B018


def test_the_version_is_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", hf_attention.__version__)
