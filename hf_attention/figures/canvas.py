"""The one drawing layer: boxes, arrows, text and grids of numbers, as SVG.

Page and files share it. What is drawn carries what it was drawn from: the cells of a grid hold their exact values and
places as `data-` attributes, so that a page can light up rows and columns, put other numbers in, or be checked.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..text_files import write_bytes
from .shading import (
    CORNER_COLUMNS,
    CORNER_ROWS,
    HEAT_CELL,
    HEAT_COLUMNS,
    HEAT_LEVELS,
    NUMBERS,
    cells,
    extremes,
    heat_cell,
    heat_levels,
    in_numbers,
    shade,
    summary,
)
from .writing import FONT, MINUS_INFINITY, SCRIPTS, number, text_width


Point = tuple[float, float]

# Tints that differ in lightness too, so that a figure printed in grey keeps them apart; named after the boxes of the
# paper's Figure 1.
KINDS = {
    "plain": "#ffffff",
    "tokens": "#f1f1ef",
    "embedding": "#fbdfe0",
    "attention": "#ffe0b5",
    "norm": "#f5f8b8",
    "feed_forward": "#bfe5f2",
    "linear": "#dcdcf0",
    "softmax": "#c9ecc9",
    "stack": "#f4f5f6",
    "dark": "#174e8c",
}
INK, FAINT = "#1c1f23", "#6a707a"
STYLE = f"""
.ha text {{ font-family: "DejaVu Sans", Verdana, sans-serif; fill: {INK}; }}
.ha .number {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.ha .faint {{ fill: {FAINT}; }}
.ha .bold {{ font-weight: bold; }}
.ha .line {{ fill: none; stroke: {INK}; stroke-width: 1.3; }}
.ha .dashed {{ stroke-dasharray: 5 4; }}
.ha .light {{ fill: #ffffff; }}
.ha .box {{ stroke: {INK}; stroke-width: 1.2; }}
.ha .thin {{ stroke: {FAINT}; stroke-width: 0.8; }}
.ha .bare {{ stroke: none; }}
.ha .strong {{ stroke-width: 2.6; }}
.ha .arc {{ fill: none; }}
.ha .edge {{ fill: none; stroke: {FAINT}; stroke-width: 0.8; }}
.ha .hidden {{ fill: url(#ha-hatch); stroke: none; }}
.ha .heat .hidden {{ fill: url(#ha-hatch-small); }}
.ha .hidden + .number {{ paint-order: stroke; stroke: #ececec; stroke-width: 4px; }}
"""
CELL_WIDTH, CELL_HEIGHT = 50.0, 21.0
NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # and so no SVG; bytes of a token may be


@dataclass(frozen=True)
class Box:
    """Where something was drawn, with the points that arrows start and end at."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2


class Canvas:
    """A figure in the making, in pixels, y downwards. It is as large as what has been drawn.

    Args:
        title: what the figure is, for screen readers and as the name of the file's window.
        description: what a reader who can't see it should know.
    """

    def __init__(self, title: str, description: str = ""):
        self.title, self.description = title, description
        self._root = ET.Element("g")
        self._parents = [self._root]
        self._offsets: list[Point] = [(0.0, 0.0)]
        self._extent = [math.inf, math.inf, -math.inf, -math.inf]
        self._linked = False

    # What is drawn

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "plain",
        round: float = 6,
        line: str = "",
        **data: Any,
    ) -> Box:
        """`kind` is its tint, one of KINDS; `line` how its edge differs: any of dashed, thin, strong, bare."""
        place = {"x": x, "y": y, "width": width, "height": height, "rx": round}
        self._add("rect", f"box {line}".strip(), **place, fill=KINDS[kind], **_data(data))
        self._reach(x, y, x + width, y + height)
        return Box(x, y, width, height)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        lines: Sequence[str],
        kind: str = "plain",
        link: str | None = None,
        size: float = FONT,
    ) -> Box:
        """A rectangle with centred lines of text. With `link`, a trace path: the page opens what is inside."""
        with self.link(link, " ".join(lines)):
            box = self.rectangle(x, y, width, height, kind)
            first = y + height / 2 - (len(lines) - 1) * size * 0.65 + size * 0.36
            for i, line in enumerate(lines):
                self.text(x + width / 2, first + i * size * 1.3, line, size=size, anchor="middle")
        return box

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = FONT,
        anchor: str = "start",
        kind: str = "",
        slant: float = 0,
        **data: Any,
    ) -> None:
        """One line; `y` is its baseline.

        `kind`: any of bold, faint, number, and formula, which sets `d_model` and `W^Q` as the paper does. `slant`: by
        how many degrees the end of the line is lifted.
        """
        element = self._add("text", kind, x=x, y=y, **{"font-size": size, "text-anchor": anchor}, **_data(data))
        width = text_width(text, size, kind)
        if "formula" in kind:
            width -= _set_formula(element, text, size)
        else:
            element.text = text
        left, right = {"start": (0.0, width), "middle": (-width / 2, width / 2), "end": (-width, 0.0)}[anchor]
        if slant:
            element.set("transform", f"rotate({_round(-slant)} {_round(x)} {_round(y)})")
        cos, sin = math.cos(math.radians(slant)), math.sin(math.radians(slant))
        ends = [
            (x + at * cos + up * sin, y - at * sin + up * cos) for at in (left, right) for up in (-size, size * 0.3)
        ]
        self._reach(min(ends)[0], min(y for _, y in ends), max(ends)[0], max(y for _, y in ends))

    def arrow(
        self,
        points: Sequence[Point],
        label: str | None = None,
        dashed: bool = False,
        head: bool = True,
        side: int = 1,
        round: float = 0,
        **data: Any,
    ) -> None:
        """A line through `points` with a head at its end; `label` beside its middle, `side` 1 right, -1 left.

        `round` is the radius of its corners.
        """
        path = _path(points, round)
        element = self._add("path", "line dashed" if dashed else "line", d=path, **_data(data))
        if head:
            element.set("marker-end", "url(#ha-head)")
        for x, y in points:
            self._reach(x, y, x, y)
        if label:
            (x0, y0), (x1, y1) = max(zip(points, points[1:], strict=False), key=lambda ends: math.dist(*ends))
            upright = abs(x1 - x0) < abs(y1 - y0)
            dx, dy, anchor = (6 * side, 4, "start" if side > 0 else "end") if upright else (0, -5, "middle")
            self.text((x0 + x1) / 2 + dx, (y0 + y1) / 2 + dy, label, size=11, anchor=anchor, kind="shape")

    def patch(self, x: float, y: float, size: float, color: str, opacity: float = 1.0, **data: Any) -> None:
        """A small square of a colour, as in legends."""
        self._add("rect", "", x=x, y=y, width=size, height=size, fill=color, **{"fill-opacity": round(opacity, 3)})
        self._add("rect", "edge", x=x, y=y, width=size, height=size, **_data(data))
        self._reach(x, y, x + size, y + size)

    def rule(self, x: float, y: float, width: float) -> None:
        """A thin level line, as between the rows of a table."""
        self._add("path", "edge", d=f"M{_round(x)} {_round(y)}h{_round(width)}")
        self._reach(x, y, x + width, y)

    def curve(
        self, start: Point, end: Point, color: str, opacity: float, width: float, flat: bool = False, **data: Any
    ) -> None:
        """A smooth line from `start` to `end`, upright at both, or `flat`: an arc of head-by-head attention.

        Without a `color` of its own it has that of the group around it.
        """
        (x0, y0), (x1, y1) = start, end
        across, down = (x0 + x1) / 2, (y0 + y1) / 2
        stops = ((across, y0), (across, y1), end) if flat else ((x0, down), (x1, down), end)
        path = f"M{_round(x0)} {_round(y0)}C" + " ".join(f"{_round(x)} {_round(y)}" for x, y in stops)
        style = {"stroke-opacity": round(opacity, 2), "stroke-width": round(width, 1)}
        self._add("path", "arc", d=path, **({"stroke": color} if color else {}), **style, **_data(data))
        self._reach(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1))

    def grid(
        self,
        x: float,
        y: float,
        values: torch.Tensor,
        title: str = "",
        note: str = "",
        rows: Sequence[str] = (),
        columns: Sequence[str] = (),
        key: str | None = None,
        limits: tuple[float, float] | None = None,
        numbers: int = NUMBERS,
        faint: str | None = None,
        corner: bool = True,
        sampled: bool = False,
    ) -> tuple[Box, Box]:
        """A matrix [rows, columns] as numbers on tinted cells; one of more than `numbers` cells as a heat map.

        Cells of −∞, which a mask forbids, are hatched.

        Args:
            title, note: above it, bold (a formula) and faint; a note is as a rule a shape.
            rows, columns: what stands beside each row and above each column, such as tokens.
            key: the page's name for this matrix; the cells carry it with their place and exact value.
            limits: the values drawn white and dark; by default the smallest and largest, −∞ apart.
            faint: a row or column of this name is written faintly, such as that of the padding.
            corner: below a heat map, its summary and some of its values.
            sampled: a heat map of too many columns shows some of them, not means; see `shading.is_sampled`.

        Returns:
            the box of the cells, and that of everything drawn, with titles and labels.
        """
        values = values.detach().cpu()
        values = values if values.dtype in (torch.bool, torch.int64) else values.double()
        low, high = limits or extremes(values)
        before, self._extent = self._extent, [math.inf, math.inf, -math.inf, -math.inf]
        beside = max((text_width(label, 12) for label in rows), default=0.0) + (8 if rows else 0)
        told = {"grid": key, "low": _exact(low), "high": _exact(high), "limits": "given" if limits else "own"}
        with self.group(**{"class": "grid", **_data(told if key else {})}):
            top = y
            for line, kind in ((title, "bold formula"), (note, "faint")):
                if line:
                    self.text(x, top + 12, line, size=12, kind=kind)
                    top += 17
            in_cells = in_numbers(values.shape, numbers)
            width, height = (CELL_WIDTH, CELL_HEIGHT) if in_cells else heat_cell(rows, columns)
            written = columns if in_cells or values.shape[1] <= HEAT_COLUMNS else ()
            widest = max((text_width(label, 11) for label in written), default=0.0)
            slant = 0 if widest <= width else 50  # degrees
            if written:
                top += 17 if not slant else 17 + (widest - 11) * math.sin(math.radians(slant))
            left = x + beside
            if in_cells:
                box = self._cells(left, top, values, low, high)
            else:
                box = self._heat(left, top, values, low, high, (width, height), corner, sampled)
            every = math.ceil(12 * values.shape[0] / box.height)
            for i, label in enumerate(rows):
                if i % every == 0:
                    place: dict[str, Any] = {"kind": "faint" if label == faint else "", "row_name": i}
                    self.text(left - 6, top + (i + 0.5) * box.height / len(rows) + 4, label, 12, "end", **place)
            every = math.ceil((7 if slant else 1) / width)
            for j, label in enumerate(written):
                if j % every == 0:
                    place = {"kind": "faint" if label == faint else "", "column_name": j, "slant": slant}
                    at = left + (j + 0.5) * width
                    self.text(at, top - 5, label, 11, "start" if slant else "middle", **place)
        (dx, dy), (x0, y0, x1, y1) = self._offsets[-1], self._extent
        whole = Box(x0 - dx, y0 - dy, x1 - x0, y1 - y0)
        self._extent = [*map(min, before[:2], (x0, y0)), *map(max, before[2:], (x1, y1))]
        return box, whole

    def _cells(self, x: float, y: float, values: torch.Tensor, low: float, high: float) -> Box:
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                left, top = x + j * CELL_WIDTH, y + i * CELL_HEIGHT
                fill, ink = shade((value - low) / (high - low) if high > low else 0.0)
                cell = self._add("rect", "cell", x=left, y=top, width=CELL_WIDTH, height=CELL_HEIGHT, fill=fill)
                cell.attrib |= _data({"row": i, "column": j, "value": _exact(value)})
                if value < MINUS_INFINITY:
                    self._add("rect", "hidden", x=left, y=top, width=CELL_WIDTH, height=CELL_HEIGHT)
                style = {"font-size": 11, "text-anchor": "middle", "fill": ink, "style": f"fill:{ink}"}
                text = self._add("text", "number", x=left + CELL_WIDTH / 2, y=top + CELL_HEIGHT / 2 + 4, **style)
                text.text = number(value)
        width, height = values.shape[1] * CELL_WIDTH, values.shape[0] * CELL_HEIGHT
        lines = "".join(f"M{_round(x)} {_round(y + i * CELL_HEIGHT)}h{_round(width)}" for i in range(len(values) + 1))
        columns = range(values.shape[1] + 1)
        lines += "".join(f"M{_round(x + j * CELL_WIDTH)} {_round(y)}v{_round(height)}" for j in columns)
        self._add("path", "edge", d=lines)
        self._reach(x, y, x + width, y + height)
        return Box(x, y, width, height)

    def _heat(
        self,
        x: float,
        y: float,
        values: torch.Tensor,
        low: float,
        high: float,
        cell: tuple[float, float],
        corner: bool,
        sampled: bool,
    ) -> Box:
        """Fewer cells than values where there are too many; then what they are, the summary, a corner in numbers."""
        levels = heat_levels(values, low, high, sampled)
        width, height = cell[0] * levels.shape[1], cell[1] * levels.shape[0]
        place = f"translate({_round(x)} {_round(y)}) scale({cell[0]:g} {cell[1]:g})"
        with self.group(**{"class": "heat", "transform": place}):
            for level in range(-1, HEAT_LEVELS):
                places = levels.eq(level).nonzero().tolist()
                path = "".join(f"M{j} {i}h1v1h-1z" for i, j in places)
                tint = {"fill": shade(level / (HEAT_LEVELS - 1))[0]} if level >= 0 else {}
                self._add("path", "" if tint else "hidden", d=path, **tint, **_data({"level": level}))
        self._add("path", "edge", d=f"M{_round(x)} {_round(y)}h{_round(width)}v{_round(height)}h{_round(-width)}z")
        self._reach(x, y, x + width, y + height)
        below, told = y + height + 15, [cells(values.shape, sampled)]
        if corner:
            self.text(x, below, summary(values), size=11, kind="faint summary")
            self._cells(x, below + 23, values[:CORNER_ROWS, :CORNER_COLUMNS], low, high)
            below, told = below + 15, [*told, "in numbers: the top left corner"]
        if any(told):
            self.text(x, below, " · ".join(filter(None, told)), size=11, kind="faint")
        return Box(x, y, width, height)

    # Structure

    @contextmanager
    def group(self, **attributes: Any) -> Iterator[None]:
        element = ET.SubElement(self._parents[-1], "g", {name: str(value) for name, value in attributes.items()})
        self._parents.append(element)
        yield
        self._parents.pop()

    @contextmanager
    def at(self, x: float, y: float) -> Iterator[None]:
        """What is drawn inside has its origin at (x, y)."""
        with self.group(transform=f"translate({_round(x)} {_round(y)})"):
            before = self._offsets[-1]
            self._offsets.append((before[0] + x, before[1] + y))
            yield
            self._offsets.pop()

    @contextmanager
    def link(self, path: str | None, label: str) -> Iterator[None]:
        """What is drawn inside opens the trace path `path` on the page; in a file it is drawn as it is."""
        if path is None:
            yield
            return
        self._linked = True
        attributes = {"class": "link", "tabindex": "0", "role": "button", "aria-label": label, "data-open": path}
        with self.group(**attributes):
            yield

    def _add(self, tag: str, kind: str, **attributes: Any) -> ET.Element:
        text = {name: _round(value) if isinstance(value, float) else str(value) for name, value in attributes.items()}
        return ET.SubElement(self._parents[-1], tag, ({"class": kind} if kind else {}) | text)

    def _reach(self, left: float, top: float, right: float, bottom: float) -> None:
        dx, dy = self._offsets[-1]
        extent = self._extent
        low, high = (left + dx, top + dy), (right + dx, bottom + dy)
        self._extent = [*map(min, extent[:2], low), *map(max, extent[2:], high)]

    # What comes out

    def svg(self, standalone: bool = True) -> str:
        """The figure; `standalone` with its style, as a file of its own needs it and a page of many does not."""
        margin = 12
        left, top, right, bottom = self._extent if self._extent[2] > -math.inf else [0.0, 0.0, 1.0, 1.0]
        width, height = math.ceil(right - left + 2 * margin), math.ceil(bottom - top + 2 * margin)
        view = f"{_round(left - margin)} {_round(top - margin)} {width} {height}"
        root = ET.Element("svg", {"class": "ha", "viewBox": view, "width": str(width), "height": str(height)})
        root.set("role", "group" if self._linked else "img")
        root.set("aria-label", self.title)
        if standalone:
            root.set("xmlns", "http://www.w3.org/2000/svg")
        ET.SubElement(root, "title").text = self.title
        if self.description:
            ET.SubElement(root, "desc").text = self.description
        if standalone:
            ET.SubElement(root, "style").text = STYLE
            root.append(ET.fromstring(DEFINITIONS))
            ET.SubElement(root, "rect", {"x": view.split()[0], "y": view.split()[1], "width": "100%", "height": "100%",
                                         "fill": "#ffffff"})  # fmt: skip
        root.append(self._root)
        return NO_XML.sub("\N{REPLACEMENT CHARACTER}", ET.tostring(root, encoding="unicode"))

    def save(self, path: str | Path) -> None:
        """Writes `.svg`, or `.png` at twice the size, for slides.

        Raises:
            ValueError: another ending, or a path that cannot be written.
            ImportError: `.png` without the library that paints it.
        """
        ending = Path(path).suffix.lower()
        if ending == ".svg":
            write_bytes(path, self.svg().encode())
        elif ending == ".png":
            try:
                from resvg_py import svg_to_bytes
            except ImportError as error:
                raise ImportError(
                    "PNG needs a painter: pip install 'hf_attention[png]'; .svg needs nothing"
                ) from error
            write_bytes(path, bytes(svg_to_bytes(svg_string=self.svg(), zoom=2)))
        else:
            raise ValueError(f"{path}: a figure is written as .svg or .png")

    def _repr_svg_(self) -> str:
        return self.svg()


HATCH = f'<rect width="6" height="6" fill="#ececec"/><path d="M0 0V6" stroke="{FAINT}" stroke-width="1.6"/></pattern>'
DEFINITIONS = (
    '<defs><marker id="ha-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker>'
    '<pattern id="ha-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f"{HATCH}"
    '<pattern id="ha-hatch-small" width="6" height="6" patternUnits="userSpaceOnUse" '
    f'patternTransform="scale({1 / HEAT_CELL:.3f}) rotate(45)">{HATCH}</defs>'
)


def _path(points: Sequence[Point], radius: float) -> str:
    """Straight lines through `points`, their corners rounded."""

    def towards(start: Point, end: Point) -> str:
        length = math.dist(start, end)
        share = min(radius, length / 2) / (length or 1)
        return f"{_round(start[0] + (end[0] - start[0]) * share)} {_round(start[1] + (end[1] - start[1]) * share)}"

    path = f"M{_round(points[0][0])} {_round(points[0][1])}"
    for before, (x, y), after in zip(points, points[1:], points[2:], strict=False):
        corner = f"{_round(x)} {_round(y)}"
        path += f" L{towards((x, y), before)} Q{corner} {towards((x, y), after)}" if radius else f" L{corner}"
    return path + f" L{_round(points[-1][0])} {_round(points[-1][1])}"


def _set_formula(element: ET.Element, text: str, size: float) -> float:
    """Fills `element` with raised and lowered pieces; returns by how much narrower that is than the plain text."""
    pieces = SCRIPTS.split(text)  # what stands between, "_" or "^", the script, what stands between, ...
    element.text, height = pieces[0], 0.0
    for mark, script, after in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        level = size * (0.25 if mark == "_" else -0.4)
        style = {"dy": _round(level - height), "font-size": _round(size * 0.72)}
        ET.SubElement(element, "tspan", style).text = script
        height = level
        if after:
            ET.SubElement(element, "tspan", {"dy": _round(-height)}).text = after
            height = 0.0
    scripts = pieces[2::3]
    return text_width("".join(scripts), size) * 0.28 + text_width(" " * len(scripts), size)


def _exact(value: float) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _round(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _data(values: dict[str, Any]) -> dict[str, str]:
    return {f"data-{name.replace('_', '-')}": str(value) for name, value in values.items()}
