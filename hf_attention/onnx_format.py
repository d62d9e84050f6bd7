"""A model in ONNX, by Transformers' own exporters, for ONNX Runtime.

Three graphs, each with its weights beside it and every length and the batch free:

    encoder.onnx  input_ids, attention_mask [B, S] -> last_hidden_state [B, S, D]
    prefill.onnx  the first tokens of the target, decoder_input_ids [B, T], as a rule the start symbol, with
                  encoder_outputs.last_hidden_state and attention_mask -> logits [B, T, V] and cache...
    decode.onnx   one more token [B, 1], with the cache of the call before as input.cache... -> logits, output.cache...

`export.json` says the same to `transformers.exporters.ExportedModel.from_pretrained(folder).runners`, which call the
three as the model is called; `tests/test_onnx_format.py` translates with them. A search is not part of a graph.

Optimum's exporter is no way: optimum-onnx 0.1.0 wants Transformers below 4.58. Tested with transformers 5.24, which
calls its exporters experimental, onnx 1.23, onnxscript 0.7 and onnxruntime 1.32.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import onnx  # noqa: F401, so that what is missing is known before the model is loaded
import onnxscript  # noqa: F401
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.exporters import ExportedModel, OnnxConfig, OnnxExporter


QUANTIZATIONS = ("float32",)


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, quantization: str) -> None:
    """Fills a folder with the three graphs and their `export.json`."""
    model = model.float()
    # All sizes differ and none is 1, or the graphs would take them for one, or for always 1; the two tokens of the
    # target are what the cache holds when `decode` is traced.
    source = torch.full((3, 5), model.config.eos_token_id)
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    begun = torch.full((3, 2), model.config.decoder_start_token_id)
    greedy = GenerationConfig(num_beams=1, pad_token_id=model.config.pad_token_id, eos_token_id=None)
    greedy.update(
        decoder_start_token_id=model.config.decoder_start_token_id, search="stock", allow_custom_entries=True
    )
    exporter, options = OnnxExporter(), OnnxConfig(dynamic=True)
    with redirect_stdout(sys.stderr):  # torch prints its progress
        encoder = exporter.export(model.get_encoder(), dict(inputs), options)
        decoder = exporter.export_for_generation(
            model, {**inputs, "decoder_input_ids": begun}, options, generation_config=greedy
        )
    graphs = {"encoder": encoder.components["model"], **decoder.components}
    ExportedModel(graphs, exporter.export_format, config=model.config).save_pretrained(folder)
