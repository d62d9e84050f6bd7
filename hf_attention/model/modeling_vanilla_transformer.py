"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the order of its section 3.

Shapes stand behind the lines that make them: B batch, S source positions, T target positions, H heads, K = d_k,
V = d_v, D = d_model; L and M stand for S or T where a part serves both (L queries, M keys). Attention masks are built
by the library for the attention implementation in use; as a boolean, True means "may look".
"""

import contextlib
import copy
import math
from typing import Any, Unpack

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils import TransformersKwargs, can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .decoding_vanilla_transformer import QuickDecoder
from .generation_vanilla_transformer import with_search


# Transformers 5.24 calls the key-value cache `cache`; callers that still say `past_key_values` are heard until 5.40.
accept_old_cache_name = deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")


def scaled_dot_product_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, H, L, K]
    key: torch.Tensor,  # [B, H, M, K]
    value: torch.Tensor,  # [B, H, M, V]
    attention_mask: torch.Tensor | None,  # [B, 1, L, M], 0 where a query may look, the dtype's minimum where not
    scaling: float,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """§3.2.1, Equation 1: softmax(Q Kᵀ / √d_k) V, as the library's `eager` attention.

    Returns the weighted values [B, L, H, V] and the weights [B, H, L, M]. No dropout on the weights: §5.4 has none.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling  # [B, H, L, M]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # For a static cache `generate()` makes SDPA's kind of mask itself; a call for the weights brings it here.
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class MultiHeadAttention(nn.Module):
    """§3.2.2: Concat(head_1, ..., head_h) W^O, where head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    The h matrices W_i^Q of the paper are the h row blocks of `q_proj.weight`; likewise for keys and values.
    """

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int | None = None, is_causal: bool = False):
        super().__init__()
        self.layer_idx = layer_idx  # the layer's place in the decoder's cache
        self.is_causal = is_causal
        self.d_k, self.d_v = config.d_k, config.d_v
        self.scaling = config.d_k**-0.5
        self.q_proj = nn.Linear(config.d_model, config.num_heads * config.d_k)
        self.k_proj = nn.Linear(config.d_model, config.num_heads * config.d_k)
        self.v_proj = nn.Linear(config.d_model, config.num_heads * config.d_v)
        self.out_proj = nn.Linear(config.num_heads * config.d_v, config.d_model)

    def forward(
        self,
        hidden_states: torch.Tensor,  # [B, L, D], where the queries come from
        attention_mask: torch.Tensor | None,
        memory: torch.Tensor | None = None,  # [B, S, D], where keys and values come from; None: hidden_states.
        # Beam search: [B/k, S, D], one for the k hypotheses of a sentence
        cache: Cache | None = None,
        attn_implementation: str = "eager",
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns [B, L, D] and, from attention implementations that build them, the weights [B, H, L, M]."""
        shape = hidden_states.shape
        shared = memory is not None and memory.shape[0] != shape[0]
        if shared:  # to the memory they share, the hypotheses' positions are so many queries of one sentence
            hidden_states = hidden_states.reshape(len(memory), -1, shape[-1])
        query = self._split_heads(self.q_proj(hidden_states), self.d_k)  # [B, H, L, K]
        key, value = self._keys_and_values(hidden_states, memory, cache)  # [B, H, M, K], [B, H, M, V]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(attn_implementation, scaled_dot_product_attention)
        wide = query.device.type == "cpu" and query.requires_grad and torch.is_autocast_enabled("cpu")
        if wide:  # backwards, torch's fused attention takes ten times as long in bfloat16 as in float32 on a CPU
            query, key, value = query.float(), key.float(), value.float()
        with torch.autocast("cpu", enabled=False) if wide else contextlib.nullcontext():
            heads, weights = attend(
                self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **kwargs
            )  # [B, L, H, V]
        if shared and weights is not None:
            weights = weights.unflatten(2, (-1, shape[1])).transpose(1, 2).flatten(0, 1)
        return self.out_proj(heads.flatten(2)).view(shape), weights

    def _split_heads(self, projected: torch.Tensor, width: int) -> torch.Tensor:
        return projected.unflatten(-1, (-1, width)).transpose(1, 2)  # [B, L, H·width] -> [B, H, L, width]

    def _keys_and_values(
        self, hidden_states: torch.Tensor, memory: torch.Tensor | None, cache: Cache | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = cache
        if isinstance(cache, EncoderDecoderCache):
            states = cache.self_attention_cache if memory is None else cache.cross_attention_cache
            if memory is not None and cache.is_updated.get(self.layer_idx):  # memory never changes: project once
                return states.layers[self.layer_idx].keys, states.layers[self.layer_idx].values
        source = hidden_states if memory is None else memory
        key = self._split_heads(self.k_proj(source), self.d_k)
        value = self._split_heads(self.v_proj(source), self.d_v)
        if states is not None:
            key, value = states.update(key, value, self.layer_idx)
            if memory is not None and isinstance(cache, EncoderDecoderCache):
                cache.is_updated[self.layer_idx] = True
        return key, value


class PositionwiseFeedForward(nn.Module):
    """§3.3, Equation 2: max(0, x W1 + b1) W2 + b2, at each position alike."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.fc2(nn.functional.relu(self.fc1(hidden_states)))  # [B, L, D] -> [B, L, d_ff] -> [B, L, D]


class ScaledEmbedding(nn.Embedding):
    """§3.4: token embeddings, multiplied by √d_model.

    The matrix starts with a standard deviation of d_model^-0.5, so that what enters the first layer has variance 1 and
    the same matrix, as the last linear layer, gives logits of variance 1.
    """

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * math.sqrt(self.embedding_dim)  # [B, L] -> [B, L, D]


class PositionalEncoding(nn.Module):
    """§3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)).

    Computed from the formula for any length: there is no table to outgrow, to load, or to cast to a narrow dtype.
    """

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.d_model = config.d_model

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        # In float32 the angle of position 1,000 is already off by 6e-5; Apple's GPUs have no float64.
        exact = torch.float32 if positions.device.type == "mps" else torch.float64
        pairs = torch.arange(0, self.d_model, 2, device=positions.device, dtype=exact)
        angles = positions.to(exact)[:, None] * torch.exp(pairs * (-math.log(10000.0) / self.d_model))  # [L, D/2]
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()  # [L] -> [L, D]


class LearnedPositionalEncoding(nn.Embedding):
    """Table 3, row E: a learned vector for each position, up to `max_position_embeddings`."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config.max_position_embeddings, config.d_model)


class AddNorm(nn.Module):
    """§3.1: LayerNorm(x + Sublayer(x)), with §5.4's dropout on the sub-layer's output before the sum."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.d_model)

    def forward(self, residual: torch.Tensor, sublayer_output: torch.Tensor) -> torch.Tensor:
        return self.norm(residual + self.dropout(sublayer_output))  # [B, L, D]


class EncoderLayer(GradientCheckpointingLayer):
    """§3.1: self-attention and feed-forward, each followed by add & norm. Figure 1, left."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.self_attn = MultiHeadAttention(config)
        self.self_attn_add_norm = AddNorm(config)
        self.feed_forward = PositionwiseFeedForward(config)
        self.feed_forward_add_norm = AddNorm(config)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, **kwargs: Any
    ) -> torch.Tensor:  # [B, S, D]
        attended, _ = self.self_attn(hidden_states, attention_mask, **kwargs)
        hidden_states = self.self_attn_add_norm(hidden_states, attended)
        return self.feed_forward_add_norm(hidden_states, self.feed_forward(hidden_states))


class DecoderLayer(GradientCheckpointingLayer):
    """§3.1: masked self-attention, attention over the encoder's output, feed-forward. Figure 1, right."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__()
        self.self_attn = MultiHeadAttention(config, layer_idx, is_causal=True)
        self.self_attn_add_norm = AddNorm(config)
        self.cross_attn = MultiHeadAttention(config, layer_idx)
        self.cross_attn_add_norm = AddNorm(config)
        self.feed_forward = PositionwiseFeedForward(config)
        self.feed_forward_add_norm = AddNorm(config)

    def forward(
        self,
        hidden_states: torch.Tensor,  # [B, T, D]
        memory: torch.Tensor,  # [B, S, D]
        attention_mask: torch.Tensor | None,
        memory_mask: torch.Tensor | None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:  # [B, T, D]
        attended, _ = self.self_attn(hidden_states, attention_mask, cache=cache, **kwargs)
        hidden_states = self.self_attn_add_norm(hidden_states, attended)
        attended, _ = self.cross_attn(hidden_states, memory_mask, memory=memory, cache=cache, **kwargs)
        hidden_states = self.cross_attn_add_norm(hidden_states, attended)
        return self.feed_forward_add_norm(hidden_states, self.feed_forward(hidden_states))


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """What encoder, decoder and whole models share: initialisation and the library's switches."""

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer", "DecoderLayer"]
    _skip_keys_device_placement = "cache"
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any):
        config.check()
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        """Glorot uniform (the paper is silent; its code scales uniformly), but d_model^-0.5 for embeddings."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)

    def _resize_token_embeddings(self, new_num_tokens: int, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super()._resize_token_embeddings(new_num_tokens, *args, **kwargs)
        decoder = getattr(self.base_model, "decoder", None)
        if decoder is not None and not self.config.tie_word_embeddings:  # tied ones follow in `tie_weights`
            decoder.embed_tokens = self._get_resized_embeddings(decoder.embed_tokens, new_num_tokens, *args, **kwargs)
        return embeddings


class Stack(VanillaTransformerPreTrainedModel):
    """What the two stacks share: embeddings, positions, dropout (§5.4: on their sum) and N layers. Figure 1, below."""

    def __init__(self, config: VanillaTransformerConfig, layers: list[nn.Module]):
        super().__init__(config)
        learned = config.position_encoding == "learned"
        self.embed_tokens = ScaledEmbedding(config.vocab_size, config.d_model)
        self.embed_positions = LearnedPositionalEncoding(config) if learned else PositionalEncoding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        """None of its own: the config's plans name the layers of the whole model, from `encoder.` or `decoder.` on."""
        self._tp_plan, self._ep_plan, self._pp_plan, self._fsdp_plan = {}, {}, {}, {}

    def embed(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None, start: int | torch.Tensor = 0
    ) -> torch.Tensor:  # [B, L, D]
        """§3.4 + §3.5. `inputs_embeds` stands for the scaled embeddings, as `get_input_embeddings()` gives them."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"{type(self).__name__} wants either token ids or embeddings: got both or neither.")
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        length = embeddings.shape[1]
        # A static cache counts in a tensor, which a compiled call can't look into.
        if isinstance(start, int) or not torch.compiler.is_compiling():
            self.check_positions(start + length)
        encoding = self.embed_positions(torch.arange(length, device=embeddings.device) + start)
        return self.dropout(embeddings + encoding.to(embeddings.dtype))

    def check_positions(self, count: int | torch.Tensor) -> None:
        """Raises ValueError if there are learned positions, and fewer than `count`."""
        limit = self.config.max_position_embeddings
        if self.config.position_encoding == "learned" and count > limit:
            raise ValueError(
                f"{int(count)} positions, but max_position_embeddings={limit}: want at most {limit} tokens "
                "(truncation=True in the tokenizer or pipeline), or a model with sinusoidal positions."
            )

    def padding_mask(
        self,
        config: VanillaTransformerConfig,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None,  # [B, M], 1 for tokens and 0 for padding
        memory: torch.Tensor | None = None,
    ) -> Any:
        """`mask` as the attention of `config` wants it; None where there is nothing to hide.

        Whether a mask hides anything, only its values say. On a CPU the look saves work; any other device would have
        to be waited for, at every step.
        """
        look = mask is None or mask.device.type == "cpu"
        return create_bidirectional_mask(config, hidden_states, mask, memory, allow_is_bidirectional_skip=look)

    def config_for_call(self, kwargs: dict[str, Any]) -> VanillaTransformerConfig:
        """The config whose attention implementation serves this call.

        Fused kernels never build the attention weights. A call that asks for them runs `eager`, this once, instead of
        returning nothing.
        """
        config, name = self.config, self.config._attn_implementation
        flash = is_flash_attention_requested(config)
        if flash and config.d_k != config.d_v:
            raise ValueError(f"attn_implementation={name!r} wants d_k = d_v, got {config.d_k} and {config.d_v}.")
        if (flash or name in ("sdpa", "flex_attention")) and kwargs.get("output_attentions"):
            config = copy.copy(config)
            config._attn_implementation = "eager"
        return config


class VanillaTransformerEncoder(Stack):
    """§3.1: N encoder layers over embedded tokens. Post-norm throughout, so nothing follows the last layer."""

    _can_record_outputs = {"hidden_states": EncoderLayer, "attentions": MultiHeadAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, [EncoderLayer(config) for _ in range(config.num_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """`input_ids` or `inputs_embeds` [B, S(, D)], `attention_mask` [B, S] with 1 for tokens and 0 for padding."""
        config = self.config_for_call(kwargs)
        hidden_states = self.embed(input_ids, inputs_embeds)  # [B, S, D]
        mask = self.padding_mask(config, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, attn_implementation=config._attn_implementation, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class VanillaTransformerDecoder(Stack):
    """§3.1: N decoder layers over the shifted target and the encoder's output, which it calls memory."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(DecoderLayer, num_hidden_layers_key="num_decoder_layers"),
        "attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(MultiHeadAttention, index=1, layer_name="cross_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, [DecoderLayer(config, i) for i in range(config.num_decoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    @accept_old_cache_name
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """`input_ids` or `inputs_embeds` [B, T(, D)] and `encoder_hidden_states` [B, S, D], each with its padding
        mask.

        With a `cache` that holds earlier positions, T counts the new ones only.
        """
        if encoder_hidden_states is None:
            raise ValueError("encoder_hidden_states is missing: every layer of this decoder attends to the encoder.")
        if use_cache and cache is None:
            layers = self.config.get_text_config(decoder=True)
            cache = EncoderDecoderCache(DynamicCache(config=layers), DynamicCache(config=layers))
        own_cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        config = self.config_for_call(kwargs)

        start = own_cache.get_seq_length() if own_cache is not None else 0
        hidden_states = self.embed(input_ids, inputs_embeds, start)  # [B, T, D]
        mask = create_causal_mask(config, hidden_states, attention_mask, own_cache)
        memory_mask = self.padding_mask(config, hidden_states, encoder_attention_mask, encoder_hidden_states)
        if memory_mask is not None and encoder_hidden_states.shape[0] != hidden_states.shape[0]:
            memory_mask = memory_mask[:, :, :1]  # the same for every query, however many hypotheses ask
        for layer in self.layers:
            hidden_states = layer(
                hidden_states,
                encoder_hidden_states,
                mask,
                memory_mask,
                cache=cache,
                attn_implementation=config._attn_implementation,
                **kwargs,
            )
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, cache=cache)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Figure 1 without its last linear layer: encoder and decoder, their embeddings one matrix (§3.4)."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.tie_word_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    @accept_old_cache_name
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Source ids [B, S] (or embeddings, or finished `encoder_outputs`) and decoder ids [B, T] (or embeddings).

        Raises:
            ValueError: nothing for the decoder to read, or both ids and embeddings for the same stack.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "decoder_input_ids is missing: pass it, or labels. With label_smoothing_factor the Trainer takes "
                "labels away, so give its collator the model, as in DataCollatorForSeq2Seq(tokenizer, model=model)."
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        decoder_outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            cache=decoder_outputs.cache,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, GenerationMixin):
    """Figure 1 whole: the model and its last linear layer, whose matrix is the embedding's (§3.4)."""

    _tied_weights_keys = {
        "lm_head.weight": "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
    }
    _tp_plan = {"lm_head": "colwise_gather_output"}
    shares_memory_under = ("eager", "sdpa")  # attention implementations under which beams can read one memory
    quick_decoder = QuickDecoder  # what the paper's search may decode with

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.loss_type = "ForMaskedLM"  # the library's name for: labels are compared where they stand, not shifted
        self.post_init()
        # Marked as made from the model's config, a saved one would lose the names that are ours, such as `search`.
        self.generation_config._from_model_config = None

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As the stock method; with `search="paper"`, here or in the generation config, by the beam search of §6.1."""
        generation_config, kwargs = with_search(self, inputs, generation_config, kwargs)
        return super().generate(inputs, generation_config, *args, **kwargs)

    def _reorder_cache(self, cache: Cache, beam_idx: torch.LongTensor) -> Cache:
        """What the stock beam search calls at each step, where a model has it (Transformers 5.24).

        Self-attention's keys and values follow the hypotheses; those of the source are the same in all beams.
        """
        getattr(cache, "self_attention_cache", cache).reorder_cache(beam_idx)
        return cache

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Figure 1, "outputs (shifted right)": the start symbol, then every label but the last. [B, T] -> [B, T]"""
        shifted = labels.roll(1, dims=-1)
        shifted[:, 0] = self.config.decoder_start_token_id
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @can_return_tuple
    @accept_old_cache_name
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.LongTensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[torch.Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """As `VanillaTransformerModel`, then logits [B, T, vocab_size].

        With `labels` [B, T] (-100 where nothing is to be predicted) it returns the cross entropy in nats, averaged
        over the labels that count; given `num_items_in_batch`, summed and divided by it, so that gradients accumulated
        over several batches are those of one large batch. The decoder reads the labels shifted right unless it is
        given its input. In training, a `loss_function` with a method `from_hidden_states` is given these and the last
        layer's matrix, and there are no logits.
        """
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        hidden_states, fused = outputs.last_hidden_state, getattr(self.loss_function, "from_hidden_states", None)
        loss = logits = None
        if labels is not None and self.training and fused is not None:  # hf_attention/loss.py
            loss = fused(hidden_states, self.lm_head.weight, labels, **kwargs)
        else:
            logits = self.lm_head(hidden_states)  # [B, T, vocab_size]
            if labels is not None:
                loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )


__all__ = [
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
