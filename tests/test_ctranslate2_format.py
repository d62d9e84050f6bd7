"""hf_attention.ctranslate2_format: truth is our own model, its log-probabilities and what `Translator` translates."""

import json
import random
from pathlib import Path

import pytest
import torch
from conftest import build_model
from reversing import FIRST, LONGEST, VOCABULARY, train_to_reverse
from stock import run_script

from hf_attention.export import export_model
from hf_attention.generation import length_penalty
from hf_attention.tokenization import word_tokenizer
from hf_attention.translation import load_translator


ctranslate2 = pytest.importorskip("ctranslate2", reason="no ctranslate2: pip install '.[export]'")

from hf_attention import ctranslate2_format  # noqa: E402
from hf_attention.ctranslate2_format import load  # noqa: E402


DIGITS = [str(digit) for digit in range(FIRST, VOCABULARY)]


def lines(count: int, longest: int = LONGEST) -> list[str]:
    """Rows of digits; two are blank."""
    chosen = random.Random(0)
    rows = [chosen.choices(DIGITS, k=chosen.randint(1, longest)) for _ in range(count)]
    return ["", *map(" ".join, rows), " \t"]


def save(folder: Path, model, **generation) -> str:
    model.generation_config.update(**generation, allow_custom_entries=True)
    model.save_pretrained(folder)
    word_tokenizer(DIGITS).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[str, str]:
    """A model that reverses digits, up to as many as it was trained on; and what is made of it."""
    model = build_model(num_layers=1, d_model=32, d_ff=64, num_heads=4)
    train_to_reverse(model, 300, lambda step: min((step + 1) / 50, (300 - step) / 150, 1.0))
    parent = tmp_path_factory.mktemp("reversing")
    ours = save(parent / "ours", model.eval(), num_beams=4, length_penalty=0.6, search="paper")
    return ours, str(export_model(ours, "ctranslate2", parent / "exported"))


# The model


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"position_encoding": "learned", "max_position_embeddings": 12},
        {"num_layers": 1, "num_decoder_layers": 3},
        {"d_k": 3, "d_v": 5},
        {"d_k": 7, "d_v": 2},
        {"d_k": 7, "d_v": 7},
        {"tie_word_embeddings": False},
        {"vocab_size": 16},  # rounded up beyond the tokenizer's
        {"decoder_start_token_id": 2},
    ],
    ids=str,
)
def test_log_probabilities_are_our_models(tmp_path, fields):
    """Of every token of a target, the source padded in its batch, to 1e-5."""
    model = build_model(**fields)
    exported = export_model(save(tmp_path / "ours", model), "ctranslate2", tmp_path / "exported")
    tokenizer = word_tokenizer(DIGITS)
    sources, target = ["3 7 10 5 4 4 9 3", "8 6"], [10, 3, 3, 8, 4, 9, 5, 2]
    inputs = tokenizer(sources, return_tensors="pt", padding=True)
    with torch.no_grad():
        labels = torch.tensor([target] * 2)
        expected = model(**inputs, labels=labels).logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    scored = ctranslate2.Translator(str(exported)).score_batch(
        [tokenizer.convert_ids_to_tokens(tokenizer(source)["input_ids"]) for source in sources],
        [tokenizer.convert_ids_to_tokens(target[:-1])] * 2,  # it adds the end itself
    )
    found = torch.tensor([result.log_probs for result in scored])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_positions_reach_as_far_as_it_says(tmp_path):
    """Sinusoids are a table there: the last row is good, and a longer line is cut to it, and said."""
    model = build_model()
    exported = export_model(save(tmp_path / "ours", model), "ctranslate2", tmp_path / "exported")
    line = " ".join(random.Random(0).choices(DIGITS, k=ctranslate2_format.SINUSOIDS + 9))
    options = {"max_source_tokens": 10**6}
    [found] = load(str(exported), ["num_beams=1", "max_new_tokens=5"], **options)([line])
    cut = " ".join(line.split()[: ctranslate2_format.SINUSOIDS - 1])
    [expected] = load_translator(str(tmp_path / "ours"), ["num_beams=1", "max_new_tokens=5"], **options)([cut])
    assert found == expected


# The search


@pytest.mark.parametrize(
    "overrides",
    [
        "search=stock num_beams=1 max_new_tokens=20",
        "search=stock early_stopping=true max_new_tokens=20",
        "search=stock early_stopping=true length_penalty=1.5 max_new_tokens=20",
        "search=stock early_stopping=true num_beams=2 max_new_tokens=4",
        "search=stock early_stopping=never length_penalty=0 max_new_tokens=20",
    ],
)
def test_searches_that_end_alike_give_the_same(folders, overrides):
    """Every line of 100, longer ones than were trained on among them, so that not all is easy."""
    ours, exported = folders
    text = lines(100, longest=LONGEST + 3)
    expected = list(load_translator(ours, overrides.split())(text))
    assert list(load(exported, overrides.split())(text)) == expected
    assert expected[0] == expected[-1] == "" and len(set(expected)) > 50


@pytest.mark.parametrize(
    "overrides",
    ["", "num_beams=1", "length_penalty=0", "num_beams=3 max_extra_tokens=1", "search=stock"],
)
def test_other_searches_give_the_same_where_the_model_knows_what_to_say(folders, overrides):
    """The docstring of the module tells where they may part."""
    ours, exported = folders
    expected = list(load_translator(ours, overrides.split())(lines(100)))
    assert list(load(exported, overrides.split())(lines(100))) == expected
    assert len(set(expected)) > 50


def test_what_the_generation_config_says_is_the_default(folders):
    exported = load(folders[1])
    assert exported.search == ctranslate2_format.Search(True, 4, 0.6, False, 50, None)
    assert list(exported(lines(50))) == list(load_translator(folders[0])(lines(50)))


def never_ending() -> torch.nn.Module:
    """Its end has no chance: what comes before the last linear layer is nearly all ones, and the end's row -10."""
    model = build_model(tie_word_embeddings=False)
    with torch.no_grad():
        norm = model.model.decoder.layers[-1].feed_forward_add_norm.norm
        norm.weight.fill_(0.1)
        norm.bias.fill_(1.0)
        model.lm_head.weight[2] = -10.0
    return model


@pytest.mark.parametrize("overrides", ["max_extra_tokens=2", "max_extra_tokens=9 max_new_tokens=8"])
def test_the_limit_is_each_sentences_own(tmp_path, overrides):
    """§6.1: the length of the source and so many more, whatever else is in its batch."""
    ours = save(tmp_path / "ours", never_ending(), search="paper", num_beams=3, length_penalty=0.6)
    exported = export_model(ours, "ctranslate2", tmp_path / "exported")
    found = list(load(str(exported), overrides.split())(lines(20)))
    assert found == list(load_translator(ours, overrides.split())(lines(20)))
    assert len({len(line.split()) for line in found}) > 1 + ("max_new" not in overrides)


def test_hypotheses_are_ranked_by_the_papers_formula():
    """Worked by hand: -1.0 for 2 tokens, -1.35 for 4, at α = 0.6, and CTranslate2 gives log P / length^α."""
    search = ctranslate2_format.Search(True, 2, 0.6, False, 50, None)
    short, long, cut_off = ["a", "</s>"], ["a", "b", "c", "</s>"], ["a", "b", "c", "d"]
    scores = [-1.0 / 2**0.6, -1.35 / 4**0.6, -0.1 / 4**0.6]
    assert scores[1] > scores[0]  # the stock formula prefers the long one, and both prefer what was cut off
    assert -1.0 / (7 / 6) ** 0.6 > -1.35 / (9 / 6) ** 0.6
    assert length_penalty(2, 0.6) == pytest.approx((7 / 6) ** 0.6)
    assert search.best([long, short, cut_off], [scores[1], scores[0], scores[2]], "</s>") == short


def test_batches_change_nothing(folders):
    expected = list(load(folders[1])(lines(30)))
    for tokens in (2, 40, 10**6):
        assert list(load(folders[1], batch_tokens=tokens)(lines(30))) == expected


def test_int8_is_smaller_and_nearly_the_same(folders, tmp_path):
    exported = export_model(folders[0], "ctranslate2", tmp_path / "int8", "int8")
    assert Path(exported, "model.bin").stat().st_size < Path(folders[1], "model.bin").stat().st_size
    found, expected = (list(load(str(folder))(lines(200))) for folder in (exported, folders[1]))
    same = sum(map(str.__eq__, found, expected))
    # Where a CPU has no products of int8 of its own (VNNI), CTranslate2's are coarser: 104 were the same on AVX2.
    capabilities = torch.cpu.get_capabilities()
    least = 150 if capabilities.get("avx512_vnni") or capabilities.get("avx_vnni") else 80
    assert len(found) == len(expected) and same > least


# The folder


def test_the_scripts(folders, tmp_path, capsys):
    source, output, exported = tmp_path / "source", tmp_path / "output", tmp_path / "exported"
    source.write_text("".join(f"{line}\n" for line in lines(20)))
    assert run_script("export.py", "--model", folders[0], "--to", "ctranslate2", "--output", exported) == 0
    assert capsys.readouterr().out.strip() == str(exported)
    arguments = ("--backend", "ctranslate2", "--model", exported)
    assert run_script("translate.py", *arguments, "--input", source, "--output", output) == 0
    translated = output.read_text().split("\n")[:-1]
    assert translated == list(load_translator(folders[0])(lines(20)))
    assert run_script("evaluate.py", *arguments, "--source", source, "--reference", output) == 0
    assert "100.00" in capsys.readouterr().out


def test_it_is_what_ctranslate2_users_expect(folders):
    """Alone with CTranslate2 and the tokenizer, as its documentation shows it: tokens in, tokens out."""
    tokenizer = word_tokenizer(DIGITS)
    engine = ctranslate2.Translator(folders[1])
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("3 4 5")["input_ids"])
    assert tokens[-1] == "</s>"
    [result] = engine.translate_batch([tokens], beam_size=1)
    ids = tokenizer.convert_tokens_to_ids(result.hypotheses[0])
    assert [tokenizer.decode(ids)] == list(load(folders[1], ["num_beams=1"])(["3 4 5"]))
    assert json.loads(Path(folders[1], "config.json").read_text())["decoder_start_token"] == "<s>"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("do_sample=true", "do_sample=True: the ctranslate2 backend has no such option"),
        ("no_repeat_ngram_size=2", "no_repeat_ngram_size=2"),
        ("repetition_penalty=1.2", "repetition_penalty=1.2"),
        ("num_return_sequences=2", "num_return_sequences=2"),
        ("eos_token_id=5", "eos_token_id=5: the exported model has 2"),
        ("num_beam=2", "is no field of GenerationConfig"),
    ],
)
def test_what_it_can_not_do_is_refused(folders, override, message):
    with pytest.raises(ValueError, match=message):
        load(folders[1], [override])


@pytest.mark.parametrize("name", ["model.bin", "config.json", "shared_vocabulary.json", "tokenizer.json"])
def test_a_damaged_folder_is_one_line(folders, tmp_path, capsys, name):
    for file in Path(folders[1]).iterdir():
        if file.name != name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert run_script("translate.py", "--backend", "ctranslate2", "--model", tmp_path, "--input", __file__) == 1
    *_, line = capsys.readouterr().err.strip().split("\n")
    assert line.startswith(f"error: {tmp_path}")
    (tmp_path / name).write_bytes(b"{}")
    assert run_script("translate.py", "--backend", "ctranslate2", "--model", tmp_path, "--input", __file__) == 1
    *_, line = capsys.readouterr().err.strip().split("\n")
    assert line.startswith(f"error: {tmp_path}")


def test_an_unexported_model_is_refused(folders):
    with pytest.raises(ValueError, match=r"no model.bin, wanted what training/export.py --to ctranslate2 makes"):
        load(folders[0])


def test_languages_are_refused(folders, capsys):
    arguments = ("--backend", "ctranslate2", "--model", folders[1], "--src-lang", "en")
    assert run_script("translate.py", *arguments) == 1
    assert "src_lang: for models of many languages" in capsys.readouterr().err


@pytest.mark.slow
def test_a_thousand_sentences_of_multi30k(multi30k, tmp_path):
    """float32: the stock search's translations, every one; int8 within 0.3 BLEU of them."""
    import sacrebleu
    from conftest import REPOSITORY

    folder = REPOSITORY / "runs" / "multi30k_tiny" / "averaged"
    if not folder.is_dir():
        pytest.skip("no runs/multi30k_tiny/averaged: python training/train.py configs/multi30k_tiny.yaml data_dir=DIR")
    source, reference = (
        (multi30k / f"test_2016_flickr.lc.norm.tok.{language}").read_text().split("\n")[:1000]
        for language in ("en", "de")
    )
    stock = ["search=stock", "early_stopping=true"]
    expected = list(load_translator(str(folder), stock)(source))
    found = {}
    for quantization in ("float32", "int8"):
        exported = export_model(str(folder), "ctranslate2", tmp_path / quantization, quantization)
        found[quantization] = list(load(str(exported), stock)(source))
    assert found["float32"] == expected
    bleu = [sacrebleu.corpus_bleu(lines, [reference], tokenize="none").score for lines in (expected, found["int8"])]
    assert abs(bleu[0] - bleu[1]) < 0.3
