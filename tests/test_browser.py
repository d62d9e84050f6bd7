"""The page in a real browser: every box opens, choosers put the trace's numbers in, and nothing leaves the page."""

import json
import math
import re
import shutil

import pytest
import torch
from conftest import build_model
from test_page import HOSTILE, PLACES
from traced import ODD_SOURCES, ODD_TARGETS, odd_model, odd_trace, toy_trace

from hf_attention import Trace, trace
from hf_attention.figures import attention, page, shading, values, writing


playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install -e '.[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium, such as Debian's package chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """A page that is open, and what went wrong on it: errors, and requests for anything but itself."""

    def __init__(self, browser, path, **options):
        self.page = browser.new_page(
            **{"viewport": {"width": 1400, "height": 900}, "reduced_motion": "reduce"} | options
        )
        self.page.set_default_timeout(5000)
        self.wrong = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(dialog.message))
        self.page.on("request", lambda request: self.wrong.extend([request.url] * (request.url != path.as_uri())))
        self.page.goto(path.as_uri())

    def choose(self, **choices):
        """As a hand does it, but all choosers at once."""
        self.page.evaluate(
            """all => Object.entries(all).forEach(([name, value]) => {
                const chooser = document.querySelector(`[data-choose=${name}]`);
                chooser.value = value;
                chooser.dispatchEvent(new Event("change", {bubbles: true}));
            })""",
            choices,
        )

    def grids(self, selector):
        """(key, cells) of every grid, a cell as (row, column, exact value, text, fill, whether it is hatched)."""
        return self.page.eval_on_selector_all(
            f"{selector} [data-grid]",
            """grids => grids.map(grid => [grid.dataset.grid, [...grid.querySelectorAll(".cell")].map(cell => {
                let text = cell.nextElementSibling;
                const hidden = text.matches(".hidden");
                if (hidden) text = text.nextElementSibling;
                return [Number(cell.dataset.row), Number(cell.dataset.column), Number(cell.dataset.value),
                        text.textContent, cell.getAttribute("fill"), hidden];
            })])""",
        )


@pytest.fixture(scope="module")
def traces():
    return {"toy": toy_trace(backward=True), "odd": odd_trace()}


@pytest.fixture(scope="module")
def files(traces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, each in traces.items():
        each.to_html(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in traces}


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Most of its matrices are heat maps, those of queries and keys pooled ones."""
    model = build_model(vocab_size=30, num_layers=2, d_model=64, d_k=80, d_v=32)
    words = torch.randint(3, 30, (4, 20), generator=torch.Generator().manual_seed(0)).tolist()
    sources, targets = [[*words[0], 2], [*words[1][:15], 2]], [[*words[2][:16], 2], [*words[3][:17], 2]]
    wide = trace(model, None, sources, targets, num_beams=1, max_new_tokens=5)
    file = tmp_path_factory.mktemp("wide") / "wide.html"
    wide.to_html(file)
    return wide, file


@pytest.fixture(scope="module", params=["toy", "odd"])
def visit(request, browser, files, traces):
    visit = Visit(browser, files[request.param])
    visit.trace = traces[request.param]
    yield visit
    visit.page.close()


@pytest.fixture(autouse=True)
def nothing_goes_wrong(request):
    yield
    if "visit" in request.fixturenames:
        visit = request.getfixturevalue("visit")
        assert visit.wrong == []


SHOWN = ".figure[data-path]:not([hidden])"


def choices(trace):
    heads = range(trace.sizes["H"])
    for kind in page.KINDS:
        layers = sum(bool(re.fullmatch(kind.replace(".", r"\.layers\.\d+\.") + r"\.weights", name)) for name in trace)
        for layer in range(layers):
            for sentence in range(trace.sizes["B"]):
                yield from ((kind, layer, sentence, head) for head in heads)


def test_choosers_put_the_numbers_of_the_trace_in(visit):
    seen = set()
    for kind, layer, sentence, head in choices(visit.trace):
        visit.choose(kind=kind, layer=layer, sentence=sentence, head=head)
        path = kind.replace(".", f".layers.{layer}.")
        figure = f"#attention-figure {SHOWN}"
        for key, cells in visit.grids(figure):
            tensor = visit.trace[f"{path}.{key}"].value
            wanted = tensor[sentence, min(head, tensor.shape[1] - 1)]
            check(cells, wanted.T if key in attention.TRANSPOSED else wanted, (0, 1) if key == "weights" else None)
            seen.add((kind, key))
        assert path in visit.page.locator(f"{figure} svg").get_attribute("aria-label")
    wanted = {"q_heads", "k_heads", "v_heads", "products", "scores", "masked_scores", "weights", "heads"}
    assert {(kind, key) for kind in page.KINDS for key in wanted} <= seen
    assert ("decoder.self_attn", "look_ahead_mask") in seen


def check(cells, wanted, limits=None):
    """Every cell of a grid is there, with the value, the text and the tint that Python gives it."""
    low, high = limits or shading.extremes(wanted)
    assert len(cells) == wanted.numel()
    for row, column, exact, text, fill, hidden in cells:
        value = float(wanted[row, column])
        assert text == writing.number(value)
        assert fill == shading.shade((value - low) / (high - low) if high > low else 0)[0]
        assert exact == pytest.approx(value, rel=1e-6)
        assert hidden == (value < writing.MINUS_INFINITY)


def test_all_heads_of_the_chosen_layer(visit):
    kind, layer, sentence, _ = list(choices(visit.trace))[-1]
    visit.choose(kind=kind, layer=layer, sentence=sentence)
    weights = visit.trace[f"{kind.replace('.', f'.layers.{layer}.')}.weights"].value[sentence]
    grids = visit.grids(f"#matrices-figure {SHOWN}")
    assert [key for key, _ in grids] == ["weights"] * len(weights)
    for (_, cells), wanted in zip(grids, weights, strict=True):
        check(cells, wanted, (0, 1))


def test_the_figures_of_the_chosen_sentence_are_to_be_seen(visit):
    for sentence in range(visit.trace.sizes["B"]):
        visit.choose(sentence=sentence, kind="decoder.cross_attn")
        shown = visit.page.eval_on_selector_all(
            ".figure", "all => all.filter(each => each.checkVisibility()).map(each => ({...each.dataset}))"
        )
        assert len(shown) == len(PLACES)
        assert {each.get("sentence", str(sentence)) for each in shown} == {str(sentence)}
        assert {each.get("kind", "decoder.cross_attn") for each in shown} == {"decoder.cross_attn"}


def test_every_box_opens_and_shows_its_tensors(visit):
    visit.choose(sentence=visit.trace.sizes["B"] - 1)
    boxes = visit.page.locator("#figure-1 .figure:not([hidden]) [data-open]")
    paths = set()
    for i in range(boxes.count()):
        path = boxes.nth(i).get_attribute("data-open")
        boxes.nth(i).dispatch_event("click")
        assert visit.page.inner_text("#inside-title") == path
        inside(visit, path)
        paths.add(path)
    assert {"encoder.layers.0.self_attn", "decoder.layers.0.cross_attn", "decoder.layers.0.feed_forward"} <= paths


def inside(visit, path):
    """The panel holds every tensor of `path`, with its shape and all of its numbers of the chosen sentence."""
    tensors = visit.trace.within(path)
    sentence = visit.trace.sizes["B"] - 1
    visit.page.wait_for_function(
        "all => document.querySelectorAll('.tensor[open] > .matrices').length === all", arg=len(tensors)
    )
    shown = visit.page.eval_on_selector_all(
        ".tensor",
        """all => all.map(box => [box.querySelector("code").textContent, box.querySelector(".shape").textContent,
             [...box.querySelectorAll(":scope > .matrices td[data-value]")].map(cell => cell.textContent),
             box.querySelectorAll("th[scope=row]").length,
             [...box.querySelectorAll(".heat-map + p")].map(line => line.textContent)])""",
    )
    assert len(shown) == len(tensors) > 0
    for tensor, (name, shape, cells, rows, summaries) in zip(tensors, shown, strict=True):
        assert f"{path}.{name}" == tensor.name
        assert shape.startswith(writing.shape_text(tensor.axes, tensor.shape))
        value = tensor.value[sentence] if tensor.axes[:1] == ("B",) else tensor.value
        matrices = value.reshape(
            -1, *[*value.squeeze().shape, 1, 1][:2] if value.squeeze().ndim < 2 else value.shape[-2:]
        )
        written = (
            matrices
            if shading.in_numbers(matrices.shape[1:])
            else matrices[:, : shading.CORNER_ROWS, : shading.CORNER_COLUMNS]
        )
        assert cells == [writing.number(each) for each in written.flatten().tolist()]
        assert rows == written.shape[0] * written.shape[1]
        assert summaries == ([] if written is matrices else [shading.summary(matrix) for matrix in matrices])


def test_the_layer_and_the_gradient_of_what_is_inside(visit):
    visit.choose(sentence=0)
    visit.page.locator("#figure-1 [data-open$='layers.0.self_attn']").first.dispatch_event("click")
    path = visit.page.inner_text("#inside-title")
    layers = visit.page.locator("#inside-choosers option").count()
    visit.page.select_option("#inside-choosers select", str(layers - 1))
    path = path.replace(".0.", f".{layers - 1}.")
    assert visit.page.inner_text("#inside-title") == path
    gradient = visit.trace[f"{path}.scores"].gradient
    folded = visit.page.locator(".tensor", has_text="scores").first.locator("details")
    assert folded.count() == (gradient is not None)
    if gradient is not None:
        folded.locator("summary").click()
        values = folded.locator("td[data-value]")
        found = [float(values.nth(i).get_attribute("data-value")) for i in range(values.count())]
        assert found == pytest.approx(gradient[0].flatten().tolist(), rel=1e-6)


def test_a_box_opens_by_keyboard_and_gives_the_focus_back(visit):
    box = visit.page.locator("#figure-1 [data-open$='feed_forward']").first
    box.focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("document.activeElement.id") == "inside-title"
    visit.page.keyboard.press("Escape")
    assert visit.page.evaluate("document.activeElement.dataset.open") == box.get_attribute("data-open")


AS_DRAWN = """selector => {
    const svg = document.querySelector(selector), all = (what) => [...svg.querySelectorAll(what)];
    return {
        title: svg.querySelector("title").textContent, label: svg.getAttribute("aria-label"),
        description: svg.querySelector("desc").textContent,
        texts: all("text").map(text => text.textContent),
        cells: all(".cell").map(cell => [cell.getAttribute("fill"), Number(cell.dataset.value)]),
        ink: all(".number").map(text => text.getAttribute("fill")),
        hatched: all(".hidden").length,
        heat: all("[data-level]").map(path => [path.dataset.level, path.getAttribute("d")]),
        arcs: all(".arc").map(arc => [arc.getAttribute("d"), {...arc.dataset}]),
        strokes: all(".arc").flatMap(arc =>
            ["stroke-opacity", "stroke-width"].map(name => Number(arc.getAttribute(name)))),
    };
}"""


@pytest.mark.parametrize("kind", page.KINDS)
def test_what_the_page_makes_of_another_choice_is_what_python_draws(browser, wide, kind):
    run, file = wide
    visit = Visit(browser, file)
    visit.choose(kind=kind, layer=1, head=1, sentence=1)
    path = kind.replace(".", ".layers.1.")
    same_drawing(visit, "#attention-figure", run.figure(path, sentence=1, head=1))
    same_drawing(visit, "#matrices-figure", run.figure(f"{path}.matrices", sentence=1))
    same_drawing(visit, "#arcs-figure", run.figure(f"{path}.arcs", sentence=1))
    same_drawing(visit, "#multi_head-figure", run.figure(f"{path}.multi_head"))
    for layer in (0, 1):
        visit.choose(translation_layer=layer)
        same_drawing(visit, "#looked-figure", run.figure("search.1.arcs", layer=layer))
    assert visit.wrong == []
    visit.page.close()


def same_drawing(visit, place, picture):
    found = visit.page.evaluate(AS_DRAWN, f"{place} .figure:not([hidden]) svg")
    visit.page.evaluate("svg => document.body.insertAdjacentHTML('beforeend', svg)", picture.svg(standalone=False))
    wanted = visit.page.evaluate(AS_DRAWN, "body > svg:last-child")
    visit.page.evaluate("document.body.lastElementChild.remove()")
    for part, value in wanted.items():
        assert found[part] == (pytest.approx(value, abs=0.1) if part == "strokes" else value), (place, part)


def test_of_a_long_sentence_no_lines_of_another_layer_are_shown(browser, tmp_path):
    words = torch.randint(3, 30, (1, 45), generator=torch.Generator().manual_seed(0)).tolist()
    long = trace(build_model(vocab_size=30, num_layers=2), None, words, [[3, 4, 2]], search=False)
    long.to_html(tmp_path / "long.html")
    visit = Visit(browser, tmp_path / "long.html")
    picture = visit.page.locator("#arcs-figure .figure:not([hidden]) svg")
    lines = picture.locator(".arc[data-query]").count()
    assert picture.is_visible() and lines > 45
    visit.choose(layer=1)
    assert not picture.is_visible()
    visit.choose(layer=0)
    assert picture.is_visible() and picture.locator(".arc[data-query]").count() == lines
    assert visit.wrong == []
    visit.page.close()


@pytest.mark.parametrize("key", ["products", "scores", "weights", "heads"])
def test_a_cell_lights_up_what_it_came_from(visit, key):
    visit.choose(kind="decoder.cross_attn", layer=0, head=1, sentence=0)
    figure = f"#attention-figure {SHOWN}"
    cell = visit.page.locator(f"{figure} [data-grid={key}] .cell[data-row='1'][data-column='2']")
    cell.hover()
    lit = visit.page.eval_on_selector_all(
        f"{figure} .light-on:not(.here)",
        """all => all.map(light => {
            const grid = light.closest("[data-grid]"), frame = light.getBoundingClientRect(), inside = [];
            for (const cell of grid.querySelectorAll(".cell")) {
                const box = cell.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
                if (x > frame.left && x < frame.right && y > frame.top && y < frame.bottom)
                    inside.push([Number(cell.dataset.row), Number(cell.dataset.column)]);
            }
            return [grid.dataset.grid, inside];
        })""",
    )
    path = "decoder.layers.0.cross_attn"
    source, width = visit.trace.sizes["S"], visit.trace.sizes["K"]
    assert {name: sorted(cells) for name, cells in lit} == {
        "products": {"q_heads": [[1, i] for i in range(width)], "k_heads": [[i, 2] for i in range(width)]},
        "scores": {"products": [[1, 2]]},
        "weights": {"masked_scores": [[1, i] for i in range(source)]},
        "heads": {"weights": [[1, i] for i in range(source)], "v_heads": [[i, 2] for i in range(source)]},
    }[key]
    line = visit.page.inner_text(".recompute .sum")
    value = float(visit.trace[f"{path}.{key}"].value[0, 1, 1, 2])
    assert line.endswith(f"= {writing.number(value)}")
    assert worked_out(line) == pytest.approx(value, abs=0.02)


def worked_out(line):
    """What the sum in `line` gives, by Python's own arithmetic."""
    formula = line.partition(": ")[2].rpartition(" = ")[0]
    formula = formula.replace("−∞", "-math.inf").replace("−", "-").replace("·", "*")
    formula = re.sub(r"e\^(\([^)]*\)|[\d.]+)", r"math.exp(\1)", formula)
    formula = re.sub(r"√(\d+)", r"math.sqrt(\1)", formula)
    return eval(formula, {"math": math, "__builtins__": {}})


@pytest.fixture(scope="module")
def base(browser, tmp_path_factory):
    """Heads as wide as the base model's; with padding."""
    model = build_model(vocab_size=30, num_layers=2, d_model=128, num_heads=2)
    words = torch.randint(3, 30, (4, 20), generator=torch.Generator().manual_seed(0)).tolist()
    sources, targets = [[*words[0][:19], 2], [*words[1][:12], 2]], [[*words[2][:17], 2], [*words[3][:19], 2]]
    run = trace(model, None, sources, targets, search=False, backward=True)
    file = tmp_path_factory.mktemp("base") / "base.html"
    run.to_html(file)
    visit = Visit(browser, file)
    visit.trace = run
    yield visit
    assert visit.wrong == []
    visit.page.close()


@pytest.mark.parametrize("kind", page.KINDS)
@pytest.mark.parametrize("key", ["products", "scores", "masked_scores", "weights", "heads"])
def test_every_cell_of_a_heat_map_can_be_recomputed_from_the_page(base, kind, key):
    base.page.check("#all-terms")
    for layer, sentence, head in ((0, 0, 1), (1, 1, 0)):
        base.choose(kind=kind, layer=layer, sentence=sentence, head=head)
        value = base.trace[f"{kind.replace('.', f'.layers.{layer}.')}.{key}"].value[sentence, head]
        for row, column in ((0, 0), (11, 12), (len(value) - 1, value.shape[1] - 1)):
            line = base.page.evaluate(
                """([key, row, column]) => {
                    const figure = document.querySelector("#attention-figure .figure:not([hidden])");
                    light(figure.querySelector(`[data-grid=${key}]`), row, column);
                    return document.querySelector(".recompute .sum").textContent;
                }""",
                [key, row, column],
            )
            wanted = float(value[row, column])
            assert line.endswith(f" = {writing.number(wanted)}") and "…" not in line
            if wanted > writing.MINUS_INFINITY:  # each of up to 64 products was rounded twice
                assert worked_out(line) == pytest.approx(wanted, abs=0.04)


def test_long_sums_are_shortened_until_a_reader_wants_all_terms(base):
    base.page.uncheck("#all-terms")
    base.choose(kind="encoder.self_attn", layer=0, sentence=0, head=0)
    base.page.locator(f"#attention-figure {SHOWN} [data-grid=products]").focus()
    base.page.keyboard.press("ArrowDown")
    line = base.page.inner_text(".recompute .sum")
    assert "… (64 in all)" in line and line.count("·") == 6
    base.page.locator("#all-terms").focus()
    base.page.keyboard.press("Space")
    line = base.page.inner_text(".recompute .sum")
    assert "…" not in line and line.count("·") == 64
    base.choose(head=1)  # the line is that of the head that is shown
    value = float(base.trace["encoder.layers.0.self_attn.products"].value[0, 1, 1, 0])
    assert base.page.inner_text(".recompute .sum").endswith(f"= {writing.number(value)}")


@pytest.mark.parametrize("path", ["encoder.layers.1.self_attn", "decoder.layers.0.cross_attn"])
def test_what_is_told_from_kept_numbers_is_what_python_tells(base, path):
    """Limits, summaries and numbers of heat maps, also of those that are another tensor's numbers in another order."""
    for name in ("q_split", "k_heads", "v_heads", "heads", "products"):
        tensor = base.trace[f"{path}.{name}"]
        matrices = tensor.value[1].flatten(0, -3)
        for place in (0, len(matrices) - 1):
            found = base.page.evaluate(
                """([name, place]) => {
                    const { rows, columns, at, low, high, heat } = matrix(`value:${name}`, place);
                    const numbers = range(rows).flatMap((i) => range(columns).map((j) => at(i, j)));
                    return { numbers, low, high, summary: heat && heat.summary };
                }""",
                [tensor.name, len(matrices) + place],
            )
            wanted = matrices[place]
            assert found["numbers"] == wanted.flatten().tolist()
            assert (found["low"], found["high"]) == shading.extremes(wanted)
            assert found["summary"] == (None if shading.in_numbers(wanted.shape) else shading.summary(wanted))


def test_a_run_in_half_precision_says_that_it_was_rounded(browser, tmp_path):
    half = trace(odd_model().to(torch.bfloat16), None, ODD_SOURCES, ODD_TARGETS, search=False)
    half.to_html(tmp_path / "half.html")
    visit = Visit(browser, tmp_path / "half.html")
    visit.page.locator(f"#attention-figure {SHOWN} [data-grid=scores] .cell").first.hover()
    value = float(half["encoder.layers.0.self_attn.scores"].value[0, 0, 0, 0])
    line = visit.page.inner_text(".recompute .sum")
    assert line.endswith(f" ≈ {writing.number(value)}, rounded to bfloat16") and " = " not in line
    assert visit.wrong == []
    visit.page.close()


def test_the_line_says_which_cells_answer(browser, files):
    visit = Visit(browser, files["toy"])
    invitation = visit.page.inner_text(".recompute .sum")
    keys = {key for key, _ in visit.grids(f"#attention-figure {SHOWN}")}
    for key in keys:
        visit.page.locator(f"#attention-figure {SHOWN} [data-grid={key}] .cell").first.hover()
        assert visit.page.inner_text(".recompute .sum").startswith(f"{key.replace('_', ' ')}, ")
    for word in ("products", "scores", "masked scores", "weights", "result", "Q, K, V"):
        assert word in invitation
    visit.page.close()


TYPE = """() => [...document.querySelectorAll(".figure")].filter(each => each.checkVisibility()).map(figure => {
    const svg = figure.querySelector("svg"), scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const sizes = [...svg.querySelectorAll("text[font-size]")].map(text => scale * text.getAttribute("font-size"));
    const hint = figure.parentElement.querySelector(".sideways").checkVisibility();
    return [figure.parentElement.id, Math.min(...sizes), figure.scrollWidth > figure.clientWidth + 1, hint,
            figure.scrollLeft, figure.tabIndex];
})"""


@pytest.mark.parametrize("width", [1280, 360])
def test_figures_scroll_before_their_letters_get_too_small(base, browser, files, width):
    for visit in (Visit(browser, files["toy"], viewport={"width": width, "height": 740}), base):
        visit.page.set_viewport_size({"width": width, "height": 740})
        visit.page.wait_for_function("width => innerWidth === width", arg=width)
        found = visit.page.evaluate(TYPE)
        assert len(found) >= 9
        for name, size, wider, hint, left, focus in found:
            assert size >= 9.4, name
            assert (hint, left, focus) == (wider, 0, 0), name
        assert width > 1000 or any(wider for _, _, wider, *_ in found)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width
    base.page.set_viewport_size({"width": 1400, "height": 900})


def test_cells_are_reached_by_keyboard(visit):
    visit.choose(kind="encoder.self_attn", layer=0, head=0, sentence=0)
    grid = visit.page.locator(f"#attention-figure {SHOWN} [data-grid=products]")
    visit.page.locator("[data-choose=head]").focus()
    grid.focus()
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("ArrowRight")
    value = float(visit.trace["encoder.layers.0.self_attn.products"].value[0, 0, 1, 1])
    assert visit.page.inner_text(".recompute .sum").endswith(f"= {writing.number(value)}")


def test_answers_lead_to_the_place_that_shows_it(visit):
    visit.choose(kind="encoder.self_attn", sentence=0)
    visit.page.click("#question-mask a[href='#attention']")
    assert visit.page.evaluate("location.hash") == "#attention"
    assert visit.page.input_value("[data-choose=kind]") == "decoder.self_attn"
    assert visit.page.locator(f"#attention-figure {SHOWN}").get_attribute("data-path") == "decoder.layers.0.self_attn"
    top = visit.page.evaluate("document.querySelector('#attention').getBoundingClientRect().top")
    assert 0 <= top < 300


SPEAK_OF_SENTENCE_0 = [
    ("#question-training a[href='#encoder-inputs']", "#encoder-inputs-figure"),
    ("#question-training a[href='#shift']", "#shift-figure"),
    ("#question-training a[href='#output']", "#loss-figure"),
    ("#question-mask a[href='#shift']", "#shift-figure"),
    ("#question-loss a[href='#output']", "#loss-figure"),
    ("#question-loss a[data-open=loss]", "#loss-figure"),
    ("#question-translate a[href='#looked']", "#looked-figure"),
]


@pytest.mark.parametrize(("link", "figure"), SPEAK_OF_SENTENCE_0)
def test_answers_choose_the_sentence_that_they_speak_of(browser, files, link, figure):
    visit = Visit(browser, files["toy"])
    visit.choose(sentence=1)
    visit.page.click(link)
    assert visit.page.input_value("[data-choose=sentence]") == "0"
    assert visit.page.locator(f"{figure} .figure:not([hidden])").get_attribute("data-sentence") == "0"
    if "data-open" in link:
        assert visit.page.inner_text("#inside-status").endswith("those of sentence 0")
    visit.page.close()


def test_python_and_the_page_write_and_tint_numbers_alike(visit):
    torch.manual_seed(0)
    numbers = torch.cat([torch.randn(500) * 10**power for power in range(-5, 12)]).tolist()
    numbers += [i / 16 for i in range(-50, 50)] + [i / 4 for i in range(399, 430)] + [12500.0, 13500.0, 1.25e10]
    numbers += [0.0, -0.0, -0.0004, 0.0005, 99.9996, 9999.96, math.inf, -math.inf, math.nan, -3.4e38]
    numbers = torch.tensor(numbers).tolist()  # as the page has them, in float32
    given = [str(each).replace("inf", "Infinity").replace("nan", "NaN") for each in numbers]
    found = visit.page.evaluate("all => all.map(each => number(Number(each)))", given)
    assert found == [writing.number(each) for each in numbers]
    found = visit.page.evaluate("all => all.map(each => fine(Number(each)))", given)
    assert found == [values.fine(each) for each in numbers]
    levels = [i / 510 for i in range(-10, 521)] + [math.nan]
    given = [str(each).replace("nan", "NaN") for each in levels]
    assert visit.page.evaluate("all => all.map(each => shade(Number(each)))", given) == [
        list(shading.shade(each)) for each in levels
    ]


def test_python_and_the_page_set_formulas_alike(visit):
    formulas = {"d_model": "d<sub>model</sub>", "x": "x", "W_i^Q": "W<sub>i</sub><sup>Q</sup>"}
    formulas["E_src[x]·√d_model"] = "E<sub>src</sub>[x]·√d<sub>model</sub>"
    formulas |= {tensor.symbol: str(page._formula(tensor.symbol)) for tensor in visit.trace.values()}
    written = """all => all.map(each => {
        const line = document.createElement("span");
        line.append(...formula(each));
        return line.innerHTML;
    })"""
    assert visit.page.evaluate(written, list(formulas)) == list(formulas.values())


@pytest.mark.parametrize("name", ["toy", "odd"])
def test_on_a_phone_nothing_hangs_over(browser, files, name):
    visit = Visit(browser, files[name], viewport={"width": 360, "height": 740}, has_touch=True)
    for kind in page.KINDS:
        visit.choose(kind=kind)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    visit.page.locator("#figure-1 [data-open$='self_attn']").first.dispatch_event("click")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.page.evaluate("document.querySelector('#inside-title').getBoundingClientRect().top") < 740
    assert visit.wrong == []
    visit.page.close()


def test_without_a_script_the_first_choice_is_there(browser, files):
    visit = Visit(browser, files["toy"], java_script_enabled=False)
    shown = visit.page.locator(".figure:visible")
    assert all(shown.nth(i).get_attribute("data-sentence") in (None, "0") for i in range(shown.count()))
    assert visit.page.locator(f"#attention-figure {SHOWN} .cell").count() > 50
    assert "Scripts are off" in visit.page.inner_text("main")
    visit.page.close()


def test_hostile_words_are_shown_and_not_run(browser, traces, tmp_path):
    trace = traces["toy"]
    info = json.loads(json.dumps(trace.info))
    info["vocabulary"] |= {str(i): word for i, word in enumerate(HOSTILE[:5])}
    for sentence in info["sentences"]:
        for side in ("source_tokens", "decoder_tokens", "label_tokens"):
            sentence[side] = HOSTILE[: len(sentence[side])]
    Trace(trace.values(), info).to_html(tmp_path / "hostile.html")
    visit = Visit(browser, tmp_path / "hostile.html")
    visit.choose(sentence=1, kind="decoder.cross_attn")
    visit.page.locator("#figure-1 [data-open='decoder.layers.0.cross_attn']").first.dispatch_event("click")
    visit.page.wait_for_selector(".tensor > .matrices")
    assert visit.page.locator("img").count() == 0
    token = info["vocabulary"][str(int(trace["source.input_ids"].value[1, 0]))]
    assert visit.page.evaluate("text => document.querySelector('#inside').textContent.includes(text)", token)
    assert visit.wrong == []
    visit.page.close()


def test_in_a_notebooks_frame_links_stay_inside(browser, traces, tmp_path):
    (tmp_path / "notebook.html").write_text(
        f"<!DOCTYPE html><p>notebook</p>{traces['odd']._repr_html_()}", encoding="utf-8"
    )
    visit = Visit(browser, tmp_path / "notebook.html")
    frame = visit.page.frame_locator("iframe")
    frame.locator("#question-mask a[href='#attention']").click()
    assert frame.locator("#attention").is_visible()
    assert "notebook" in visit.page.inner_text("p") and visit.page.locator("iframe").count() == 1
    assert [each for each in visit.wrong if not each.startswith("about:")] == []
    visit.page.close()
