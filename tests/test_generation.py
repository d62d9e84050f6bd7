"""Decoding: `generate()` on our model, whatever the cache and the batch, gives what plain forward passes give.

The model is one that has learned to reverse digits: rows end by themselves, at different lengths, and a mistake in a
cache, a mask or a position shows in the text.
"""

import pytest
import torch
from conftest import build_model
from reversing import END, LONGEST, PAD, ROWS, START, VOCABULARY, padded, random_digits, train_to_reverse
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache
from transformers.modeling_outputs import BaseModelOutput


SIZE = {"vocab_size": VOCABULARY, "d_model": 32, "d_ff": 64, "num_heads": 4}
TOLERANCE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(scope="module")
def reverser():
    """Reverses up to six digits. A few hundred steps on the CPU; asserted to have learned it."""
    model = build_model(**SIZE, num_decoder_layers=1, d_k=4, d_v=12)  # cached keys and values differ in width
    return train_to_reverse(model, 500, lambda step: min((step + 1) / 50, (500 - step) / 250, 1.0))


REVERSED = [row[::-1] for row in ROWS]


def test_report_29_rows_of_different_length_equal_each_alone_and_are_padded_after_the_end(reverser):
    together = reverser.generate(**padded(ROWS), max_new_tokens=12, do_sample=False)
    width = LONGEST + 2
    assert together.tolist() == [[START, *row, END] + [PAD] * (width - len(row) - 2) for row in REVERSED]
    for row, expected in zip(ROWS, REVERSED, strict=True):
        alone = reverser.generate(**padded([row]), max_new_tokens=12, do_sample=False)
        assert alone.tolist() == [[START, *expected, END]]


@torch.no_grad()
def test_greedy_search_is_the_argmax_of_plain_forwards(reverser):
    source = padded(ROWS)
    target = torch.full((len(ROWS), 1), START)
    for _ in range(LONGEST + 1):
        logits = reverser(**source, decoder_input_ids=target, use_cache=False).logits
        target = torch.cat([target, logits[:, -1:].argmax(-1)], dim=1)
    greedy = reverser.generate(**source, num_beams=1, do_sample=False, max_new_tokens=LONGEST + 1)
    assert greedy.tolist() == target.where(greedy.ne(PAD), PAD).tolist()  # a row that has ended is padded


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("cache", [{"use_cache": False}, {"cache_implementation": "static"}], ids=["none", "static"])
def test_any_cache_gives_the_same_hypotheses_and_scores(reverser, beams, cache):
    settings = {"num_beams": beams, "num_return_sequences": beams, "do_sample": False, "max_new_tokens": 10}
    settings |= {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
    usual = reverser.generate(**padded(ROWS), **settings)
    other = reverser.generate(**padded(ROWS), **settings, **cache)
    assert isinstance(usual.cache, EncoderDecoderCache) and isinstance(usual.cache.self_attention_cache, DynamicCache)
    assert other.sequences.tolist() == usual.sequences.tolist()
    torch.testing.assert_close(torch.stack(other.logits), torch.stack(usual.logits), **TOLERANCE)
    if beams > 1:
        torch.testing.assert_close(other.sequences_scores, usual.sequences_scores, **TOLERANCE)


def test_a_step_of_several_tokens_on_a_cache_equals_the_plain_forward(reverser):
    source, target = padded(ROWS), torch.cat([torch.full((4, 1), START), random_digits(4, 7)], dim=1)
    with torch.no_grad():
        plain = reverser(**source, decoder_input_ids=target, use_cache=False).logits
        first = reverser(**source, decoder_input_ids=target[:, :3], use_cache=True)
        ids = reverser(**source, decoder_input_ids=target[:, 3:7], cache=first.cache).logits
        embeddings = reverser.get_decoder().embed_tokens(target[:, 7:])
        last = reverser(**source, decoder_inputs_embeds=embeddings, cache=first.cache)
    torch.testing.assert_close(torch.cat([first.logits, ids, last.logits], dim=1), plain, **TOLERANCE)
    assert last.cache.get_seq_length() == 8


def test_the_stock_beam_search_moves_self_attention_only(reverser, monkeypatch):
    settings = {**padded(ROWS), "num_beams": 4, "max_new_tokens": 12}
    plain = reverser.generate(**settings, use_cache=False)
    moved = []
    reorder = DynamicCache.reorder_cache
    monkeypatch.setattr(DynamicCache, "reorder_cache", lambda cache, rows: (moved.append(cache), reorder(cache, rows)))
    output = reverser.generate(**settings, return_dict_in_generate=True)
    assert output.sequences.tolist() == plain.tolist()
    assert len(moved) > 3 and all(cache is output.cache.self_attention_cache for cache in moved)


@pytest.mark.parametrize("beams", [1, 3])
def test_encoder_outputs_and_embeddings_stand_in_for_the_source(reverser, beams):
    source = padded(ROWS)
    settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": 10}
    expected = reverser.generate(**source, **settings).tolist()
    mask = source["attention_mask"]
    with torch.no_grad():
        memory = reverser.get_encoder()(**source).last_hidden_state
        embeddings = reverser.get_input_embeddings()(source["input_ids"])
    encoded = BaseModelOutput(last_hidden_state=memory)
    assert reverser.generate(encoder_outputs=encoded, attention_mask=mask, **settings).tolist() == expected
    assert reverser.generate(inputs_embeds=embeddings, attention_mask=mask, **settings).tolist() == expected


@pytest.mark.parametrize("beams", [1, 3])
def test_attentions_and_hidden_states_come_from_generate(reverser, beams):
    source, rows, width = padded(ROWS), len(ROWS) * beams, LONGEST + 1
    wanted = {"output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True}
    settings = {"num_beams": beams, "do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    out = reverser.generate(**source, **settings, **wanted)
    assert out.sequences.tolist() == reverser.generate(**source, **settings).tolist()
    assert [tuple(layer.shape) for layer in out.encoder_attentions] == [(len(ROWS), 4, width, width)] * 2
    assert [tuple(layer.shape) for layer in out.encoder_hidden_states] == [(len(ROWS), width, 32)] * 3
    assert len(out.decoder_attentions) == len(out.cross_attentions) == len(out.decoder_hidden_states) == 5
    for step in range(5):
        (own,), (cross,) = out.decoder_attentions[step], out.cross_attentions[step]  # one decoder layer
        assert tuple(own.shape) == (rows, 4, 1, step + 1)
        assert tuple(cross.shape) == (rows, 4, 1, width)
        assert [tuple(layer.shape) for layer in out.decoder_hidden_states[step]] == [(rows, 1, 32)] * 2
        torch.testing.assert_close(cross.sum(-1), torch.ones(rows, 4, 1))
    assert out.cross_attentions[0][0][beams, :, :, 2:].abs().max() == 0  # `[10]` ends at position 1: then padding
    if beams == 1:
        with torch.no_grad():
            plain = reverser(**source, decoder_input_ids=out.sequences[:, :-1], output_attentions=True)
        steps = torch.cat([layers[0] for layers in out.cross_attentions], dim=2)
        torch.testing.assert_close(steps, plain.cross_attentions[0], **TOLERANCE)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_report_18_sources_and_targets_grow_past_every_length_seen(reverser, cache):
    source = {"input_ids": torch.cat([random_digits(2, 32), torch.full((2, 1), END)], dim=1)}
    settings = {"min_new_tokens": 40, "max_new_tokens": 41, "do_sample": False, "cache_implementation": cache}
    out = reverser.generate(**source, **settings)
    assert out.shape[1] >= 41 and not out[:, 1:41].eq(END).any()
    with torch.no_grad():
        assert reverser(**source, decoder_input_ids=out).logits.isfinite().all()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_report_18_learned_positions_end_with_a_clear_error(cache):
    model = build_model(position_encoding="learned", max_position_embeddings=8)
    settings = {"do_sample": False, "cache_implementation": cache}
    with pytest.raises(ValueError, match="9 positions, but max_position_embeddings=8"):
        model.generate(torch.tensor([[3, 4, END]]), min_new_tokens=10, max_new_tokens=10, **settings)


@pytest.mark.parametrize("fits", [0.5, 0.8])
def test_a_device_map_may_leave_layers_on_disk(reverser, fits, tmp_path):
    reverser.save_pretrained(tmp_path)
    memory = {"cpu": int(fits * reverser.get_memory_footprint())}
    spread = type(reverser).from_pretrained(
        tmp_path, device_map="auto", max_memory=memory, offload_folder=tmp_path / "offload"
    )
    assert set(spread.hf_device_map.values()) == {"cpu", "disk"}
    settings = {"num_beams": 2, "do_sample": False, "max_new_tokens": 10}
    assert (
        spread.generate(**padded(ROWS), **settings).tolist() == reverser.generate(**padded(ROWS), **settings).tolist()
    )


def test_the_generation_config_saved_with_a_model_knows_its_ids(reverser, tmp_path):
    reverser.save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    ids = (saved.pad_token_id, saved.bos_token_id, saved.eos_token_id, saved.decoder_start_token_id)
    assert ids == (PAD, START, END, START)


@pytest.fixture
def graphs():
    """Counts compiled graphs: `graphs.compile(model)` runs each as it was traced, and refuses to break it."""

    class Graphs(list):
        def compile(self, function):
            def backend(graph, inputs):
                self.append(graph)
                return graph.forward

            return torch.compile(function, fullgraph=True, backend=backend)

    torch.compiler.reset()
    yield Graphs()
    torch.compiler.reset()


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_forward_compiles_to_one_graph(implementation, graphs):
    model = build_model(**SIZE)
    model.set_attn_implementation(implementation)
    batch = {**padded(ROWS), "decoder_input_ids": random_digits(4, 5), "labels": random_digits(4, 5)}
    expected = model(**batch)
    out = graphs.compile(model)(**batch)
    assert len(graphs) == 1
    torch.testing.assert_close(out.logits, expected.logits, **TOLERANCE)
    torch.testing.assert_close(out.loss, expected.loss, **TOLERANCE)


@torch.no_grad()
def test_decoding_steps_on_a_static_cache_share_one_graph(reverser, graphs):
    source, steps = padded(ROWS), LONGEST + 1
    encoded = reverser.get_encoder()(**source)
    config = reverser.config.get_text_config(decoder=True)
    cache = EncoderDecoderCache(
        StaticCache(config, max_cache_len=steps), StaticCache(config, max_cache_len=source["input_ids"].shape[1])
    )
    settings = {"encoder_outputs": encoded, "attention_mask": source["attention_mask"], "cache": cache}
    token, tokens = torch.full((len(ROWS), 1), START), []
    step = reverser  # the first call projects the memory; all that follow are alike
    for _ in range(steps):
        token = step(decoder_input_ids=token, **settings).logits.argmax(-1)
        tokens.append(token)
        step = step if step is not reverser else graphs.compile(reverser)
    assert len(graphs) == 1
    expected = reverser.generate(**source, do_sample=False, max_new_tokens=steps)[:, 1:]
    decoded = torch.cat(tokens, dim=1)
    assert decoded.where(expected.ne(PAD), PAD).tolist() == expected.tolist()


@torch.no_grad()
def test_the_forward_exports_with_any_batch_and_lengths():
    model = build_model(**SIZE)
    batch = {**padded(ROWS), "decoder_input_ids": random_digits(4, 5), "use_cache": False}
    rows, source, target = (torch.export.Dim(name, min=2, max=64) for name in ("rows", "source", "target"))
    shapes = {
        "input_ids": {0: rows, 1: source},
        "attention_mask": {0: rows, 1: source},
        "decoder_input_ids": {0: rows, 1: target},
        "use_cache": None,
    }
    program = torch.export.export(model, (), batch, dynamic_shapes=shapes, strict=False)
    other = {**padded(ROWS[1:]), "decoder_input_ids": random_digits(3, 9), "use_cache": False}
    torch.testing.assert_close(program.module()(**other).logits, model(**other).logits, **TOLERANCE)
