"""`TranslationPipeline` with tiny random stock models: what goes in, what comes out, and what is refused."""

import json
from pathlib import Path

import datasets
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.pipelines.pt_utils import KeyDataset

from hf_attention.model.pipeline_translation import TranslationPipeline


VERSE = "a dog runs in the park two cats sleep near one old red house translate English to German : and"
WORDS = VERSE.split()
TINY = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
TINY |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
SHORT = {"num_beams": 1, "max_new_tokens": 6}


def word_tokenizer(**options) -> PreTrainedTokenizerFast:
    """Whole words, `</s>` at the end: pad 0, start 1, end 2, unknown 3."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


def marian(seed: int = 0, **config) -> MarianMTModel:
    torch.manual_seed(seed)
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    ids |= {"vocab_size": len(WORDS) + 4, "max_position_embeddings": 32, "init_std": 1.0}
    return MarianMTModel(MarianConfig(**TINY, **ids | config)).eval()


def direct(model, tokenizer, text: str, **options) -> str:
    """The truth: the library's own three steps on one sentence."""
    ids = model.generate(**tokenizer(text, return_tensors="pt"), **options)
    return tokenizer.decode(ids[0], skip_special_tokens=True)


def texts(results) -> list[str]:
    return [result["translation_text"] for result in results]


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


@pytest.fixture(scope="module")
def pipe(tokenizer):
    return TranslationPipeline(marian(), tokenizer, task="translation", device="cpu")


SENTENCES = ["a dog runs", "two cats sleep near the old house", "one", "the red park"]


@pytest.fixture(scope="module")
def expected(pipe):
    answers = [direct(pipe.model, pipe.tokenizer, text, **SHORT) for text in SENTENCES]
    assert len(set(answers)) > 1 and all(answers), "a model that always says the same would prove nothing"
    return answers


# -- Inputs and their order -------------------------------------------------------------------------------------------


def test_report_1_string_list_and_generate_options(pipe, expected):
    assert pipe(SENTENCES[0], **SHORT) == [{"translation_text": expected[0]}]
    assert pipe(SENTENCES, **SHORT) == [{"translation_text": text} for text in expected]
    beams = direct(pipe.model, pipe.tokenizer, SENTENCES[0], num_beams=4, max_new_tokens=5)
    assert pipe(SENTENCES[0], num_beams=4, max_new_tokens=5) == [{"translation_text": beams}]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 16])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_gives_what_each_sentence_gives_alone(pipe, batch_size, num_beams):
    options = {"num_beams": num_beams, "max_new_tokens": 8}
    alone = [direct(pipe.model, pipe.tokenizer, text, **options) for text in SENTENCES]
    assert texts(pipe(SENTENCES, batch_size=batch_size, **options)) == alone
    ids = pipe(SENTENCES, batch_size=batch_size, return_tensors=True, **options)
    for text, record in zip(SENTENCES, ids, strict=True):
        (single,) = pipe.model.generate(**pipe.tokenizer(text, return_tensors="pt"), **options)
        assert record["translation_token_ids"].tolist() == single.tolist()


def test_sequences_columns_and_datasets(pipe, expected):
    table = datasets.Dataset.from_dict({"en": SENTENCES})
    assert texts(pipe(table["en"], **SHORT)) == expected
    assert texts(pipe(tuple(SENTENCES), **SHORT)) == expected
    streamed = pipe(KeyDataset(table, "en"), batch_size=2, **SHORT)
    assert list(streamed) == [[{"translation_text": text}] for text in expected]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_generator_is_read_as_it_is_consumed(pipe, expected, batch_size):
    read = []

    def source():
        for text in SENTENCES * 10:
            read.append(text)
            yield text

    results = iter(pipe(source(), batch_size=batch_size, **SHORT))
    assert next(results) == [{"translation_text": expected[0]}]
    assert len(read) <= 2 * batch_size
    assert [result[0]["translation_text"] for result in results] == (expected * 10)[1:]


def test_any_iterator_streams_like_a_generator(pipe, expected):
    assert [result[0]["translation_text"] for result in pipe(map(str, SENTENCES), **SHORT)] == expected


def test_nothing_in_nothing_out(pipe):
    assert pipe([]) == []
    assert pipe(()) == []
    assert list(pipe(iter([]))) == []
    assert list(pipe(KeyDataset(datasets.Dataset.from_dict({"en": []}), "en"))) == []


@pytest.mark.parametrize("bad", [None, 3, b"a dog", {"text": "a dog"}, ["a dog"]])
def test_what_is_no_string_is_refused_by_name(pipe, bad):
    with pytest.raises(ValueError, match=r"want a string") as refusal:
        pipe(["a dog", bad], **SHORT)
    assert repr(bad) in str(refusal.value)


@pytest.mark.parametrize("bad", [None, 3, b"a dog", {"text": "a dog"}])
def test_what_is_no_string_is_refused_by_name_alone_too(pipe, bad):
    with pytest.raises(ValueError, match=r"want a string") as refusal:
        pipe(bad, **SHORT)
    assert repr(bad) in str(refusal.value)


# -- Blank sources ----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(pipe, monkeypatch):
    """The number of sentences in each call of the model."""
    seen, generate = [], pipe.model.generate
    monkeypatch.setattr(
        pipe.model, "generate", lambda *a, **options: seen.append(len(options["input_ids"])) or generate(*a, **options)
    )
    return seen


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_report_55_blank_lines_give_blank_strings(pipe, expected, calls, batch_size):
    results = pipe(["", "  ", SENTENCES[0], "\n"], batch_size=batch_size, **SHORT)
    assert texts(results) == ["", "", expected[0], ""]
    assert calls == [1]
    assert pipe([]) == []


def test_lists_go_in_batches_of_so_many_tokens_longest_first(pipe, expected, calls):
    """The sentences have 4, 8, 2 and 4 tokens, the end included: 8 fill one batch, 2 · 4 another, 2 are left."""
    assert texts(pipe(SENTENCES, batch_tokens=8, **SHORT)) == expected
    assert calls == [1, 2, 1]
    del calls[:]
    assert texts(pipe(SENTENCES, **SHORT)) == expected
    assert calls == [4]
    del calls[:]
    assert texts(TranslationPipeline(pipe.model, pipe.tokenizer, batch_tokens=1)(SENTENCES, **SHORT)) == expected
    assert calls == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="batch_tokens=0: want a whole number"):
        pipe(SENTENCES, batch_tokens=0)


def test_blank_strings_never_reach_the_model(pipe, calls):
    assert pipe("") == pipe(" \t\n\u00a0\u3000") == [{"translation_text": ""}]
    assert pipe(["", " "], batch_size=2, num_return_sequences=2, num_beams=2) == [[{"translation_text": ""}] * 2] * 2
    assert pipe("", return_tensors=True)[0]["translation_token_ids"].tolist() == []
    assert calls == []


# -- Outputs ----------------------------------------------------------------------------------------------------------


def test_several_sequences_a_sentence_keep_their_own_list(pipe):
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 5}
    ids = pipe.model.generate(**pipe.tokenizer(SENTENCES[0], return_tensors="pt"), **options)
    three = [{"translation_text": text} for text in pipe.tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert pipe(SENTENCES[0], **options) == three
    several = pipe(["", *SENTENCES[:1]], batch_size=2, **options)
    assert several == [[{"translation_text": ""}] * 3, three]


def test_tensors_text_or_both(pipe, expected):
    (tensors,) = pipe(SENTENCES[0], return_tensors=True, **SHORT)
    (both,) = pipe(SENTENCES[0], return_tensors=True, return_text=True, **SHORT)
    assert set(tensors) == {"translation_token_ids"}
    assert both["translation_text"] == expected[0]
    assert torch.equal(both["translation_token_ids"], tensors["translation_token_ids"])
    assert pipe(SENTENCES[0], return_text=True, **SHORT) == [{"translation_text": expected[0]}]


def test_clean_up_reaches_the_tokenizer(pipe, monkeypatch):
    seen = []
    monkeypatch.setattr(pipe.tokenizer, "decode", lambda ids, **options: seen.append(options) or "")
    pipe(SENTENCES[0], **SHORT)
    pipe(SENTENCES[0], clean_up_tokenization_spaces=True, **SHORT)
    assert [options["clean_up_tokenization_spaces"] for options in seen] == [False, True]


def test_options_of_the_call_go_over_options_of_the_constructor(tokenizer, expected):
    pipe = TranslationPipeline(marian(), tokenizer, task="translation", device="cpu", num_beams=1, max_new_tokens=2)
    assert pipe(SENTENCES[0], return_tensors=True)[0]["translation_token_ids"].shape == (3,)
    assert pipe(SENTENCES[0], max_new_tokens=6) == [{"translation_text": expected[0]}]
    assert pipe(SENTENCES[0], return_tensors=True)[0]["translation_token_ids"].shape == (3,)


def test_stop_strings_need_no_tokenizer_from_the_caller(tokenizer, options_seen):
    pipe = TranslationPipeline(marian(), tokenizer, task="translation", device="cpu")
    pipe("a dog", stop_strings=["cats"])
    pipe("a dog")
    assert options_seen[0]["stop_strings"] == ["cats"] and options_seen[0]["tokenizer"] is tokenizer
    assert "tokenizer" not in options_seen[1]


# -- Generation defaults ----------------------------------------------------------------------------------------------


@pytest.fixture
def options_seen(monkeypatch):
    seen = []

    def generate(self, input_ids, attention_mask, **options):
        seen.append(options)
        return torch.zeros(len(input_ids), 1, dtype=torch.long)

    monkeypatch.setattr(MarianMTModel, "generate", generate)
    monkeypatch.setattr(T5ForConditionalGeneration, "generate", generate)
    return seen


def test_defaults_are_those_of_version_4(tokenizer, options_seen):
    TranslationPipeline(marian(max_position_embeddings=512), tokenizer, task="translation", device="cpu")("a dog")
    assert options_seen == [{"num_beams": 4, "max_new_tokens": 256}]


def test_no_default_runs_past_the_position_table(tokenizer, options_seen):
    TranslationPipeline(marian(max_position_embeddings=32), tokenizer, task="translation", device="cpu")("a dog")
    assert options_seen[0]["max_new_tokens"] == 32


def test_the_models_own_settings_stand(tokenizer, options_seen):
    model = marian()
    model.generation_config.update(max_length=9, num_beams=2)
    TranslationPipeline(model, tokenizer, task="translation", device="cpu")("a dog")
    assert not {"num_beams", "max_length", "max_new_tokens"} & set(options_seen[0])


def test_a_whole_generation_config_stands_alone(t5, tokenizer, options_seen):
    whole = GenerationConfig(do_sample=True)
    TranslationPipeline(t5, tokenizer, task="translation_en_to_de", device="cpu")("a dog", generation_config=whole)
    assert options_seen == [{"generation_config": whole}]


def test_defaults_really_run_to_the_end_of_the_table(tokenizer):
    model = marian()
    model.generation_config.eos_token_id = None
    (record,) = TranslationPipeline(model, tokenizer, task="translation", device="cpu")("a dog", return_tensors=True)
    assert len(record["translation_token_ids"]) <= 33


# -- Long sources -----------------------------------------------------------------------------------------------------


def test_report_18_too_long_a_source_is_refused_with_the_remedy(pipe):
    fits = " ".join(["dog"] * 31)
    assert len(pipe(fits, **SHORT)) == 1
    with pytest.raises(ValueError, match="33 tokens.*at most 32.*truncation=True"):
        pipe(fits + " dog", **SHORT)


def test_truncation_cuts_and_keeps_the_end_token(pipe):
    long = " ".join(["dog", "cats"] * 40)
    assert pipe.preprocess(long, truncation=True)["input_ids"][0].tolist() == [
        *pipe.tokenizer(long)["input_ids"][:31],
        pipe.tokenizer.eos_token_id,
    ]
    cut = " ".join(["dog", "cats"] * 15 + ["dog"])
    assert pipe(long, truncation=True, **SHORT) == pipe(cut, **SHORT)


def test_learned_positions_have_a_limit_and_an_offset_does_not_count(tokenizer):
    torch.manual_seed(0)
    config = BartConfig(**TINY, vocab_size=len(tokenizer), max_position_embeddings=8, pad_token_id=0, eos_token_id=2)
    bart = TranslationPipeline(BartForConditionalGeneration(config).eval(), tokenizer, task="translation")
    assert len(bart("dog " * 7, **SHORT)) == 1
    with pytest.raises(ValueError, match="9 tokens.*at most 8"):
        bart("dog " * 8, **SHORT)


def test_computed_positions_have_no_limit(many_languages):
    languages = {"src_lang": "en", "tgt_lang": "de"}
    assert len(many_languages["m2m100"]("a dog " * 40, **languages, **SHORT)) == 1  # max_position_embeddings is 16


# -- T5: prefix and options by the name of the task -------------------------------------------------------------------


@pytest.fixture(scope="module")
def t5():
    torch.manual_seed(0)
    config = T5Config(vocab_size=len(WORDS) + 4, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    config.eos_token_id, config.decoder_start_token_id, config.initializer_factor = 2, 0, 5.0
    params = {"prefix": "translate English to German: ", "max_length": 7, "num_beams": 2, "early_stopping": True}
    config.task_specific_params = {"translation_en_to_de": params}
    return T5ForConditionalGeneration(config).eval()


def test_t5_reads_prefix_and_options_from_its_config(t5, tokenizer):
    options = {"max_length": 7, "num_beams": 2, "early_stopping": True}
    right = direct(t5, tokenizer, "translate English to German: a dog runs", **options)
    named = TranslationPipeline(t5, tokenizer, task="translation_en_to_de", device="cpu")
    plain = TranslationPipeline(t5, tokenizer, task="translation", device="cpu")
    assert named("a dog runs") == plain("a dog runs", src_lang="en", tgt_lang="de") == [{"translation_text": right}]
    assert plain("translate English to German: a dog runs", **options) == [{"translation_text": right}]
    greedy = direct(t5, tokenizer, "translate English to German: a dog runs", num_beams=1, max_new_tokens=3)
    assert named("a dog runs", num_beams=1, max_new_tokens=3, early_stopping=False) == [{"translation_text": greedy}]


def test_the_callers_options_go_over_those_of_the_task(t5, tokenizer, options_seen):
    pipe = TranslationPipeline(t5, tokenizer, task="translation_en_to_de", device="cpu")
    pipe("a dog", num_beams=1, max_new_tokens=3)  # and no max_length beside it: `generate()` would warn
    pipe("a dog", max_length=4)
    chosen = [
        {name: seen.get(name) for name in ("num_beams", "max_length", "max_new_tokens")} for seen in options_seen
    ]
    assert chosen == [
        {"num_beams": 1, "max_length": None, "max_new_tokens": 3},
        {"num_beams": 2, "max_length": 4, "max_new_tokens": None},
    ]


def test_using_the_pipeline_leaves_the_config_alone(t5, tokenizer):
    before = json.dumps(t5.config.to_dict(), sort_keys=True, default=str)
    TranslationPipeline(t5, tokenizer, task="translation_en_to_de", device="cpu")("a dog")
    assert json.dumps(t5.config.to_dict(), sort_keys=True, default=str) == before


# -- Models of many languages -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many_languages(tmp_path_factory) -> dict[str, TranslationPipeline]:
    pieces = [f"▁{word}" for word in WORDS]
    head = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -9.0)]
    mbart = MBartTokenizer(vocab=[*head, *((piece, -1.0) for piece in pieces), ("<mask>", 0.0)])
    nllb = NllbTokenizer(vocab={token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS])})
    tokenizers = {"mbart": mbart, "nllb": nllb, "m2m100": m2m100_tokenizer(tmp_path_factory.mktemp("m2m100"))}
    pipes = {}
    for name, tokenizer in tokenizers.items():
        torch.manual_seed(0)
        kind, config = (
            (MBartForConditionalGeneration, MBartConfig)
            if name == "mbart"
            else (M2M100ForConditionalGeneration, M2M100Config)
        )
        ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        ids |= {"decoder_start_token_id": tokenizer.eos_token_id, "forced_eos_token_id": None, "init_std": 1.0}
        model = kind(config(**TINY, **ids, vocab_size=400, max_position_embeddings=16))
        pipes[name] = TranslationPipeline(model.eval(), tokenizer, task="translation", device="cpu")
    return pipes


def m2m100_tokenizer(folder: Path):
    spm = pytest.importorskip("sentencepiece", reason="M2M100's tokenizer is made of a sentencepiece model")
    from transformers import M2M100Tokenizer

    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "m"), vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    model = spm.SentencePieceProcessor(model_file=str(folder / "m.model"))
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(i) for i in range(3, len(model)))]
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    return M2M100Tokenizer(str(vocabulary), str(folder / "m.model"))


LANGUAGES = {"mbart": ("de_DE", "en_XX"), "nllb": ("deu_Latn", "eng_Latn"), "m2m100": ("de", "en")}


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_languages_reach_source_and_target(many_languages, name, batch_size):
    pipe, (src, tgt) = many_languages[name], LANGUAGES[name]
    target_id = pipe.tokenizer.convert_tokens_to_ids(f"__{tgt}__" if name == "m2m100" else tgt)
    pipe.tokenizer.src_lang = src
    alone = [direct(pipe.model, pipe.tokenizer, t, forced_bos_token_id=target_id, **SHORT) for t in SENTENCES]
    pipe.tokenizer.src_lang = tgt
    results = pipe(SENTENCES, src_lang=src, tgt_lang=tgt, batch_size=batch_size, **SHORT)
    assert texts(results) == alone
    tensors = pipe(["", *SENTENCES], src_lang=src, tgt_lang=tgt, batch_size=batch_size, return_tensors=True, **SHORT)
    assert [int(record["translation_token_ids"][1]) for record in tensors[1:]] == [target_id] * len(SENTENCES)
    encoded = pipe.preprocess(SENTENCES[0], src_lang=src, tgt_lang=tgt)["input_ids"][0].tolist()
    assert pipe.tokenizer.convert_tokens_to_ids(f"__{src}__" if name == "m2m100" else src) in encoded


def test_the_task_name_gives_the_pair(many_languages):
    pipe = many_languages["nllb"]
    by_name = TranslationPipeline(pipe.model, pipe.tokenizer, task="translation_deu_Latn_to_eng_Latn", device="cpu")
    assert by_name("a dog", **SHORT) == pipe("a dog", src_lang="deu_Latn", tgt_lang="eng_Latn", **SHORT)


@pytest.mark.parametrize("name", LANGUAGES)
def test_missing_and_unknown_languages_are_refused(many_languages, name):
    pipe, (src, tgt) = many_languages[name], LANGUAGES[name]
    with pytest.raises(ValueError, match="tgt_lang=None"):
        pipe("a dog", src_lang=src)
    with pytest.raises(ValueError, match="tgt_lang='xx'"):
        pipe("a dog", src_lang=src, tgt_lang="xx")
    with pytest.raises(ValueError, match="src_lang='dog'"):
        pipe("a dog", src_lang="dog", tgt_lang=tgt)


# -- What it is built from --------------------------------------------------------------------------------------------


def test_a_decoder_only_model_is_refused(tokenizer):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match="GPT2LMHeadModel.*encoder-decoder"):
        TranslationPipeline(model, tokenizer, task="translation")


def test_a_missing_tokenizer_is_named():
    with pytest.raises(ValueError, match="tokenizer"):
        TranslationPipeline(marian(), task="translation")


def test_a_model_fresh_from_training_does_not_drop_out(tokenizer, expected):
    model = marian(dropout=0.5).train()
    pipe = TranslationPipeline(model, tokenizer, task="translation", device="cpu")
    assert texts(pipe(SENTENCES, **SHORT)) == expected


def test_marians_own_tokenizer(tmp_path):
    spm = pytest.importorskip("sentencepiece", reason="Marian's tokenizer is made of two sentencepiece models")
    from transformers import MarianTokenizer

    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    prefix = str(tmp_path / "source")
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"), model_prefix=prefix, vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    model = spm.SentencePieceProcessor(model_file=prefix + ".model")
    pieces = ["</s>", "<unk>", *(model.id_to_piece(i) for i in range(3, len(model))), "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    tokenizer = MarianTokenizer(prefix + ".model", prefix + ".model", str(tmp_path / "vocab.json"))
    pad = tokenizer.pad_token_id
    ids = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "vocab_size": len(pieces)}
    pipe = TranslationPipeline(marian(**ids), tokenizer, task="translation_en_to_de", device="cpu")
    alone = [direct(pipe.model, tokenizer, text, **SHORT) for text in SENTENCES]
    assert texts(pipe(SENTENCES, batch_size=2, **SHORT)) == alone
    cut = pipe.preprocess("a dog runs in the park " * 10, truncation=True)["input_ids"][0]
    assert len(cut) == 32 and cut[-1] == tokenizer.eos_token_id


def test_half_a_surrogate_pair_is_refused(pipe):
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        pipe("a \ud800 dog", **SHORT)


def test_another_models_tokenizer_is_refused_when_it_shows(tokenizer):
    small = TranslationPipeline(marian(vocab_size=6), tokenizer, task="translation", device="cpu")
    with pytest.raises(ValueError, match=r"gives id \d+, and the model has 6 tokens"):
        small(VERSE, **SHORT)
