"""Reads a figure back: its texts, boxes, lines and links with their places, out of the SVG."""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from hf_attention.figures.writing import text_width


SHAPE = re.compile(r"\[([^\]=]+)\] = \[([\d, ]+)\]")
HOSTILE = {  # tokens that a vocabulary may hold
    **{"start": "<s>", "markup": "<b>&\"'", "comment": "<!--", "cdata": "]]>", "entity": "&amp;", "line": "a\nb"},
    **{
        "bytes": "\x00\x1b\ufffe",
        "half": "\ud800",
        "hebrew": "שלום",
        "wide": "犬" * 40,
        "long": "w" * 300,
        "empty": "",
    },
}


@dataclass
class Drawn:
    """An element, where it is on the figure, and the groups around it, the outermost first."""

    element: ET.Element
    dx: float
    dy: float
    groups: list[ET.Element]

    def __getattr__(self, name):
        """`data_token` is the attribute `data-token`, `x` a number on the figure."""
        value = self.element.get(name.replace("_", "-"))
        if name in ("x", "y"):
            return float(value) + (self.dx if name == "x" else self.dy)
        return float(value) if name in ("width", "height") else value

    @property
    def kind(self):
        return self.element.get("class", "").split()

    @property
    def text(self):
        return "".join(self.element.itertext())

    @property
    def shape(self):
        """(letters, sizes) that the text says, or None."""
        found = SHAPE.search(self.text or "")
        return found and (found[1].split(", "), tuple(int(size) for size in found[2].split(", ")))

    @property
    def points(self):
        """What a path goes through, with the control points of its curves."""
        numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", self.element.get("d"))]
        return [(x + self.dx, y + self.dy) for x, y in zip(numbers[::2], numbers[1::2], strict=True)]

    @property
    def area(self):
        """Of a text: left, top, right, bottom, by the canvas's own estimate."""
        size = float(self.element.get("font-size"))
        width = text_width(self.text, size)
        left = self.x - {"start": 0, "middle": width / 2, "end": width}[self.element.get("text-anchor")]
        return left, self.y - 0.75 * size, left + width, self.y + 0.2 * size

    def within(self, kind):
        """The innermost group of this class around it, or None."""
        return next((group for group in reversed(self.groups) if kind in group.get("class", "").split()), None)


def read(canvas):
    """All that is on the figure, in the order of drawing. Raises where the SVG is not well-formed."""
    root = ET.fromstring(canvas.svg())
    found = []

    def walk(element, dx, dy, groups):
        for child in element:
            child.tag = child.tag.rpartition("}")[2]
            if child.tag in ("defs", "style", "title", "desc"):
                continue
            if child.tag != "g":
                found.append(Drawn(child, dx, dy, groups))
                continue
            moved = re.fullmatch(r"translate\((\S+) (\S+)\)", child.get("transform", "translate(0 0)"))
            walk(child, dx + float(moved[1]), dy + float(moved[2]), [*groups, child])

    walk(root, 0.0, 0.0, [])
    return found


def of(drawn, tag, kind=None):
    return [each for each in drawn if each.element.tag == tag and (kind is None or kind in each.kind)]


def texts(drawn):
    return [each.text for each in of(drawn, "text")]


def overlaps(drawn):
    """Pairs of texts that lie on each other."""
    placed = [(each.text, each.area) for each in of(drawn, "text") if each.text]
    return [
        (one, other)
        for i, (one, a) in enumerate(placed)
        for other, b in placed[:i]
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
    ]
