"""A process that does one order, `python -m hf_attention.benchmark.worker ORDER`, and prints its answer at the end.

Settings of the memory allocator and pools of threads belong to a process, and so does its peak of memory. So every
contender has its own, every round anew, and is set up as its users have it: ours as our scripts do, the others not.
"""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..cli import keep_freed_memory
from .compare import NEEDS
from .flops import multiplication_limit
from .meter import peak_memory
from .orders import LimitOrder, Order, TrainingOrder, TranslationOrder, from_json


DISTRIBUTIONS = {  # whose version belongs to the answer
    "fairseq": ("fairseq", "fairseq-fixed"),
    "joeynmt": ("joeynmt",),
    "eole": ("eole",),
    "ctranslate2": ("ctranslate2",),
}


def do(order: Order) -> dict[str, Any]:
    """The answer to an order; with the peak of memory and the number of threads of this process."""
    if order.contender.startswith("ours"):
        keep_freed_memory()
    if isinstance(order, TrainingOrder):
        from .training import train

        answer = train(order)
    elif isinstance(order, TranslationOrder):
        from .translation import translate

        answer = translate(order)
    elif isinstance(order, LimitOrder):
        answer = {"limit": limit(order)}
    else:
        raise ValueError(f"order is {order!r}, wanted one of those in orders.py")
    return {
        **answer,
        "peak_memory": peak_memory(),
        "threads": torch.get_num_threads(),
        "versions": versions("torch", "transformers", *DISTRIBUTIONS.get(NEEDS.get(order.contender, ""), ())),
    }


def limit(order: LimitOrder) -> float:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return multiplication_limit(torch.bfloat16 if order.bf16 else torch.float32, device)


def versions(*packages: str) -> dict[str, str]:
    """Of Python and of those packages that are installed."""
    found = {"Python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(do(from_json(sys.argv[1]))))
