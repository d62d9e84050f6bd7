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
from torch.nn.functional import embedding, layer_norm, linear


ROOM = 32  # steps that a tree has room for at first
LARGE = 2**18  # from so many weights on, a product is worth preparing
PACKED_ROWS = 64  # by packing from so many rows on, else by blocks


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
        self.beams, self.scaling = beams, config.d_k**-0.5
        self.embeddings, self.decoder = decoder.embed_tokens.weight, decoder
        rows = len(memory) * beams
        self.lm_head = Product(model.lm_head, rows)
        self.layers = [LayerWeights(layer, rows) for layer in decoder.layers]
        padded = memory_mask is not None and not memory_mask.all()
        alone = len(memory) == 1 and not padded and memory.shape[1] < config.d_k
        attentions = [layer.cross_attn for layer in decoder.layers]
        self.memories = [LoneMemory(cross, memory) if alone else Memory(cross, memory, rows) for cross in attentions]
        shape = len(memory), config.num_heads, 1, memory.shape[1] if padded else 1
        self.memory_mask = memory.new_zeros(shape)  # [B, H, 1, S]: 0 may be looked at, -inf not, as padding
        if padded:
            self.memory_mask.masked_fill_(memory_mask[:, None, None].eq(0), -torch.inf)
        self.tree = Tree(memory, len(self.layers), config.num_heads, config.d_k, config.d_v, beams)
        self.length, self.positions = 0, self._encoded_positions(ROOM)

    def _encoded_positions(self, count: int) -> torch.Tensor:
        encoding = self.decoder.embed_positions
        known = getattr(encoding, "num_embeddings", count)  # learned ones come to an end
        places = torch.arange(min(count, known), device=self.embeddings.device)
        return encoding(places).to(self.embeddings.dtype)  # [positions, D]

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [R, vocab_size] of what follows the newest of `tokens` [R, L], whose others it has seen."""
        self.decoder.check_positions(self.length + 1)
        if self.length == len(self.positions):
            self.positions = self._encoded_positions(2 * self.length)
        alike = self.beams if self.length == 0 else 1  # at first, one row speaks for the k hypotheses of a sentence
        newest = tokens[::alike, -1]
        states = embedding(newest, self.embeddings) * math.sqrt(self.embeddings.shape[1])  # [R, D], §3.4
        states = states + self.positions[self.length]
        self.length += 1
        mask, memory_mask = self.tree.branch(), self.memory_mask.flatten(0, 1)
        for place, (layer, memory) in enumerate(zip(self.layers, self.memories, strict=True)):
            keys, values = self.tree.put(place, layer.key(states), layer.value(states))
            heads = attention(layer.query(states), keys, values, mask, self.scaling)
            states = layer_norm(states + layer.own_output(heads), *layer.own_norm)
            states = layer_norm(states + memory.attended_by(states, memory_mask), *layer.memory_norm)
            states = layer_norm(states + layer.outer(layer.inner(states).relu_()), *layer.outer_norm)
        logits = self.lm_head(states)
        return logits if alike == 1 else logits.repeat_interleave(alike, dim=0)

    def follow(self, beam: torch.Tensor, stay: torch.Tensor) -> None:
        """Goes on with the sentences that `stay`, each beam from where `beam` [B, k] says."""
        self.tree.follow(beam[stay], stay)
        if len(stay) < len(beam):
            moved = (stay != torch.arange(len(stay), device=stay.device)).nonzero()[:, 0]
            for part in (self.tree, *self.memories):
                part.keep(stay, moved)
            self.memory_mask = self.memory_mask[stay]


class Tree:
    """Keys and values of the targets, which stay where they are when beams change places.

    The hypotheses of a sentence are paths in a tree: a step gives each of them a node, which looks at itself and at
    those that it came from. All k queries meet all nodes of their sentence, and a mask says which are whose. So it is
    the mask alone that follows the beams.

    Args:
        memory: [B, S, D], for how many sentences, on which device, in which precision.
        beams: k. The start is one node for all of them.
    """

    def __init__(self, memory: torch.Tensor, layers: int, heads: int, d_k: int, d_v: int, beams: int):
        self.beams, self.nodes = beams, 0
        self.heads, shape = heads, (layers, len(memory), heads, ROOM * beams)
        self.keys, self.values = (memory.new_empty(*shape, width) for width in (d_k, d_v))  # [N, B, H, room, K or V]
        self.mask = memory.new_zeros(len(memory), beams, 0)  # [B, k, nodes]: 0 may be looked at, -inf not
        self.newest = memory.new_full((beams, beams), -torch.inf).fill_diagonal_(0)  # each at its own

    def branch(self) -> torch.Tensor:
        """Each hypothesis grows by a node; returned is the mask for all heads, [B·H, k, nodes]."""
        if self.nodes == 0:
            self.nodes, self.mask = 1, self.mask.new_zeros(*self.mask.shape[:2], 1)
            return self.mask[:, :1].repeat_interleave(self.heads, dim=0)  # one grows for the k
        if self.nodes + self.beams > self.keys.shape[3]:
            self._prune()
        self.nodes += self.beams
        self.mask = torch.cat([self.mask, self.newest.expand(len(self.mask), -1, -1)], dim=-1)
        return self.mask.repeat_interleave(self.heads, dim=0)

    def _prune(self) -> None:
        """Forgets nodes that no hypothesis came from, and makes room for as many again as are left."""
        seen = self.mask.eq(0).any(dim=1)  # [B, nodes]
        self.nodes = int(seen.sum(dim=-1).max())
        order = seen.int().argsort(dim=-1, descending=True, stable=True)[:, : self.nodes]
        self.mask = self.mask.take_along_dim(order[:, None], dim=-1)
        room = max(self.keys.shape[3], 2 * (self.nodes + self.beams))
        self.keys, self.values = (_moved_up(part, order, room) for part in (self.keys, self.values))

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        """With those of the newest nodes [R, H·K] and [R, H·V], all that `layer` has: [B, H, nodes, K or V]."""
        both = []
        for room, newest in ((self.keys[layer], keys), (self.values[layer], values)):
            newest = split_heads(newest.unflatten(0, (len(room), -1)), self.heads)
            room[:, :, self.nodes - newest.shape[2] : self.nodes] = newest
            both.append(room[:, :, : self.nodes])
        return both

    def follow(self, beam: torch.Tensor, stay: torch.Tensor) -> None:
        """Each hypothesis goes on from the one that `beam` [B, k] says, of the sentences that `stay`."""
        if self.beams > 1 or len(stay) < len(self.mask):
            self.mask = self.mask[stay[:, None], beam]

    def keep(self, stay: torch.Tensor, moved: torch.Tensor) -> None:
        self.keys, self.values = (
            _kept(part[..., : self.nodes, :], part, stay, moved, dim=1) for part in (self.keys, self.values)
        )


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
        self.keys, self.values = (part.contiguous() for part in _keys_and_values(cross, memory))
        self.scaling = cross.scaling

    def attended_by(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[R, D] -> [R, D]; `mask` is [B·H, 1, S]."""
        return self.output(attention(self.query(states), self.keys, self.values, mask, self.scaling))

    def keep(self, stay: torch.Tensor, moved: torch.Tensor) -> None:
        self.keys, self.values = (_kept(part, part, stay, moved, dim=0) for part in (self.keys, self.values))


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

    def attended_by(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[R, D] -> [R, D]; of a sentence alone, and so without padding, `mask` hides nothing."""
        scores = linear(states, self.keys, self.key_bias)  # [R, H·S]
        weights = scores.view(len(states), self.heads, -1).softmax(-1).flatten(1)
        return torch.addmm(self.value_bias, weights, self.values)

    def keep(self, stay: torch.Tensor, moved: torch.Tensor) -> None:
        """The one sentence stays, or the search is over."""


class Product:
    """x Wᵀ + b of a linear `layer`, for up to `rows` rows at every step.

    For many rows MKL and oneDNN put a weight in another order, for each product anew. Here that is done once for all
    steps, by the operators with which torch.compile packs a frozen model (torch 2.13). They have no public name and
    are not in every build: without them it is the plain product. Without AVX512 oneDNN is the faster of the two.

    For few rows a product takes as long as reading the weight, and MKL hardly shares that among threads. It does share
    a batch of products, so W is cut into blocks of output features.
    """

    def __init__(self, layer: nn.Module, rows: int):
        self.weight, self.bias, self.packed, self.blocks = layer.weight, layer.bias, None, None
        plain = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32
        both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
        if not plain or not both or self.weight.numel() < LARGE:
            return
        if rows >= PACKED_ROWS:
            self.by_mkl = _has_avx512()
            pack = torch.ops.mkl._mkl_reorder_linear_weight if self.by_mkl else torch.ops.mkldnn._reorder_linear_weight
            self.packed = pack(self.weight.detach(), rows)
            return
        count = next(count for count in range(20, 0, -1) if len(self.weight) % count == 0)
        self.blocks = self.weight.unflatten(0, (count, -1))  # [count, outputs / count, inputs]
        bias = self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias
        self.block_biases = bias.view(count, -1, 1)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        if self.blocks is not None:
            columns = states.t().expand(len(self.blocks), -1, -1)  # [count, inputs, R]
            return torch.baddbmm(self.block_biases, self.blocks, columns).flatten(0, 1).t().contiguous()
        if self.packed is None:
            return linear(states, self.weight, self.bias)
        if self.by_mkl:  # the last argument is the number of rows; packed for more, the weight serves fewer as well
            return torch.ops.mkl._mkl_linear(states, self.packed, self.weight, self.bias, len(states))
        return torch.ops.mkldnn._linear_pointwise(states, self.packed, self.bias, "none", [], "")


def _has_avx512() -> bool:
    known = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch does not tell
    return bool(known.get("avx512_f", True))


def _is_touched(part: nn.Module) -> bool:
    """Whether a call of `part` is more than the `forward` of its class.

    Tested with torch 2.13, which keeps hooks here, and Accelerate 1.15: for mixed precision it puts a `forward` that
    casts into the model and keeps the one that was there. A dispatched or compiled module has a `forward` too.
    """
    before = vars(part).get("_original_forward")
    only_casts = getattr(before, "__func__", None) is type(part).forward and not hasattr(part, "_hf_hook")
    return bool(part._forward_hooks or part._forward_pre_hooks or ("forward" in vars(part) and not only_casts))


def attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Equation 1, [R, H·K] -> [R, H·V]: the k hypotheses of a sentence look at the same keys [B, H, L, K].

    `mask` is added to the scores, [B·H, k, L], or of size 1 where it is the same for all. For so few queries, the
    products one by one take half of the time of PyTorch's fused attention on AVX2, and the same on AVX512.
    """
    sentences, heads = keys.shape[:2]
    query = split_heads(query.unflatten(0, (sentences, -1)), heads).flatten(0, 1)  # [B·H, k, K]
    scores = torch.baddbmm(mask, query, keys.flatten(0, 1).mT, alpha=scaling)  # [B·H, k, L]
    attended = torch.bmm(scores.softmax(dim=-1), values.flatten(0, 1))  # [B·H, k, V]
    return attended.unflatten(0, (sentences, heads)).transpose(1, 2).flatten(2).flatten(0, 1)


def _moved_up(part: torch.Tensor, order: torch.Tensor, room: int) -> torch.Tensor:
    """Of `part` [N, B, H, nodes, width] those that `order` [B, left] says, and room behind: [N, B, H, room, width]."""
    moved = part.new_empty(*part.shape[:3], room, part.shape[4])
    moved[..., : order.shape[1], :] = part.take_along_dim(order[None, :, None, :, None], dim=3)
    return moved


def _kept(used: torch.Tensor, whole: torch.Tensor, stay: torch.Tensor, moved: torch.Tensor, dim: int) -> torch.Tensor:
    """The sentences that `stay`, of `whole`: only those `moved`, whose place is another now, are copied."""
    used.index_copy_(dim, moved, used.index_select(dim, stay[moved]))
    return whole.narrow(dim, 0, len(stay))


def split_heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, L, H·width] -> [B, H, L, width]"""
    return projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)


def _keys_and_values(cross: nn.Module, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, S, D] -> [B, H, S, K] and [B, H, S, V]"""
    heads = cross.q_proj.out_features // cross.d_k
    return split_heads(cross.k_proj(memory), heads), split_heads(cross.v_proj(memory), heads)
