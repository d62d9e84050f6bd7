"""How `generate()` will search, asked before it does: which search, how many beams, how far."""

import copy
import json
import logging
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..generation import length_penalty
from ..model.generation_vanilla_transformer import SEARCHES, STOCK_MAX_LENGTH, checked_extra_tokens


logger = logging.getLogger(__name__)

# What `generate()` understands beyond the fields of the library's generation config.
OURS = {"search", "max_extra_tokens"}
# Fields that make it something else than one greedy or beam search, and the value that they do nothing with.
UNSEEN = {
    "do_sample": False,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "use_mtp": False,
    "token_healing": False,
    **dict.fromkeys(("constraints", "force_words_ids", "prompt_lookup_num_tokens", "assistant_early_exit")),
    **dict.fromkeys(("dola_layers", "stop_strings", "max_time")),
}

# Fields that change what the model says to the next token, and the value that they do nothing with.
ADJUSTING = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty"), 1.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("sequence_bias", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("watermarking_config",)),
    **dict.fromkeys(("remove_invalid_values", "renormalize_logits"), False),
}


def without_sampling(model: PreTrainedModel, generation: dict[str, Any]) -> dict[str, Any]:
    """The options, with a search instead of sampling where only the model's own config asks to sample.

    A trace draws with default settings, and there is no one tree of what chance may say.
    """
    if not model.generation_config.do_sample or "do_sample" in generation:
        return generation
    logger.warning("The model's generation config has do_sample=True: traced is the search without it")
    return {"num_return_sequences": 1, **generation, "do_sample": False}


class Settings:
    """How `generate()` will search, asked where it looks itself: the call's options, then the model's config.

    Raises:
        ValueError: options that a trace can't follow.
    """

    def __init__(self, model: PreTrainedModel, generation: dict[str, Any]):
        unknown = sorted(set(generation) - OURS - {name for name in vars(GenerationConfig()) if name[0] != "_"})
        if unknown:
            raise ValueError(
                f"{unknown[0]} is no option of a search that can be traced, wanted fields of a generation config, "
                "such as num_beams or max_new_tokens"
            )
        self._given, self._model = generation, model
        self._config = copy.deepcopy(model.generation_config)
        self._config.update(**generation)
        for name, neutral in UNSEEN.items():
            value = getattr(self._config, name, None)
            if value is not None and value != neutral:
                raise ValueError(
                    f"{name} is {value!r}, wanted {neutral!r}: a trace follows plain greedy and beam search only"
                )
        self.search = self._asked("search", "stock")
        if self.search not in SEARCHES:
            raise ValueError(f"search is {self.search!r}, wanted one of {', '.join(SEARCHES)}")
        self.beams = self._asked("num_beams", 1)
        if not isinstance(self.beams, int) or isinstance(self.beams, bool) or self.beams < 1:
            raise ValueError(f"num_beams is {self.beams!r}, wanted a whole number from 1 on")
        # The stock greedy search has one hypothesis and compares it with none.
        self.alpha = 0.0 if self.search == "stock" and self.beams == 1 else float(self._asked("length_penalty", 1.0))
        ends = self._config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def limit(self, source_length: int) -> int:
        """The most tokens that may be generated for a source of so many tokens."""
        max_new_tokens, max_length = self._asked("max_new_tokens"), self._asked("max_length")
        unset = max_length is None or (
            # Written into many a config by the library, without anybody's having asked for it.
            self.search == "paper" and max_length == STOCK_MAX_LENGTH and self._given.get("max_length") is None
        )
        absolute = None if unset else max_length - 1  # less the start symbol
        if max_new_tokens is not None:
            absolute = max_new_tokens
        if self.search == "paper":
            room = max(1, source_length + checked_extra_tokens(self._asked("max_extra_tokens")))
            return room if absolute is None else min(room, absolute)
        if absolute is None:
            return min(STOCK_MAX_LENGTH + 1, self._model.config.max_position_embeddings) - 1
        return absolute

    def penalty(self, length: int) -> float:
        """What log P of a hypothesis of `length` generated tokens is divided by."""
        if length == 0:
            return 1.0
        return float(length_penalty(length, self.alpha) if self.search == "paper" else length**self.alpha)

    def adjusting(self) -> dict[str, Any]:
        """The options that may change log-probabilities; their values as JSON holds them, or as Python writes them."""
        asked = {name: self._asked(name) for name in ADJUSTING}
        return {name: _plain(value) for name, value in asked.items() if value not in (None, ADJUSTING[name])}

    def _asked(self, name: str, default: Any = None) -> Any:
        found = (self._given.get(name), getattr(self._config, name, None))
        return next((value for value in found if value is not None), default)


def _plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value
