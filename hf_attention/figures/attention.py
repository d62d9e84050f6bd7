"""To be drawn."""

from collections.abc import Callable

from ..tracing.trace import Trace
from .canvas import Canvas


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    return {}
