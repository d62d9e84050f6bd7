"""What figures ask of a trace before they draw: is there such a sentence or layer, what are its words and letters."""

from typing import Any

from ..tracing.trace import Trace


def choice(name: str, value: Any, count: int, what: str) -> int:
    """`value` as an index below `count`; negative ones count from the end.

    Raises:
        ValueError: there is no such `what`. It says which there are.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -count <= value < count:
        wanted = "0" if count == 1 else f"0 to {count - 1}"
        raise ValueError(f"{name} is {value!r}, wanted {wanted}: the trace has {count} {what}{'s' * (count != 1)}")
    return value % count


def chosen_sentence(trace: Trace, sentence: Any) -> int:
    return choice("sentence", sentence, len(trace.info["sentences"]), "sentence")


def words(trace: Trace, sentence: int, axis: str) -> list[str]:
    """The tokens at the source positions (`S`) or at the decoder's (`T`) of one sentence, without padding."""
    tokens: list[str] = trace.info["sentences"][sentence]["source_tokens" if axis == "S" else "decoder_tokens"]
    return tokens


def letters(trace: Trace) -> dict[str, str]:
    """What the run's formulas call the embedding matrices and the one before softmax: the same where they are tied."""
    names = {f"{stack}.embed_tokens": trace[f"{stack}.embed_tokens.rows"].symbol for stack in ("encoder", "decoder")}
    return {name: symbol.partition("[")[0] for name, symbol in names.items()} | {
        "lm_head": trace["lm_head.logits"].symbol.removeprefix("x ")
    }
