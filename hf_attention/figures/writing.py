"""What figures write, and how wide it gets: numbers, shapes, and text that has to fit."""

import math
import re
import unicodedata
from collections.abc import Sequence


MINUS_INFINITY = -1e30  # masks hold the dtype's minimum; whatever is lower than this is written −∞
FONT = 13.0
SCRIPTS = re.compile(r"([_^])(model|ff|src|tgt|out|\d+|[A-Za-z])(?![A-Za-z])")  # of a formula: d_model, W_i^Q


def number(value: float) -> str:
    """As figures print it: three decimals, fewer for large ones; integers as they are; −∞ for what a mask forbids."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if math.isnan(value):
        return "nan"
    if abs(value) >= -MINUS_INFINITY:
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    text = f"{value:.3f}" if size < 100 else f"{value:.1f}" if size < 10_000 else f"{value:.1e}"
    return "0.000" if text == "-0.000" else text.replace("-", "−")


def probability(value: float) -> str:
    """As `number`, but with two digits that count where three decimals would have fewer: 0.0021, 7.1e−05."""
    return f"{value:#.2g}".replace("-", "−") if 0 < value < 0.01 else number(value)


def shape_text(axes: Sequence[str], shape: Sequence[int]) -> str:
    """`[B, S, D] = [2, 3, 8]`: letters first, then the numbers of this run."""
    return f"[{', '.join(axes)}] = [{', '.join(map(str, shape))}]"


def text_width(text: str, size: float = FONT, kind: str = "") -> float:
    """An estimate, on the wide side, as an SVG is written without a font at hand; `kind` as of `Canvas.text`."""
    letters = len(text) * 0.61 if "number" in kind else sum(_advance(letter) for letter in text)
    return size * letters * (1.12 if "bold" in kind else 1)


def shorten(text: str, width: float, size: float = FONT) -> str:
    """`text`, or as much of its beginning as fits into `width`, and an ellipsis."""
    if text_width(text, size) <= width:
        return text
    room = width - text_width("…", size)
    for kept, letter in enumerate(text):
        room -= text_width(letter, size)
        if room < 0:
            return text[:kept] + "…"
    return text


def _advance(letter: str) -> float:
    """The width of a letter in sizes of its font, for those of figures."""
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF" or letter in "mwMW@%…—":
        return 1.0
    return 0.4 if letter in "ijltfrIJ '.,:;|/!()[]·-" else 0.84 if letter in "+<=>~×−→&OQGDHN" else 0.66
