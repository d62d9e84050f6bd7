"""Figures 3 to 5: every line against the attention weights that the model returns itself."""

import copy
from functools import cache

import pytest
import torch
from conftest import build_model
from svg import HOSTILE, of, overlaps, read, texts

from hf_attention import trace
from hf_attention.figures import draw, names


LEAST = 0.02  # as the figures say

RUNS = {
    "toy": ({"vocab_size": 5}, ([[3, 4, 2], [4, 2]], [[4, 3, 2], [4, 2]])),
    "odd": (
        {"vocab_size": 7, "num_layers": 3, "num_decoder_layers": 1, "d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 2}
        | {"position_encoding": "learned", "max_position_embeddings": 32},
        ([[3, 4, 5, 6, 2]], [[4, 3, 2]]),
    ),
    "ten heads": ({"d_model": 20, "num_heads": 10}, ([[3, 4, 5, 2], [6, 7, 8, 9, 10, 2]], [[3, 2], [8, 9, 10, 2]])),
}
PATHS = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.cross_attn"]


@cache
def ran(name):
    fields, pairs = RUNS[name]
    model = build_model(**fields)
    made = trace(model, None, *pairs, num_beams=2, max_new_tokens=6)
    return model, made


def weights_of(model, made, path):
    """[B, H, queries, keys], as the model returns them."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(
            made["source.input_ids"].value,
            made["source.attention_mask"].value,
            made["target.decoder_input_ids"].value,
            output_attentions=True,
        )
    stack, _, layer, kind = path.split(".")
    whole = {"self_attn": getattr(output, f"{stack}_attentions"), "cross_attn": output.cross_attentions}[kind]
    return whole[int(layer)]


def lengths(made, sentence, path):
    """How many positions of the sentence are queries and keys, without padding."""
    source = int(made["source.attention_mask"].value[sentence].sum())
    target = int((made["target.labels"].value[sentence] != -100).sum())
    return (source if path.startswith("encoder") else target), (target if "decoder.layers.0.self" in path else source)


def lines(drawn):
    """{(head, query, key): weight} of the lines; the samples of the legend belong to no head."""
    found = {}
    for each in of(drawn, "path", "arc"):
        if each.within("head") is not None:
            place = int(each.within("head").get("data-head")), int(each.data_query), int(each.data_key)
            assert place not in found
            found[place] = float(each.data_weight)
    return found


def check(drawn, weights, heads):
    """Lines are the weights [H, queries, keys] of these heads, none forgotten and none too small."""
    found = lines(drawn)
    wanted = {
        (head, i, j): float(weights[head, i, j])
        for head in heads
        for i in range(weights.shape[1])
        for j in range(weights.shape[2])
        if weights[head, i, j] >= LEAST
    }
    assert found.keys() == wanted.keys()
    for place, weight in wanted.items():
        assert found[place] == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", RUNS)
def test_every_line_is_a_weight_of_the_model(name, path):
    model, made = ran(name)
    weights = weights_of(model, made, path)
    for sentence in range(len(weights)):
        queries, keys = lengths(made, sentence, path)
        drawn = read(draw(made, f"{path}.arcs", sentence=sentence))
        check(drawn, weights[sentence, :, :queries, :keys], range(min(8, weights.shape[1])))
        left_out = any("Padding is left out." in text for text in texts(drawn))
        assert left_out == ((queries, keys) != tuple(weights.shape[2:]))
        assert overlaps(drawn) == []


@pytest.mark.parametrize("name", RUNS)
def test_lines_join_the_words_of_the_sentence(name):
    """Each begins at the height of its query's word and ends at that of its key's, and stronger ones are wider."""
    _, made = ran(name)
    drawn = read(draw(made, "decoder.layers.0.cross_attn.arcs"))
    target = made["target.decoder_input_ids"].value[0].tolist()
    source = made["source.input_ids"].value[0].tolist()
    words = of(drawn, "text")
    arcs = [each for each in of(drawn, "path", "arc") if each.within("head") is not None]
    for arc in arcs:
        (x0, y0), *_, (x1, y1) = arc.points
        before = [
            each for each in words if abs(each.y - y0) < 6 and each.element.get("text-anchor") == "end" and each.x < x0
        ]
        after = [
            each
            for each in words
            if abs(each.y - y1) < 6 and each.element.get("text-anchor") == "start" and each.x > x1
        ]
        assert max(before, key=lambda each: each.x).text == made.token(target[int(arc.data_query)])
        assert min(after, key=lambda each: each.x).text == made.token(source[int(arc.data_key)])
    looks = sorted((float(arc.data_weight), float(arc.element.get("stroke-width"))) for arc in arcs)
    assert [width for _, width in looks] == sorted(width for _, width in looks)
    assert looks[0][1] < looks[-1][1]


def test_small_weights_are_left_out_and_it_is_said():
    model, made = ran("ten heads")
    weights = weights_of(model, made, PATHS[0])
    assert (weights[1] < LEAST).any()
    canvas = draw(made, f"{PATHS[0]}.arcs", sentence=1)
    assert "Weights below 0.02 are not drawn." in canvas.description
    assert any("Weights below 0.02 are not drawn." in text for text in texts(read(canvas)))


def test_one_query_with_all_heads():
    """As Figure 3: lines of one query, and beside each key a square for each head, as dark as its weight."""
    model, made = ran("odd")
    path = "decoder.layers.0.cross_attn"
    weights = weights_of(model, made, path)[0]
    for position in (0, 2, -1):
        drawn = read(draw(made, f"{path}.arcs", position=position))
        assert {query for _, query, _ in lines(drawn)} == {position % 3}
        alone = torch.zeros_like(weights)
        alone[:, position] = weights[:, position]
        check(drawn, alone, range(3))
        marks = [each for each in of(drawn, "rect") if each.data_mark]
        assert len(marks) == 3 * 5
        for mark in marks:
            weight = float(weights[int(mark.data_head), position, int(mark.data_key)])
            assert float(mark.data_mark) == pytest.approx(weight, rel=1e-5)
        assert overlaps(drawn) == []


def test_heads_are_named_and_chosen():
    model, made = ran("ten heads")
    weights = weights_of(model, made, PATHS[0])[1]
    drawn = read(draw(made, f"{PATHS[0]}.arcs", sentence=1, heads=[9, 0, 9]))
    check(drawn, weights, [0, 9])
    assert [text for text in texts(drawn) if text.startswith("head ")] == ["head 9", "head 0"]
    whole = texts(read(draw(made, f"{PATHS[0]}.arcs", sentence=1)))
    assert [text for text in whole if text.startswith("head ")] == [f"head {head}" for head in range(8)]
    assert any("8 of 10 heads" in text for text in whole)


def test_neighbouring_heads_differ_in_grey():
    """Their lines have colours of different lightness (ITU-R BT.601)."""
    _, made = ran("ten heads")
    drawn = read(draw(made, f"{PATHS[0]}.arcs", sentence=1))
    heads = [each.within("head") for each in of(drawn, "path", "arc") if each.within("head") is not None]
    colors = {head.get("data-head"): head.get("stroke") for head in heads}
    grey = [
        sum(share * int(colors[str(head)][at : at + 2], 16) for share, at in ((0.299, 1), (0.587, 3), (0.114, 5)))
        for head in range(8)
    ]
    assert len(set(colors.values())) == 8
    assert all(abs(one - other) > 35 for one, other in zip(grey, grey[1:], strict=False))


@pytest.mark.parametrize("name", RUNS)
def test_arcs_of_a_translation_are_the_winners(name):
    """The cross-attention with which each of its tokens was chosen: that of the decoder reading those before it."""
    model, made = ran(name)
    for index, search in enumerate(made.info["searches"]):
        source = made["source.input_ids"].value[index : index + 1]
        source = source[:, : int(made["source.attention_mask"].value[index].sum())]
        model.set_attn_implementation("eager")
        read_before = torch.tensor([search["prompt"] + search["tokens"][:-1]])
        with torch.no_grad():
            layers = model(source, decoder_input_ids=read_before, output_attentions=True).cross_attentions
        for layer in range(len(layers)):
            drawn = read(draw(made, f"search.{index}.arcs", layer=layer))
            found = lines(drawn)
            weights = layers[layer][0, :8]
            assert found.keys() >= {tuple(place) for place in (weights > LEAST + 1e-4).nonzero().tolist()}
            for (head, query, key), weight in found.items():
                assert weight == pytest.approx(float(weights[head, query, key]), abs=1e-5)
            assert overlaps(drawn) == []
        default = read(draw(made, f"search.{index}.arcs"))
        assert lines(default) == found  # the last layer
        words = [each.text for each in of(default, "text") if each.element.get("text-anchor") == "end"]
        assert words[: len(search["tokens"])] == [made.token(token) for token in search["tokens"]]


def test_every_attention_module_has_its_figure():
    _, made = ran("odd")
    wanted = [f"encoder.layers.{layer}.self_attn.arcs" for layer in range(3)]
    wanted += ["decoder.layers.0.self_attn.arcs", "decoder.layers.0.cross_attn.arcs", "search.0.arcs"]
    assert [name for name in names(made) if name.endswith(".arcs")] == wanted


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE)
def test_any_token_can_be_written(token):
    made = copy.deepcopy(ran("toy")[1])
    for sentence in made.info["sentences"]:
        sentence["source_tokens"] = [token] * len(sentence["source_tokens"])
    drawn = read(draw(made, "encoder.layers.1.self_attn.arcs", position=1))
    assert overlaps(drawn) == []
    if len(token) < 8 and token.isprintable():
        assert texts(drawn).count(token) == 6


@pytest.mark.parametrize(
    "name, options, message",
    [
        (PATHS[0], {"sentence": 2}, "sentence is 2, wanted 0 to 1: the trace has 2 sentences"),
        (PATHS[0], {"heads": [2]}, "heads is 2, wanted 0 to 1: the trace has 2 heads"),
        (PATHS[0], {"heads": []}, r"heads is \[\], wanted a list"),
        (PATHS[0], {"heads": 1}, "heads is 1, wanted a list"),
        (PATHS[0], {"heads": "all"}, "heads is 'all', wanted a list"),
        (PATHS[0], {"heads": ["one"]}, "heads is 'one', wanted 0 to 1"),
        (PATHS[0], {"position": 3}, "position is 3, wanted 0 to 2"),
        (PATHS[0], {"sentence": 1, "position": 2}, "position is 2, wanted 0 to 1"),  # of padding
        (PATHS[0], {"layer": 0}, "layer"),
        ("search.1", {"layer": 2}, "layer is 2, wanted 0 to 1: the trace has 2 decoder layers"),
        ("search.2", {}, "no figure 'search.2.arcs'"),
    ],
)
def test_a_bad_option_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        draw(ran("toy")[1], f"{name}.arcs", **options)
