"""The paper's beam search, for `generate(custom_generate=beam_search)` and by `search="paper"` on our model.

The code is in `model/generation_vanilla_transformer.py`: it travels inside every checkpoint, so that a model whose
generation config asks for this search has it where this package is not installed.
"""

from .model.generation_vanilla_transformer import beam_search, length_penalty


__all__ = ["beam_search", "length_penalty"]
