"""The model: the paper's numbers, and the properties of the architecture."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import build_model
from safetensors.torch import load_file
from test_parity import batch
from torch import nn
from transformers import AutoModelForSeq2SeqLM, set_seed
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_attention import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


def empty(**fields) -> VanillaTransformerForConditionalGeneration:
    """A model without memory, for counting."""
    with torch.device("meta"):
        return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**fields))


def test_parameters_of_base_by_hand():
    attention = 4 * (512 * 512 + 512)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    norm = 2 * 512
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    assert empty().num_parameters() == 37000 * 512 + 6 * (encoder_layer + decoder_layer)
    assert empty().num_parameters() == pytest.approx(63.08e6, abs=5e3)


def test_report_61_post_norm_5n_norms_and_none_at_the_end():
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=50)).eval()
    assert sum(isinstance(module, nn.LayerNorm) for module in model.modules()) == 30
    rows = model.model.encoder(torch.randint(3, 50, (2, 9))).last_hidden_state
    torch.testing.assert_close(rows.mean(-1), torch.zeros(2, 9), atol=1e-5, rtol=0)
    torch.testing.assert_close(rows.std(-1, unbiased=False), torch.ones(2, 9), atol=1e-4, rtol=0)


def test_dropout_stands_only_where_section_5_4_puts_it():
    """On each sub-layer's output before the sum (5N), and on the sum of embeddings and positions in both stacks."""
    model = build_model(dropout=0.5).train()
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout)]
    assert len(names) == 5 * 2 + 2
    outside = [name for name in names if "add_norm" not in name]
    assert outside == ["model.encoder.dropout", "model.decoder.dropout"]
    for module in model.modules():  # with those silenced nothing random is left, attention weights included
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        assert torch.equal(model(**batch()).logits, model(**batch()).logits)


def test_report_13_first_loss_lies_between_ln_v_and_ln_v_plus_1():
    set_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=1000, dropout=0.0))
    ids = torch.randint(3, 1000, (8, 20))
    embedded = model.get_input_embeddings()(ids)
    assert embedded.var().item() == pytest.approx(1, abs=0.05)
    loss = model(input_ids=ids, labels=torch.randint(3, 1000, (8, 20))).loss.item()
    assert math.log(1000) < loss < math.log(1000) + 1


def test_report_14_glorot_uniform_everywhere_else():
    """Glorot & Bengio 2010, Equation 16: variance 2 / (fan_in + fan_out)."""
    set_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=1000, num_layers=1))
    layer = model.model.decoder.layers[0]
    assert layer.cross_attn.q_proj.weight.std().item() == pytest.approx(0.0442, rel=0.01)
    assert layer.feed_forward.fc1.weight.std().item() == pytest.approx(0.0280, rel=0.01)
    assert layer.cross_attn.q_proj.weight.abs().max().item() <= math.sqrt(6 / 1024)
    assert model.lm_head.weight.std().item() == pytest.approx(512**-0.5, rel=0.01)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            expected = torch.ones_like if name.endswith("norm.weight") else torch.zeros_like
            assert torch.equal(parameter, expected(parameter)), name


# pos 1, d_model 8 of §3.5, by calculator: sin 1, cos 1, sin 0.1, cos 0.1, sin 0.01, cos 0.01, sin 0.001, cos 0.001
POSITION_1 = [0.84147, 0.54030, 0.09983, 0.99500, 0.01000, 0.99995, 0.00100, 1.00000]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reports_15_and_20_sinusoids_are_interleaved_exact_and_not_in_the_checkpoint(toy, tmp_path, dtype):
    toy.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
    assert not [name for name in loaded.state_dict() if "positions" in name]
    for stack in (loaded.model.encoder, loaded.model.decoder):
        encoding = stack.embed_positions(torch.tensor([0, 1, 5000]))
        assert encoding.dtype == torch.float32
        np.testing.assert_allclose(encoding[1], POSITION_1, atol=5e-6)
        angles = 5000 / 10000 ** (np.arange(0, 8, 2) / 8)
        np.testing.assert_allclose(encoding[2, 0::2], np.sin(angles), atol=1e-6)
        np.testing.assert_allclose(encoding[2, 1::2], np.cos(angles), atol=1e-6)


def test_a_later_target_token_never_moves_an_earlier_logit(toy):
    changed = batch()
    changed["labels"][1, 3] = 3  # is fed in at position 4
    before, after = toy(**batch()).logits, toy(**changed).logits
    assert torch.equal(before[1, :4], after[1, :4])
    assert not torch.equal(before[1, 4], after[1, 4])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_report_22_padding_never_moves_anything(toy, implementation):
    toy.set_attn_implementation(implementation)
    alone = {"input_ids": torch.tensor([[8, 2]]), "labels": torch.tensor([[7, 8, 9, 10, 3, 2]])}
    with torch.no_grad():
        expected, whole = toy(**alone), toy(**batch())
        torch.testing.assert_close(whole.logits[1:2], expected.logits, atol=1e-5, rtol=0)
        loss = whole.loss
        toy.get_input_embeddings().weight[0] = 1e3
        poisoned = toy(**batch(), output_hidden_states=True)
        torch.testing.assert_close(
            poisoned.encoder_last_hidden_state[1, :2], expected.encoder_last_hidden_state[0], atol=1e-5, rtol=0
        )
        # the pad row is the pad token's logit too: compare the others
        torch.testing.assert_close(poisoned.logits[1:2, :, 1:], expected.logits[:, :, 1:], atol=1e-5, rtol=0)
    assert loss.isfinite()


def test_report_8_one_matrix_in_three_places_on_disk_and_after_training(toy, tmp_path):
    def places(model):
        return {
            embedding.weight.data_ptr()
            for embedding in (model.model.encoder.embed_tokens, model.model.decoder.embed_tokens, model.lm_head)
        }

    assert len(places(toy)) == 1
    toy.save_pretrained(tmp_path)
    on_disk = load_file(tmp_path / "model.safetensors")
    assert [name for name, tensor in on_disk.items() if tensor.shape == (11, 8)] == [
        "model.encoder.embed_tokens.weight"
    ]
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert len(places(loaded)) == 1
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    loaded(**batch()).loss.backward()
    before = loaded.lm_head.weight.clone()
    optimizer.step()
    assert len(places(loaded)) == 1 and not torch.equal(before, loaded.model.encoder.embed_tokens.weight)


def test_save_and_load_is_exact(toy, tmp_path):
    toy.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(**batch()).logits, toy(**batch()).logits)


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention"])
def test_report_27_attentions_come_back_with_the_same_logits(toy, implementation):
    toy.set_attn_implementation(implementation)
    with torch.no_grad():
        plain = toy(**batch())
        asked = toy(**batch(), output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(asked.logits, plain.logits, atol=1e-5, rtol=0)
    assert [a.shape for a in asked.encoder_attentions] == [(3, 2, 5, 5)] * 2
    assert [a.shape for a in asked.decoder_attentions] == [(3, 2, 6, 6)] * 2
    assert [a.shape for a in asked.cross_attentions] == [(3, 2, 6, 5)] * 2
    assert len(asked.encoder_hidden_states) == len(asked.decoder_hidden_states) == 3
    for weights in (*asked.encoder_attentions, *asked.decoder_attentions, *asked.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert asked.decoder_attentions[0].triu(1).abs().max() == 0  # nobody looks ahead
    assert asked.cross_attentions[0][1, :, :, 2:].abs().max() == 0  # nor at padding


def test_flash_attention_is_handed_what_it_needs(toy, monkeypatch):
    """No kernel runs on a CPU. This one, in its place, is Equation 1 under flash attention's contract: a mask of the
    keys [B, M], or none, and causality by the module's `is_causal`."""

    def flash(module, query, key, value, attention_mask, scaling=None, dropout=None, **_):
        assert dropout == 0.0 and (attention_mask is None or attention_mask.shape == (key.shape[0], key.shape[2]))
        may_look = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
        may_look = may_look.tril() if module.is_causal else may_look
        if attention_mask is not None:
            may_look = may_look & attention_mask.bool()[:, None, None, :]
        scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~may_look, float("-inf"))
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    expected = toy(**batch()).logits
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_attention_2", flash)
    toy.config._attn_implementation = "flash_attention_2"
    torch.testing.assert_close(toy(**batch()).logits, expected, atol=1e-5, rtol=0)
    assert toy(**batch(), output_attentions=True).cross_attentions[0].shape == (3, 2, 6, 5)
    toy.config.d_v = 5
    with pytest.raises(ValueError, match="d_k = d_v, got 4 and 5"):
        toy(**batch())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_report_25_half_precision_is_finite(toy, dtype, implementation):
    toy.set_attn_implementation(implementation)
    full = toy(**batch()).logits
    half = toy.to(dtype)(**batch()).logits
    assert half.dtype == dtype and half.isfinite().all()
    torch.testing.assert_close(half.float(), full, atol=0.15, rtol=0.1)


def test_loss_honours_num_items_in_batch(toy):
    """Two half batches, each divided by the whole's number of labels, add up to the whole: loss and gradients."""
    whole = batch()
    toy(**whole).loss.backward()
    gradients = [parameter.grad.clone() for parameter in toy.parameters()]
    toy.zero_grad()
    items = (whole["labels"] != -100).sum()
    losses = [
        toy(**{name: tensor[rows] for name, tensor in whole.items()}, num_items_in_batch=items).loss
        for rows in (slice(0, 1), slice(1, 3))
    ]
    sum(losses).backward()
    assert sum(losses).item() == pytest.approx(toy(**whole).loss.item(), abs=1e-6)
    for parameter, gradient in zip(toy.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_gradient_checkpointing_gives_the_same_gradients():
    plain, checkpointed = build_model().train(), build_model().train()
    checkpointed.activation_checkpointing_enable()
    for model in (plain, checkpointed):
        model(**batch()).loss.backward()
    for ours, theirs in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("tie", [True, False])
def test_resized_embeddings_keep_what_they_knew(tie, tmp_path):
    model = build_model(tie_word_embeddings=tie)
    before = model(**batch()).logits
    model.resize_token_embeddings(17)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == 17 and loaded.model.decoder.embed_tokens.weight.shape == (17, 8)
    # A product of another width is summed in another order on some CPUs.
    torch.testing.assert_close(loaded(**batch()).logits[..., :11], before, rtol=1e-5, atol=1e-6)


def test_report_18_any_length_with_sinusoids_and_a_clear_limit_without(toy):
    long = torch.full((1, 3000), 5)
    assert toy(input_ids=long, decoder_input_ids=long[:, :2]).logits.isfinite().all()
    learned = build_model(position_encoding="learned", max_position_embeddings=32)
    assert learned(input_ids=long[:, :32], decoder_input_ids=long[:, :32]).logits.isfinite().all()
    with pytest.raises(ValueError, match="33 positions.*max_position_embeddings=32.*truncation"):
        learned(input_ids=long[:, :33], decoder_input_ids=long[:, :2])
    with pytest.raises(ValueError, match="max_position_embeddings=32"):
        learned.generate(long[:, :2], min_new_tokens=40, max_new_tokens=41)
    assert toy.generate(long[:, :2], min_new_tokens=40, max_new_tokens=41).shape[1] >= 41


def test_missing_inputs_are_named(toy):
    ids = torch.tensor([[4, 2]])
    with pytest.raises(ValueError, match=r"decoder_input_ids.*labels.*collator.*model="):
        toy(input_ids=ids)
    with pytest.raises(ValueError, match="either token ids or embeddings"):
        toy(decoder_input_ids=ids)
    with pytest.raises(ValueError, match="encoder_hidden_states"):
        toy.model.decoder(input_ids=ids)


def test_embeddings_stand_in_for_ids(toy):
    ids = batch()["input_ids"]
    decoder_ids = toy.prepare_decoder_input_ids_from_labels(batch()["labels"])
    embed = toy.get_input_embeddings()
    mask = batch()["attention_mask"]
    expected = toy(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
    given = toy(inputs_embeds=embed(ids), attention_mask=mask, decoder_inputs_embeds=embed(decoder_ids)).logits
    assert torch.equal(given, expected)


def test_report_62_the_decoder_reads_the_labels_behind_the_start_symbol(toy):
    shifted = toy.prepare_decoder_input_ids_from_labels(torch.tensor([[4, 6, 2, -100, -100], [7, 8, 9, 10, 2]]))
    assert shifted.tolist() == [[1, 4, 6, 2, 0], [1, 7, 8, 9, 10]]
    assert toy.generation_config.decoder_start_token_id == 1


@torch.no_grad()
def test_the_old_name_of_the_cache_still_works(toy):
    ids = torch.tensor([[4, 2]])
    first = toy(input_ids=ids, decoder_input_ids=ids, use_cache=True)
    step = {"encoder_outputs": (first.encoder_last_hidden_state,), "decoder_input_ids": ids[:, :1]}
    new = toy(**step, cache=copy.deepcopy(first.cache)).logits
    assert torch.equal(toy(**step, past_key_values=copy.deepcopy(first.cache)).logits, new)


def test_in_training_under_autocast_attention_is_float32_on_a_cpu(toy, monkeypatch):
    seen, attention = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, *args, **kwargs: (seen.append(query.dtype), attention(query, *args, **kwargs))[1],
    )
    given = {"input_ids": torch.tensor([[4, 5, 2], [6, 7, 2]]), "labels": torch.tensor([[6, 2, -100], [7, 8, 2]])}
    exact = toy.train()(**given).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = toy(**given).loss
        loss.backward()
        with torch.no_grad():
            toy(**given)
    layers = 3 * len(toy.model.encoder.layers)  # one attention in each of the encoder's, two in the decoder's
    assert seen == [torch.float32] * 2 * layers + [torch.bfloat16] * layers
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)  # bfloat16 has 8 bits
