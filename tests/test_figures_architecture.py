"""Figure 1: what it says against the model itself, seen by hooks of its own."""

import copy
import itertools
from functools import cache

import pytest
import torch
from conftest import build_model
from svg import HOSTILE, of, overlaps, read, texts
from torch import nn

from hf_attention import Trace, trace
from hf_attention.figures import draw


TOY = {"vocab_size": 5}
ODD = {  # nothing is as large as anything else
    **{"vocab_size": 7, "num_layers": 3, "num_decoder_layers": 1, "d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 2},
    **{"d_ff": 20, "position_encoding": "learned", "max_position_embeddings": 32},
}
TOY_PAIRS = [[3, 4, 2], [4, 2]], [[4, 3, 2], [4, 2]]
ODD_PAIRS = [[3, 4, 5, 6, 2]], [[4, 3, 2]]
RUNS = {"toy": (TOY, TOY_PAIRS), "odd": (ODD, ODD_PAIRS)}


@pytest.fixture(params=RUNS, name="run", scope="module")
def a_run(request):
    """A model, the trace of its run, and what was drawn of it."""
    model, made = ran(request.param)
    return model, made, read(draw(made, "architecture"))


@cache
def ran(name):
    fields, pairs = RUNS[name]
    model = build_model(**fields)
    return model, trace(model, None, *pairs, search=False)


def batch_of(made):
    tensors = {name: made[f"source.{name}"].value for name in ("input_ids", "attention_mask")}
    return {**tensors, "labels": made["target.labels"].value}


def seen_by_hooks(model, made):
    """Shapes by the names of a trace, and module paths in the order in which they were done."""
    shapes, order = {}, []

    def hook(path):
        def after(module, args, kwargs, output):
            output = output if isinstance(output, torch.Tensor) else output[0]
            shapes[f"{path}.output"] = tuple(output.shape)
            entered = args or [value for value in kwargs.values() if isinstance(value, torch.Tensor)]
            shapes[f"{path}.input"] = tuple(entered[0].shape)
            if kwargs.get("memory") is not None:
                shapes[f"{path}.memory"] = tuple(kwargs["memory"].shape)
            order.append(path)

        return after

    handles = [
        module.register_forward_hook(hook(name.removeprefix("model.")), with_kwargs=True)
        for name, module in model.named_modules()
        if name
    ]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch_of(made), output_attentions=True)
    for handle in handles:
        handle.remove()
    for kind, weights in (
        ("encoder.layers.{}.self_attn", output.encoder_attentions),
        ("decoder.layers.{}.self_attn", output.decoder_attentions),
        ("decoder.layers.{}.cross_attn", output.cross_attentions),
    ):
        shapes |= {f"{kind.format(layer)}.weights": tuple(each.shape) for layer, each in enumerate(weights)}
    for path in order:
        if path.endswith("feed_forward"):
            shapes[f"{path}.inner"] = shapes[f"{path}.fc1.output"]
    batch = batch_of(made)
    shapes["source.input_ids"] = tuple(batch["input_ids"].shape)
    shapes["target.labels"] = shapes["target.decoder_input_ids"] = tuple(batch["labels"].shape)
    shapes["lm_head.logits"] = shapes["lm_head.log_probs"] = shapes["lm_head.output"]
    return shapes, order


def links(drawn):
    """The boxes that open something: (path, name, rectangle), from below."""
    boxes = []
    for each in of(drawn, "rect", "box"):
        group = each.within("link")
        if group is not None and not any(group is other for _, _, _, other in boxes):
            boxes.append((group.get("data-open"), group.get("aria-label"), each, group))
    return [box[:3] for box in sorted(boxes, key=lambda box: -box[2].y)]


def is_in(box, x, y):
    return box.x < x < box.x + box.width and box.y < y < box.y + box.height


def tokens(drawn):
    """What is written in small boxes, with whether it is faint, by the name of the group."""
    found = {}
    for box in of(drawn, "rect", "thin"):
        group = box.within("link")
        if group is not None:
            inside = [
                each for each in of(drawn, "text") if each.within("link") is group and is_in(box, each.x, each.y)
            ]
            found.setdefault(group.get("aria-label"), []).extend((each.text, "faint" in each.kind) for each in inside)
    return found


def test_every_shape_is_the_one_that_hooks_see(run):
    model, made, drawn = run
    shapes, _ = seen_by_hooks(model, made)
    said = of(drawn, "text", "shape")
    assert len(said) == 27
    config = model.config
    sizes = {"D": config.d_model, "F": config.d_ff, "H": config.num_heads, "W": config.vocab_size}
    sizes |= dict(zip("BS", shapes["source.input_ids"], strict=True)) | {"T": shapes["target.labels"][1]}
    for each in said:
        letters, numbers = each.shape
        assert numbers == shapes[each.data_tensor], each.text
        assert numbers == tuple(sizes[letter] for letter in letters), each.text


def test_every_arrow_has_a_shape(run):
    """Those with a head carry a tensor whose shape is written: at the arrow, or where it branches off."""
    _, made, drawn = run
    said = {each.data_tensor for each in of(drawn, "text", "shape")}
    arrows = [each for each in of(drawn, "path", "line") if each.element.get("marker-end")]
    assert len(arrows) > 25
    for arrow in arrows:
        name = arrow.data_tensor
        if name.endswith("cross_attn.memory"):  # written at the encoder, where it leaves
            assert torch.equal(made[name].value, made["encoder.output"].value)
            name = "encoder.output"
        assert name in said


def test_arrows_carry_what_the_box_below_has_made(run):
    """What leaves a stack is what its last layer made, whichever layer is drawn."""
    _, made, drawn = run
    arrows = of(drawn, "path", "line")
    for path, _, box in links(drawn):
        leaving = [arrow for arrow in arrows if arrow.points[0] == pytest.approx((box.x + box.width / 2, box.y))]
        if ".layers." in path or path.endswith("embed_tokens"):
            assert leaving
        for arrow in leaving:
            if path == "lm_head":
                assert arrow.data_tensor in ("lm_head.logits", "lm_head.log_probs")
                continue
            last = path.endswith("feed_forward_add_norm")
            wanted = f"{path.partition('.')[0]}.output" if last else f"{path}.output"
            assert torch.equal(made[arrow.data_tensor].value, made[wanted].value)


def test_boxes_are_the_modules_in_their_order(run):
    model, made, drawn = run
    _, order = seen_by_hooks(model, made)
    boxes = [path for path, _, _ in links(drawn)]
    for stack in ("encoder", "decoder"):
        paths = [path for path in boxes if path.startswith(f"{stack}.layers")]
        parts = {"self_attn", "cross_attn", "feed_forward"}
        parts |= {f"{part}_add_norm" for part in parts}
        layer = [path for path in order if path.startswith(f"{stack}.layers.0.") and path.split(".")[-1] in parts]
        assert paths == layer
    assert [path for path in boxes if path == "lm_head"][:2] == ["lm_head", "lm_head"]
    assert {"encoder.embed_tokens", "decoder.embed_positions", "source", "target", "loss"} <= set(boxes)


def test_as_many_norms_as_the_model_has(run):
    """Five for a layer of each stack, and no final one."""
    model, _, drawn = run
    count = {"encoder": model.config.num_layers, "decoder": model.config.num_decoder_layers}
    norms = [path.partition(".")[0] for path, name, _ in links(drawn) if name == "Add & Norm"]
    assert len(norms) == 5
    assert sum(count[stack] for stack in norms) == sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    written = [text for text in texts(drawn) if text.startswith("N = ")]
    assert written == [f"N = {count['encoder']}", f"N = {count['decoder']}"]


def test_what_did_not_run_is_not_drawn():
    _, made = ran("toy")
    without = Trace([tensor for tensor in made.values() if "cross_attn" not in tensor.name], made.info)
    names = [name for _, name, _ in links(read(draw(without, "architecture")))]
    assert (names.count("Add & Norm"), names.count("Multi-Head Attention")) == (4, 1)


def test_residuals_go_around_every_sublayer(run):
    """Each norm has an arrow into its side, which carries what enters the sub-layer below it."""
    model, made, drawn = run
    arrows = [each for each in of(drawn, "path", "line") if each.element.get("marker-end")]
    for path, name, box in links(drawn):
        if name != "Add & Norm":
            continue
        sides = box.x, box.x + box.width
        into = [
            arrow
            for arrow in arrows
            if arrow.points[-1][0] in sides and box.y < arrow.points[-1][1] < box.y + box.height
        ]
        assert len(into) == 1
        module = model.get_submodule(f"model.{path}")
        entered = []
        handle = module.register_forward_pre_hook(lambda module, args, entered=entered: entered.append(args[0]))
        with torch.no_grad():
            model(**batch_of(made))
        handle.remove()
        torch.testing.assert_close(made[into[0].data_tensor].value, entered[0])


def test_three_arrows_enter_attention(run):
    """From below; into cross-attention keys and values come from the encoder, queries from the decoder."""
    _, _, drawn = run
    arrows = [each for each in of(drawn, "path", "line") if each.element.get("marker-end")]
    for path, _, box in links(drawn):
        if not path.endswith("_attn"):
            continue
        bottom, left, right = box.y + box.height, box.x, box.x + box.width
        ends = [(*arrow.points[-1], arrow.data_tensor) for arrow in arrows]
        into = sorted((x, name) for x, y, name in ends if abs(y - bottom) < 0.1 and left < x < right)
        memory = [name.endswith("cross_attn.memory") for _, name in into]
        assert memory == ([True, True, False] if path.endswith("cross_attn") else [False] * 3)
        below = [each for each in of(drawn, "text") if bottom < each.y < bottom + 20 and left < each.x < right]
        letters = sorted((each.x, each.text) for each in below if len(each.text) == 1)
        assert [text for _, text in letters] == ["V", "K", "Q"]
        assert [x for x, _ in letters] == pytest.approx([x for x, _ in into], abs=10)


def test_only_the_decoder_looks_ahead_at_nothing(run):
    _, _, drawn = run
    masked = [path for path, name, _ in links(drawn) if name.startswith("Masked")]
    assert masked == ["decoder.layers.0.self_attn"]


def test_parameters_in_the_boxes_are_the_modules_own(run):
    model, _, drawn = run
    seen = set()
    for path, _, _ in links(drawn):
        module = dict(model.named_modules()).get(path) or dict(model.named_modules()).get(f"model.{path}")
        said = [
            int(each.text.split(" param")[0].split(" ")[-1].replace(",", ""))
            for each in of(drawn, "text")
            if "parameters" in each.text and each.within("link") is not None
            and each.within("link").get("data-open") == path
        ]  # fmt: skip
        if said:
            assert said == [sum(parameter.numel() for parameter in module.parameters())], path
            seen.add(path)
    assert len(seen) >= 13
    tied = [text for text in texts(drawn) if text.startswith("the same matrix E")]
    assert len(tied) == 2
    assert f"{model.num_parameters():,} parameters in all" in texts(drawn)


def test_untied_matrices_are_not_called_the_same():
    model = build_model(**TOY, tie_word_embeddings=False)
    drawn = read(draw(trace(model, None, *TOY_PAIRS, search=False), "architecture"))
    assert not [text for text in texts(drawn) if "same matrix" in text]
    assert [text for text in texts(drawn) if "[x]" in text] == ["Esrc[x] · √dmodel", "Etgt[x] · √dmodel"]
    tied = read(draw(ran("toy")[1], "architecture"))
    assert [text for text in texts(tied) if "[x]" in text] == ["E[x] · √dmodel"] * 2


def test_each_box_opens_something(run):
    _, made, drawn = run
    for path, _, _ in links(drawn):
        assert made.within(path), path


@pytest.mark.parametrize("layer, encoder, decoder", [(0, 0, 0), (2, 2, 0), (-1, 2, 0)])
def test_layer_chooses_what_the_boxes_open(layer, encoder, decoder):
    """The shallower stack shows its last layer."""
    _, made = ran("odd")
    drawn = read(draw(made, "architecture", layer=layer))
    opened = {path for path, _, _ in links(drawn)}
    assert {f"encoder.layers.{encoder}.self_attn", f"decoder.layers.{decoder}.cross_attn"} <= opened
    assert [text for text in texts(drawn) if text.startswith("layer ")] == [f"layer {encoder}", f"layer {decoder}"]
    assert all(made.within(path) for path in opened)


@pytest.mark.parametrize("sentence", [0, 1])
def test_tokens_are_those_of_the_sentence(sentence):
    model, made = ran("toy")
    drawn = read(draw(made, "architecture", sentence=sentence))
    best = model(**batch_of(made)).logits[sentence].argmax(-1)
    written = tokens(drawn)
    padding = [("<pad>", True)]
    assert (
        written["Inputs, sentence " + str(sentence)]
        == [
            [("3", False), ("4", False), ("</s>", False)],
            [("4", False), ("</s>", False), *padding],
        ][sentence]
    )
    assert (
        written["Labels"]
        == [
            [("4", False), ("3", False), ("</s>", False)],
            [("4", False), ("</s>", False), *padding],
        ][sentence]
    )
    assert (
        written[f"Outputs (shifted right), sentence {sentence}"]
        == [
            [("<s>", False), ("4", False), ("3", False)],
            [("<s>", False), ("4", False), ("</s>", False)],
        ][sentence]
    )
    assert [text for text, _ in written["Output Probabilities"]] == [made.token(token) for token in best]


def test_loss_is_the_models_own():
    model, made = ran("toy")
    plain = f"plain {float(model(**batch_of(made)).loss.detach()):.3f} · smoothed (ε = 0.1)"
    assert any(text.startswith(plain) for text in texts(read(draw(made, "architecture"))))


def test_positional_encoding_says_its_kind(run):
    model, _, drawn = run
    kinds = [text for text in texts(drawn) if text in ("sinusoidal", "learned")]
    assert kinds == [model.config.position_encoding] * 2


def test_no_text_lies_on_another(run):
    assert overlaps(run[2]) == []


def test_many_tokens_are_counted_not_crammed():
    long = [3 + i % 2 for i in range(60)] + [2]
    made = trace(build_model(**TOY), None, [long, [3, 2]], [long, [3, 2]], search=False)
    drawn = read(draw(made, "architecture"))
    assert overlaps(drawn) == []
    words = tokens(drawn)["Inputs, sentence 0"]
    assert 10 < len(words) < 61
    assert words[-1][0] == f"+{61 - (len(words) - 1)}"
    assert "<pad> ×59" in texts(read(draw(made, "architecture", sentence=1)))


@pytest.mark.parametrize("token", HOSTILE.values(), ids=HOSTILE)
def test_any_token_can_be_written(token):
    made = copy.deepcopy(ran("toy")[1])
    made.info["vocabulary"] = dict.fromkeys(made.info["vocabulary"], token)
    drawn = read(draw(made, "architecture"))
    assert overlaps(drawn) == []
    if len(token) < 8 and token.isprintable():
        assert token in texts(drawn)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sentence": 2}, "sentence is 2, wanted 0 to 1: the trace has 2 sentences"),
        ({"sentence": "first"}, "sentence is 'first'"),
        ({"layer": 2}, "layer is 2, wanted 0 to 1: the trace has 2 layers"),
        ({"layer": True}, "layer is True"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_option_is_named(options, message):
    _, made = ran("toy")
    with pytest.raises(ValueError, match=message):
        draw(made, "architecture", **options)


def test_in_training_the_dropout_is_said():
    made = trace(build_model(**TOY, dropout=0.25), None, *TOY_PAIRS, search=False, training=True)
    assert any("dropout 0.25" in text for text in texts(read(draw(made, "architecture"))))


def test_boxes_do_not_overlap(run):
    boxes = [box for _, _, box in links(run[2])]
    for one, other in itertools.combinations(boxes, 2):
        beside = one.x + one.width <= other.x or other.x + other.width <= one.x
        assert beside or one.y + one.height <= other.y or other.y + other.height <= one.y
