"""Transformers' own common model tests, run on our classes.

`stock_archive` brings the mixins. What the mixins look up by name in the library (which classes have a language modelling
head, which model types the distributed tests run for) is told about ours in `known_to_the_library`, so that no check
passes over our classes in silence.
"""

import functools
import json
import os
import unittest
from pathlib import Path
from typing import Any

import pytest
import stock_archive
import torch
from transformers import AutoModelForCausalLM
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
    """Our model as the training and distributed mixins drive a model: by one sequence. It is the source and the target."""

    _auto_class = None

    @functools.wraps(VanillaTransformerForConditionalGeneration.forward)
    def forward(self, input_ids=None, labels=None, decoder_input_ids=None, **kwargs: Any):
        if labels is None and decoder_input_ids is None:
            decoder_input_ids = input_ids
        return super().forward(input_ids=input_ids, labels=labels, decoder_input_ids=decoder_input_ids, **kwargs)

    def generate(self, input_ids, **kwargs: Any):
        if kwargs.get("return_dict_in_generate"):
            return super().generate(input_ids, **kwargs)
        start = torch.full_like(input_ids[:, :1], self.config.decoder_start_token_id)
        return super().generate(input_ids, decoder_input_ids=torch.cat([start, input_ids], dim=1), **kwargs)[:, 1:]


def call_with_causal_lm(function, rank: int, *args: Any, **kwargs: Any) -> None:
    """The FSDP tests build their models through `AutoModelForCausalLM`, each rank in a process of its own."""
    AutoModelForCausalLM.register(VanillaTransformerConfig, AsCausalLM)
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

    def get_config(self) -> VanillaTransformerConfig:
        return VanillaTransformerConfig(
            vocab_size=99,
            num_layers=self.num_hidden_layers,
            d_model=self.hidden_size,
            d_ff=32,
            num_heads=self.num_attention_heads,
            dropout=0.0,
        )

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


class TranslationChecks:
    """What the pipeline mixin asks for one task: the pipeline with its examples, and the checks on single inputs."""

    def get_test_pipeline(self, model, tokenizer, dtype="float32"):
        from transformers import pipeline

        translator = pipeline(
            "translation", model=model.to(getattr(torch, dtype)), tokenizer=tokenizer, max_new_tokens=4
        )
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
    test_can_init_all_missing_weights_before_2023 = True
    training_overfit_learning_rate = 1e-2

    def setUp(self) -> None:
        self.model_tester = VanillaTransformerModelTester()
        self.config_tester = configuration.ConfigTester(self, config_class=VanillaTransformerConfig, d_model=16)

    @pytest.fixture(autouse=True)
    def known_to_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model_type = VanillaTransformerConfig.model_type
        monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, model_type, "VanillaTransformerModel")
        monkeypatch.setitem(
            modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
            model_type,
            "VanillaTransformerForConditionalGeneration",
        )
        monkeypatch.setattr(tensor_parallel, "TP_DISTRIBUTED_TEST_MODEL_TYPES", {model_type})
        monkeypatch.setattr(fsdp, "FSDP_DISTRIBUTED_TEST_MODEL_TYPES", {model_type})

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    def _run_fsdp2_distributed_test(self, test_name, test_impl, *args: Any, **kwargs: Any) -> None:
        implementation = functools.partial(call_with_causal_lm, test_impl)
        super()._run_fsdp2_distributed_test(test_name, implementation, *args, **kwargs)
