"""The decoder of `modeling_vanilla_transformer.py` once more, for beam search: the same numbers in fewer operations.

A step of the search asks for one more position of every hypothesis. That is little arithmetic, and what the model does
around it counts: modules in modules, masks for whatever may come, a cache that grows by being copied. Here is nothing
but the arithmetic of section 3 on the model's own weights, and a cache made for what beam search does to it.

Shapes as in the search: B sentences, k beams, R = B·k rows; N layers and S, H, K, V, D as in the model.
"""

import math
from typing import Any

import torch
from torch import nn
from torch.nn.functional import embedding, layer_norm, linear, scaled_dot_product_attention


ROOM = 32  # positions that the cache can hold at first; it doubles
PACKED_ROWS, PACKED_SIZE = 64, 2**18  # from so many rows and weights on, packing is worth its time


class QuickDecoder:
    """Predicts one position after the other, for hypotheses that begin with one token each.

    Args:
        model: one that it `serves`.
        memory: the encoder's output, [B, S, D], one row for the k hypotheses of a sentence.
        memory_mask: [B, S], 1 for tokens and 0 for padding.
        beams: k.
    """

    @staticmethod
    def serves(model: nn.Module, state: dict[str, Any]) -> bool:
        """Whether `model` is its weights and no more: no hooks, adapters, quantization, sharding, compilation or
        autocast, under SDPA, in evaluation; and `state` what `generate()` prepares when nothing else is asked of it.

        The mixed precision of a Trainer is no obstacle: its weights are float32, and so is the search, during training
        as after it.
        """
        home = type(model).__module__
        parts = [model, model.model, model.lm_head, *model.model.decoder.modules()]
        plain = all(
            isinstance(part, nn.Dropout)
            or type(part).__module__ == home
            or type(part).__module__.startswith("torch.nn.")
            for part in parts
        )
        touched = any(_is_touched(part) for part in parts)
        weights = [model.lm_head.weight, *model.model.decoder.parameters()] if plain else []
        return (
            plain
            and not touched
            and not model.training
            and model.config._attn_implementation == "sdpa"
            and all(type(weight) is nn.Parameter for weight in weights)
            and len({(weight.device, weight.dtype) for weight in weights}) == 1
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(model.device.type)
            and state.keys() <= {"encoder_outputs", "attention_mask", "cache", "use_cache"}
            and bool(state.get("use_cache"))
        )

    def __init__(self, model: nn.Module, memory: torch.Tensor, memory_mask: torch.Tensor | None, beams: int):
        config, decoder = model.config, model.model.decoder
        self.beams, self.heads, self.scaling = beams, config.num_heads, config.d_k**-0.5
        self.embeddings, self.decoder = decoder.embed_tokens.weight, decoder
        rows = len(memory) * beams
        self.lm_head = Product(model.lm_head, rows)
        self.layers = [LayerWeights(layer, rows) for layer in decoder.layers]
        padded = memory_mask is not None and not memory_mask.all()
        alone = len(memory) == 1 and not padded and memory.shape[1] < config.d_k
        attentions = [layer.cross_attn for layer in decoder.layers]
        self.memories = [LoneMemory(cross, memory) if alone else Memory(cross, memory, rows) for cross in attentions]
        self.memory_mask = memory_mask[:, None, None].bool() if padded else None  # [B, 1, 1, S], True: may look
        # Positions come first, so that those which are there lie together, and their rows move in one operation.
        self.length = 0
        shape = ROOM, len(self.layers), rows, self.heads
        self.keys = Cache(memory.new_empty(*shape, config.d_k))
        self.values = Cache(memory.new_empty(*shape, config.d_v))
        self.positions = self._encoded_positions(ROOM)

    def _encoded_positions(self, count: int) -> torch.Tensor:
        encoding = self.decoder.embed_positions
        known = getattr(encoding, "num_embeddings", count)  # learned ones come to an end
        places = torch.arange(min(count, known), device=self.embeddings.device)
        return encoding(places).to(self.embeddings.dtype)  # [positions, D]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [R, vocab_size] of what follows the newest of `tokens` [R, L], whose others it has seen."""
        self.decoder.check_positions(self.length + 1)
        if self.length == len(self.keys.now):
            self.keys.grow()
            self.values.grow()
            self.positions = self._encoded_positions(len(self.keys.now))
        alike = self.beams if self.length == 0 else 1  # at first, one row speaks for the k hypotheses of a sentence
        newest = tokens[::alike, -1]
        states = embedding(newest, self.embeddings) * math.sqrt(self.embeddings.shape[1])  # [R, D], §3.4
        states = states + self.positions[self.length]
        self.length += 1
        for place, (layer, memory) in enumerate(zip(self.layers, self.memories, strict=True)):
            states = layer_norm(states + self._attended_by(states, place, layer), *layer.own_norm)
            states = layer_norm(states + memory.attended_by(states, self.memory_mask), *layer.memory_norm)
            states = layer_norm(states + layer.outer(layer.inner(states).relu_()), *layer.outer_norm)
        logits = self.lm_head(states)
        return logits if alike == 1 else logits.repeat_interleave(alike, dim=0)

    def _attended_by(self, states: torch.Tensor, place: int, layer: "LayerWeights") -> torch.Tensor:
        """[R, D] -> [R, D], or at first [B, D] -> [B, D]"""
        last = self.length - 1
        query = layer.query(states).view(len(states), self.heads, 1, -1)  # [R, H, 1, K]
        keys = self.keys.put(last, place, layer.key(states))  # [R, H, L, K]
        values = self.values.put(last, place, layer.value(states))  # [R, H, L, V]
        heads = scaled_dot_product_attention(query, keys, values, scale=self.scaling)
        return layer.own_output(heads.flatten(1))

    def follow(self, beam: torch.Tensor, stay: torch.Tensor) -> None:
        """Goes on with the sentences that `stay`, each beam from where `beam` [B, k] says."""
        rows = (stay[:, None] * self.beams + beam[stay]).flatten()
        if len(stay) < len(beam):
            self.memory_mask = None if self.memory_mask is None else self.memory_mask[stay]
            for memory in self.memories:
                memory.keep(stay)
        elif rows.device.type == "cpu" and torch.equal(rows, torch.arange(len(rows))):
            return  # another device would have to be waited for
        self.keys.take(rows, self.length)
        self.values.take(rows, self.length)


class Cache:
    """The keys, or the values, of the target's positions: `now` [positions, N, R, H, width], of which L are used."""

    def __init__(self, room: torch.Tensor):
        self.now, self.spare = room, torch.empty_like(room)

    def grow(self) -> None:
        self.now = torch.cat([self.now, self.now])  # the second half is room, whatever stands there
        self.spare = torch.empty_like(self.now)

    def put(self, position: int, layer: int, newest: torch.Tensor) -> torch.Tensor:
        """What `layer` has up to `position`, where `newest` now stands: [R, H·width] -> [R, H, L, width].

        Of fewer rows than the cache has, each is put down for the k hypotheses of a sentence, and one of these is
        returned.
        """
        alike = self.now.shape[2] // len(newest)
        heads, width = self.now.shape[3:]
        self.now[position, layer].view(-1, alike, heads, width)[:] = newest.view(-1, 1, heads, width)
        return self.now[: position + 1, layer, ::alike].permute(1, 2, 0, 3)

    def take(self, rows: torch.Tensor, length: int) -> None:
        """Goes on with `rows`, of the first `length` positions."""
        # Into the memory of the other one, of which fewer rows need less: new memory would be dear to touch.
        shape = (*self.now.shape[:2], len(rows), *self.now.shape[3:])
        moved = self.spare.view(-1)[: math.prod(shape)].view(shape)
        torch.index_select(self.now[:length], 2, rows, out=moved[:length])
        self.now, self.spare = moved, self.now


class LayerWeights:
    """What a decoder layer multiplies by at every step. `rows` is how many it does that for."""

    def __init__(self, layer: nn.Module, rows: int):
        own, feed_forward = layer.self_attn, layer.feed_forward
        linears = own.q_proj, own.k_proj, own.v_proj, own.out_proj, feed_forward.fc1, feed_forward.fc2
        self.query, self.key, self.value, self.own_output, self.inner, self.outer = (
            Product(linear, rows) for linear in linears
        )
        after = layer.self_attn_add_norm, layer.cross_attn_add_norm, layer.feed_forward_add_norm
        norms = (part.norm for part in after)
        self.own_norm, self.memory_norm, self.outer_norm = (
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps) for norm in norms
        )


class Memory:
    """Cross-attention of a layer, with the keys and values of `memory` [B, S, D] made once."""

    def __init__(self, cross: nn.Module, memory: torch.Tensor, rows: int):
        self.query, self.output = Product(cross.q_proj, rows), Product(cross.out_proj, rows)
        self.keys, self.values = _keys_and_values(cross, memory)  # [B, H, S, K], [B, H, S, V]
        self.scaling = cross.scaling

    def attended_by(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """[R, D] -> [R, D]; `mask` is [B, 1, 1, S]."""
        sentences, heads = self.keys.shape[:2]
        query = split_heads(self.query(states).unflatten(0, (sentences, -1)), heads)  # [B, H, k, K]
        attended = scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask, scale=self.scaling)
        return self.output(attended.transpose(1, 2).flatten(2).flatten(0, 1))

    def keep(self, stay: torch.Tensor) -> None:
        self.keys, self.values = self.keys[stay], self.values[stay]


class LoneMemory:
    """The same for one short sentence, with what its keys and values are multiplied by at every step.

    In (x W^Q) K^T and (A V) W^O the products W^Q K^T and V W^O are the same at all steps. While S < d_k they are
    smaller than W^Q and W^O, and a step for a few rows takes as long as reading what it multiplies by.
    """

    def __init__(self, cross: nn.Module, memory: torch.Tensor):
        keys, values = (part[0] for part in _keys_and_values(cross, memory))  # [H, S, K], [H, S, V]
        keys = keys * cross.scaling
        self.heads = len(keys)
        into, bias = (part.unflatten(0, (self.heads, -1)) for part in (cross.q_proj.weight, cross.q_proj.bias))
        self.keys = (keys @ into).flatten(0, 1)  # [H·S, D]
        self.key_bias = (keys @ bias[..., None]).flatten()  # [H·S]
        outof = cross.out_proj.weight.t().unflatten(0, (self.heads, -1))  # [H, V, D]
        self.values, self.value_bias = (values @ outof).flatten(0, 1), cross.out_proj.bias  # [H·S, D], [D]

    def attended_by(self, states: torch.Tensor, mask: None) -> torch.Tensor:
        """[R, D] -> [R, D]"""
        scores = linear(states, self.keys, self.key_bias)  # [R, H·S]
        weights = scores.view(len(states), self.heads, -1).softmax(-1).flatten(1)
        return torch.addmm(self.value_bias, weights, self.values)

    def keep(self, stay: torch.Tensor) -> None:
        """The one sentence stays, or the search is over."""


class Product:
    """x Wᵀ + b of a linear `layer`, for up to `rows` rows at every step.

    MKL puts a weight in another order for each product. Here that is done once for all steps, where they are large
    enough, by the operators with which torch.compile packs a frozen model (torch 2.13). They have no public name and
    are not in every build: without them it is the plain product.
    """

    def __init__(self, layer: nn.Module, rows: int):
        self.weight, self.bias, self.packed = layer.weight, layer.bias, None
        large = rows >= PACKED_ROWS and self.weight.numel() >= PACKED_SIZE
        plain = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32
        if large and plain and torch.backends.mkl.is_available():
            self.packed = torch.ops.mkl._mkl_reorder_linear_weight(self.weight.detach(), rows)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if self.packed is None:
            return linear(states, self.weight, self.bias)
        # The last argument is the number of rows. Packing was for more; the order that it leaves serves fewer as well.
        return torch.ops.mkl._mkl_linear(states, self.packed, self.weight, self.bias, len(states))


def _is_touched(part: nn.Module) -> bool:
    """Whether a call of `part` is more than the `forward` of its class.

    Tested with torch 2.13, which keeps hooks here, and Accelerate 1.15: for mixed precision it puts a `forward` that
    casts into the model and keeps the one that was there. A dispatched or compiled module has a `forward` too.
    """
    before = vars(part).get("_original_forward")
    only_casts = getattr(before, "__func__", None) is type(part).forward and not hasattr(part, "_hf_hook")
    return bool(part._forward_hooks or part._forward_pre_hooks or ("forward" in vars(part) and not only_casts))


def split_heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, L, H·width] -> [B, H, L, width]"""
    return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)


def _keys_and_values(cross: nn.Module, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, S, D] -> [B, H, S, K] and [B, H, S, V]"""
    heads = cross.q_proj.out_features // cross.d_k
    return split_heads(cross.k_proj(memory), heads), split_heads(cross.v_proj(memory), heads)
