"""Push and load again, with the real `huggingface_hub` client against a Hub on 127.0.0.1; and the model card."""

import contextlib
import io
import json
import re

import fresh
import pytest
import torch
import yaml
from hub_server import Hub
from huggingface_hub import ModelCard
from sacrebleu import BLEU
from safetensors.torch import load as load_safetensors

from hf_attention import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_attention.sharing import write_model_card
from hf_attention.tokenization import train_tokenizer


CODE = {"configuration_vanilla_transformer.py", "modeling_vanilla_transformer.py", "pipeline_translation.py"}
SENTENCES = ["a dog runs in the park", "", "two cats sleep"]
CARD = {
    "title": "English to Pig Latin",
    "languages": ["en", "la"],
    "data": "3 made-up sentences, lower case.",
    "recipe": {"d_model": 8, "learning_rate": 1e-3, "hub_token": "secret", "tie_word_embeddings": True},
    "results": {"held out": 97.319},
    "signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1",
    "example": 'a "dog" runs in the park',
}


# -- The round trip -------------------------------------------------------------------------------------------------


PUSH = """
import json, sys
import torch
import hf_attention
from hf_attention import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_attention.sharing import prepare_sharing
from hf_attention.tokenization import train_tokenizer
from transformers import (DataCollatorForSeq2Seq, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments, pipeline)

sentences, card = json.loads(sys.argv[1]), json.loads(sys.argv[2])
tokenizer = train_tokenizer(iter(sentences * 20), 270)
torch.manual_seed(0)
shape = {"d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1, "dropout": 0.0}
model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=len(tokenizer), **shape))
model.generation_config.update(num_beams=3, max_new_tokens=7)

model.push_to_hub("from-model")
tokenizer.push_to_hub("from-model")
result = {"model": pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")(sentences)}
model.save_pretrained("saved", push_to_hub=True, repo_id="from-save")

rows = [dict(tokenizer(text, text_target=text)) for text in sentences * 4]
arguments = Seq2SeqTrainingArguments("run", push_to_hub=True, hub_model_id="tester/from-trainer", max_steps=2,
    save_steps=1, per_device_train_batch_size=2, report_to="none", disable_tqdm=True)
collator = DataCollatorForSeq2Seq(tokenizer, model=model)
trainer = Seq2SeqTrainer(model, arguments, collator, rows, processing_class=tokenizer)
prepare_sharing(trainer, **card)
trainer.train()
trainer.save_model()
trainer.push_to_hub()
result["trainer"] = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")(sentences)
"""

LOAD = """
import json, sys
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
sentences, trust = json.loads(sys.argv[1]), json.loads(sys.argv[2])
result = {}
for name in ("model", "trainer"):
    repository = f"tester/from-{name}"
    model = AutoModelForSeq2SeqLM.from_pretrained(repository, **trust)
    tokenizer = AutoTokenizer.from_pretrained(repository)
    pair = {"input_ids": tokenizer(sentences[0], return_tensors="pt").input_ids}
    result[name] = {
        "pipeline": pipeline("translation", model=repository, device="cpu", **trust)(sentences),
        "generate": tokenizer.decode(model.generate(**pair)[0], skip_special_tokens=True),
        "module": type(model).__module__,
    }
result["inferred"] = pipeline(model="tester/from-trainer", device="cpu", **trust)(sentences)
"""


@pytest.fixture(scope="module")
def hub():
    with Hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def pushed(hub, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("push")
    return fresh.result(PUSH, folder, json.dumps(SENTENCES), json.dumps(CARD), **hub.environment)


@pytest.fixture(scope="module")
def stranger(hub, pushed, tmp_path_factory) -> dict:
    arguments = (json.dumps(SENTENCES), json.dumps({"trust_remote_code": True}))
    environment = hub.environment | {"HF_TOKEN": ""}
    return fresh.result(fresh.WITHOUT_PACKAGE + LOAD, tmp_path_factory.mktemp("stranger"), *arguments, **environment)


@pytest.mark.parametrize("name", ["model", "trainer"])
def test_a_process_that_never_saw_the_package_translates_the_same(pushed, stranger, name):
    assert stranger[name]["pipeline"] == pushed[name]
    assert stranger[name]["generate"] == pushed[name][0]["translation_text"]
    assert stranger[name]["module"].startswith("transformers_modules.")
    assert stranger["inferred"] == pushed["trainer"]


def test_where_the_package_is_imported_no_trust_is_needed(hub, pushed, tmp_path):
    environment = hub.environment | {"HF_TOKEN": ""}
    loaded = fresh.result("import hf_attention\n" + LOAD, tmp_path, json.dumps(SENTENCES), "{}", **environment)
    for name in ("model", "trainer"):
        assert loaded[name]["pipeline"] == pushed[name]
        assert loaded[name]["module"] == "hf_attention.model.modeling_vanilla_transformer"


@pytest.mark.parametrize("name", ["from-model", "from-save", "from-trainer"])
def test_what_is_pushed(hub, pushed, name):
    files = hub.repositories[f"tester/{name}"].files
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} | CODE <= set(files)
    if name != "from-save":
        assert {"tokenizer.json", "tokenizer_config.json"} <= set(files)
    assert not [file for file in files if file.startswith((".", "_")) and file != ".gitattributes"]
    assert json.loads(files["generation_config.json"])["num_beams"] == 3


def test_report_8_one_copy_of_the_tied_matrix_is_pushed(hub, pushed):
    files = hub.repositories["tester/from-trainer"].files
    weights = load_safetensors(files["model.safetensors"])
    rows = json.loads(files["config.json"])["vocab_size"]
    tied = [name for name, weight in weights.items() if weight.shape == (rows, 8)]
    assert tied == ["model.encoder.embed_tokens.weight"]


def test_every_push_of_the_trainer_has_our_card_and_the_code(hub, pushed):
    _, *pushes = hub.repositories["tester/from-trainer"].commits
    assert len(pushes) > 1, "one while training, one at its end"
    for commit in pushes:
        assert set(commit.files) >= CODE
        card = commit.files["README.md"].decode()
        assert CARD["signature"] in card and 'model="tester/from-trainer"' in card


def test_weights_went_by_lfs_and_reading_needed_no_token(hub, stranger):
    for repository in hub.repositories.values():
        assert "model.safetensors" in repository.commits[-1].lfs
    assert any(request.startswith("GET") and "/resolve/" in request for request in hub.requests)


# -- The card -------------------------------------------------------------------------------------------------------


@pytest.fixture
def card(tmp_path) -> ModelCard:
    return ModelCard.load(write_model_card(tmp_path, **CARD))


def test_the_cards_metadata_is_what_the_hub_reads(card):
    data = card.data.to_dict()
    assert data["language"] == ["en", "la"]
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "translation")
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("sacrebleu", 97.319, "held out")
    assert "license" not in data
    assert card.data.model_name == CARD["title"]


def test_the_card_tells_data_recipe_and_bleu_with_its_signature(card):
    assert CARD["data"] in card.text
    assert "| held out | 97.32 |" in card.text and f"`{CARD['signature']}`" in card.text
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card.text, re.DOTALL)[1])
    assert recipe == {"d_model": 8, "learning_rate": 1e-3, "tie_word_embeddings": True}
    assert "secret" not in card.text


def test_the_cards_snippet_runs(tmp_path):
    tokenizer = train_tokenizer(iter(SENTENCES * 20), 270)
    torch.manual_seed(0)
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), d_model=8, d_ff=16, num_heads=2, num_layers=1)
    model = VanillaTransformerForConditionalGeneration(config)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    card = ModelCard.load(write_model_card(tmp_path, **CARD))
    (snippet,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(snippet, {})
    ids = model.eval().generate(**tokenizer(CARD["example"], return_tensors="pt"), num_beams=4)
    assert printed.getvalue() == tokenizer.decode(ids[0], skip_special_tokens=True) + "\n"


def test_a_model_that_was_not_evaluated_says_so(tmp_path):
    card = ModelCard.load(write_model_card(tmp_path, **CARD | {"results": {}, "signature": None}))
    assert "Not evaluated." in card.text and card.data.eval_results is None


def test_a_perfect_bleu_is_one_as_sacrebleu_computes_it(tmp_path):
    lines = ["3 7 10 5 4", "4 4 9 3"]
    perfect = BLEU(tokenize="none").corpus_score(lines, [lines]).score
    assert perfect > 100  # by a rounding error
    card = ModelCard.load(write_model_card(tmp_path, **CARD | {"results": {"test": perfect}}))
    assert "| test | 100.00 |" in card.text and card.data.eval_results[0].metric_value == 100


def test_two_languages_that_are_one_are_named_once_to_the_hub(tmp_path):
    card = ModelCard.load(write_model_card(tmp_path, **CARD | {"languages": ["zxx", "zxx"]}))
    assert card.data.language == ["zxx"]


def test_a_card_that_would_mislead_is_refused(tmp_path):
    with pytest.raises(ValueError, match="signature=None"):
        write_model_card(tmp_path, **CARD | {"signature": None})
    for bleu in (-1, 101, float("nan")):
        with pytest.raises(ValueError, match=r"results\['test'\]"):
            write_model_card(tmp_path, **CARD | {"results": {"test": bleu}})
    assert not (tmp_path / "README.md").exists()
