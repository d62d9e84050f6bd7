"""The page: every figure of a trace and every tensor behind them, in one HTML document that needs nothing beside it.

What can be drawn stands in it as SVG, for the first sentence, layer and head also without a script. The script puts
the numbers of another choice into the same drawings; they lie in the page as JSON, an element for each tensor.
"""

import base64
import hashlib
import html
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ..tracing.trace import AXES, Trace
from . import attention, canvas, draw, heads, parameters, questions, shading, values, writing


WEB = Path(__file__).parent / "web"
SCRIPTS = ("numbers.js", "figures.js", "inside.js", "page.js")  # one after the other
KINDS = {  # as the paper's §3.2.3 lists them, in the order of Figure 1
    "encoder.self_attn": "encoder self-attention",
    "decoder.self_attn": "decoder self-attention, masked",
    "decoder.cross_attn": "decoder attention to the source",
}
LEGIBLE = {"text": 9.5, "tspan": 6.8}  # pixels: no letters are made smaller than that, nor small ones of formulas


@dataclass(frozen=True)
class Drawing:
    """A figure on the page. `choices`: what it is drawn for; `path`: the module whose numbers the script puts in."""

    svg: Markup
    choices: dict[str, Any]
    path: str | None = None

    @property
    def width(self) -> str:
        """In pixels, as it was drawn."""
        return self.svg.partition(' width="')[2].partition('"')[0]

    @property
    def least(self) -> str:
        """The scale that a narrow window may bring it to, so that its smallest letters can still be read."""
        sizes = {kind: re.findall(rf'<{kind}\b[^>]* font-size="([\d.]+)"', self.svg) for kind in LEGIBLE}
        scales = [LEGIBLE[kind] / min(map(float, found)) for kind, found in sizes.items() if found]
        return f"{min(1.0, max(scales)):.3f}"

    @property
    def shown(self) -> bool:
        """Whether it is the one to be seen before anything has been chosen."""
        return self.choices.get("sentence", 0) == 0 and self.choices.get("kind", next(iter(KINDS))) == next(
            iter(KINDS)
        )


def render(trace: Trace) -> str:
    """The whole document."""
    script = "".join(map(_read, SCRIPTS))
    environment = Environment(
        loader=FileSystemLoader(WEB),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": lambda value: f"{value:,}", "formula": _formula, "number": writing.number}
    return environment.get_template("page.html.j2").render(
        trace=trace,
        info=trace.info,
        sizes={axis: (meaning, trace.sizes[axis]) for axis, meaning in AXES.items() if axis in trace.sizes},
        kinds=KINDS,
        layers=_layers(trace),
        figures=figures(trace),
        blocks=parameters.blocks(trace),
        facts=questions.facts(trace),
        index=_index(trace),
        values=values.all_packed(trace),
        style=Markup(canvas.STYLE + _read("page.css")),
        definitions=Markup(canvas.DEFINITIONS),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def framed(trace: Trace) -> str:
    """The page inside a frame, for a notebook: its styles and its script stay inside."""
    return (
        '<iframe title="A trace" sandbox="allow-scripts" style="width:100%;height:80vh;border:1px solid #ccc" '
        f'srcdoc="{html.escape(render(trace))}"></iframe>'
    )


def _formula(text: str) -> Markup:
    """`d_model` and `W^Q` with small letters below and above."""
    tags = {"_": "sub", "^": "sup"}
    return Markup(writing.SCRIPTS.sub(lambda found: "<{0}>{1}</{0}>".format(tags[found[1]], found[2]), escape(text)))


def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _layers(trace: Trace) -> dict[str, int]:
    """How many layers there are of each kind of attention."""
    return {kind: sum(re.sub(r"\.layers\.\d+", "", name) == f"{kind}.weights" for name in trace) for kind in KINDS}


def figures(trace: Trace) -> dict[str, list[Drawing]]:
    """All drawings, by the place of the page where they stand."""
    sentences = range(len(trace.info["sentences"]))

    def drawing(name: str, options: dict[str, Any], path: str | None = None, **choices: Any) -> Drawing:
        svg = Markup(draw(trace, name, **options).svg(standalone=False))
        found = Drawing(svg, {**options, **choices}, path)
        return found if found.shown or path is None else replace(found, svg=_emptied(svg, redrawn(path)))

    def redrawn(path: str) -> bool:
        """Whether the page has the numbers behind the lines between words."""
        return any(
            values.is_added_up(trace[name]) for name in (f"{path}.weights", f"{path}.cross_attention") if name in trace
        )

    found: dict[str, list[Drawing]] = {}
    for name in ("architecture", "encoder.inputs", "decoder.inputs", "shift", "loss"):
        found[name] = [drawing(name, {"sentence": i}) for i in sentences]
    paths = {kind: kind.replace(".", ".layers.0.") for kind in KINDS}
    found["multi_head"] = [drawing(f"{path}.multi_head", {}, path, kind=kind) for kind, path in paths.items()]
    for place, ending in (("attention", ""), ("matrices", ".matrices"), ("arcs", ".arcs")):
        found[place] = [
            drawing(path + ending, {"sentence": i}, path, kind=kind) for kind, path in paths.items() for i in sentences
        ]
    searches = range(len(trace.info["searches"]))
    for place, part in (("steps", "steps"), ("tree", "tree"), ("looked", "arcs")):
        path = "search.{}" if part == "arcs" else None
        found[place] = [drawing(f"search.{i}.{part}", {}, path and path.format(i), sentence=i) for i in searches]
    return found


def _emptied(svg: Markup, lines: bool) -> Markup:
    """Without the squares of its heat maps and, of `lines`, those between its words: the script draws them."""

    def without_squares(grid: re.Match[str]) -> str:
        return re.sub(r' d="[^"]*"([^>]* data-level=)', r' d=""\1', grid[0])

    text = re.sub(r'data-grid=".*?</g>', without_squares, str(svg), flags=re.DOTALL)  # a key has no name, and stays
    return Markup(re.sub(r'<path class="arc"[^>]* data-query=[^>]*/>', "", text) if lines else text)


def _index(trace: Trace) -> dict[str, Any]:
    """What the script knows before it reads a number."""
    words = [trace.token(token) for token in range(trace.sizes["W"])] if trace.sizes["W"] <= shading.COLUMNS else []
    return {
        "tensors": [
            {
                "name": tensor.name,
                "axes": tensor.axes,
                "shape": tensor.shape,
                "text": questions.shape(tensor),
                "symbol": tensor.symbol,
                "type": str(tensor.value.dtype).removeprefix("torch."),
                "gradient": tensor.gradient is not None,
            }
            for tensor in trace.values()
        ],
        "tokens": questions.padded_tokens(trace),
        "winners": [[trace.token(token) for token in search["tokens"]] for search in trace.info["searches"]],
        "words": words,
        "layers": _layers(trace),
        "sizes": trace.sizes,
        "made_from": attention.MADE_FROM,
        "transposed": attention.TRANSPOSED,
        "scripts": writing.SCRIPTS.pattern,
        "dark": shading.DARK,
        "white_from": shading.WHITE_FROM,
        "levels": shading.HEAT_LEVELS,
        "least": heads.LEAST,
        "numbers": [shading.NUMBERS, shading.COLUMNS],
        "corner": [shading.CORNER_ROWS, shading.CORNER_COLUMNS],
    }
