"""Who asks for the paper's search and gets it: `generate()`, a saved config, the Trainer, the pipeline, scripts."""

import json

import fresh
import pytest
import stock
import torch
from conftest import REPOSITORY, build_model
from reversing import END, PAD, ROWS, START, log_prob, padded, train_to_reverse
from transformers import (
    GenerationConfig,
    GenerationMixin,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TextIteratorStreamer,
    pipeline,
)

from hf_attention import BatchCollator, VanillaTransformerForConditionalGeneration
from hf_attention.generation import beam_search
from hf_attention.recipes import build_recipe, load_recipe


PAPER = {"search": "paper", "num_beams": 4, "length_penalty": 0.6}


@pytest.fixture(scope="module")
def model() -> VanillaTransformerForConditionalGeneration:
    """Has half learned to reverse digits: what the two searches find differs."""
    return train_to_reverse(build_model(num_layers=1, d_model=32, d_ff=64, num_heads=4))


def test_stock_search_is_unchanged_where_nobody_asks(model):
    settings = {"num_beams": 4, "length_penalty": 0.6, "max_new_tokens": 12, "early_stopping": True}
    stock_answer = GenerationMixin.generate(model, **padded(ROWS), **settings).tolist()
    assert model.generate(**padded(ROWS), **settings).tolist() == stock_answer
    assert model.generate(**padded(ROWS), **settings, search="stock").tolist() == stock_answer
    ids, mask = padded(ROWS).values()
    by_position = model.generate(ids, GenerationConfig(**settings), None, None, attention_mask=mask)
    assert by_position.tolist() == stock_answer


@pytest.fixture
def asking(model, tmp_path) -> VanillaTransformerForConditionalGeneration:
    """Saved and loaded, with a generation config that asks for the paper's search."""
    model.save_pretrained(tmp_path)
    saved = {"max_extra_tokens": 3, **PAPER, "eos_token_id": END, "pad_token_id": PAD, "decoder_start_token_id": START}
    GenerationConfig(**saved).save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text()).items() >= saved.items()
    return VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "again")


def test_a_saved_generation_config_brings_it_back(model, asking):
    expected = model.generate(**padded(ROWS), **PAPER, max_extra_tokens=3, num_return_sequences=4).tolist()
    assert asking.generate(**padded(ROWS), num_return_sequences=4).tolist() == expected
    options = {"num_return_sequences": 4, "max_new_tokens": 9}
    by_stock = asking.generate(**padded(ROWS), **options, search="stock").tolist()
    assert by_stock == GenerationMixin.generate(asking, **padded(ROWS), **options).tolist() != expected
    given = GenerationConfig(num_beams=4, num_return_sequences=4)
    assert asking.generate(**padded(ROWS), generation_config=given).tolist() == expected


def test_a_process_without_the_package_has_it_too(asking, tmp_path):
    code = """
import json, sys, torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
batch = {name: torch.tensor(value) for name, value in json.loads(sys.argv[2]).items()}
result = model.generate(**batch).tolist()
"""
    batch = {name: value.tolist() for name, value in padded(ROWS).items()}
    found = fresh.result(fresh.WITHOUT_PACKAGE + code, tmp_path, tmp_path / "again", json.dumps(batch))
    assert found == asking.generate(**padded(ROWS)).tolist()


def test_the_trainers_predictions_are_the_papers(asking, tmp_path):
    """Two batches: after the first, the stock Trainer has written its default of 20 into the model's config."""
    pairs = [{"input_ids": [*row, END], "labels": [*row[::-1], END]} for row in [*ROWS, [3] * 20, [4] * 20]]
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, per_device_eval_batch_size=4, report_to="none", use_cpu=True
    )
    arguments.remove_unused_columns = False
    tokenizer = stock.byte_tokenizer()
    trainer = Seq2SeqTrainer(asking, arguments, BatchCollator(tokenizer, model=asking), processing_class=tokenizer)
    predictions = torch.tensor(trainer.predict(pairs).predictions)
    for row, prediction in zip([*ROWS, [3] * 20, [4] * 20], predictions, strict=True):
        alone = asking.generate(**padded([row]))[0]
        assert prediction[: len(alone)].tolist() == alone.tolist()
        assert set(prediction[len(alone) :].tolist()) <= {PAD, -100}
    assert asking.generation_config.max_length == 20  # or the exception made for it is no longer needed


@pytest.fixture
def talking(tmp_path):
    """A folder of an untrained model of bytes whose config asks for the paper's search, and three lines for it."""
    model = build_model(vocab_size=stock.VOCAB_SIZE, d_model=16, d_ff=32)
    model.generation_config.update(**PAPER, max_extra_tokens=2, allow_custom_entries=True)
    model.save_pretrained(tmp_path / "model")
    stock.byte_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model", ["she pet the dog", "", "no"]


def paper_texts(folder, lines, **options) -> list[str]:
    model, tokenizer = VanillaTransformerForConditionalGeneration.from_pretrained(folder), stock.byte_tokenizer()
    answers = []
    for line in filter(None, lines):
        ids = model.generate(**tokenizer(line, return_tensors="pt"), custom_generate=beam_search, **options)[0]
        answers.append(tokenizer.decode(ids, skip_special_tokens=True))
    return answers


def test_the_pipeline_uses_it(talking):
    folder, lines = talking
    translator = pipeline("translation", model=str(folder), device="cpu")
    texts = [result["translation_text"] for result in translator(lines, batch_size=3)]
    assert [text for text in texts if text] == (expected := paper_texts(folder, lines, max_length=99)) and expected
    by_stock = [result["translation_text"] for result in translator(lines, search="stock", max_new_tokens=30)]
    assert by_stock != texts


def test_translate_uses_it(talking, tmp_path):
    folder, lines = talking
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(lines) + "\n")

    def translate(*overrides):
        arguments = ("--model", folder, "--input", source, "--output", target, *overrides)
        assert stock.run_script("translate.py", *arguments) == 0
        return [line for line in target.read_text().splitlines() if line]

    by_paper = translate()
    plain = build_model(vocab_size=stock.VOCAB_SIZE, d_model=16, d_ff=32)
    plain.save_pretrained(folder)
    by_stock = translate("max_new_tokens=20")
    assert len(by_paper) == 2 and by_paper != by_stock
    assert translate("search=paper", "num_beams=4", "length_penalty=0.6", "max_extra_tokens=2") == by_paper


def test_translate_refuses_it_for_other_models(tmp_path, capsys):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    folder = stock.save_stock(tmp_path / "marian")
    assert stock.run_script("translate.py", "--model", folder, "--input", source, "search=paper") == 1
    assert "search=paper is for our own models" in capsys.readouterr().err


def test_report_51_the_papers_search_is_the_recipes_default():
    """Section 6.1: beam 4, α = 0.6, source + 50. The bound for the stock search must not come before that."""
    recipe = load_recipe(REPOSITORY / "configs" / "base.yaml")
    made = recipe.generation
    assert (made.search, made.num_beams, made.length_penalty, made.max_extra_tokens) == ("paper", 4, 0.6, 50)
    assert made.max_length > recipe.data.max_tokens + made.max_extra_tokens


def test_recipes_know_it():
    given = {"output_dir": "out", "train_files": ["a", "b"], "warmup_steps": 4000, "num_beams": 4}
    made = build_recipe({**given, "search": "paper", "max_extra_tokens": "50", "length_penalty": 0.6}).generation
    assert (made.search, made.max_extra_tokens, made.length_penalty) == ("paper", 50, 0.6)
    for wrong, message in {
        ("search", "beam"): "search='beam': want one of paper, stock",
        ("max_extra_tokens", -1): "max_extra_tokens=-1: want a whole number",
        ("max_extra_tokens", 0.5): "max_extra_tokens=0.5: want a whole number",
        ("max_extra_token", 50): "did you mean 'max_extra_tokens'",
    }.items():
        with pytest.raises(ValueError, match=message):
            build_recipe({**given, wrong[0]: wrong[1]})


@pytest.mark.parametrize("beams", [1, 4])
def test_any_encoder_decoder_can_be_searched(beams):
    """Marian, through `custom_generate`; scores by a plain forward of its own."""
    marian = stock.tiny_marian()
    batch = padded([[7, 8, 9], [10]])
    options = {"custom_generate": beam_search, "num_beams": beams, "length_penalty": 0.6, "max_extra_tokens": 5}
    out = marian.generate(**batch, **options, return_dict_in_generate=True, output_scores=True)
    for row, ids in enumerate(batch["input_ids"]):
        source = [token for token in ids.tolist() if token not in (PAD, END)]
        target = out.sequences[row, 1 : 1 + int(out.beam_indices[row].ge(0).sum())].tolist()
        expected = log_prob(marian, source, target) / ((5 + len(target)) / 6) ** 0.6
        assert float(out.sequences_scores[row]) == pytest.approx(expected, abs=1e-5)
        assert target[-1] == END or len(target) == len(source) + 1 + 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "beam"}, "search='beam': want one of paper, stock"),
        ({"do_sample": True}, "do_sample=True"),
        ({"max_extra_tokens": "many"}, "max_extra_tokens='many': want a whole number"),
        ({"max_extra_tokens": -1, "max_new_tokens": 3}, "max_extra_tokens=-1"),
        ({"synced_gpus": True}, "synced_gpus does not go with search='paper'"),
        ({"stop_strings": ["a"], "tokenizer": None}, "stop_strings does not go"),
        ({"streamer": TextIteratorStreamer(stock.byte_tokenizer()), "num_beams": 1}, "streamer does not go"),
        ({"num_beam": 4}, "num_beam"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_it_does_not_do_is_said(model, options, message):
    with pytest.raises(ValueError, match=message):
        model.generate(**padded(ROWS), **{**PAPER, **options})


def test_a_decoder_alone_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt = GPT2LMHeadModel(GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=11, bos_token_id=1, eos_token_id=END))
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no source"):
        gpt.generate(torch.tensor([[3]]), custom_generate=beam_search, num_beams=2, pad_token_id=PAD, max_length=9)


def test_another_decoding_loop_goes_before_it(model):
    def loop(model, input_ids, **kwargs):
        return input_ids + 5

    found = model.generate(**padded(ROWS[:1]), **PAPER, custom_generate=loop, max_length=9)
    assert found.tolist() == [[START + 5]] * 4
