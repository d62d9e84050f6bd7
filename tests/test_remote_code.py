"""A saved folder carries its code: it loads where the package is not installed, and without trust where it is."""

import json
import logging
import os
from pathlib import Path

import fresh
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    pipeline,
)

from hf_attention import (
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_attention.model import configuration_vanilla_transformer, pipeline_translation
from hf_attention.tokenization import train_tokenizer


CODE = {
    "configuration_vanilla_transformer.py",
    "decoding_vanilla_transformer.py",
    "generation_vanilla_transformer.py",
    "modeling_vanilla_transformer.py",
    "pipeline_translation.py",
}
SENTENCES = ["a dog runs in the park", "", "two cats sleep"]
OPTIONS = {"num_beams": 2, "max_new_tokens": 6}


def build(tokenizer, **fields) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    shape = {"d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1, "dropout": 0.0}
    return VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig(vocab_size=len(tokenizer), **shape | fields)
    ).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(SENTENCES * 20), 270)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tokenizer) -> Path:
    """Two steps of the stock Trainer, under a path with a dot in it: `checkpoint-1`, `checkpoint-2` and the end."""
    folder = tmp_path_factory.mktemp("runs") / "run.v1"
    rows = [dict(tokenizer(text, text_target=text)) for text in SENTENCES * 4]
    arguments = Seq2SeqTrainingArguments(
        str(folder), max_steps=2, save_steps=1, per_device_train_batch_size=2, report_to="none", disable_tqdm=True
    )
    model = build(tokenizer)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, arguments, collator, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()
    return folder


@pytest.fixture(scope="module")
def expected(trained) -> list:
    return pipeline("translation", model=str(trained), device="cpu")(SENTENCES, **OPTIONS)


# -- The folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "checkpoint-1", "checkpoint-2"])
def test_every_folder_of_a_run_carries_its_code(trained, name):
    folder = trained / name
    assert {path.name for path in folder.glob("*.py")} == CODE
    assert not list(folder.glob(".*"))
    for file in CODE:
        assert (folder / file).read_bytes() == Path(pipeline_translation.__file__).with_name(file).read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert config["custom_pipelines"]["translation"]["impl"] == "pipeline_translation.TranslationPipeline"
    for reference in [*config["auto_map"].values(), "pipeline_translation.TranslationPipeline"]:
        file, _, name = reference.partition(".")
        assert f"class {name}(" in (folder / f"{file}.py").read_text()


def test_report_5_the_code_imports_siblings_by_one_dot_and_nothing_else_of_ours():
    for file in CODE:
        source = Path(pipeline_translation.__file__).with_name(file).read_text()
        assert "from .." not in source and "import hf_attention" not in source and "from hf_attention" not in source


def test_config_json_holds_the_model_and_no_choice_of_this_machine(tmp_path, tokenizer):
    model = build(tokenizer)
    model.set_attn_implementation("eager")
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    stock = {"architectures", "auto_map", "custom_pipelines", "dtype", "model_type", "transformers_version"}
    fields = set(VanillaTransformerConfig.__annotations__)
    assert set(config) <= stock | fields
    assert config["dtype"] == "bfloat16"  # what the weights are
    assert str(tmp_path) not in (tmp_path / "config.json").read_text()


def test_what_is_for_the_file_stays_out_of_the_model_in_memory(tmp_path, tokenizer):
    model = build(tokenizer)
    before = model.config.to_dict()
    model.save_pretrained(tmp_path)
    after = model.config.to_dict()
    assert set(after) - set(before) == set() and "custom_pipelines" not in after
    assert not hasattr(VanillaTransformerConfig.from_pretrained(tmp_path), "custom_pipelines")


def test_report_8_one_copy_of_the_tied_matrix(trained):
    weights = load_file(trained / "model.safetensors")
    rows = json.loads((trained / "config.json").read_text())["vocab_size"]
    assert [name for name, weight in weights.items() if weight.shape == (rows, 8)] == [
        "model.encoder.embed_tokens.weight"
    ]


def test_base_model_and_config_carry_it_too(tmp_path, tokenizer):
    base = build(tokenizer).model
    base.save_pretrained(tmp_path / "base")
    base.config.save_pretrained(tmp_path / "config")
    for folder in ("base", "config"):
        assert {path.name for path in (tmp_path / folder).glob("*.py")} == CODE
    assert type(VanillaTransformerModel.from_pretrained(tmp_path / "base")) is VanillaTransformerModel


def test_a_pipeline_saves_a_folder_like_any_other(tmp_path, trained, expected):
    pipeline("translation", model=str(trained), device="cpu").save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.glob("*.py")} == CODE
    assert pipeline("translation", model=str(tmp_path), device="cpu")(SENTENCES, **OPTIONS) == expected


def test_the_pipeline_loads_in_the_precision_asked_for(trained):
    pipe = pipeline("translation", model=str(trained), device="cpu", dtype="bfloat16")
    assert pipe.model.dtype == torch.bfloat16
    assert len(pipe(SENTENCES, **OPTIONS)) == len(SENTENCES)


def test_an_adapter_is_saved_alone(tmp_path, tokenizer):
    peft = pytest.importorskip("peft", reason="LoRA is peft's")
    model = peft.get_peft_model(build(tokenizer), peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(os.listdir(tmp_path))
    assert not list(tmp_path.glob("*.py"))
    assert len(pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")(SENTENCES, **OPTIONS)) == 3


@pytest.mark.parametrize("lost", sorted(CODE))
def test_code_that_cannot_be_copied_never_loses_the_weights(tmp_path, tokenizer, monkeypatch, caplog, lost):
    read = Path.read_bytes

    def unreadable(path):
        if path.name == lost:
            raise PermissionError(f"no permission to read {path.name}")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", unreadable)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    model = build(tokenizer)
    model.save_pretrained(tmp_path)
    assert "without the model's code" in caplog.text and lost in caplog.text
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_config_class_of_somebody_else_does_not_claim_our_code(tmp_path):
    class Theirs(VanillaTransformerConfig):
        pass

    Theirs.__module__ = "theirs"
    Theirs(vocab_size=11, d_model=8, num_heads=2).save_pretrained(tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_the_code_list_is_the_folder():
    folder = Path(configuration_vanilla_transformer.__file__).parent
    assert (
        {path.name for path in folder.glob("*.py")} - {"__init__.py"}
        == CODE
        == set(configuration_vanilla_transformer.CODE_FILES)
    )


# -- A process that never saw the package -----------------------------------------------------------------------------


STRANGER = """
import json, os, sys
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folder, sentences, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
result = {"errors": {}, "translations": {}, "classes": {}}
for name, call in {
    "AutoConfig": lambda: AutoConfig.from_pretrained(folder),
    "AutoModelForSeq2SeqLM": lambda: AutoModelForSeq2SeqLM.from_pretrained(folder),
    "pipeline": lambda: pipeline("translation", model=folder),
}.items():
    try:
        call()
    except Exception as error:
        result["errors"][name] = f"{type(error).__name__}: {error}"

def translate(name, model):
    result["translations"][name] = pipeline("translation", model=model, trust_remote_code=True, device="cpu")(
        sentences, batch_size=2, **options)

translate("folder", folder)
translate("checkpoint-1", os.path.join(folder, "checkpoint-1"))
translate("stock", sys.argv[4])
os.chdir(folder)
translate("dot", ".")
for auto in (AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer):
    result["classes"][auto.__name__] = type(auto.from_pretrained(folder, trust_remote_code=True)).__name__
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
again = os.path.join(os.path.dirname(folder), "again")
model.save_pretrained(again)
AutoTokenizer.from_pretrained(folder).save_pretrained(again)
translate("again", again)
result["again"] = sorted(os.listdir(again))
result["tied"] = len({w.data_ptr() for w in (model.lm_head.weight, model.model.encoder.embed_tokens.weight,
                                             model.model.decoder.embed_tokens.weight)})
result["package"] = sys.modules["hf_attention"] is not None
"""

ACQUAINTED = """
import json, sys
import hf_attention
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
folder, sentences, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
result = {auto.__name__: type(auto.from_pretrained(folder)).__module__
          for auto in (AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer)}
result["translations"] = [
    pipeline(task, model=folder, device="cpu", trust_remote_code=trust)(sentences, **options)
    for task in ("translation", "translation_en_to_de") for trust in (None, True)]
result["remote"] = [name for name in sys.modules if name.startswith("transformers_modules")]
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory, tokenizer) -> TranslationPipeline:
    """The pipeline with a stock model, saved: `pipe.name_or_path` says where."""
    torch.manual_seed(0)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    size = {"d_model": 8, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "init_std": 1.0, "forced_eos_token_id": None}
    model = BartForConditionalGeneration(BartConfig(vocab_size=len(tokenizer), **ids, **layers, **size))
    pipe = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
    pipe.name_or_path = str(tmp_path_factory.mktemp("stock"))
    pipe.save_pretrained(pipe.name_or_path)
    return pipe


@pytest.fixture(scope="module")
def stranger(trained, stock, tmp_path_factory):
    arguments = (trained, json.dumps(SENTENCES), json.dumps(OPTIONS), stock.name_or_path)
    return fresh.result(fresh.WITHOUT_PACKAGE + STRANGER, tmp_path_factory.mktemp("stranger"), *arguments)


def test_the_pipeline_works_from_the_folder_and_from_a_checkpoint(stranger, trained, expected):
    assert stranger["package"] is False
    assert stranger["translations"]["folder"] == expected
    first = pipeline("translation", model=str(trained / "checkpoint-1"), device="cpu")(SENTENCES, **OPTIONS)
    assert stranger["translations"]["checkpoint-1"] == first


def test_report_5_the_pipeline_works_from_inside_the_folder(stranger, expected):
    assert stranger["translations"]["dot"] == expected


def test_report_3_the_auto_classes_load_the_shipped_code(stranger):
    assert stranger["classes"] == {
        "AutoConfig": "VanillaTransformerConfig",
        "AutoModel": "VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "VanillaTransformerForConditionalGeneration",
        "AutoTokenizer": stranger["classes"]["AutoTokenizer"],
    }
    assert "Tokenizer" in stranger["classes"]["AutoTokenizer"]
    assert stranger["tied"] == 1


def test_what_a_stranger_saves_carries_the_code_on(stranger, expected):
    assert set(stranger["again"]) >= CODE
    assert stranger["translations"]["again"] == expected


def test_a_stock_model_saved_through_the_pipeline_takes_it_along(stranger, stock):
    assert stranger["translations"]["stock"] == stock(SENTENCES, **OPTIONS)
    assert stock(SENTENCES, **OPTIONS)[0]["translation_text"]


@pytest.mark.parametrize("name", ["AutoConfig", "AutoModelForSeq2SeqLM", "pipeline"])
def test_report_3_without_trust_the_error_says_what_to_pass(stranger, name):
    assert "ValueError" in stranger["errors"][name] and "trust_remote_code=True" in stranger["errors"][name]


def test_report_3_where_the_package_is_imported_no_trust_is_needed(trained, expected, tmp_path):
    loaded = fresh.result(ACQUAINTED, tmp_path, trained, json.dumps(SENTENCES), json.dumps(OPTIONS))
    assert loaded["AutoConfig"] == "hf_attention.model.configuration_vanilla_transformer"
    assert loaded["AutoModelForSeq2SeqLM"] == "hf_attention.model.modeling_vanilla_transformer"
    assert loaded["AutoTokenizer"].startswith("transformers.")
    assert loaded["translations"] == [expected] * 4
    assert loaded["remote"] == [], "the registered class beats the folder's code"


def test_report_6_the_tokenizer_loads_beside_the_model_and_alone(trained, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    text = "Ein Hund, 3 Katzen!"
    for folder in (trained, tmp_path):
        loaded = AutoTokenizer.from_pretrained(folder)
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded(text)["input_ids"][-1] == loaded.eos_token_id == 2
        assert loaded.decode(loaded(text)["input_ids"], skip_special_tokens=True) == text
