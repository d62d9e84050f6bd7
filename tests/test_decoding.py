"""The decoder that beam search uses on plain weights, against the model itself, and where it must not be used."""

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from conftest import build_model
from peft import LoraConfig, get_peft_model
from reversing import PAD, START, padded, random_digits, train_to_reverse
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_attention.dropout import quicken
from hf_attention.model import decoding_vanilla_transformer
from hf_attention.model.decoding_vanilla_transformer import ROOM, LoneMemory, Memory, Product, QuickDecoder


SHAPES = {
    "toy": {},
    "d_k and d_v of their own": {"num_heads": 3, "d_model": 12, "d_k": 5, "d_v": 7},
    "learned positions": {"position_encoding": "learned", "max_position_embeddings": 2 * ROOM + 5},
    "one layer, one head, untied": {"num_layers": 1, "num_heads": 1, "tie_word_embeddings": False},
}
SOURCES = padded([[3, 4, 5, 6], [7], [8, 9]])  # [3, 5], two of them with padding


def quick(model, beams: int) -> QuickDecoder:
    memory = model.model.encoder(**SOURCES)[0]
    return QuickDecoder(model, memory, SOURCES["attention_mask"], beams)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """How many rows each step of a `QuickDecoder` has had."""
    seen, step = [], QuickDecoder.step
    monkeypatch.setattr(QuickDecoder, "step", lambda self, tokens: seen.append(len(tokens)) or step(self, tokens))
    return seen


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this build of PyTorch has no MKL, whose ways it is")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [1024, 1025, 1031], ids=["16 blocks", "5 blocks", "a prime"])
@pytest.mark.parametrize("avx512", [True, False])
@torch.inference_mode()
def test_a_large_weight_multiplies_any_number_of_rows(bias, outputs, avx512, monkeypatch):
    """Within 1e-5 of float64, in blocks and packed; packing is private to PyTorch, so this fails where it changes."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": avx512})
    torch.manual_seed(0)
    layer = torch.nn.Linear(512, outputs, bias=bias)
    packed, cut = Product(layer, rows=256), Product(layer, rows=4)
    assert packed.packed is not None and packed.by_mkl is avx512
    assert cut.packed is None and cut.blocks is not None
    for rows in (1, 4, 31, 64, 200, 255, 256, 300):
        states = torch.randn(rows, 512)
        expected = states.double() @ layer.weight.double().t() + (layer.bias.double() if bias else 0)
        for product in (packed, cut):
            torch.testing.assert_close(product(states).double(), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("fields", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("large, rows", [(1, 1), (1, 2**30), (2**30, 1)], ids=["packed", "in blocks", "plain"])
def test_every_logit_is_the_models_whatever_becomes_of_the_beams(fields, beams, large, rows, monkeypatch):
    """69 positions, past the room of the tree; beams change places at random, sentences leave one by one."""
    monkeypatch.setattr(decoding_vanilla_transformer, "PACKED_ROWS", rows)
    monkeypatch.setattr(decoding_vanilla_transformer, "LARGE", large)
    model = build_model(**fields)
    decoder, random = quick(model, beams), torch.Generator().manual_seed(0)
    sentences = torch.arange(3)
    tokens = torch.full((3 * beams, 1), START)
    for step in range(2 * ROOM + 5):
        source = sentences.repeat_interleave(beams)
        inputs = {name: rows[source] for name, rows in SOURCES.items()}
        expected = model(**inputs, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        torch.testing.assert_close(decoder.step(tokens), expected, rtol=1e-5, atol=1e-5)
        beam = torch.randint(beams, (len(sentences), beams), generator=random)
        stay = torch.arange(len(sentences))
        if step in (3, ROOM):  # the second sentence leaves, then the third, which has the first place by then
            stay = stay[stay != step % 2].flip(0)
        decoder.follow(beam, stay)
        tokens = tokens.unflatten(0, (-1, beams))[stay[:, None], beam[stay]].flatten(0, 1)
        sentences = sentences[stay]
        new = torch.randint(3, 11, (len(tokens), 1), generator=random)
        tokens = torch.cat([tokens, new], dim=1)
    assert sentences.tolist() == [0]


@torch.inference_mode()
def test_nodes_that_nobody_came_from_are_forgotten():
    """All hypotheses go on from the first one: one node in four is left, and the room is for twice that."""
    decoder = quick(build_model(), beams=4)
    for _ in range(10 * ROOM):
        decoder.step(torch.full((12, 1), START))
        decoder.follow(torch.zeros(3, 4, dtype=torch.long), torch.arange(3))
    assert decoder.tree.nodes >= 10 * ROOM  # that many are on the path
    assert decoder.tree.keys.shape[3] == decoder.tree.values.shape[3] <= 2 * (10 * ROOM + 4)


@torch.inference_mode()
@pytest.mark.parametrize("source, kind", [([3], LoneMemory), ([3, 4, 5], LoneMemory), ([3, 4, 5, 6], Memory)])
def test_a_short_sentence_alone_has_products_of_its_own(source, kind):
    """With fewer than d_k = 5 tokens; the logits are the model's, of every position that hypotheses may reach."""
    model, beams = build_model(num_heads=3, d_model=12, d_k=5, d_v=7), 4
    for parameter in model.parameters():
        parameter.normal_(std=0.5)  # biases too, which are 0 at first
    inputs = padded([source])
    decoder = QuickDecoder(model, model.model.encoder(**inputs)[0], inputs["attention_mask"], beams)
    assert all(type(memory) is kind for memory in decoder.memories)
    inputs = {name: rows.expand(beams, -1) for name, rows in inputs.items()}
    tokens = torch.full((beams, 1), START)
    for step in range(5):
        expected = model(**inputs, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
        torch.testing.assert_close(decoder.step(tokens), expected, rtol=1e-5, atol=1e-5)
        beam = torch.tensor([[step % 4, 0, 2, 1]])
        decoder.follow(beam, torch.tensor([0]))
        tokens = torch.cat([tokens[beam[0]], torch.tensor([[3], [4], [5], [6 + step]])], dim=1)


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_the_search_finds_the_same_with_it_and_without(monkeypatch, calls, beams):
    torch.manual_seed(3)
    model = train_to_reverse(build_model(d_model=16, d_ff=32).train()).eval()
    batch = padded([row.tolist() for length in range(1, 7) for row in random_digits(10, length)])
    options = {"search": "paper", "num_beams": beams, "length_penalty": 0.6, "pad_token_id": PAD}
    found = model.generate(**batch, **options)
    assert calls[0] == 60 * beams and calls[-1] < 60 * beams  # it was used, and who is done left the batch
    del calls[:]
    monkeypatch.setattr(type(model), "quick_decoder", None)
    assert torch.equal(model.generate(**batch, **options), found)
    assert not calls


def hooked(model):
    model.model.decoder.layers[1].feed_forward.fc1.register_forward_hook(lambda *_: None)


def watched(model):
    model.lm_head.register_forward_pre_hook(lambda *_: None)


def compiled(model):
    model.model.decoder.layers[0].self_attn.forward = model.model.decoder.layers[0].self_attn.forward


def eager(model):
    model.set_attn_implementation("eager")


def replaced(model):
    class Twice(torch.nn.Linear):
        def forward(self, states):
            return 2 * super().forward(states)

    model.model.decoder.layers[0].cross_attn.q_proj = Twice(8, 8)


@pytest.mark.parametrize("touch", [hooked, watched, compiled, eager, replaced])
def test_a_model_that_somebody_has_touched_runs_itself(calls, touch):
    model = build_model()
    touch(model)
    model.generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4)
    assert not calls


@pytest.mark.parametrize(
    "options",
    [
        {"return_dict_in_generate": True, "output_attentions": True},
        {"decoder_input_ids": torch.tensor([[START, 4]] * 3)},
        {"use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_who_asks_for_more_gets_it_from_the_model(calls, options):
    build_model().generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4, **options)
    assert not calls


def test_past_the_last_learned_position_it_says_what_the_model_says(calls, monkeypatch):
    """With an end that no token is, the search goes on to position 7 of 6."""
    model = build_model(position_encoding="learned", max_position_embeddings=6)
    options = {"search": "paper", "num_beams": 1, "max_new_tokens": 9, "eos_token_id": 10**6}
    with pytest.raises(ValueError, match="7 positions, but max_position_embeddings=6"):
        model.generate(**SOURCES, **options)
    assert len(calls) == 7
    monkeypatch.setattr(type(model), "quick_decoder", None)
    with pytest.raises(ValueError, match="7 positions, but max_position_embeddings=6"):
        model.generate(**SOURCES, **options)


def test_under_autocast_the_model_runs_itself(calls):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        build_model().generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4)
    assert not calls


def evaluate_in_bfloat16(model, tmp_path) -> None:
    """Leaves the model as it is between updates: Accelerate has put mixed precision into it."""
    arguments = Seq2SeqTrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none")
    Seq2SeqTrainer(model, arguments).evaluate([{"input_ids": [3, 4], "labels": [5, 6]}])
    assert "forward" in vars(model), "Accelerate casts elsewhere now: see _is_touched"


def test_in_a_trainers_mixed_precision_the_search_has_that_of_the_weights(calls, tmp_path):
    model, options = build_model(), {"search": "paper", "num_beams": 2, "max_new_tokens": 4}
    expected = model.generate(**SOURCES, **options)
    steps = len(calls)
    evaluate_in_bfloat16(model, tmp_path)
    assert torch.equal(model.generate(**SOURCES, **options), expected)
    assert len(calls) == 2 * steps > 0


def test_mixed_precision_hides_no_hook(calls, tmp_path):
    model = build_model()
    evaluate_in_bfloat16(model, tmp_path)
    add_hook_to_module(model, ModelHook())
    model.generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4)
    assert not calls


def test_an_adapter_is_heard(calls):
    model = get_peft_model(build_model(), LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    model.generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4)
    assert not calls


def test_a_model_in_training_may_search_between_updates(calls):
    """As the Trainer evaluates: with the quicker dropout in it, and in evaluation mode."""
    model = build_model(dropout=0.3)
    quicken(model)
    found = model.generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4)
    assert calls
    assert torch.equal(found, build_model().generate(**SOURCES, search="paper", num_beams=2, max_new_tokens=4))
