"""Records one run of a model: every arrow of the paper's Figures 1 and 2, in order of computation.

The model knows nothing of it. Forward hooks see what enters and leaves each module; an attention function and its mask
function, registered with the library as `traced`, see what happens inside attention. The numbers are those of the
library's `eager` attention, bit for bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, PreTrainedTokenizerBase
from transformers.masking_utils import bidirectional_mask_function, eager_mask

from ..version import __version__
from .search import record_searches, translations
from .sentences import Sentences
from .trace import Trace, TracedTensor


MODEL_TYPE, MODEL_CLASS = "vanilla_transformer", "VanillaTransformerForConditionalGeneration"


def trace(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    sources: str | Sequence[Any],
    targets: str | Sequence[Any] | None = None,
    *,
    label_smoothing: float = 0.1,
    backward: bool = False,
    training: bool = False,
    search: bool = True,
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
        backward: also the gradient of the smoothed loss with respect to every tensor that parameters come into.
        training: with dropout, as the weights are trained; otherwise without, as they are used.
        search: also record the translation of each source, step by step; see `tracing.search`.
        generation: options of `generate()` for that, such as `num_beams=1`.

    Raises:
        ValueError: a model that is not ours, an empty sentence, text that the vocabulary cannot spell.
    """
    model = _our_model(model)
    if isinstance(label_smoothing, bool) or not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing is {label_smoothing!r}, wanted a probability: 0 <= label_smoothing < 1")
    sentences = Sentences(model, tokenizer, sources)
    sentences.add_targets(translations(model, sentences, generation) if targets is None else targets)
    batch = sentences.batch()

    with _mode(model, training), torch.set_grad_enabled(backward):
        recorder = _run(model, batch, label_smoothing)
    tensors = recorder.finish(recorder.values["loss.total"] if backward else None)
    counterfactual = None if training else _counterfactual(model, batch, tensors, label_smoothing)
    searches: list[dict[str, Any]] = []
    if search:
        searches, found = record_searches(model, sentences, generation)
        tensors += found
    extra_ids = {token for each in searches for hypothesis in each["hypotheses"] for token in hypothesis["tokens"]}
    extra_ids |= {option["token"] for each in searches for step in each["steps"] for option in step["candidates"]}
    if counterfactual:
        extra_ids.add(counterfactual["to"])
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
        **sentences.words(tensors, extra_ids),
    }
    return Trace(tensors, info)


class Recorder:
    """Collects tensors under the names of the modules that make them; `values` are the run's own, not copies."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self._labels: dict[str, tuple[tuple[str, ...], str]] = {}
        self._forms: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {}
        self._places: dict[nn.Module, tuple[str, str, str]] = {}  # of an attention: its path, letters of L and of M
        self._masks: list[tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]] = []

    def record(self, name: str, axes: str, symbol: str, value: torch.Tensor) -> None:
        """`axes` are letters of `trace.AXES`, parted by spaces."""
        self.values[name] = value
        self._labels[name] = tuple(axes.split()), symbol

    def record_form(
        self,
        name: str,
        axes: str,
        symbol: str,
        value: torch.Tensor,
        of: str,
        gradient: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """A value that the run computes with in another form, `of`, whose gradient `gradient` brings into this form."""
        self.record(name, axes, symbol, value)
        self._forms[name] = of, gradient

    def finish(self, loss: torch.Tensor | None) -> list[TracedTensor]:
        """Copies on the CPU; given a `loss` [], with its gradients. The parameters' own gradients stay untouched."""
        gradients: dict[str, torch.Tensor] = {}
        if loss is not None:
            wanted = {name: value for name, value in self.values.items() if value.requires_grad}
            found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
            gradients = {name: each for name, each in zip(wanted, found, strict=True) if each is not None}
            for name, (of, gradient) in self._forms.items():
                gradients[name] = gradient(gradients[of])
        return [
            TracedTensor(name, *self._labels[name], _copied(value), _copied(gradients.get(name)))
            for name, value in self.values.items()
        ]

    @contextmanager
    def watching(self, model: PreTrainedModel) -> Iterator[None]:
        """Records what `model` computes inside the block."""
        implementation = model.config._attn_implementation
        with ExitStack() as stack:
            for name, module in model.named_modules():
                watch = self._watchers.get(type(module).__name__)
                for handle in watch(self, name.removeprefix("model."), module) if watch else ():
                    stack.callback(handle.remove)
            stack.callback(model.set_attn_implementation, implementation)
            model.set_attn_implementation("traced")
            token = _watching.set(self)
            stack.callback(_watching.reset, token)
            yield

    # A watcher for each class of the model's modules: hooks for what Figure 1 shows of it.

    def _watch_stack(self, path: str, stack: nn.Module) -> Iterator[RemovableHandle]:
        at = _letter(path)

        def positions(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            everywhere = f"{path}.sum", lambda gradient: gradient.sum(0)  # one row is added in every sentence
            self.record_form(f"{path}.embed_positions.output", f"{at} D", "PE", output, *everywhere)

        def before(module: nn.Module, args: Any) -> None:
            self.record(f"{path}.sum", f"B {at} D", "E[x]·√d_model + PE", args[0])

        def after(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record(f"{path}.dropped", f"B {at} D", "dropout(E[x]·√d_model + PE)", output)

        def end(module: nn.Module, args: Any, output: Any) -> None:
            self.record(f"{path}.output", f"B {at} D", "memory" if at == "S" else "x", output.last_hidden_state)

        yield stack.embed_positions.register_forward_hook(positions)
        yield stack.dropout.register_forward_pre_hook(before)
        yield stack.dropout.register_forward_hook(after)
        yield stack.register_forward_hook(end)

    def _watch_embedding(self, path: str, embedding: nn.Module) -> Iterator[RemovableHandle]:
        at = _letter(path)

        def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            rows = nn.functional.embedding(args[0], module.weight, module.padding_idx)
            scaled = rows * math.sqrt(module.embedding_dim)
            if not torch.equal(scaled, output):
                raise RuntimeError(f"{path}: the model scales its embeddings by another factor than √d_model")
            self.record(f"{path}.rows", f"B {at} D", "E[x]", rows)
            self.record(f"{path}.output", f"B {at} D", "E[x]·√d_model", scaled)
            return scaled  # the same numbers, made from rows that have a gradient

        yield embedding.register_forward_hook(hook)

    def _watch_attention(self, path: str, attention: nn.Module) -> Iterator[RemovableHandle]:
        at = _letter(path)
        memory_at = "S" if path.endswith("cross_attn") else at
        self._places[attention] = path, at, memory_at

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.record(f"{path}.input", f"B {at} D", "x", args[0] if args else kwargs["hidden_states"])
            if kwargs.get("memory") is not None:
                self.record(f"{path}.memory", "B S D", "memory", kwargs["memory"])

        def projection(name: str, axes: str, symbol: str) -> Callable[..., None]:
            return lambda module, args, output: self.record(f"{path}.{name}", axes, symbol, output)

        def concat(module: nn.Module, args: Any) -> None:
            self.record(f"{path}.concat", f"B {at} H·V", "Concat(head_1, ..., head_h)", args[0])

        yield attention.register_forward_pre_hook(before, with_kwargs=True)
        source = "memory" if memory_at != at or path.endswith("cross_attn") else "x"
        yield attention.q_proj.register_forward_hook(projection("q", f"B {at} H·K", "Q = x W^Q"))
        yield attention.k_proj.register_forward_hook(projection("k", f"B {memory_at} H·K", f"K = {source} W^K"))
        yield attention.v_proj.register_forward_hook(projection("v", f"B {memory_at} H·V", f"V = {source} W^V"))
        yield attention.out_proj.register_forward_pre_hook(concat)
        yield attention.out_proj.register_forward_hook(projection("output", f"B {at} D", "MultiHead(Q, K, V)"))

    def _watch_feed_forward(self, path: str, feed_forward: nn.Module) -> Iterator[RemovableHandle]:
        at = _letter(path)

        def inner(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record(f"{path}.inner", f"B {at} F", "x W1 + b1", output)

        def relu(module: nn.Module, args: Any) -> None:
            self.record(f"{path}.relu", f"B {at} F", "max(0, x W1 + b1)", args[0])

        def outer(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record(f"{path}.output", f"B {at} D", "FFN(x)", output)

        yield feed_forward.fc1.register_forward_hook(inner)
        yield feed_forward.fc2.register_forward_pre_hook(relu)
        yield feed_forward.fc2.register_forward_hook(outer)

    def _watch_add_norm(self, path: str, add_norm: nn.Module) -> Iterator[RemovableHandle]:
        at = _letter(path)

        def dropped(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record(f"{path}.dropped", f"B {at} D", "dropout(Sublayer(x))", output)

        def total(module: nn.Module, args: Any) -> None:
            self.record(f"{path}.sum", f"B {at} D", "x + dropout(Sublayer(x))", args[0])

        def normed(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record(f"{path}.output", f"B {at} D", "LayerNorm(x + dropout(Sublayer(x)))", output)

        yield add_norm.dropout.register_forward_hook(dropped)
        yield add_norm.norm.register_forward_pre_hook(total)
        yield add_norm.norm.register_forward_hook(normed)

    def _watch_head(self, path: str, model: nn.Module) -> Iterator[RemovableHandle]:
        def logits(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            self.record("lm_head.logits", "B T W", "x Eᵀ", output)

        yield model.lm_head.register_forward_hook(logits)

    _watchers: dict[str, Callable[..., Iterator[RemovableHandle]]] = {
        "VanillaTransformerEncoder": _watch_stack,
        "VanillaTransformerDecoder": _watch_stack,
        "ScaledEmbedding": _watch_embedding,
        "MultiHeadAttention": _watch_attention,
        "PositionwiseFeedForward": _watch_feed_forward,
        "AddNorm": _watch_add_norm,
        MODEL_CLASS: _watch_head,
    }

    def see_mask(self, mask: torch.Tensor | None, padding: torch.Tensor, look_ahead: torch.Tensor) -> None:
        """A mask that the library has made, None where all may be seen, and what it is made of [B, 1, L, M]."""
        self._masks.append((mask, padding, look_ahead))

    def see_attention(
        self,
        module: nn.Module,
        query: torch.Tensor,  # [B, H, L, K]
        key: torch.Tensor,  # [B, H, M, K]
        value: torch.Tensor,  # [B, H, M, V]
        mask: torch.Tensor | None,  # [B, 1, L, M]
        scaling: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Equation 1 in the steps of the library's eager attention; [B, L, H, V] and the weights [B, H, L, M]."""
        path, at, memory_at = self._places[module]
        square = f"B H {at} {memory_at}"

        def swapped(gradient: torch.Tensor) -> torch.Tensor:
            return gradient.transpose(1, 2)

        states = {"q": (query, at, "K"), "k": (key, memory_at, "K"), "v": (value, memory_at, "V")}
        for name, (heads, where, width) in states.items():
            split = f"{path}.{name}_split", f"B {where} H {width}", f"{name.upper()}, a row for each head"
            self.record_form(*split, heads.transpose(1, 2), f"{path}.{name}_heads", swapped)
        for name, (heads, where, width) in states.items():
            self.record(f"{path}.{name}_heads", f"B H {where} {width}", f"{name.upper()}_i", heads)

        products = torch.matmul(query, key.transpose(2, 3))
        scores = products * scaling
        self.record(f"{path}.products", square, "Q_i K_iᵀ", products)
        self.record(f"{path}.scores", square, "Q_i K_iᵀ/√d_k", scores)
        # A mask is known again by itself; without one, the parts of any that hides nothing do, in the right shape.
        parts = (parts for made, *parts in self._masks if made is mask and parts[0].shape[2:] == scores.shape[2:])
        padding, look_ahead = next(parts)
        self.record(f"{path}.padding_mask", f"B 1 {at} {memory_at}", "padding", padding)
        self.record(f"{path}.look_ahead_mask", f"B 1 {at} {memory_at}", "look-ahead", look_ahead)
        self.record(f"{path}.mask", f"B 1 {at} {memory_at}", "mask", torch.minimum(padding, look_ahead))
        masked = scores if mask is None else scores + mask
        self.record(f"{path}.masked_scores", square, "Q_i K_iᵀ/√d_k + mask", masked)
        weights = nn.functional.softmax(masked, dim=-1, dtype=torch.float32).to(query.dtype)
        self.record(f"{path}.weights", square, "softmax(Q_i K_iᵀ/√d_k + mask)", weights)
        heads = torch.matmul(weights, value)
        self.record(f"{path}.heads", f"B H {at} V", "head_i = softmax(...) V_i", heads)
        return heads.transpose(1, 2).contiguous(), weights


_watching: ContextVar[Recorder | None] = ContextVar("_watching", default=None)


def _traced_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    recorder = _watching.get()
    if recorder is None:
        raise ValueError("attn_implementation='traced' is for hf_attention.trace, want 'eager' or 'sdpa'")
    return recorder.see_attention(module, query, key, value, attention_mask, scaling)


def _traced_mask(**arguments: Any) -> torch.Tensor | None:
    recorder = _watching.get()
    mask = eager_mask(**arguments)
    if recorder is not None:
        whole = {**arguments, "allow_is_bidirectional_skip": False}
        padding = eager_mask(**{**whole, "mask_function": bidirectional_mask_function})
        look_ahead = eager_mask(**{**whole, "attention_mask": None})
        recorder.see_mask(mask, padding, look_ahead)
    return mask


AttentionInterface.register("traced", _traced_attention)
AttentionMaskInterface.register("traced", _traced_mask)  # without it the library would apply no mask, silently


def _run(model: PreTrainedModel, batch: dict[str, torch.Tensor], label_smoothing: float) -> Recorder:
    """One forward pass as in training: what goes in, what the modules make of it, and the loss worked out."""
    recorder = Recorder()
    labels = batch["labels"]
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
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
    recorder.record("lm_head.log_probs", "B T W", "log softmax(x Eᵀ)", log_probs)
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
    with _mode(model, training=False), torch.no_grad():
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
    if (
        getattr(getattr(model, "config", None), "model_type", None) != MODEL_TYPE
        or type(model).__name__ != MODEL_CLASS
    ):
        raise ValueError(f"model is {type(model).__name__}, wanted a {MODEL_CLASS}: other models have other modules")
    return model


@contextmanager
def _mode(model: PreTrainedModel, training: bool) -> Iterator[None]:
    """The model in training or evaluation mode; afterwards each of its modules as before."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def _letter(path: str) -> str:
    return "S" if path.partition(".")[0] == "encoder" else "T"


def _copied(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.detach().cpu().clone()
