"""The side that asks: contenders take turns, round after round, each time in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .orders import LimitOrder, Order


LIMIT = "matrix products"
TITLES = {
    "ours": "hf_attention, stock Trainer",
    "marian": "stock Marian, stock Trainer",
    "marian-grouped": "the same, grouped by length",
    "marian-loop": "Marian, plain loop on our batches",
    "torch": "torch.nn.Transformer, likewise",
    "fairseq": "fairseq, likewise",
    "joeynmt": "JoeyNMT, likewise",
    "eole": "Eole, likewise",
}
SEARCH_TITLES = {
    "ours": "hf_attention, the paper's search",
    "ours-stock-search": "hf_attention, stock search",
    "marian": "stock Marian, stock search",
    "fairseq": "fairseq",
    "joeynmt": "JoeyNMT",
    "ctranslate2": "CTranslate2, float32",
    "ctranslate2-workers": "the same, a worker on each core",
    "ctranslate2-int8": "CTranslate2, int8, likewise",
}
LIBRARIES = ("fairseq", "joeynmt", "eole", "ctranslate2")
NEEDS = {name: library for name in (*TITLES, *SEARCH_TITLES) if (library := name.partition("-")[0]) in LIBRARIES}
BASELINE = "marian"

Answers = dict[str, list[dict[str, Any]]]


def choose(names: Sequence[str], wanted: str | None, pythons: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Who takes part of those that were asked for, comma-separated, or of all; and why others do not.

    Raises:
        ValueError: a name that is none of `names`, a Python that is no file, or nobody is left.
    """
    chosen = names if wanted is None else [name for name in names if name in wanted.split(",")]
    for name in [*(wanted.split(",") if wanted is not None else []), *pythons]:
        if name not in names:
            raise ValueError(f"contender {name!r} is unknown: want one or more of {','.join(names)}")
    for name, python in pythons.items():
        if not Path(python).is_file():
            raise ValueError(f"the Python of {name} is {python!r}: no such file")
    absent = {
        name: "not installed"
        for name in chosen
        if name in NEEDS and name not in pythons and find_spec(NEEDS[name]) is None
    }
    present = [name for name in chosen if name not in absent]
    if not present:
        raise ValueError(f"nobody to measure: {', '.join(f'{name} is {why}' for name, why in absent.items())}")
    return present, absent


def take_turns(
    names: Sequence[str],
    order: Callable[[str, int], Order],
    rounds: int,
    pythons: Mapping[str, str],
    tell: Callable[[str], None],
    absent: dict[str, str],
) -> Answers:
    """The answers of every contender, a round each; `order(name, round)` makes what it is asked.

    One that fails is out, and `absent` says why. Rounds go there and back, so that a machine that slows down does so
    for all. Raises ValueError where ours or stock Marian fail: there would be nothing to compare.
    """
    answers: Answers = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else [*reversed(names)]:
            if name in absent:
                continue
            try:
                answers[name].append(ask(order(name, turn), pythons.get(name, sys.executable)))
            except ValueError as error:
                if name not in NEEDS:
                    raise
                absent[name] = f"failed: {error}"
                del answers[name]
            tell(f"round {turn + 1} of {rounds}: {name}{_told(answers[name][-1]) if name in answers else ' failed'}")
    return answers


def _told(answer: dict[str, Any]) -> str:
    if "limit" in answer:
        return f" {answer['limit'] / 1e9:,.0f} GFLOP/s"
    if "times" in answer:
        return " profiled"
    unit = "tokens" if "tokens" in answer else "sentences"
    return f" {answer[unit] / answer['seconds']:,.0f} {unit}/s"


def ask(order: Order, python: str = sys.executable) -> dict[str, Any]:
    """The answer of a worker. Raises ValueError with its last line on stderr if it fails."""
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [python, "-m", f"{__package__}.worker", order.to_json()],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ValueError(f"{order.contender}: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def limit_order(folder: str, bf16: bool) -> LimitOrder:
    return LimitOrder(LIMIT, folder, bf16)
