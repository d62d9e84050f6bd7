"""Where the time of a step goes: the operators that torch.profiler records, sorted into a few kinds."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

from .meter import Meter


REST = "Python and the rest"

# Patterns for the whole name of an operator, without `aten::` and the underscores around; the first that fits counts.
# What is left is arithmetic element by element: sums, norms, activations, masks. What views and allocations cost is
# the price of calling them, as Python is.
KINDS = {
    "matrix products": r"mm|addmm|bmm|baddbmm|matmul|dot|mv|addmv|.*linear.*",
    "attention": r".*(scaled_dot_product|flash_attention|efficient_attention).*",  # fused; else products and softmax
    "softmax and loss": r".*(softmax|nll_loss|cross_entropy|logsumexp|kl_div).*",
    "optimizer": r"fused_adam.*|foreach.*",
    "dropout": r"bernoulli|rand.*|.*dropout.*",
    "copies and gathers": r"copy|clone|contiguous|cat|stack|to|to_copy|roll|.*pad.*|"
    r"(index|gather|scatter|take|embedding|repeat).*",
    REST: r"t|item|set|detach|alias|lift.*|local_scalar_dense|result_type|is_nonzero|scalar_tensor|"
    r"(view|unsafe_view|reshape|transpose|permute|as_strided|expand|slice|select|narrow|unsqueeze|squeeze|"
    r"flatten|unflatten|unbind|split|chunk|empty|new_empty|resize|zeros|ones|arange).*",
}
ELEMENTWISE = "element-wise"


def kind(operator: str) -> str:
    """The kind of an operator, `aten::mm` for example; what is no operator of PyTorch's is the rest."""
    library, _, name = operator.partition("::")
    if library not in ("aten", "mkl", "mkldnn", "quantized"):
        return REST
    return next((kind for kind, names in KINDS.items() if re.fullmatch(names, name.strip("_"))), ELEMENTWISE)


@contextmanager
def recorded(times: dict[str, float]) -> Iterator[None]:
    """Fills `times` with the seconds of each kind while the block runs, their sum being the time on the clock.

    Recording costs time too, a microsecond or two for an operator, which mostly falls to the rest.
    """
    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as recorder:
        start = time.perf_counter()
        yield
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    times.update(dict.fromkeys([*KINDS, ELEMENTWISE], 0.0))
    for event in recorder.key_averages():
        own = event.self_device_time_total if cuda else event.self_cpu_time_total
        if kind(event.key) != REST:
            times[kind(event.key)] += own * 1e-6
    times[REST] = max(0.0, seconds - sum(times.values()))


class ProfilingMeter(Meter):
    """Records the updates behind the warm-up; `times` are theirs."""

    times: dict[str, float]

    def updated(self) -> None:
        super().updated()
        if len(self.marks) == self.warmup:
            self.times = {}
            self._block = recorded(self.times)
            self._block.__enter__()
        elif len(self.marks) == self.warmup + self.updates:
            self._block.__exit__(None, None, None)


def profiled(call: Callable[[], object]) -> dict[str, float]:
    """Seconds of each kind while `call()` runs."""
    times: dict[str, float] = {}
    with recorded(times):
        call()
    return times
