"""How much arithmetic a model needs for real tokens, and how much the machine can do.

A multiplication with an addition is two operations; matrix products of real tokens count, and nothing else. So a share
of the machine's limit says what a contender makes of it, whatever else it computes: padding, dropout, rows of
hypotheses that are finished.

Of L queries and M keys of width d_model, with h heads, an attention costs

    2 · d_model · h (d_k + d_v) · (L + M)      projections: queries and output of L, keys and values of M positions
    2 · h (d_k + d_v) · L · M                  scores and weighted sums; masked ones count, as they are computed

a feed-forward network 4 · d_model · d_ff a position, and the last linear layer 2 · d_model · vocab_size. Going back
through a matrix product takes two of its size: one for each factor. So a training step costs three times its forward.
"""

import statistics
import time

import torch

from ..model import VanillaTransformerConfig


def forward_flops(config: VanillaTransformerConfig, source: torch.Tensor, target: torch.Tensor) -> int:
    """Of sentence pairs with `source` and `target` [pairs] real tokens, each with its end, once through the model."""
    source, target = source.long(), target.long()
    encoder = config.num_layers * (_attention(config, source, source) + _feed_forward(config) * source)
    decoder = config.num_decoder_layers * (
        _attention(config, target, target) + _attention(config, target, source) + _feed_forward(config) * target
    )
    return int((encoder + decoder + 2 * config.d_model * config.vocab_size * target).sum())


def training_flops(config: VanillaTransformerConfig, source: torch.Tensor, target: torch.Tensor) -> int:
    """As `forward_flops`, there and back."""
    return 3 * forward_flops(config, source, target)


def search_flops(config: VanillaTransformerConfig, source: torch.Tensor, target: torch.Tensor, beams: int) -> int:
    """Of translating sentences of `source` tokens into `target` [sentences] tokens, with a cache and `beams` beams.

    As many steps as the winner is long. Keys and values of the source are projected once for all beams, and a step
    looks at the positions that there are by then.
    """
    source, target = source.long(), target.long()
    nothing = torch.zeros_like(source)
    once = config.num_layers * (_attention(config, source, source) + _feed_forward(config) * source)
    once += config.num_decoder_layers * _projections(config, nothing, source)
    looks = target * (target + 1) // 2 + target * source
    a_beam = config.num_decoder_layers * (
        _projections(config, target, target) + _projections(config, target, nothing) + _feed_forward(config) * target
    )
    a_beam += config.num_decoder_layers * 2 * _heads(config) * looks + 2 * config.d_model * config.vocab_size * target
    return int((once + beams * a_beam).sum())


def _heads(config: VanillaTransformerConfig) -> int:
    return config.num_heads * (config.d_k + config.d_v)


def _projections(config: VanillaTransformerConfig, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return 2 * config.d_model * _heads(config) * (queries + keys)


def _attention(config: VanillaTransformerConfig, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return _projections(config, queries, keys) + 2 * _heads(config) * queries * keys


def _feed_forward(config: VanillaTransformerConfig) -> int:
    return 4 * config.d_model * config.d_ff


def multiplication_limit(dtype: torch.dtype, device: torch.device, size: int = 2048, seconds: float = 3.0) -> float:
    """Operations a second of `size` x `size` x `size` matrix products: the median of as many as fit in `seconds`."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        start = time.perf_counter()
        torch.mm(left, right)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(times[2:])


def synchronize(device: torch.device) -> None:
    """Waits for what a GPU has still to do; a CPU has nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
