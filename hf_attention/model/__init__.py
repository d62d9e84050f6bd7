"""The model, known to Transformers: its Auto classes, and the task `translation` for every encoder-decoder.

Importing this registers both; importing it again changes nothing and says nothing.
"""

import functools

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines
from transformers.pipelines.base import PipelineRegistry

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import (
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .pipeline_translation import PAIR_TASK, TranslationPipeline


TASK = "translation"

# `pipeline("translation_en_to_de")` without a model meant T5 in version 4, for the three pairs T5 was trained on.
DEFAULT_MODEL = {"model": ("google-t5/t5-base", "a9723ea")}
DEFAULTS = {("en", target): DEFAULT_MODEL for target in ("de", "fr", "ro")}


def register_model() -> None:
    """Lets the Auto classes load `vanilla_transformer`. No `exist_ok`: a clash with a stock model should be loud."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig)
    AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration)


def register_translation() -> None:
    """Makes `pipeline("translation")` and the pair names (`translation_en_to_de`) work, for every seq2seq model.

    A `translation` that somebody else has registered gives way, with the registry's own warning.
    """
    registry = pipelines.PIPELINE_REGISTRY
    # Transformers refuses the tasks it once had before it looks into its registry. Versions before 5.20 have no such
    # table. No other entry is touched.
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)
    known = registry.supported_tasks.get(TASK)
    if known is not None and _is_ours(known["impl"]):
        del registry.supported_tasks[TASK]  # or importing this module afresh would warn of itself
    registry.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")
    # `register_pipeline` takes one default model for a task. A copy: what a pipeline saves is the original.
    registry.supported_tasks[TASK] = {**registry.supported_tasks[TASK], "default": DEFAULTS}
    # The registry no longer reads pair names. Set on the instance, so doing it again replaces rather than nests.
    registry.check_task = functools.partial(_check_task, registry)


def _is_ours(implementation: type | str) -> bool:
    return getattr(implementation, "__module__", None) == TranslationPipeline.__module__


def _check_task(registry: PipelineRegistry, task: str) -> tuple:
    """`PipelineRegistry.check_task`, which also knows pair names and the default model of each."""
    pair = PAIR_TASK.fullmatch(task)
    if pair is None:
        return PipelineRegistry.check_task(registry, task)
    return TASK, registry.supported_tasks[TASK], (pair["src"], pair["tgt"])


register_model()
register_translation()

__all__ = [
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
