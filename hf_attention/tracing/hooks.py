"""What hooks see of a model: every arrow of the paper's Figures 1 and 2, in order of computation.

The model knows nothing of it. Forward hooks see what enters and leaves each module; an attention function and its mask
function, registered with the library as `traced`, see what happens inside attention. The numbers are those of the
library's `eager` attention, bit for bit.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, eager_mask

from .trace import TracedTensor


MODEL_CLASS = "VanillaTransformerForConditionalGeneration"
# One matrix in three places (§3.4), or three, by what they are used in.
EMBEDDINGS = {"encoder": "E", "decoder": "E", "lm_head": "Eᵀ"}
OWN_EMBEDDINGS = {"encoder": "E_src", "decoder": "E_tgt", "lm_head": "W_out"}
WRAPPED = {"base_layer", "original_module", "modules_to_save"}  # as PEFT calls what it puts something else around


class Recorder:
    """Collects tensors under the names of the modules that make them; `values` are the run's own, not copies."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self._labels: dict[str, tuple[tuple[str, ...], str]] = {}
        self._forms: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {}
        self._places: dict[nn.Module, tuple[str, str, str]] = {}  # of an attention: its path, letters of L and of M
        self._masks: list[tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]] = []
        self._letters = EMBEDDINGS

    def symbol(self, name: str) -> str:
        """The formula that a tensor was recorded with."""
        return self._labels[name][1]

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
        """A value that the run goes on with in another form, `of`; `gradient` brings that one's gradient into this."""
        self.record(name, axes, symbol, value)
        self._forms[name] = of, gradient

    def finish(self, loss: torch.Tensor | None) -> list[TracedTensor]:
        """Copies on the CPU; given a `loss` [], with its gradients. The parameters' own gradients stay untouched."""
        gradients: dict[str, torch.Tensor] = {}
        if loss is not None:
            wanted = {name: value for name, value in self.values.items() if value.requires_grad}
            found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
            gradients = {name: _copied(each) for name, each in zip(wanted, found, strict=True) if each is not None}
            gradients |= {name: gradient(gradients[of]) for name, (of, gradient) in self._forms.items()}
        return [
            TracedTensor(name, *self._labels[name], _copied(value), gradients.get(name))
            for name, value in self.values.items()
        ]

    @contextmanager
    def watching(self, model: PreTrainedModel) -> Iterator[None]:
        """Records what `model` computes inside the block; it comes back without hooks, its settings as before.

        Raises:
            ValueError: a module of Figure 1 is replaced by a wrapper, whose result is another one than the module's.
        """
        implementation = model.config._attn_implementation
        self._letters = EMBEDDINGS if _is_tied(model) else OWN_EMBEDDINGS
        with ExitStack() as stack:
            for name, module in model.named_modules():
                watch = self._watchers.get(type(module).__name__)
                if watch and WRAPPED & set(name.split(".")):
                    raise ValueError(f"{name} is inside a wrapper, wanted it merged into the model (merge_and_unload)")
                for handle in watch(self, name.removeprefix("model."), module) if watch else ():
                    stack.callback(handle.remove)
                if getattr(module, "gradient_checkpointing", False):  # it would throw away what we look at
                    stack.callback(setattr, module, "gradient_checkpointing", True)
                    module.gradient_checkpointing = False
            stack.callback(model.set_attn_implementation, implementation)
            model.set_attn_implementation("traced")
            token = _watching.set(self)
            stack.callback(_watching.reset, token)
            yield

    # A watcher for each class of the model's modules: hooks for what Figure 1 shows of it.

    def _entering(self, name: str, axes: str, symbol: str) -> Callable[..., None]:
        """A hook that records what a module is given."""
        return lambda module, args: self.record(name, axes, symbol, args[0])

    def _leaving(self, name: str, axes: str, symbol: str) -> Callable[..., None]:
        """A hook that records what a module makes of it."""
        return lambda module, args, output: self.record(name, axes, symbol, output)

    def _watch_stack(self, path: str, stack: Any) -> Iterator[RemovableHandle]:
        at, total = _letter(path), f"{self._letters[path]}[x]·√d_model + PE"

        def positions(module: nn.Module, args: Any, output: torch.Tensor) -> None:
            everywhere = f"{path}.sum", lambda gradient: gradient.sum(0)  # one row is added in every sentence
            self.record_form(f"{path}.embed_positions.output", f"{at} D", "PE", output, *everywhere)

        def end(module: nn.Module, args: Any, output: Any) -> None:
            self.record(f"{path}.output", f"B {at} D", "memory" if at == "S" else "x", output.last_hidden_state)

        yield stack.embed_positions.register_forward_hook(positions)
        yield stack.dropout.register_forward_pre_hook(self._entering(f"{path}.sum", f"B {at} D", total))
        yield stack.dropout.register_forward_hook(self._leaving(f"{path}.dropped", f"B {at} D", f"dropout({total})"))
        yield stack.register_forward_hook(end)

    def _watch_embedding(self, path: str, embedding: Any) -> Iterator[RemovableHandle]:
        at, symbol = _letter(path), f"{self._letters[path.partition('.')[0]]}[x]"

        def hook(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            rows = nn.functional.embedding(args[0], module.weight, module.padding_idx)
            if torch.is_grad_enabled() and not rows.requires_grad:
                rows.requires_grad_()  # of a frozen model too, each tensor has its gradient
            scaled = rows * math.sqrt(module.embedding_dim)
            if not torch.equal(scaled, output):
                raise RuntimeError(f"{path}: the model scales its embeddings by another factor than √d_model")
            self.record(f"{path}.rows", f"B {at} D", symbol, rows)
            self.record(f"{path}.output", f"B {at} D", f"{symbol}·√d_model", scaled)
            return scaled  # the same numbers, made from rows that have a gradient

        yield embedding.register_forward_hook(hook)

    def _watch_attention(self, path: str, attention: Any) -> Iterator[RemovableHandle]:
        at = _letter(path)
        memory_at, source = ("S", "memory") if path.endswith("cross_attn") else (at, "x")
        self._places[attention] = path, at, memory_at

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.record(f"{path}.input", f"B {at} D", "x", args[0] if args else kwargs["hidden_states"])
            if kwargs.get("memory") is not None:
                self.record(f"{path}.memory", "B S D", "memory", kwargs["memory"])

        yield attention.register_forward_pre_hook(before, with_kwargs=True)
        for name, where, width, given in (
            ("q", at, "K", "x"),
            ("k", memory_at, "K", source),
            ("v", memory_at, "V", source),
        ):
            letter, linear = name.upper(), getattr(attention, f"{name}_proj")
            symbol = f"{letter} = {given} W^{letter} + b^{letter}"
            yield linear.register_forward_hook(self._leaving(f"{path}.{name}", f"B {where} H·{width}", symbol))
        concat = f"{path}.concat", f"B {at} H·V", "Concat(head_1, ..., head_h)"
        yield attention.out_proj.register_forward_pre_hook(self._entering(*concat))
        output = f"{path}.output", f"B {at} D", "MultiHead(Q, K, V)"
        yield attention.out_proj.register_forward_hook(self._leaving(*output))

    def _watch_feed_forward(self, path: str, feed_forward: Any) -> Iterator[RemovableHandle]:
        at = _letter(path)
        inner, outer = feed_forward.fc1, feed_forward.fc2
        yield inner.register_forward_hook(self._leaving(f"{path}.inner", f"B {at} F", "x W1 + b1"))
        yield outer.register_forward_pre_hook(self._entering(f"{path}.relu", f"B {at} F", "max(0, x W1 + b1)"))
        yield outer.register_forward_hook(self._leaving(f"{path}.output", f"B {at} D", "FFN(x)"))

    def _watch_add_norm(self, path: str, add_norm: Any) -> Iterator[RemovableHandle]:
        axes, dropped = f"B {_letter(path)} D", "dropout(Sublayer(x))"
        total = f"x + {dropped}"
        yield add_norm.dropout.register_forward_hook(self._leaving(f"{path}.dropped", axes, dropped))
        yield add_norm.norm.register_forward_pre_hook(self._entering(f"{path}.sum", axes, total))
        yield add_norm.norm.register_forward_hook(self._leaving(f"{path}.output", axes, f"LayerNorm({total})"))

    def _watch_head(self, path: str, model: Any) -> Iterator[RemovableHandle]:
        symbol = f"x {self._letters['lm_head']}"
        yield model.lm_head.register_forward_hook(self._leaving("lm_head.logits", "B T W", symbol))

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


@contextmanager
def in_mode(model: PreTrainedModel, training: bool) -> Iterator[None]:
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


def _is_tied(model: PreTrainedModel) -> bool:
    """Whether the last linear layer goes by the matrix of both embeddings."""
    modules: Any = model
    stacks = modules.model.encoder, modules.model.decoder
    return all(stack.embed_tokens.weight is modules.lm_head.weight for stack in stacks)


def _copied(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().clone()
