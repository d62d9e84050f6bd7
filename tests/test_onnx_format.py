"""hf_attention.onnx_format: what ONNX Runtime computes is what our model computes, at sizes that were never traced."""

from pathlib import Path

import pytest
import torch
from conftest import build_model
from reversing import END, LONGEST, START, VOCABULARY, padded, random_digits, train_to_reverse
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_attention import VanillaTransformerForConditionalGeneration
from hf_attention.export import export_model
from hf_attention.tokenization import word_tokenizer


REASON = "pip install '.[export]'"
for package in ("onnx", "onnxscript"):
    pytest.importorskip(package, reason=f"no {package}: {REASON}")
onnxruntime = pytest.importorskip("onnxruntime", reason=f"no onnxruntime: {REASON}")

from transformers.exporters import ExportedModel  # noqa: E402


SHAPES = {
    "sinusoidal": {"d_k": 3, "d_v": 5},
    "learned": {"position_encoding": "learned", "max_position_embeddings": 20},
}


@pytest.fixture(scope="module", params=["sinusoidal", pytest.param("learned", marks=pytest.mark.slow)])
def exported(request, tmp_path_factory) -> tuple[VanillaTransformerForConditionalGeneration, Path]:
    """A model that has half learned to reverse digits, and its folder of graphs."""
    parent = tmp_path_factory.mktemp(request.param)
    size = {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 4}
    model = train_to_reverse(build_model(**size, **SHAPES[request.param])).eval()
    model.save_pretrained(parent / "ours")
    word_tokenizer([str(digit) for digit in range(3, VOCABULARY)]).save_pretrained(parent / "ours")
    return model, export_model(str(parent / "ours"), "onnx", parent / "onnx")


def steps(model, runners, batch: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
    """Logits [B, T, V] at every token of the targets, one call for each."""
    memory = BaseModelOutput(last_hidden_state=runners["encoder"](**batch).last_hidden_state)
    layers = model.config.get_text_config(decoder=True)
    cache, logits = EncoderDecoderCache(DynamicCache(config=layers), DynamicCache(config=layers)), []
    for position in range(targets.shape[1]):
        output = runners["decode" if position else "prefill"](
            decoder_input_ids=targets[:, position : position + 1],
            encoder_outputs=memory,
            attention_mask=batch["attention_mask"],
            cache=cache,
        )
        cache = output.cache
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("rows", [[[5]], [[3, 4, 5, 6, 7, 8], [10]], [[9, 9, 4]] * 4 + [[6] * 12]], ids=len)
def test_logits_are_our_models(exported, rows):
    """Step by step with the cache against one plain forward pass, to 1e-5."""
    model, folder = exported
    batch = padded(rows)
    targets = torch.cat([torch.full((len(rows), 1), START), random_digits(len(rows), 9)], dim=1)
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=targets).logits
    found = steps(model, ExportedModel.from_pretrained(folder, device="cpu").runners, batch, targets)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_greedy_translations_are_our_models(exported):
    model, folder = exported
    runners = ExportedModel.from_pretrained(folder, device="cpu").runners
    batch = padded([random_digits(1, 1 + row % LONGEST)[0].tolist() for row in range(40)])
    expected = model.generate(**batch, num_beams=1, max_new_tokens=9)
    found = torch.full((40, 1), START)
    for _ in range(9):  # the plainest loop there is: every prefix anew
        logits = steps(model, runners, batch, found)[:, -1]
        ended = found.eq(END).any(dim=1)
        found = torch.cat([found, logits.argmax(dim=-1).masked_fill(ended, model.config.pad_token_id)[:, None]], dim=1)
    assert torch.equal(found[:, : expected.shape[1]], expected)
    assert len({tuple(row) for row in expected.tolist()}) > 20


def test_it_runs_with_onnxruntime_alone(exported):
    """By the names that the module's docstring gives."""
    model, folder = exported
    batch = padded([[3, 4], [5, 6, 7]])
    session = onnxruntime.InferenceSession(folder / "encoder.onnx")
    [memory] = session.run(["last_hidden_state"], {name: value.numpy() for name, value in batch.items()})
    start = torch.full((2, 1), START)
    decoder = onnxruntime.InferenceSession(folder / "prefill.onnx")
    inputs = {"attention_mask": batch["attention_mask"].numpy(), "encoder_outputs.last_hidden_state": memory}
    [logits] = decoder.run(["logits"], inputs | {"decoder_input_ids": start.numpy()})
    with torch.no_grad():
        expected = model(**batch, decoder_input_ids=start).logits
    torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-5, rtol=0)


def test_the_folder_has_all_that_translating_needs(exported):
    names = {path.name for path in exported[1].iterdir()}
    graphs = {f"{graph}.onnx{end}" for graph in ("encoder", "prefill", "decode") for end in ("", ".data")}
    assert names >= graphs | {"export.json", "config.json", "generation_config.json", "tokenizer.json"}
