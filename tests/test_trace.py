"""What is kept of a run: a trace saved and loaded is the trace; what is none is refused in one line."""

import json

import pytest
import torch
from conftest import build_model
from safetensors.torch import load_file, save_file

from hf_attention import Trace, trace
from hf_attention.tracing.trace import AXES, TracedTensor


SOURCES, TARGETS = [[3, 4, 5, 2], [6, 2]], [[7, 3, 2], [4, 5, 6, 3, 2]]


@pytest.fixture(scope="module")
def whole():
    """Every kind of tensor: ids, a boolean, gradients and none, no axes at all, bfloat16, searches."""
    model = build_model(num_layers=1, d_k=3, d_v=5).to(torch.bfloat16)
    return trace(model, None, SOURCES, TARGETS, backward=True, max_new_tokens=6)


def one(name="x", axes=("B",), value=None) -> TracedTensor:
    return TracedTensor(name, axes, "x", torch.zeros(2) if value is None else value)


def test_a_saved_trace_comes_back_whole(whole, tmp_path):
    path = tmp_path / "run.trace"
    whole.save(path)
    again = Trace.load(path)
    assert {tensor.value.dtype for tensor in whole.values()} == {
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.bool,
    }
    assert list(again) == list(whole)
    assert again.info == whole.info and again.sizes == whole.sizes and repr(again) == repr(whole)
    for name, tensor in whole.items():
        found = again[name]
        assert (found.name, found.axes, found.symbol, found.shape) == (name, tensor.axes, tensor.symbol, tensor.shape)
        assert found.value.dtype == tensor.value.dtype and torch.equal(found.value, tensor.value)
        assert (found.gradient is None) is (tensor.gradient is None)
        if tensor.gradient is not None:
            assert found.gradient.dtype == tensor.gradient.dtype and torch.equal(found.gradient, tensor.gradient)
    assert [file.name for file in tmp_path.iterdir()] == ["run.trace"]


def test_other_tools_can_read_the_file(whole, tmp_path):
    path = tmp_path / "run.trace"
    whole.save(str(path))
    tensors = load_file(path)
    gradients = {f"gradient:{name}" for name, tensor in whole.items() if tensor.gradient is not None}
    assert set(tensors) == set(whole) | gradients
    assert torch.equal(tensors["lm_head.logits"], whole["lm_head.logits"].value)


def test_saving_over_an_older_trace_replaces_it(whole, tmp_path):
    path = tmp_path / "run.trace"
    Trace([one()], {"searches": []}).save(path)
    whole.save(path)
    assert len(Trace.load(path)) == len(whole)


def test_tensors_that_share_memory_or_are_views_are_saved_each_for_itself(tmp_path):
    numbers = torch.arange(6.0).reshape(2, 3)
    tensors = [
        one("whole", ("B", "S"), numbers),
        one("same", ("B", "S"), numbers),
        one("turned", ("S", "B"), numbers.T),
        one("part", ("S",), numbers[1]),
    ]
    Trace(tensors, {}).save(tmp_path / "t")
    again = Trace.load(tmp_path / "t")
    assert all(torch.equal(again[tensor.name].value, tensor.value) for tensor in tensors)


def test_info_is_plain_data_from_the_start(whole):
    """So that nothing works on a fresh trace that fails on a loaded one."""
    made = Trace([], {"a": (1, 2), "vocabulary": {3: "dog"}})
    assert made.info == {"a": [1, 2], "vocabulary": {"3": "dog"}}
    json.dumps(whole.info, allow_nan=False)  # as a browser reads JSON: without NaN and infinities
    with pytest.raises(TypeError):
        Trace([], {"a": torch.zeros(1)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no trace that can be read"),
        (b"", "no trace that can be read"),
        (b"a dog runs\n" * 10, "no trace that can be read"),
        ("a model", r"a file without a trace, wanted one that Trace.save has written \(format 1\)"),
        ("format 2", r"a trace of format 2, wanted one that Trace.save has written \(format 1\)"),
        ("no JSON", "no trace that can be read"),
        ("half a description", "no trace that can be read: its description lacks a part"),
        ("cut short", "no trace that can be read"),
        ("a folder", "no trace that can be read"),
    ],
    ids=["missing", "empty", "text", "a model", "format 2", "no JSON", "half a description", "cut short", "a folder"],
)
def test_what_is_no_trace_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / "file"
    if content == "a model":
        build_model(num_layers=1).save_pretrained(tmp_path)
        path = tmp_path / "model.safetensors"
    elif content == "format 2":
        save_file({"x": torch.zeros(1)}, path, {"hf_attention.trace": json.dumps({"format": "2"})})
    elif content in ("no JSON", "half a description"):
        words = "{" if content == "no JSON" else json.dumps({"format": "1"})
        save_file({"x": torch.zeros(1)}, path, {"hf_attention.trace": words})
    elif content == "cut short":
        Trace([one()], {}).save(path)
        path.write_bytes(path.read_bytes()[:-4])
    elif content == "a folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("place", ["a missing folder", "a file that is no folder", "a folder"])
def test_a_place_that_cannot_be_written_is_named(place, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = {
        "a missing folder": tmp_path / "missing" / "run.trace",
        "a file that is no folder": tmp_path / "file" / "run.trace",
        "a folder": tmp_path / "folder",
    }[place]
    with pytest.raises(ValueError, match="cannot be written") as caught:
        Trace([one()], {}).save(path)
    assert str(path) in str(caught.value)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_wrong_name_is_answered_with_those_near_it(whole):
    with pytest.raises(
        KeyError, match="no tensor 'encoder.layers.0.self_attn.score' in this trace; near it: .*scores"
    ):
        whole["encoder.layers.0.self_attn.score"]
    with pytest.raises(KeyError, match="no tensor '@' in this trace\""):
        whole["@"]
    assert "encoder.output" in whole and "encoder.outputs" not in whole and whole.get("nothing") is None


def test_sizes_are_those_of_the_forward_pass(whole):
    """The searches' tensors have lengths of their own: sources without padding, and what was generated."""
    assert {whole[f"search.{i}.cross_attention"].shape[3] for i in (0, 1)} == {4, 2}
    sizes = {"B": 2, "S": 4, "T": 5, "H": 2, "K": 3, "V": 5, "D": 8, "F": 16, "H·K": 6, "H·V": 10, "W": 11}
    assert whole.sizes == sizes and list(whole.sizes) == [axis for axis in AXES if axis != "N"]
    assert repr(whole).startswith("Trace(") and "2 searches" in repr(whole) and "T=5" in repr(whole)
    assert {axis for tensor in whole.values() for axis in tensor.axes} <= {*AXES, "1"}


def test_within_a_module(whole):
    found = whole.within("decoder.layers.0.cross_attn")
    assert [tensor.name for tensor in found[:3]] == [
        *("decoder.layers.0.cross_attn.input", "decoder.layers.0.cross_attn.memory", "decoder.layers.0.cross_attn.q")
    ]
    assert not [tensor for tensor in found if "add_norm" in tensor.name]  # a name that only begins alike
    assert [tensor.name for tensor in whole.within("search.1")] == ["search.1.cross_attention"]
    assert whole.within("nothing") == []


def test_tokens_are_spelt_and_unknown_ids_stay_ids(whole):
    assert [whole.token(token) for token in (0, 1, 2, 7, torch.tensor(3), 4711)] == [
        *("<pad>", "<s>", "</s>", "7", "3", "4711")
    ]


def test_a_tensor_says_what_it_is(whole):
    scores = whole["encoder.layers.0.self_attn.scores"]
    assert repr(scores) == (
        "TracedTensor(encoder.layers.0.self_attn.scores: Q_i K_iᵀ/√d_k [B=2, H=2, S=4, S=4] bfloat16)"
    )
    with pytest.raises(ValueError, match=r"x: axes are \('B', 'S'\), wanted one for each of \(2,\)"):
        one(axes=("B", "S"))


def test_a_notebook_offers_the_names(whole):
    assert whole._ipython_key_completions_() == list(whole)
