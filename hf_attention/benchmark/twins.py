"""Models of other libraries in the shape of ours, and with our weights where they are wanted."""

import math
from collections.abc import Mapping

import torch
from torch import nn
from transformers import MarianConfig, MarianMTModel

from ..model import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


Batch = Mapping[str, torch.Tensor]

MARIAN_NAMES = {
    "self_attn_add_norm.norm": "self_attn_layer_norm",
    "cross_attn_add_norm.norm": "encoder_attn_layer_norm",
    "feed_forward_add_norm.norm": "final_layer_norm",
    "cross_attn": "encoder_attn",
    "feed_forward.": "",
}


def renamed(weights: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """`weights` under names in which each part that `names` has is replaced, one after the other."""
    result = {}
    for name, tensor in weights.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        result[name] = tensor
    return result


def position_table(model: VanillaTransformerForConditionalGeneration, positions: int) -> torch.Tensor:
    """[positions, D] what our model adds to its embeddings."""
    return model.model.encoder.embed_positions(torch.arange(positions))


def marian(config: VanillaTransformerConfig, positions: int = 1024) -> MarianMTModel:
    """Stock Marian of this shape: post-norm, sinusoids, one matrix in three places; d_k = d_v = d_model / heads."""
    return MarianMTModel(
        MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=positions,
            pad_token_id=config.pad_token_id,
            eos_token_id=config.eos_token_id,
            decoder_start_token_id=config.decoder_start_token_id,
            forced_eos_token_id=None,
            dropout=config.dropout,
        )
    )


def marian_twin(model: VanillaTransformerForConditionalGeneration, positions: int = 1024) -> MarianMTModel:
    """Stock Marian with our weights, and with our position table instead of its two halves, in evaluation mode."""
    twin = marian(model.config, positions).eval()
    weights = renamed(model.state_dict(), MARIAN_NAMES)
    weights["model.shared.weight"] = weights["lm_head.weight"]
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.embed_positions.weight"] = position_table(model, positions)
    missing, unexpected = twin.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"final_logits_bias"}:  # zeros
        raise RuntimeError(f"Marian has other weights than expected: {missing} missing, {unexpected} unexpected")
    return twin


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoids and output layer around it, as in the paper.

    Without the norm that it puts behind each stack, and without dropout on attention weights and inner units, which
    would be more work than ours.
    """

    def __init__(self, config: VanillaTransformerConfig, positions: int = 1024):
        super().__init__()
        sizes = (config.d_model, config.num_heads, config.d_ff, config.dropout)
        encoder = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        decoder = nn.TransformerDecoderLayer(*sizes, batch_first=True)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            custom_encoder=nn.TransformerEncoder(encoder, config.num_layers, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(decoder, config.num_decoder_layers),
            batch_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                module.dropout = nn.Identity()  # on the inner units; dropout1 to 3 are those of the paper
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(0, config.d_model, 2) / config.d_model)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(config.dropout)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        """[B, T, vocab_size] logits. No mask for target padding: it comes last, where no real token looks."""
        length = decoder_input_ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        padding = ~attention_mask.bool()
        hidden_states = self.transformer(
            self.embed(input_ids),
            self.embed(decoder_input_ids),
            tgt_mask=later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return nn.functional.linear(hidden_states, self.embedding.weight)
