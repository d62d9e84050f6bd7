"""The paper's beam search, for `generate(custom_generate=beam_search)` and by `search="paper"` on our model.

Its code is in `model/generation_vanilla_transformer.py`: it travels inside every checkpoint, so that a model whose
generation config asks for this search has it where this package is not installed.
"""

import torch
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerateEncoderDecoderOutput

from .model.generation_vanilla_transformer import beam_search, length_penalty


def cross_attentions(
    output: GenerateBeamEncoderDecoderOutput | GenerateEncoderDecoderOutput, index: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where one hypothesis looked in its source, out of the steps, layers and rows that `generate()` returns.

    Args:
        output: of `generate(..., return_dict_in_generate=True, output_attentions=True)`, by any search.
        index: which of `output.sequences`.

    Returns:
        The weights [layers, H, T, S] at the prediction of each generated token, and these tokens [T]. Beam search says
        where a hypothesis ends; greedy search does not, and T is that of the longest.

    Raises:
        ValueError: the output holds no cross-attentions.
    """
    if not output.cross_attentions:
        raise ValueError("cross_attentions is empty: want return_dict_in_generate=True and output_attentions=True.")
    rows = output.get("beam_indices")  # which row predicted each token, -1 behind the end
    if rows is None:
        rows = torch.full((index + 1, len(output.cross_attentions)), index)
    prompt = output.sequences.shape[1] - rows.shape[1]
    length = int(rows[index].ge(0).sum())
    weights = [
        torch.stack([layer[row, :, -1] for layer in layers])  # [layers, H, S]
        for layers, row in zip(output.cross_attentions[:length], rows[index, :length].tolist(), strict=True)
    ]
    return torch.stack(weights, dim=2), output.sequences[index, prompt : prompt + length]


__all__ = ["beam_search", "cross_attentions", "length_penalty"]
