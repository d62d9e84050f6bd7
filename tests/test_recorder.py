"""A trace of one run: the run's own numbers, each of which a reader can recompute; and nothing stays behind."""

import pytest
import torch
from conftest import build_model
from recompute import recompute
from recorded import CASES, END, SOURCES, TARGETS, assert_close, case, padded
from stock import byte_tokenizer, tiny_marian
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention import LabelSmoothedCrossEntropy, VanillaTransformerConfig, VanillaTransformerModel, trace
from hf_attention import VanillaTransformerForConditionalGeneration as Model
from hf_attention.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def toy_trace():
    model, sources, targets = case("the toy")
    return trace(model, None, sources, targets, backward=True, search=False)


def hooks_of(model):
    return [
        hook
        for module in model.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        for hook in getattr(module, kind).values()
    ]


# -- The run's own numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_bit_for_bit_those_of_the_untraced_eager_run(name, implementation):
    model, sources, targets = case(name)
    batch = padded(sources, targets)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch)
    model.set_attn_implementation(implementation)
    found = trace(model, None, sources, targets, search=False)
    assert torch.equal(found["lm_head.logits"].value, expected.logits)
    torch.testing.assert_close(found["loss.plain"].value, expected.loss)
    assert model.config._attn_implementation == model.get_encoder().config._attn_implementation == implementation


def test_the_logits_are_bit_for_bit_the_same_in_bfloat16_and_with_gradients():
    model, sources, targets = case("d_k is not d_v")
    model = model.to(torch.bfloat16)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**padded(sources, targets)).logits
    for backward in (False, True):
        found = trace(model, None, sources, targets, backward=backward, search=False)
        assert torch.equal(found["lm_head.logits"].value, expected)
        assert found["encoder.layers.0.self_attn.weights"].value.dtype == torch.bfloat16
        assert found.info["mode"] == {"training": False, "backward": backward, "dtype": "bfloat16"}


@pytest.mark.parametrize("smoothing", [0.1, 0.0])
@pytest.mark.parametrize("name", CASES)
def test_every_tensor_follows_from_the_recorded_ones_that_flow_into_it(name, smoothing):
    model, sources, targets = case(name)
    found = trace(model, None, sources, targets, label_smoothing=smoothing, search=False)
    expected = recompute(found, model, padded(sources, targets), smoothing)
    assert set(expected) == set(found)
    for tensor in found.values():
        assert_close(tensor, tensor.value.double(), torch.from_numpy(expected[tensor.name]))


def test_training_really_drops_and_the_mode_comes_back():
    fields, sources, targets = CASES["three heads, lengths that differ"]
    model = build_model(**fields, dropout=0.5)
    model.get_decoder().train()  # a mixture, to see that each module comes back
    before = [module.training for module in model.modules()]
    torch.manual_seed(0)
    found = trace(model, None, sources, targets, training=True, search=False)
    assert [module.training for module in model.modules()] == before
    assert found.info["mode"]["training"] and found.info["counterfactual"] is None
    drops = [tensor.value.eq(0).float().mean() for name, tensor in found.items() if name.endswith("dropped")]
    assert len(drops) == 2 + 2 * 2 + 2 * 3
    assert all(0.2 < share < 0.8 for share in drops)
    for name, right in recompute(found, model, padded(sources, targets), 0.1, dropout=0.5).items():
        assert_close(name, found[name].value.double(), torch.from_numpy(right))
    torch.manual_seed(0)
    model.train()
    model.set_attn_implementation("eager")
    assert torch.equal(model(**padded(sources, targets)).logits, found["lm_head.logits"].value)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_losses_are_those_of_the_model_of_the_stock_smoother_and_of_ours(smoothing):
    model, sources, targets = case("three heads, lengths that differ")
    found = trace(model, None, sources, targets, label_smoothing=smoothing, search=False)
    batch = padded(sources, targets)
    outputs = model(**batch)
    stock = LabelSmoother(epsilon=smoothing)({"logits": outputs.logits}, batch["labels"])
    ours = LabelSmoothedCrossEntropy(smoothing)({"logits": outputs.logits}, batch["labels"])
    torch.testing.assert_close(found["loss.plain"].value, outputs.loss.detach())
    torch.testing.assert_close(found["loss.total"].value, stock.detach())
    torch.testing.assert_close(found["loss.total"].value, ours.detach())
    assert found.info["loss"] == {"smoothing": smoothing}


# -- The names --------------------------------------------------------------------------------------------------------


ATTENTION = [f"{part}{form}" for form in ("", "_split", "_heads") for part in "qkv"]
ATTENTION += ["products", "scores", "padding_mask", "look_ahead_mask", "mask", "masked_scores", "weights", "heads"]
ATTENTION += ["concat", "output"]
ADD_NORM = ["dropped", "sum", "output"]


def names_of(stack: str, layers: int) -> list[str]:
    names = [f"{stack}.{name}" for name in ("embed_tokens.rows", "embed_tokens.output", "embed_positions.output")]
    names += [f"{stack}.sum", f"{stack}.dropped"]
    for layer in (f"{stack}.layers.{i}" for i in range(layers)):
        names += [f"{layer}.self_attn.{name}" for name in ["input", *ATTENTION]]
        names += [f"{layer}.self_attn_add_norm.{name}" for name in ADD_NORM]
        if stack == "decoder":
            names += [f"{layer}.cross_attn.{name}" for name in ["input", "memory", *ATTENTION]]
            names += [f"{layer}.cross_attn_add_norm.{name}" for name in ADD_NORM]
        names += [f"{layer}.feed_forward.{name}" for name in ("inner", "relu", "output")]
        names += [f"{layer}.feed_forward_add_norm.{name}" for name in ADD_NORM]
    return [*names, f"{stack}.output"]


def test_the_names_and_their_order_are_an_interface(toy_trace):
    """Figures and readers ask for tensors by these names: a change here breaks them, and the traces people keep."""
    assert list(toy_trace) == [
        *("source.input_ids", "source.attention_mask", "target.labels", "target.decoder_input_ids"),
        *names_of("encoder", 2),
        *names_of("decoder", 2),
        *("lm_head.logits", "lm_head.log_probs", "loss.targets", "loss.counted", "loss.plain_per_token"),
        *("loss.per_token", "loss.divisor", "loss.plain", "loss.total"),
    ]


@pytest.mark.parametrize(
    ("tie", "source", "target", "last"), [(True, "E", "E", "Eᵀ"), (False, "E_src", "E_tgt", "W_out")]
)
def test_one_letter_for_one_matrix(tie, source, target, last):
    """§3.4 shares one matrix, E, in three places; matrices of their own have letters of their own."""
    model = build_model(num_layers=1, tie_word_embeddings=tie)
    found = trace(model, None, SOURCES, TARGETS, search=False)
    for stack, letter in (("encoder", source), ("decoder", target)):
        assert found[f"{stack}.embed_tokens.rows"].symbol == f"{letter}[x]"
        assert found[f"{stack}.embed_tokens.output"].symbol == f"{letter}[x]·√d_model"
        assert found[f"{stack}.sum"].symbol == f"{letter}[x]·√d_model + PE"
        assert found[f"{stack}.dropped"].symbol == f"dropout({letter}[x]·√d_model + PE)"
    assert found["lm_head.logits"].symbol == f"x {last}"
    assert found["lm_head.log_probs"].symbol == f"log softmax(x {last})"


def test_every_axis_of_one_letter_has_one_size():
    model, sources, targets = case("no two sizes alike")
    found = trace(model, None, sources, targets, search=False)
    sizes = {"B": 2, "S": 4, "T": 5, "H": 3, "K": 5, "V": 7, "D": 10, "F": 13, "H·K": 15, "H·V": 21, "W": 11}
    assert found.sizes == sizes
    for tensor in found.values():
        assert tensor.shape == tuple({**sizes, "1": 1}[axis] for axis in tensor.axes), tensor


def test_report_63_four_matrices_heads_and_three_arrows():
    """[2,10,8] -> [2,10,2,4] -> [2,2,10,4]; in cross-attention keys and values come from the memory."""
    model = build_model(num_layers=1)
    found = trace(model, None, [[3] * 9 + [2]] * 2, [[4, 5, 2]] * 2, search=False)
    attention = "encoder.layers.0.self_attn"
    assert found[f"{attention}.input"].shape == (2, 10, 8)
    assert found[f"{attention}.q_split"].shape == (2, 10, 2, 4)
    assert found[f"{attention}.q_heads"].shape == (2, 2, 10, 4)
    matrices = {row["module"]: row["shape"] for row in found.info["parameters"] if row["name"].endswith(".weight")}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        assert matrices[f"{attention}.{name}"] == [8, 8]
    cross = "decoder.layers.0.cross_attn"
    assert torch.equal(found[f"{cross}.memory"].value, found["encoder.output"].value)
    assert torch.equal(found[f"{cross}.input"].value, found["decoder.layers.0.self_attn_add_norm.output"].value)
    assert [found[f"{cross}.{name}"].shape[1] for name in "qkv"] == [3, 10, 10]
    assert "memory" in found[f"{cross}.k"].symbol and "memory" in found[f"{cross}.v"].symbol
    assert found[f"{cross}.scores"].axes == ("B", "H", "T", "S") and found[f"{cross}.scores"].shape == (2, 2, 3, 10)


def test_report_61_norms_follow_the_sums_and_none_follows_the_stack():
    """5N norms, each after its sum; fresh from the initialisation, every row that leaves one has mean 0 and std 1."""
    torch.manual_seed(0)
    model = Model(VanillaTransformerConfig(vocab_size=11, num_layers=3, d_model=64, d_ff=128, num_heads=4))
    found = trace(model, None, SOURCES, TARGETS, search=False)
    norms = [name for name in found if name.endswith("add_norm.output")]
    assert len(norms) == 5 * 3
    for name in norms:
        rows = found[name].value
        torch.testing.assert_close(rows.mean(-1), torch.zeros(rows.shape[:2]), atol=1e-5, rtol=0)
        torch.testing.assert_close(rows.std(-1, correction=0), torch.ones(rows.shape[:2]), atol=1e-3, rtol=0)
    for stack in ("encoder", "decoder"):
        last = found[f"{stack}.layers.2.feed_forward_add_norm.output"].value
        assert torch.equal(last, found[f"{stack}.output"].value)


def test_report_62_one_start_symbol_in_data_decoding_and_words():
    model = build_model(decoder_start_token_id=3, num_layers=1)
    found = trace(model, None, SOURCES, TARGETS, max_new_tokens=3)
    assert found["target.decoder_input_ids"].value.tolist() == [[3, 7, 3, 2, 0], [3, 4, 5, 6, 3]]
    assert found.info["special"] == {"pad": 0, "start": 3, "end": 2}
    assert [search["prompt"] for search in found.info["searches"]] == [[3], [3]]
    assert found.info["sentences"][0] == {
        "source": "<s> 4 5",
        "target": "7 <s>",
        "source_tokens": ["<s>", "4", "5", "</s>"],
        "decoder_tokens": ["<s>", "7", "<s>"],
        "label_tokens": ["7", "<s>", "</s>"],
    }


def test_report_27_attention_comes_with_the_default_load(tmp_path):
    build_model(num_layers=1).save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert model.config._attn_implementation == "sdpa"
    found = trace(model, None, SOURCES, TARGETS, max_new_tokens=4)
    for name in ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.cross_attn"):
        weights = found[f"{name}.weights"].value
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))
    assert found["search.1.cross_attention"].shape == (1, 2, 4, 2)
    assert model.config._attn_implementation == "sdpa"


# -- Words and parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_parameters_adds_up_with_a_tied_matrix_counted_once(name):
    model, sources, targets = case(name)
    found = trace(model, None, sources, targets, search=False)
    rows = found.info["parameters"]
    total = sum(row["count"] for row in rows if row["tied_to"] is None)
    assert total == model.num_parameters() == found.info["model"]["num_parameters"]
    tied = {row["name"]: row["tied_to"] for row in rows if row["tied_to"]}
    names = {"decoder.embed_tokens.weight", "lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert tied == dict.fromkeys(names, "encoder.embed_tokens.weight")
    state = {key.removeprefix("model."): list(value.shape) for key, value in model.state_dict().items()}
    assert {row["name"]: row["shape"] for row in rows} == state
    assert all(row["name"].startswith(f"{row['module']}.") for row in rows)


def letters(*more: str, unknown: str | None = None) -> PreTrainedTokenizerFast:
    """A vocabulary of single letters; a word begins with `▁`."""
    words = ["<pad>", "<s>", "</s>", "▁", "a", "b", "c", *more]
    model = models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[], unk_token=unknown)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", END)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": unknown}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{key: word for key, word in special.items() if word})


def test_report_65_from_text_to_a_trace_in_one_call():
    tokenizer = train_tokenizer(["a cat"] * 5, 263, show_progress=False)
    model = build_model(vocab_size=tokenizer.vocab_size, num_layers=1)
    found = trace(model, tokenizer, "a cat", "cats", max_new_tokens=4)
    assert found["source.input_ids"].value.tolist() == [tokenizer("a cat")["input_ids"]]
    assert found.info["sentences"] == [
        {
            "source": "a cat",
            "target": "cats",
            "source_tokens": ["a", "cat", "</s>"],
            "decoder_tokens": ["<s>", "cat", "·s"],
            "label_tokens": ["cat", "·s", "</s>"],
        }
    ]
    assert found["search.0.cross_attention"].axes == ("N", "H", "T", "S")
    shown = {token["token"] for step in found.info["searches"][0]["steps"] for top in step["top"] for token in top}
    assert {str(token) for token in shown} <= set(found.info["vocabulary"])


def test_words_show_where_they_begin():
    model = build_model(vocab_size=8, num_layers=1)
    found = trace(model, letters(), "ab c", "a", search=False)
    assert found.info["sentences"][0]["source_tokens"] == ["␣", "·a", "·b", "␣", "·c", "</s>"]
    assert found.info["vocabulary"]["7"] == "7"  # an id of the model that the tokenizer has no word for
    assert found.token(4) == "·a" and found.token(1) == "<s>"


def test_of_a_large_vocabulary_only_what_occurs_is_spelt():
    model = build_model(vocab_size=300, num_layers=1)
    found = trace(model, None, [[3, 250, 2]], [[299, 2]], max_new_tokens=3)
    words = set(map(int, found.info["vocabulary"]))
    assert len(words) < 300 and {0, 1, 2, 3, 250, 299, found.info["counterfactual"]["to"]} <= words
    assert set(found["lm_head.logits"].value.topk(5).indices.flatten().tolist()) <= words
    for hypothesis in found.info["searches"][0]["hypotheses"]:
        assert set(hypothesis["tokens"]) <= words


def test_without_targets_the_model_translates_for_itself():
    model = build_model(num_layers=1)
    found = trace(model, None, SOURCES, max_new_tokens=4, search="stock")
    for labels, search in zip(found["target.labels"].value.tolist(), found.info["searches"], strict=True):
        label = [token for token in labels if token != -100]
        assert label == [*search["tokens"], END][: len(label)] and label[-1] == END


# -- Mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ("", "a", r"sources\[0\] is '', wanted a sentence"),
        (["a", " \t"], ["a", "a"], r"sources\[1\] is ' \\t', wanted a sentence"),
        ("a", "\n", r"targets\[0\] is '\\n', wanted a sentence"),
        ([], [], "no sources, wanted at least one"),
        (["a"], [], "no targets, wanted at least one"),
        (None, "a", "sources is None, wanted a sentence"),
        (["a", "b"], ["a"], "2 sources and 1 targets"),
        ("a", ["a", "b"], "1 sources and 2 targets"),
        (
            "a",
            "a axb b xz",
            r"targets\[0\] is .*, which this vocabulary cannot spell: it has nothing for 'axb', 'xz'$",
        ),
        ("x a", "a", r"sources\[0\] is 'x a', which this vocabulary cannot spell: it has nothing for 'x'$"),
        ("a \u00e9", "a", "cannot spell: it has nothing for '\u00e9'"),
        ("</s>", "a", r"sources\[0\] is '</s>', which this vocabulary cannot spell"),
        ("xyz", "a", r"sources\[0\] is 'xyz', which this vocabulary cannot spell"),
        ([[4, 2]], [[8, 2]], r"targets\[0\] is \[8, 2\], wanted token ids from 0 to 7"),
        ([[-1, 2]], [[4, 2]], r"sources\[0\] is \[-1, 2\], wanted token ids from 0 to 7"),
        ([[]], [[4, 2]], r"sources\[0\] is \[\], wanted token ids from 0 to 7, at least one"),
        ([[3.7, 2]], [[4, 2]], r"sources\[0\] is \[3.7, 2\], wanted text or a list of token ids"),
        ([4, 2], [4, 2], r"sources\[0\] is 4, wanted text or a list of token ids"),
    ],
    ids=str,
)
def test_bad_sentences_are_named(sources, targets, message):
    with pytest.raises(ValueError, match=message):
        trace(build_model(vocab_size=8, num_layers=1), letters(), sources, targets)


def test_an_unknown_token_is_no_spelling():
    model = build_model(vocab_size=8, num_layers=1)
    with pytest.raises(ValueError, match=r"sources\[0\] is 'b ax', .* cannot spell: it has nothing for 'ax'"):
        trace(model, letters("<unk>", unknown="<unk>"), "b ax", "a")


@pytest.mark.parametrize(
    "text", ["\u00e9\u00df", "e\u0301", " a  b ", "\U0001f469\u200d\U0001f467", "a\u00adb", "\x00a"]
)
def test_any_text_can_be_traced_with_our_tokenizer(text):
    tokenizer = train_tokenizer(["ab cd"] * 5, 262, show_progress=False)
    found = trace(build_model(vocab_size=262, num_layers=1), tokenizer, text, text, search=False)
    assert found.info["sentences"][0]["source"] == text


def test_text_needs_a_tokenizer_and_the_right_one():
    with pytest.raises(ValueError, match=r"sources\[0\] is text, wanted token ids"):
        trace(build_model(), None, "a", "a")
    with pytest.raises(ValueError, match=r"tokenizer has 259 tokens and the model vocab_size=11"):
        trace(build_model(), byte_tokenizer(), "a", "a")


@pytest.mark.parametrize("smoothing", [1, 1.0, -0.1, float("nan"), True, "0.1", None])
def test_a_smoothing_that_is_no_probability_is_named(smoothing):
    with pytest.raises(ValueError, match="label_smoothing is"):
        trace(build_model(), None, SOURCES, TARGETS, label_smoothing=smoothing)


def test_only_our_model_with_its_head_is_traced():
    with pytest.raises(ValueError, match="model is MarianMTModel, wanted a VanillaTransformerForConditionalGen"):
        trace(tiny_marian(), None, [[3, 2]], [[3, 2]])
    with pytest.raises(ValueError, match="model is VanillaTransformerModel, wanted a"):
        trace(VanillaTransformerModel(build_model().config), None, SOURCES, TARGETS)
    with pytest.raises(ValueError, match="model is str, wanted a"):
        trace("a path", None, SOURCES, TARGETS)


@pytest.mark.parametrize("search", [True, False])
def test_a_misspelt_option_is_named_before_the_work(search):
    with pytest.raises(ValueError, match="num_beems is no option"):
        trace(build_model(), None, SOURCES, TARGETS, search=search, num_beems=4)


def test_a_wrapped_model_is_traced_with_what_the_wrapper_put_in():
    peft = pytest.importorskip("peft", reason="LoRA is peft's")
    model, sources, targets = case("untied")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q_proj"]))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    wrapped.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = wrapped(**padded(sources, targets)).logits
    found = trace(wrapped, None, sources, targets, backward=True, max_new_tokens=2)
    assert torch.equal(found["lm_head.logits"].value, expected)
    assert found["encoder.layers.0.self_attn.q"].gradient is not None
    counted = sum(row["count"] for row in found.info["parameters"] if row["tied_to"] is None)
    assert counted == sum(parameter.numel() for parameter in wrapped.parameters())


def test_a_wrapper_around_a_box_of_figure_1_is_refused():
    """Else the trace would show the box without what the wrapper adds to it."""
    peft = pytest.importorskip("peft", reason="LoRA is peft's")
    model = build_model(num_layers=1, tie_word_embeddings=False)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["embed_tokens"]))
    with pytest.raises(ValueError, match="embed_tokens.base_layer is inside a wrapper, wanted it merged"):
        trace(wrapped, None, SOURCES, TARGETS, search=False)
    merged = wrapped.merge_and_unload()
    assert not hooks_of(merged)
    trace(merged, None, SOURCES, TARGETS, search=False)


def test_a_config_that_samples_is_traced_by_search_and_says_so(caplog):
    model, sources, targets = case("the toy")
    model.generation_config.update(do_sample=True, num_return_sequences=3)
    with caplog.at_level("WARNING"):
        found = trace(model, None, sources, targets, max_new_tokens=3)
    assert "do_sample=True: traced is the search without it" in caplog.text
    model.generation_config.update(do_sample=False, num_return_sequences=1)
    assert found.info["searches"] == trace(model, None, sources, targets, max_new_tokens=3).info["searches"]
    with pytest.raises(ValueError, match="do_sample is True, wanted False"):
        trace(model, None, sources, targets, do_sample=True)


# -- Nothing stays behind ---------------------------------------------------------------------------------------------


ATTENTION_PLEASE = {"output_attentions": True, "return_dict_in_generate": True, "search": "stock"}


def test_no_hook_stays_in_a_model_that_had_none():
    model, sources, targets = case("the toy")
    trace(model, None, sources, targets, backward=True, search=False)
    assert not hooks_of(model)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_behind(implementation, fails):
    model, sources, targets = case("learned positions", dropout=0.1)
    model.set_attn_implementation(implementation)
    model.train()
    # The library itself hangs hooks into a model that has been asked for its attention, and leaves them there.
    model.generate(padded(sources, targets)["input_ids"], max_new_tokens=2, **ATTENTION_PLEASE)
    hooks = hooks_of(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    if fails:
        with pytest.raises(ValueError, match="7 positions, but max_position_embeddings=6"):
            trace(model, None, sources, [[3] * 6 + [2]] * 2, backward=True)
    else:
        trace(model, None, sources, targets, backward=True, max_new_tokens=4)
    assert hooks_of(model) == hooks
    assert model.config._attn_implementation == implementation
    assert {module.training for module in model.modules()} == {True}
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()
    model.eval()
    with torch.no_grad():
        again = model(**padded(sources, targets), output_attentions=True)
    assert again.decoder_attentions is not None


def test_the_traced_implementation_is_not_for_others():
    model = build_model()
    model.set_attn_implementation("traced")
    with pytest.raises(ValueError, match="attn_implementation='traced' is for hf_attention.trace"):
        model(**padded(SOURCES, TARGETS))
