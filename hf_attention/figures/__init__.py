"""Draws a trace: each figure by its name, the page of them all in `page`.

A figure comes from the trace alone, with every shape and number read from it; the model need not be there.

| name                             | what                                                          |
| -------------------------------- | ------------------------------------------------------------- |
| architecture                     | Figure 1, from the modules that ran                           |
| PATH.multi_head                  | Figure 2, right: one attention module, its splits and shapes  |
| PATH                             | Figure 2, left: one sentence and head, in numbers             |
| PATH.matrices                    | the weights of all heads, side by side                        |
| PATH.arcs                        | Figures 3 to 5: who looks at whom, head by head               |
| encoder.inputs, decoder.inputs   | tokens, ids, embedding, position, sum                         |
| shift                            | how the decoder's input is made from the labels               |
| loss                             | prediction beside label, and the loss of every token          |
| search.I.steps, search.I.tree    | translation I as a time line, and as a tree of hypotheses     |
| search.I.arcs                    | where translation I looked as it chose its tokens             |

PATH is that of an attention module, such as `encoder.layers.0.self_attn`. Options are those of the drawing function.
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from ..tracing.trace import Trace
from . import architecture, attention, heads, inputs, loss, search
from .canvas import Canvas


def names(trace: Trace) -> list[str]:
    """All figures that this trace holds the numbers of."""
    return list(_all(trace))


def draw(trace: Trace, name: str, **options: Any) -> Canvas:
    """One figure. Raises ValueError for a name or an option that there is none of."""
    figures = _all(trace)
    if name not in figures:
        near = difflib.get_close_matches(name, figures, n=3)
        raise ValueError(
            f"no figure {name!r} in this trace, wanted one of " + ", ".join(near or [*figures][:8] + ["..."])
        )
    try:
        inspect.signature(figures[name]).bind(**options)
    except TypeError as error:
        raise ValueError(f"figure {name!r}: {error}") from error
    return figures[name](**options)


def _all(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    found: dict[str, Callable[..., Canvas]] = {}
    for module in (architecture, attention, heads, inputs, loss, search):
        found |= module.figures(trace)
    return found
