"""The questions that the project began with, and what this run has to say to each: facts that the page words."""

from typing import Any

import torch

from ..tracing.trace import Trace, TracedTensor
from .choices import letters
from .layout import IGNORED, padding, tokens
from .translation import Translation
from .writing import number, shape_text


TOKENS = ("source_tokens", "decoder_tokens", "label_tokens")
STEPS = 3  # of a translation, told one by one


def facts(trace: Trace) -> dict[str, Any]:
    """Plain values for the template, under a name for each question; None where the run has no answer."""
    return {
        "pair": trace.info["sentences"][0],
        "batch": _batch(trace),
        "padding": any(not trace[name].value.all() for name in ("source.attention_mask", "loss.counted")),
        "cheating": _cheating(trace),
        "heads": {name: shape(trace[f"encoder.layers.0.self_attn.{name}"]) for name in PARTS},
        "loss": _loss(trace),
        "letters": letters(trace),
        "spelling": _spelling(trace),
        "search": _search(trace),
        "arrows": _arrows(trace),
    }


PARTS = ("input", "q", "q_split", "q_heads", "k_heads", "weights", "v_heads", "heads", "concat", "output")


def shape(tensor: TracedTensor) -> str:
    return shape_text(tensor.axes, tensor.shape)


def padded_tokens(trace: Trace) -> dict[str, list[list[str]]]:
    """The words at each position of each sentence, padding and all: source S, decoder input T, and labels."""
    found = {axis: [tokens(trace, i, axis) for i in range(len(trace.info["sentences"]))] for axis in "ST"}
    spelt = [
        [padding(trace) if label == IGNORED else trace.token(label) for label in row]
        for row in trace["target.labels"].value.tolist()
    ]
    return {**found, "labels": spelt}


def _batch(trace: Trace) -> list[dict[str, Any]]:
    """For each item its rows of ids and words, and which are padding."""
    words = padded_tokens(trace)
    items = []
    for i, counted in enumerate(trace["loss.counted"].value.tolist()):
        real = [bool(there) for there in trace["source.attention_mask"].value[i].tolist()]
        ids = {
            "S": trace["source.input_ids"].value[i].tolist(),
            "T": trace["target.decoder_input_ids"].value[i].tolist(),
            "labels": trace["target.labels"].value[i].tolist(),
        }
        kept = {"S": real, "T": counted, "labels": counted}
        items.append({name: list(zip(ids[name], words[name][i], kept[name], strict=True)) for name in ids})
    return items


def _spelling(trace: Trace) -> dict[str, str | None]:
    """An example of each way to write a token that is no plain word, of those that the page shows."""
    words = {word for sentence in trace.info["sentences"] for name in TOKENS for word in sentence[name]}
    words |= {trace.token(token) for search in trace.info["searches"] for token in search["tokens"]}
    text = "".join(sentence[side] for sentence in trace.info["sentences"] for side in ("source", "target"))
    special = {trace.token(token) for token in trace.info["special"].values()}
    known = words - special
    marked = {word for word in known if len(word) > 1 and word.startswith("·")}
    bytes_ = {word for word in known - marked if not word.isascii() and word != "␣" and word.strip("Ġ▁") not in text}
    found = {"part": marked, "space": known & {"␣"}, "bytes": bytes_}
    return {name: min(some, default=None) for name, some in found.items()}


def _cheating(trace: Trace) -> dict[str, Any] | None:
    """The counterfactual, its tensors told apart: what the change is, what follows from it, what is hidden."""
    found = trace.info["counterfactual"]
    if found is None:
        return None
    moved = [{"path": each["name"].rpartition(".")[0], **each} for each in found["moved"]]
    computed = [each for each in moved if each["name"].startswith(("decoder.", "lm_head."))]
    sentence = trace.info["sentences"][found["sentence"]]
    return {
        **found,
        "from": trace.token(found["from"]),
        "to": trace.token(found["to"]),
        "tokens": sentence["decoder_tokens"],
        "modules": _modules(computed),
        "others": [each for each in moved if each not in computed],
        "earliest": min((each["first"] for each in computed if each["first"] is not None), default=None),
        "computed": len(computed),
        "hidden": [each for each in computed if each["hidden"]],
        "encoder": sum(each["name"].startswith(("encoder.", "source.")) for each in moved),
    }


def _modules(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tensors of one module in one line: its path, their names, and the earliest position of any."""
    found: dict[str, list[dict[str, Any]]] = {}
    for tensor in tensors:
        found.setdefault(tensor["path"], []).append(tensor)
    return [
        {
            "path": path,
            "names": [each["name"].rpartition(".")[2] for each in group],
            "first": min((each["first"] for each in group if each["first"] is not None), default=None),
            "hidden": sum(each["hidden"] for each in group),
        }
        for path, group in found.items()
    ]


def _loss(trace: Trace) -> dict[str, Any]:
    """The first token of the first sentence worked out, then the sums over the batch."""
    log_probs = trace["lm_head.log_probs"].value[0, 0].double()
    label = int(trace["target.labels"].value[0, 0])
    counted = trace["loss.counted"].value
    smoothing, words = trace.info["loss"]["smoothing"], len(log_probs)
    return {
        "label": trace.token(label),
        "log_prob": number(float(log_probs[label])),
        "probability": number(float(log_probs[label].exp())),
        "plain_token": number(float(trace["loss.plain_per_token"].value[0, 0])),
        "token": number(float(trace["loss.per_token"].value[0, 0])),
        "smoothing": smoothing,
        "words": words,
        "right": number(1 - smoothing + smoothing / words),
        "wrong": f"{smoothing / words:.2g}",
        "per_token": [number(value) for value in trace["loss.per_token"].value[counted].tolist()],
        "divisor": int(trace["loss.divisor"].value),
        "positions": counted.numel(),
        "plain": number(float(trace["loss.plain"].value)),
        "total": number(float(trace["loss.total"].value)),
    }


def _search(trace: Trace) -> dict[str, Any] | None:
    """What the decoder was given in the first steps of the first translation."""
    if not trace.info["searches"]:
        return None
    translation = Translation(trace, 0)
    search = translation.record
    steps = [
        {
            "fed": [[trace.token(token) for token in row] for row in step["fed"]],
            "held": step["cache_length"],
            "best": trace.token(step["top"][0][0]["token"]),
            "probability": number(step["top"][0][0]["probability"]),
        }
        for step in search["steps"][:STEPS]
    ]
    return {
        "steps": steps,
        "all": len(search["steps"]),
        "beams": search["beams"],
        "source": trace.info["sentences"][0]["source_tokens"],
        "text": search["text"],
        "tokens": [trace.token(token) for token in search["tokens"]],
        "end": trace.token(trace.info["special"]["end"]),
        "cut_off": translation.is_cut_off(translation.winner),
        "limit": search["limit"],
        "adjusted": search.get("adjusted", {}),
        "start": [trace.token(token) for token in search["prompt"]],
    }


def _arrows(trace: Trace) -> dict[str, Any]:
    """Where queries, keys and values come from: said only after the tensors have been compared."""
    cross = "decoder.layers.0.cross_attn"
    shapes = {
        path: {name: shape(trace[f"{path}.{name}"]) for name in ("input", "q", "k", "v")}
        for path in ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", cross)
    }
    shapes[cross]["memory"] = shape(trace[f"{cross}.memory"])
    # [outputs, inputs], by what went in and came out: an adapter may have given the parameters other names.
    ends = {"q": ("q", "input"), "k": ("k", "input"), "v": ("v", "input"), "out": ("output", "concat")}
    width = {name: trace[f"encoder.layers.0.self_attn.{name}"].shape[-1] for pair in ends.values() for name in pair}
    return {
        "shapes": shapes,
        "weights": {name: [width[each] for each in pair] for name, pair in ends.items()},
        "from_below": _same(trace, f"{cross}.input", "decoder.layers.0.self_attn_add_norm.output"),
        "from_memory": _same(trace, f"{cross}.memory", "encoder.output"),
    }


def _same(trace: Trace, one: str, other: str) -> bool:
    return torch.equal(trace[one].value, trace[other].value)
