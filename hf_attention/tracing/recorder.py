"""Records one run of a model: a forward pass as in training, its loss and gradients, the search for a translation."""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..version import __version__
from .hooks import MODEL_CLASS, Recorder, in_mode
from .search import record_searches, translations
from .sentences import Sentences
from .settings import Settings, without_sampling
from .trace import Trace, TracedTensor


@torch.inference_mode(False)  # what is made under inference mode can have no gradients
def trace(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    sources: str | Sequence[Any],
    targets: str | Sequence[Any] | None = None,
    *,
    label_smoothing: float = 0.1,
    backward: bool = False,
    training: bool = False,
    search: bool | str = True,
    **generation: Any,
) -> Trace:
    """Runs `model` on sentence pairs as training does, and translates the sources; returns every tensor of both.

    Args:
        model: a `VanillaTransformerForConditionalGeneration`, with any attention implementation. It comes back as it
            was: weights, gradients, mode and implementation.
        tokenizer: that of the model. None: sources and targets are lists of token ids, each with its end.
        sources, targets: one sentence, or as many targets as sources. Without targets the model's own translations
            stand in for them.
        label_smoothing: ε of §5.4, for the loss.
        backward: also the gradient of the smoothed loss with respect to every tensor that it is made of.
        training: with dropout, as the weights are trained; otherwise without, as they are used.
        search: also record the translation of each source, step by step; see `tracing.search`. `"paper"` or `"stock"`
            also says by which search, instead of the one that the model would use.
        generation: options of `generate()` for that, such as `num_beams=1`.

    Raises:
        ValueError: a model that is not ours, an empty sentence, text that the vocabulary cannot spell, an option that
            a trace can't follow.
    """
    model = _our_model(model)
    number = isinstance(label_smoothing, int | float) and not isinstance(label_smoothing, bool)
    if not number or not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing!r}, wanted a probability: 0 <= label_smoothing < 1")
    if isinstance(search, str):
        generation["search"] = search
    generation = without_sampling(model, generation)
    settings = Settings(model, generation)  # a mistake in the options, before the work
    sentences = Sentences(model, tokenizer, sources)
    if targets is not None:
        sentences.add_targets(targets)
    searches: list[dict[str, Any]] = []
    found: list[TracedTensor] = []
    if search or targets is None:
        searches, found = record_searches(model, sentences, generation)
    if targets is None:
        sentences.add_targets(translations(searches, settings.ends, model.config.eos_token_id))
    if not search:
        searches, found = [], []
    batch = sentences.batch()

    with in_mode(model, training), torch.set_grad_enabled(backward):
        recorder = _run(model, batch, label_smoothing)
    tensors = recorder.finish(recorder.values["loss.total"] if backward else None)
    counterfactual = None if training else _counterfactual(model, batch, tensors, label_smoothing)
    tensors += found
    spelt = {hypothesis["token"] for each in searches for hypothesis in each["hypotheses"]}
    spelt |= {token["token"] for each in searches for step in each["steps"] for best in step["top"] for token in best}
    if counterfactual:
        spelt.add(counterfactual["to"])
    info = {
        "model": {
            "class": type(model).__name__,
            "config": model.config.to_dict(),
            "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "parameters": _parameters(model),
        "loss": {"smoothing": label_smoothing},
        "mode": {"training": training, "backward": backward, "dtype": str(model.dtype).removeprefix("torch.")},
        "counterfactual": counterfactual,
        "searches": searches,
        "versions": {
            "hf_attention": __version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        **sentences.words(tensors, spelt),
    }
    return Trace(tensors, info)


def _run(model: PreTrainedModel, batch: dict[str, torch.Tensor], label_smoothing: float) -> Recorder:
    """One forward pass as in training: what goes in, what the modules make of it, and the loss worked out."""
    recorder = Recorder()
    labels = batch["labels"]
    shift: Any = model.prepare_decoder_input_ids_from_labels
    decoder_input_ids = shift(labels)
    recorder.record("source.input_ids", "B S", "x", batch["input_ids"])
    recorder.record("source.attention_mask", "B S", "1 for a token, 0 for padding", batch["attention_mask"])
    recorder.record("target.labels", "B T", "y", labels)
    recorder.record("target.decoder_input_ids", "B T", "y shifted right", decoder_input_ids)
    with recorder.watching(model):
        logits = model(**batch).logits

    log_probs = logits.float().log_softmax(-1)
    counted = labels.ne(-100)
    words = logits.shape[-1]
    targets = nn.functional.one_hot(labels.clamp(min=0), words) * (1 - label_smoothing) + label_smoothing / words
    targets = targets * counted[..., None]
    plain = -log_probs.gather(-1, labels.clamp(min=0)[..., None])[..., 0] * counted
    smoothed = -(targets * log_probs).sum(-1)
    divisor = counted.sum()
    recorder.record("lm_head.log_probs", "B T W", f"log softmax({recorder.symbol('lm_head.logits')})", log_probs)
    recorder.record("loss.targets", "B T W", "(1-ε)·[w = y] + ε/W", targets)
    recorder.record("loss.counted", "B T", "y is no padding", counted)
    recorder.record("loss.plain_per_token", "B T", "-log p(y)", plain)
    recorder.record("loss.per_token", "B T", "-Σ_w target(w) log p(w)", smoothed)
    recorder.record("loss.divisor", "", "labels that count", divisor)
    recorder.record("loss.plain", "", "Σ -log p(y) / divisor", plain.sum() / divisor)
    recorder.record("loss.total", "", "Σ smoothed / divisor", smoothed.sum() / divisor)
    return recorder


def _counterfactual(
    model: PreTrainedModel, batch: dict[str, torch.Tensor], tensors: list[TracedTensor], label_smoothing: float
) -> dict[str, Any] | None:
    """What moves when one word of the first target is another one; None where no target has a word to change.

    `sentence`, `label_position`: where; `from`, `to`: token ids; `decoder_position`: where the decoder reads it, one
    further right. `moved`: [{name, first, hidden}] of the tensors that differ, `first` the first target position in
    which they do (None for those without one: a total), and `hidden` how many cells of unmasked scores differ that the
    look-ahead mask then hides. `still`: the names of the decoder's tensors that do not differ at all.
    """
    special = {model.config.pad_token_id, model.config.decoder_start_token_id, model.config.eos_token_id}
    labels = batch["labels"]
    others = [token for token in range(model.config.vocab_size) if token not in special]
    words = [
        (sentence, position)
        for sentence, row in enumerate(labels.tolist())
        for position, token in enumerate(row[:-1])
        if token in others and row[position + 1] != -100
    ]
    if not words or len(others) < 2:
        return None
    sentence, position = [word for word in words if word[0] == words[0][0]][-1]
    old = int(labels[sentence, position])
    new = others[(others.index(old) + 1) % len(others)]
    changed = labels.clone()
    changed[sentence, position] = new
    with in_mode(model, training=False), torch.no_grad():
        again = _run(model, {**batch, "labels": changed}, label_smoothing).values
    look_ahead = next(tensor.value for tensor in tensors if tensor.name.endswith("decoder.layers.0.self_attn.mask"))
    moved, still = [], []
    for tensor in tensors:
        differs = tensor.value.ne(again[tensor.name].cpu())
        if not differs.any():
            if tensor.name.startswith(("decoder.", "lm_head.", "loss.")):
                still.append(tensor.name)
            continue
        hidden = 0
        if tensor.axes[-2:] == ("T", "T"):
            behind = differs & (look_ahead < 0)
            hidden, differs = int(behind.sum()), differs & ~behind
        first = None
        if "T" in tensor.axes and differs.any():
            where = tensor.axes.index("T")
            first = int(differs.nonzero()[:, where].min())
        moved.append({"name": tensor.name, "first": first, "hidden": hidden})
    return {
        "sentence": sentence,
        "label_position": position,
        "decoder_position": position + 1,
        "from": old,
        "to": new,
        "moved": moved,
        "still": still,
    }


def _parameters(model: PreTrainedModel) -> list[dict[str, Any]]:
    """Every parameter under each of its names; `tied_to` the name under which one storage has been counted already."""
    seen: dict[int, str] = {}
    rows = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied_to = seen.get(id(parameter))
        seen.setdefault(id(parameter), name.removeprefix("model."))
        rows.append(
            {
                "name": name.removeprefix("model."),
                "module": name.removeprefix("model.").rpartition(".")[0],
                "shape": list(parameter.shape),
                "count": parameter.numel(),
                "tied_to": tied_to,
            }
        )
    return rows


def _our_model(model: Any) -> PreTrainedModel:
    """The model itself, out of the wrappers of PEFT and `torch.compile`."""
    model = getattr(model, "_orig_mod", model)
    if hasattr(model, "get_base_model"):
        model = model.get_base_model()
    if type(model).__name__ != MODEL_CLASS:  # the class may also come out of a checkpoint, from the code beside it
        raise ValueError(f"model is {type(model).__name__}, wanted a {MODEL_CLASS}: other models have other modules")
    return model
