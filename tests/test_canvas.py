"""The drawing layer: what it writes is SVG that says what it was given, to the eye and in its data."""

import math
import xml.etree.ElementTree as ET

import pytest
import torch
from drawn import SVG, Drawn

from hf_attention.figures.canvas import Canvas
from hf_attention.figures.shading import cells, extremes, is_sampled, pool, summary
from hf_attention.figures.writing import number, probability, shape_text


HOSTILE = [
    "<s>",
    "</s>",
    '"',
    "'",
    "&amp;",
    "]]>",
    "a\x00b",
    "\x1b",
    "\ud800",
    "\uffff",
    "<!--",
    "ünïcode",
    "犬",
    "\u0301",
]
MASK = torch.tensor([[0.0, -3.4028235e38], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"), (-0.0001, "0.000"), (1.23456, "1.235"), (-2.0, "−2.000"), (99.9994, "99.999"),
        (123.456, "123.5"), (12345.6, "1.2e+04"), (3, "3"), (-100, "−100"), (True, "yes"), (False, "no"),
        (-3.4028235e38, "−∞"), (-math.inf, "−∞"), (math.inf, "∞"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.61234, "0.612"), (0.01, "0.010"), (0.0098, "0.0098"), (0.00214, "0.0021"), (0.005, "0.0050"),
     (7.123e-5, "7.1e−05"), (3e-12, "3.0e−12"), (0.0, "0.000")],
)  # fmt: skip
def test_small_probabilities_keep_two_digits(value, text):
    assert probability(value) == text


def test_shapes():
    assert shape_text(("B", "S", "H·K"), (2, 3, 8)) == "[B, S, H·K] = [2, 3, 8]"
    assert shape_text((), ()) == "[] = []"


def test_the_summary_and_the_limits_leave_minus_infinity_out():
    values = torch.tensor([[1.0, -3.4e38], [3.0, 2.0]])
    assert extremes(values) == (1.0, 3.0)
    assert summary(values) == f"min 1.000 · max 3.000 · mean 2.000 · std {math.sqrt(2 / 3):.3f}"
    assert extremes(torch.full((2, 2), -3.4e38)) == (0.0, 1.0)
    assert summary(torch.full((2, 2), -math.inf)) == "all −∞"


def test_a_grid_holds_what_it_shows():
    canvas = Canvas("A grid")
    values = torch.tensor([[0.12345678, -3.4028235e38], [1234.5678, -0.0004]])
    canvas.grid(0, 0, values, "Q_i", "[S, K] = [2, 2]", rows=["a", "b"], columns=["c", "d"], key="q")
    grid = Drawn(canvas).grids["q"]
    assert grid.text == ["Qi", "[S, K] = [2, 2]", "0.123", "−∞", "1234.6", "0.000", "a", "b", "c", "d"]
    assert torch.allclose(grid.exact, values.double(), rtol=1e-6)
    assert (grid.rows, grid.columns, grid.hatched) == (["a", "b"], ["c", "d"], [[0, 1]])


def test_cells_are_darker_the_larger_they_are():
    canvas = Canvas("Tints")
    canvas.grid(0, 0, torch.tensor([[0.0, 1.0, 2.0, 5.0]]), key="v")
    canvas.grid(0, 100, torch.tensor([[0.5, 0.5]]), key="same")
    canvas.grid(0, 200, torch.tensor([[0.5]]), key="given", limits=(0, 1))
    fills = [cell.get("fill") for cell in Drawn(canvas).root.iter(f"{SVG}rect") if cell.get("class") == "cell"]
    assert fills[0] == "#ffffff" and fills[4:6] == ["#ffffff"] * 2 and fills[6] != "#ffffff"
    grey = [sum(int(fill[i : i + 2], 16) for i in (1, 3, 5)) for fill in fills[:4]]
    assert grey == sorted(grey, reverse=True) and len(set(grey)) == 4


def test_a_large_matrix_is_a_heat_map_with_summary_and_corner():
    canvas = Canvas("Heat")
    values = torch.linspace(0, 1, 100 * 128).reshape(100, 128)
    canvas.grid(0, 0, values, key="v")
    drawn = Drawn(canvas)
    grid = drawn.grids["v"]
    assert sorted(grid.levels) == [(row, column) for row in range(40) for column in range(64)]
    assert grid.levels[0, 0] == 0 and grid.levels[39, 63] == 11
    assert grid.levels[20, 0] == round(float(values[50:53, :2].mean()) * 11)  # rows 50 to 52 share the 21st of 40
    assert summary(values) in drawn.lines
    assert torch.allclose(grid.exact, values[:3, :4].double(), atol=1e-6)
    assert len(drawn.svg) < 60_000


@pytest.mark.parametrize("shape", [(20, 64), (41, 64), (64, 20), (100, 128), (20, 512), (3, 300), (81, 66)], ids=str)
def test_what_a_cell_is_the_mean_of_is_counted(shape):
    """How many values each mean depends on, seen from the means of columns (and rows) that are 1 in one place."""
    blocks = []
    for size, most, what in zip(shape, (40, 64), ("rows", "columns"), strict=True):
        if size > most:
            rows = torch.eye(size)[:, :, None] if what == "rows" else torch.eye(size)[:, None, :]
            seen = sum(pool(row).flatten().gt(0).long() for row in rows)
            low, high = int(seen.min()), int(seen.max())
            blocks.append(f"{low} {what}" if low == high else f"{low} to {high} {what}")
    assert cells(shape) == (f"each cell the mean of {' × '.join(blocks)}" if blocks else "")


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "words"),
    [
        ((20, 512), range(20), [16 * pair + i for pair in range(32) for i in (0, 1)], "every 8th pair of columns"),
        ((20, 64), range(20), range(64), ""),
        ((90, 66), range(0, 90, 3), [4 * pair + i for pair in range(17) for i in (0, 1)],
         "every 3rd row and every 2nd pair of columns"),
        ((2, 1409), range(2), [46 * pair + i for pair in range(31) for i in (0, 1)], "every 23rd pair of columns"),
        ((2, 768), range(2), [24 * pair + i for pair in range(32) for i in (0, 1)], "every 12th pair of columns"),
    ],
)  # fmt: skip
def test_a_sampled_heat_map_shows_values_and_says_which(shape, rows, columns, words):
    values = torch.arange(shape[0] * shape[1], dtype=torch.float64).reshape(shape)
    wanted = [[shape[1] * row + column for column in columns if column < shape[1]] for row in rows]
    assert pool(values, sampled=True).tolist() == wanted
    assert cells(shape, sampled=True) == words


def test_what_is_added_up_is_sampled_alike():
    names = ["embed_tokens.rows", "embed_tokens.output", "embed_positions.output", "sum", "dropped"]
    assert all(is_sampled(f"{stack}.{name}") for stack in ("encoder", "decoder") for name in names)
    assert not any(map(is_sampled, ("encoder.output", "encoder.layers.0.self_attn_add_norm.sum", "source.input_ids")))


def test_a_heat_map_says_what_its_cells_are_and_where_its_numbers_stand():
    told = {}
    for name, values, options in (
        ("means", torch.rand(20, 512), {}),
        ("sampled", torch.rand(20, 512), {"sampled": True}),
        ("single", torch.rand(20, 20), {}),
        ("bare", torch.rand(50, 64), {"corner": False}),
        ("single, bare", torch.rand(20, 20), {"corner": False}),
        ("numbers", torch.rand(3, 4), {}),
    ):
        canvas = Canvas(name)
        box, whole = canvas.grid(0, 0, values, key="v", **options)
        drawn = Drawn(canvas)
        told[name] = [line for line in drawn.lines if line[0].isalpha() and not line.startswith("min")]
        cells_ = [cell for cell in drawn.root.iter(f"{SVG}rect") if cell.get("class") == "cell"]
        lines = [float(text.get("y")) for text in drawn.root.iter(f"{SVG}text") if text.get("class") != "number"]
        assert all(float(cell.get("y")) > max(lines, default=-1) for cell in cells_)
        assert box.height < whole.height or not lines
    assert told == {
        "means": ["each cell the mean of 8 columns · in numbers: the top left corner"],
        "sampled": ["every 8th pair of columns · in numbers: the top left corner"],
        "single": ["in numbers: the top left corner"],
        "bare": ["each cell the mean of 2 rows"],
        "single, bare": [],
        "numbers": [],
    }


def test_a_heat_map_hatches_what_is_hidden_and_only_that():
    values = torch.zeros(20, 20).masked_fill(torch.ones(20, 20).triu(1).bool(), torch.finfo(torch.float32).min)
    canvas = Canvas("Mask")
    canvas.grid(0, 0, values, key="mask", rows=["w"] * 20, columns=["word"] * 20)
    grid = Drawn(canvas).grids["mask"]
    assert grid.levels == {(i, j): -1 if j > i else 0 for i in range(20) for j in range(20)}
    assert len(grid.rows) == len(grid.columns) == 20  # there is room for every token


def test_half_hidden_blocks_show_what_is_not_hidden():
    values = torch.ones(80, 64)
    values[1::2] = -3.4e38
    values[0] = 0.0
    canvas = Canvas("Blocks")
    canvas.grid(0, 0, values, key="v")
    levels = Drawn(canvas).grids["v"].levels
    assert {levels[0, column] for column in range(64)} == {0} and {levels[1, column] for column in range(64)} == {11}


def test_padding_is_faint():
    canvas = Canvas("Padding")
    canvas.grid(0, 0, MASK, rows=["a", "<pad>"], columns=["a", "<pad>"], faint="<pad>")
    faint = [text.text for text in Drawn(canvas).root.iter(f"{SVG}text") if text.get("class") == "faint"]
    assert faint == ["<pad>"] * 2


def test_formulas_are_set_and_words_are_not():
    canvas = Canvas("Formula")
    canvas.text(0, 0, "W_i^Q · √d_model", kind="formula")
    canvas.text(0, 30, "decoder.layers.0.self_attn", kind="formula")
    canvas.text(0, 60, "x_1")
    formula, path, plain = Drawn(canvas).root.iter(f"{SVG}text")
    assert [span.text for span in formula.iter(f"{SVG}tspan")] == ["i", "Q", " · √d", "model"]
    assert "".join(path.itertext()) == "decoder.layers.0.self_attn" and plain.text == "x_1"


@pytest.mark.parametrize("standalone", [True, False])
def test_any_token_makes_well_formed_xml(standalone):
    canvas = Canvas(' "<title>" & more', "\x07 <desc>")
    canvas.box(0, 0, 100, 40, HOSTILE, link="<path attribute='\"'>")
    canvas.grid(0, 100, torch.zeros(len(HOSTILE), len(HOSTILE)), rows=HOSTILE, columns=HOSTILE, key='"<&>"')
    root = ET.fromstring(canvas.svg(standalone))
    texts = ["".join(text.itertext()) for text in root.iter() if text.tag.endswith("text")]
    for token in ("<s>", '"', "'", "&amp;", "]]>", "<!--", "犬", "a\N{REPLACEMENT CHARACTER}b"):
        assert texts.count(token) == 3  # in the box, beside a row and above a column
    assert root.get("aria-label") == ' "<title>" & more' and root.get("role") == "group"


def test_what_is_drawn_lies_inside_the_picture():
    canvas = Canvas("Extent")
    with canvas.at(-300, 50):
        box = canvas.box(0, 0, 80, 30, ["left"])
        with canvas.at(10, 400):
            _, whole = canvas.grid(0, 0, torch.zeros(2, 3), "title", "note", rows=["a long label", "b"])
    left, top, width, height = map(float, Drawn(canvas).root.get("viewBox").split())
    assert left < -300 and top < 50 < 450 + whole.height < top + height and whole.x == 0 and box.x == 0
    assert left + width > -300 + 10 + whole.width


def test_svg_and_png_are_written_and_nothing_else(tmp_path):
    canvas = Canvas("Files")
    canvas.grid(0, 0, MASK, "mask", rows=["a", "b"], columns=["a", "b"])
    canvas.save(tmp_path / "figure.svg")
    assert ET.parse(tmp_path / "figure.svg").getroot().tag == f"{SVG}svg"
    with pytest.raises(ValueError, match=r"figure.jpg: a figure is written as .svg or .png"):
        canvas.save(tmp_path / "figure.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]


def test_a_png_is_the_picture_at_twice_the_size(tmp_path):
    pytest.importorskip("resvg_py", reason="the png extra is not installed")
    canvas = Canvas("Files")
    canvas.box(0, 0, 200, 100, ["a box"])
    canvas.save(tmp_path / "figure.PNG")
    content = (tmp_path / "figure.PNG").read_bytes()
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    root = Drawn(canvas).root
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert (width, height) == (2 * int(root.get("width")), 2 * int(root.get("height")))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    for name in ("fig.svg", "fig.png"):
        path = tmp_path / "missing" / name
        with pytest.raises(ValueError, match="cannot be written: No such file") as caught:
            Canvas("a title").save(path)
        assert str(path) in str(caught.value)
