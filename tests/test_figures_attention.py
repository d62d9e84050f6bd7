"""Figure 2: with pencil and paper the printed numbers give the printed numbers; every shape is a module's."""

from collections import Counter

import pytest
import torch
from drawn import SVG, Drawn, Interval
from traced import ODD_SOURCES, ODD_TARGETS, SOURCES, TARGETS, base_ids, base_model, odd_model, toy_model

from hf_attention import trace
from hf_attention.figures.attention import MADE_FROM, TRANSPOSED


CASES = {"toy": (toy_model, SOURCES, TARGETS), "odd": (odd_model, ODD_SOURCES, ODD_TARGETS)}
FORMULAS = {
    "products": lambda drawn, place, query, key: (query * key).sum(),
    "scores": lambda drawn, place, product: product / drawn.after("√dk = "),
    "masked_scores": lambda drawn, place, score, *masks: sum(masks, start=score),
    "weights": lambda drawn, place, scores: scores.softmax()[place[1]],
    "heads": lambda drawn, place, weights, values: (weights * values).sum(),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    model, sources, targets = CASES[request.param]
    model = model()
    return model, trace(model, None, sources, targets, search=False), sources, targets


def attentions(run):
    return [name.removesuffix(".weights") for name in run if name.endswith(".weights")]


def drawings(run):
    for path in attentions(run):
        sentences, heads = run[f"{path}.weights"].shape[:2]
        for sentence in range(sentences):
            for head in range(heads):
                yield path, sentence, head, Drawn(run.figure(path, sentence=sentence, head=head))


def exactly(grid):
    return Interval(grid.exact, grid.exact)


def made(drawn, key, numbers):
    """Each cell of the grid `key` from those that MADE_FROM names, by `numbers` of a grid: as printed, or exactly."""
    sources = [(numbers(drawn.grids[source]), way) for source, way in MADE_FROM[key] if source in drawn.grids]
    rows, columns = drawn.grids[key].exact.shape
    low, high = torch.empty(2, rows, columns, dtype=torch.float64)
    for i in range(rows):
        for j in range(columns):
            where = {"row": i, "column": (slice(None), j), "cell": (i, j)}
            cell = FORMULAS[key](drawn, (i, j), *(values[where[way]] for values, way in sources))
            low[i, j], high[i, j] = cell.low, cell.high
    return Interval(low, high)


def test_every_edge_follows_from_the_printed_numbers(case):
    for path, sentence, head, drawn in drawings(case[1]):
        for key in MADE_FROM:
            found = made(drawn, key, lambda grid: grid.printed)
            assert found.width < 0.06, "the printed numbers would say nothing"
            assert found.meets(drawn.grids[key].printed), (path, sentence, head, key)


def test_every_edge_follows_from_the_numbers_behind_the_cells(case):
    for path, sentence, head, drawn in drawings(case[1]):
        drawn.after = lambda words: Interval(*[torch.tensor(case[0].config.d_k ** 0.5)] * 2)
        for key in MADE_FROM:
            found, exact = made(drawn, key, exactly).low, drawn.grids[key].exact
            close = torch.isclose(found, exact, rtol=1e-5, atol=1e-5) | ((found < -1e30) & (exact < -1e30))
            assert close.all(), (path, sentence, head, key)


def test_a_wrong_number_would_be_noticed(case):
    """Another number in one cell of what comes in, and some edge no longer fits."""
    _, _, _, drawn = next(drawings(case[1]))
    for key in ("q_heads", "k_heads", "v_heads"):
        printed = drawn.grids[key].printed
        kept = printed.low.clone(), printed.high.clone()
        printed.low[0, 0] += 0.3
        printed.high[0, 0] += 0.3
        assert not all(made(drawn, to, lambda grid: grid.printed).meets(drawn.grids[to].printed) for to in MADE_FROM)
        printed.low[:], printed.high[:] = kept
    assert all(made(drawn, to, lambda grid: grid.printed).meets(drawn.grids[to].printed) for to in MADE_FROM)


def run_with_hooks(model, sources, targets):
    """What the modules take and give, and the library's own attention weights; no trace in sight."""
    width, length = max(map(len, sources)), max(map(len, targets))
    batch = {
        "input_ids": torch.tensor([row + [0] * (width - len(row)) for row in sources]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in sources]),
        "labels": torch.tensor([row + [-100] * (length - len(row)) for row in targets]),
    }
    seen = {}

    def keep(name):
        def hook(module, args, output):
            seen[name] = args[0], output

        return hook

    handles = [
        module.register_forward_hook(keep(name.removeprefix("model.")))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    for handle in handles:
        handle.remove()
    weights = {}
    for kind, each in (("encoder.layers.{}.self_attn", output.encoder_attentions),
                       ("decoder.layers.{}.self_attn", output.decoder_attentions),
                       ("decoder.layers.{}.cross_attn", output.cross_attentions)):  # fmt: skip
        weights |= {kind.format(i): layer for i, layer in enumerate(each)}
    return seen, weights


def test_the_numbers_are_those_of_the_modules(case):
    model, run, sources, targets = case
    seen, weights = run_with_hooks(model, sources, targets)
    for path, sentence, head, drawn in drawings(run):
        for part, width in (("q", model.config.d_k), ("k", model.config.d_k), ("v", model.config.d_v)):
            whole = seen[f"{path}.{part}_proj"][1][sentence]
            own = whole[:, head * width : (head + 1) * width].double()
            assert torch.allclose(drawn.grids[f"{part}_heads"].exact, own.T if part == "k" else own, atol=1e-5)
        assert torch.allclose(drawn.grids["weights"].exact, weights[path][sentence, head].double(), atol=1e-5)
        width = model.config.d_v
        joined = seen[f"{path}.out_proj"][0][sentence, :, head * width : (head + 1) * width]
        assert torch.allclose(drawn.grids["heads"].exact, joined.double(), atol=1e-5)
    assert TRANSPOSED == ["k_heads"]


def test_every_shape_of_multi_head_attention_is_one_of_the_modules(case):
    """Report 63: four matrices by name, [B, L, H·K] -> [B, L, H, K] -> [B, H, L, K], and where arrows come from."""
    model, run, sources, targets = case
    seen, _ = run_with_hooks(model, sources, targets)
    heads = model.config.num_heads
    for path in attentions(run):
        drawn = Drawn(run.figure(f"{path}.multi_head"))
        at = "S" if path.startswith("encoder") else "T"
        memory_at = at if path.endswith("self_attn") else "S"
        expected = Counter()

        def expect(axes, shape, expected=expected):
            expected[", ".join(axes), ", ".join(map(str, shape))] += 1

        for part in "qkv":
            module = model.get_submodule(f"model.{path}.{part}_proj")
            batch, length, joined = seen[f"{path}.{part}_proj"][1].shape
            width, letter, where = joined // heads, "V" if part == "v" else "K", at if part == "q" else memory_at
            expect(("D", f"H·{letter}"), module.weight.T.shape)
            expect((f"H·{letter}",), module.bias.shape)
            expect(("B", where, f"H·{letter}"), (batch, length, joined))
            expect(("B", where, "H", letter), (batch, length, heads, width))
            expect(("B", "H", where, letter), (batch, heads, length, width))
        last = model.get_submodule(f"model.{path}.out_proj")
        (batch, length, joined), output = (each.shape for each in seen[f"{path}.out_proj"])
        expect(("H·V", "D"), last.weight.T.shape)
        expect(("D",), last.bias.shape)
        expect(("B", "H", at, "V"), (batch, heads, length, joined // heads))
        expect(("B", at, "H·V"), (batch, length, joined))
        expect(("B", at, "D"), output)
        expect(("B", at, "D"), seen[f"{path}.q_proj"][0].shape)
        if path.endswith("cross_attn"):
            expect(("B", "S", "D"), seen[f"{path}.k_proj"][0].shape)
        assert Counter(drawn.shapes) == expected
        for letter in "QKVO":
            assert any(line.startswith(f"W{letter}") for line in drawn.lines)
        source = "memory" if path.endswith("cross_attn") else "x"
        projections = {f"K = {source} WK + bK", f"V = {source} WV + bV", "Q = x WQ + bQ"}
        assert projections | {f"h = {heads}"} <= set(drawn.lines)
        opened = [group.get("data-open") for group in drawn.root.iter(f"{SVG}g") if group.get("data-open")]
        assert opened == [path]  # the page opens the numbers of one head


def test_the_shapes_of_one_head_are_those_of_its_matrices(case):
    model, run, sources, targets = case
    lengths = {"S": max(map(len, sources)), "T": max(map(len, targets))}
    sizes = {**lengths, "K": model.config.d_k, "V": model.config.d_v}
    for path, _, _, drawn in drawings(run):
        at, memory_at = run[f"{path}.weights"].axes[2:]
        square = (at, memory_at)
        expected = [("K", memory_at), (at, "K"), *[square] * 5, (memory_at, "V"), (at, "V")]
        written = [(", ".join(axes), ", ".join(str(sizes[axis]) for axis in axes)) for axes in expected]
        assert Counter(drawn.shapes) == Counter(written)
        for grid in drawn.grids.values():
            assert grid.text[1] in {f"[{axes}] = [{shape}]" for axes, shape in written}


def test_queries_stand_left_and_keys_above(case):
    model, run, sources, targets = case
    source, target = list(map(str, sources[0])), ["<s>", *map(str, targets[0][:-1])]
    source[-1] = "</s>"
    drawn = Drawn(run.figure("decoder.layers.0.cross_attn"))
    for key in ("products", "scores", "masked_scores", "weights"):
        assert (drawn.grids[key].rows, drawn.grids[key].columns) == (target, source)
    assert drawn.grids["q_heads"].rows == drawn.grids["heads"].rows == target
    assert drawn.grids["k_heads"].columns == drawn.grids["v_heads"].rows == source


def test_masks_are_told_apart_and_hatched():
    run = trace(toy_model(), None, SOURCES, TARGETS, search=False)
    padding = Drawn(run.figure("encoder.layers.1.self_attn", sentence=1))
    assert "padding mask" in padding.lines and "look-ahead mask" not in padding.lines
    ahead = Drawn(run.figure("decoder.layers.1.self_attn"))
    assert "look-ahead mask" in ahead.lines and "padding mask" not in ahead.lines
    for drawn, key, hidden in (
        (padding, "padding_mask", [[0, 2], [1, 2], [2, 2]]),
        (ahead, "look_ahead_mask", [[0, 1], [0, 2], [1, 2]]),
    ):
        assert drawn.grids[key].hatched == drawn.grids["masked_scores"].hatched == hidden
        assert drawn.grids["scores"].hatched == drawn.grids["weights"].hatched == []
        assert all(drawn.grids["weights"].printed.high[i, j] <= 0.0005 for i, j in hidden)
    names = [text for text in padding.root.iter(f"{SVG}text") if text.text == "<pad>"]
    assert len(names) == 14 and {text.get("class") for text in names} == {"faint"}


def test_where_nothing_is_hidden_the_mask_is_zero():
    drawn = Drawn(
        trace(odd_model(), None, ODD_SOURCES, ODD_TARGETS, search=False).figure("encoder.layers.0.self_attn")
    )
    assert drawn.grids["mask"].exact.eq(0).all() and "padding mask" not in drawn.lines


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_mask_of_a_narrow_type_is_minus_infinity_too(dtype):
    run = trace(toy_model().to(dtype), None, SOURCES, TARGETS, search=False)
    drawn = Drawn(run.figure("decoder.layers.0.self_attn"))
    assert drawn.grids["look_ahead_mask"].hatched == drawn.grids["masked_scores"].hatched == [[0, 1], [0, 2], [1, 2]]


def test_matrices_are_the_weights_of_all_heads(case):
    model, run, sources, targets = case
    _, weights = run_with_hooks(model, sources, targets)
    for path in attentions(run):
        for sentence in range(len(sources)):
            drawn = Drawn(run.figure(f"{path}.matrices", sentence=sentence))
            assert [key for key, _ in drawn.all_grids] == ["weights"] * model.config.num_heads
            for head, (_, grid) in enumerate(drawn.all_grids):
                assert grid.text[0] == f"head {head}"
                assert torch.allclose(grid.exact, weights[path][sentence, head].double(), atol=1e-5)


@pytest.fixture(scope="module")
def base():
    return trace(base_model(), None, *base_ids(), search=False)


@pytest.mark.parametrize(
    "path", ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.cross_attn"]
)
def test_a_large_model_stays_readable(base, path):
    canvas = base.figure(path, sentence=1, head=7)
    drawn = Drawn(canvas)
    assert len(drawn.svg) < 300_000
    for key, grid in drawn.grids.items():
        tensor = base[f"{path}.{key}"]
        values = tensor.value[1, min(7, tensor.shape[1] - 1)]
        values = values.T if key == "k_heads" else values
        expected = values[:3, :4].double()
        assert torch.allclose(grid.exact, expected, rtol=1e-5, atol=1e-5)
        assert len(grid.levels) == min(40, len(values)) * min(64, values.shape[1])
        known = values[values > -1e30].double()
        line = next(line for line in grid.text if line.startswith("min"))
        for word, value in (
            ("min ", known.min()),
            ("max ", known.max()),
            ("mean ", known.mean()),
            ("std ", known.std(correction=0)),
        ):
            assert abs(float(line.partition(word)[2].split()[0].replace("−", "-")) - value) <= 0.00051
    hidden = base[f"{path}.mask"].value[1, 0] < 0
    masked = drawn.grids["masked_scores"].levels
    assert {place for place, level in masked.items() if level < 0} == set(map(tuple, hidden.nonzero().tolist()))
    for name in (f"{path}.multi_head", f"{path}.matrices"):
        assert len(base.figure(name).svg()) < 300_000


def test_squares_of_weights_are_tinted_by_their_value(base):
    drawn = Drawn(base.figure("decoder.layers.0.cross_attn.matrices"))
    weights = base["decoder.layers.0.cross_attn.weights"].value[0]
    assert len(drawn.all_grids) == 8
    for head, (_, grid) in enumerate(drawn.all_grids):
        expected = (weights[head].double() * 11).round()
        assert grid.levels == {(i, j): int(expected[i, j]) for i in range(20) for j in range(20)}
        assert len(grid.rows) == len(grid.columns) == 20


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("encoder.layers.0.self_attn", {"sentence": 2}, r"sentence is 2, wanted 0 to 1: the trace has 2 sentences"),
        ("encoder.layers.0.self_attn", {"head": 5}, r"head is 5, wanted 0 to 1: the trace has 2 heads"),
        ("encoder.layers.0.self_attn", {"head": "all"}, r"head is 'all', wanted 0 to 1"),
        ("encoder.layers.0.self_attn", {"layer": 1}, r"unexpected keyword argument 'layer'"),
        ("encoder.layers.0.self_attn.multi_head", {"sentence": 0}, r"unexpected keyword argument 'sentence'"),
        ("encoder.layers.0.self_attn.matrices", {"sentence": True}, r"sentence is True, wanted 0 to 1"),
        ("encoder.layers.9.self_attn", {}, r"no figure 'encoder.layers.9.self_attn' in this trace, wanted one of enc"),
    ],
)
def test_what_cannot_be_drawn_is_named(name, options, message):
    run = trace(toy_model(), None, SOURCES, TARGETS, search=False)
    with pytest.raises(ValueError, match=message):
        run.figure(name, **options)
