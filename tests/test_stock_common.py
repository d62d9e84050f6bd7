"""Transformers' own common model tests, run on our classes.

`stock_archive` brings the mixins. What they look up by name in the library (which classes have a language modelling
head, which model types the distributed tests run for) is told about ours in `known_to_the_library`, so that no check
passes over our classes in silence.
"""

import functools
import os
import unittest
from pathlib import Path
from typing import Any

import pytest
import stock
import stock_archive
import torch
from transformers import AutoModelForCausalLM, pipeline
from transformers.models.auto import modeling_auto

from hf_attention import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration, VanillaTransformerModel


try:
    modeling = stock_archive.stock_module("test_modeling_common")
except stock_archive.NoNetwork as no_network:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip(str(no_network), allow_module_level=True)
configuration, training, pipelines, tensor_parallel, fsdp = (
    stock_archive.stock_module(name)
    for name in (
        "test_configuration_common",
        "test_training_mixin",
        "test_pipeline_mixin",
        "test_tensor_parallel_mixin",
        "test_fsdp_mixin",
    )
)


class AsCausalLM(VanillaTransformerForConditionalGeneration):
    """Our model as the distributed mixins drive a model: by one sequence, which is source and target."""

    @functools.wraps(VanillaTransformerForConditionalGeneration.forward)
    def forward(self, input_ids=None, labels=None, decoder_input_ids=None, **kwargs: Any):
        if labels is None and decoder_input_ids is None:
            decoder_input_ids = input_ids
        return super().forward(input_ids=input_ids, labels=labels, decoder_input_ids=decoder_input_ids, **kwargs)


class Continuation(VanillaTransformerForConditionalGeneration):
    """Our model as the training mixin drives a model: trained on a sequence, then asked to continue its first token.

    That token is also the source, in training as in generation.
    """

    @functools.wraps(VanillaTransformerForConditionalGeneration.forward)
    def forward(self, input_ids=None, **kwargs: Any):
        return super().forward(input_ids=None if input_ids is None else input_ids[:, :1], **kwargs)

    def generate(self, prompt, **kwargs: Any):
        start = torch.full_like(prompt[:, :1], self.config.decoder_start_token_id)
        return super().generate(prompt, decoder_input_ids=torch.cat([start, prompt], dim=1), **kwargs)[:, 1:]


class WithoutKeyBias(AsCausalLM):
    """A key bias adds the same to all scores of a query, so no softmax feels it. Its gradient is rounding noise, which
    Adam turns into whole steps: without it, two runs of the same training can be compared weight by weight."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        for name, module in self.named_modules():
            if name.endswith("k_proj"):
                module.bias = None


def call_with_causal_lm(function, rank: int, *args: Any, **kwargs: Any) -> None:
    """The FSDP tests build their models through `AutoModelForCausalLM`, each rank in a process of its own."""
    AutoModelForCausalLM.register(VanillaTransformerConfig, WithoutKeyBias)
    function(rank, *args, **kwargs)


class VanillaTransformerModelTester:
    """A tiny model and a batch of two pairs, under the names the mixins ask for."""

    is_training = True
    batch_size = 3
    seq_length = 7
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 2
    base_model_class = VanillaTransformerModel
    causal_lm_class = AsCausalLM

    def __init__(self, **fields: Any):
        self.fields = fields

    def get_config(self) -> VanillaTransformerConfig:
        shape = {
            "vocab_size": 99,
            "num_layers": self.num_hidden_layers,
            "d_model": self.hidden_size,
            "d_ff": 32,
            "num_heads": self.num_attention_heads,
            "dropout": 0.0,
        }
        return VanillaTransformerConfig(**shape | self.fields)

    def prepare_config_and_inputs_for_common(self) -> tuple[VanillaTransformerConfig, dict[str, torch.Tensor]]:
        shape = [self.batch_size, self.seq_length]
        source, target = (modeling.ids_tensor(shape, 99).clamp(min=3) for _ in range(2))
        source[:, -1] = 2
        return self.get_config(), {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones_like(target),
        }


@pytest.fixture(autouse=True)
def known_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without these entries, tests of losses and of the distributed plans would skip our classes, or check nothing."""
    model_type = VanillaTransformerConfig.model_type
    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, model_type, "VanillaTransformerModel")
    monkeypatch.setitem(
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        model_type,
        "VanillaTransformerForConditionalGeneration",
    )
    monkeypatch.setattr(tensor_parallel, "TP_DISTRIBUTED_TEST_MODEL_TYPES", {model_type})
    monkeypatch.setattr(fsdp, "FSDP_DISTRIBUTED_TEST_MODEL_TYPES", {model_type})
    monkeypatch.setattr(fsdp, "_get_available_fsdp_workers", lambda: 4)  # gloo's processes can share a core


class TranslationChecks:
    """What the pipeline mixin asks for one task: the pipeline with its examples, and the checks on single inputs."""

    def get_test_pipeline(self, model, tokenizer, dtype="float32"):
        model = model.to(getattr(torch, dtype))
        translator = pipeline("translation", model=model, tokenizer=tokenizer, max_new_tokens=4)
        return translator, ["she pet the dog", "the dog"]

    def run_pipeline_test(self, translator, examples) -> None:
        for batch in (examples, examples[:1]):
            outputs = translator(batch)
            assert [list(output) for output in outputs] == [["translation_text"]] * len(batch)
            assert all(isinstance(output["translation_text"], str) for output in outputs)


class VanillaTransformerModelTest(
    modeling.ModelTesterMixin,
    modeling.GenerationTesterMixin,
    pipelines.PipelineTesterMixin,
    training.TrainingTesterMixin,
    tensor_parallel.TensorParallelTesterMixin,
    fsdp.FSDPTesterMixin,
    unittest.TestCase,
):
    all_model_classes = (VanillaTransformerModel, VanillaTransformerForConditionalGeneration)
    pipeline_model_mapping = {"translation": VanillaTransformerForConditionalGeneration}
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True  # models of an unknown year are left out unless they ask
    training_overfit_learning_rate = 1e-2

    def setUp(self) -> None:
        self.model_tester = VanillaTransformerModelTester()
        self.config_tester = configuration.ConfigTester(self, config_class=VanillaTransformerConfig, d_model=16)

    @pytest.fixture(autouse=True)
    def tiny_model(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The folder the pipeline mixin loads from: `<model_type>/<class name>`. Made for its tests only."""
        if request.function.__name__ not in ("test_pipeline_translation", "test_pipeline_translation_fp16"):
            return
        name = VanillaTransformerForConditionalGeneration.__name__
        folder = tmp_path / VanillaTransformerConfig.model_type / name
        stock.byte_tokenizer().save_pretrained(folder)
        config = VanillaTransformerModelTester(vocab_size=stock.VOCAB_SIZE).get_config()
        VanillaTransformerForConditionalGeneration(config).save_pretrained(folder)
        summary = {name: {"tokenizer_classes": ["PreTrainedTokenizerFast"], "processor_classes": []}}
        monkeypatch.setattr(pipelines, "tiny_model_summary", summary)
        monkeypatch.setattr(pipelines, "TRANSFORMERS_TINY_MODEL_PATH", str(tmp_path))
        checks = {"test": f"{TranslationChecks.__module__}.{TranslationChecks.__name__}"}
        monkeypatch.setitem(pipelines.pipeline_test_mapping, "translation", checks)

    def test_pipeline_translation(self) -> None:
        self.run_task_tests("translation")

    def test_pipeline_translation_fp16(self) -> None:
        self.run_task_tests("translation", dtype="float16")

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    def _get_trainable_model_class(self) -> type[Continuation]:
        return Continuation

    def _run_fsdp2_distributed_test(self, test_name, test_impl, *args: Any, **kwargs: Any) -> None:
        implementation = functools.partial(call_with_causal_lm, test_impl)
        super()._run_fsdp2_distributed_test(test_name, implementation, *args, **kwargs)


class RowBAndETest(modeling.ModelTesterMixin, modeling.GenerationTesterMixin, unittest.TestCase):
    """Table 3's other shapes: learned positions, and keys and values of a width of their own."""

    all_model_classes = VanillaTransformerModelTest.all_model_classes
    is_encoder_decoder = True
    test_can_init_all_missing_weights_before_2023 = True

    def setUp(self) -> None:
        shape = {"position_encoding": "learned", "max_position_embeddings": 40, "d_k": 4, "d_v": 12}
        self.model_tester = VanillaTransformerModelTester(**shape)
