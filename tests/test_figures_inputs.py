"""Input close-ups, shift and loss: each printed number from those before it, each total from outside the code."""

import math
import re

import pytest
import torch
from conftest import build_model
from drawn import SVG, Drawn, Interval, read
from traced import ODD_SOURCES, ODD_TARGETS, SOURCES, TARGETS, base_ids, base_model, odd_model, toy_model

from hf_attention import trace
from hf_attention.figures.values import packed


CASES = {"toy": (toy_model, SOURCES, TARGETS), "odd": (odd_model, ODD_SOURCES, ODD_TARGETS)}
STACKS = ("encoder", "decoder")


@pytest.fixture(scope="module", params=CASES)
def case(request):
    model, sources, targets = CASES[request.param]
    model = model()
    return model, trace(model, None, sources, targets, search=False), sources, targets


def padded(rows, filler):
    width = max(map(len, rows))
    return [row + [filler] * (width - len(row)) for row in rows]


def decoder_inputs(targets):
    """By hand: the start symbol, then the labels but for the last of the batch's length; padding reads as 0."""
    return [[1, *row[:-1]] for row in padded(targets, 0)]


def inputs(case, stack):
    """Every sentence: its ids, worked out here, and its figure."""
    _, run, sources, targets = case
    rows = padded(sources, 0) if stack == "encoder" else decoder_inputs(targets)
    for sentence, ids in enumerate(rows):
        yield sentence, ids, Drawn(run.figure(f"{stack}.inputs", sentence=sentence))


def boxes(drawn):
    """(token id, left, top, right, bottom) of each token's box."""
    found = []
    for box in drawn.root.iter(f"{SVG}rect"):
        if box.get("data-token"):
            x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
            found.append((int(box.get("data-token")), x, y, x + width, y + height))
    return found


def written(drawn, box):
    _, left, top, right, bottom = box
    return ["".join(text.itertext()) for text in drawn.root.iter(f"{SVG}text")
            if left < float(text.get("x")) < right and top < float(text.get("y")) < bottom]  # fmt: skip


@pytest.mark.parametrize("stack", STACKS)
def test_each_step_of_the_input_follows_from_the_printed_numbers(case, stack):
    for _, _, drawn in inputs(case, stack):
        rows, scaled, positions, total = (
            drawn.grids[key].printed
            for key in ("embed_tokens.rows", "embed_tokens.output", "embed_positions.output", "sum")
        )
        for found, expected in ((rows * drawn.after("√dmodel = "), scaled), (scaled + positions, total)):
            assert found.width < 0.006 and found.meets(expected)


@pytest.mark.parametrize("stack", STACKS)
def test_rows_are_those_of_the_embedding_and_positions_those_of_the_formula(case, stack):
    model = case[0]
    matrix = model.get_submodule(f"model.{stack}.embed_tokens").weight.detach().double()
    width = model.config.d_model
    for _, ids, drawn in inputs(case, stack):
        assert [box[0] for box in boxes(drawn)] == ids
        assert all(str(token) in written(drawn, box) for token, box in zip(ids, boxes(drawn), strict=True))
        exact = {key: grid.exact for key, grid in drawn.grids.items()}
        if model.config.position_encoding == "learned":
            positions = model.get_submodule(f"model.{stack}.embed_positions").weight.detach()[: len(ids)].double()
        else:
            angles = [[t / 10000 ** (2 * (i // 2) / width) for i in range(width)] for t in range(len(ids))]
            positions = torch.tensor(
                [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angles],
                dtype=torch.float64,
            )
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(exact["embed_tokens.rows"], matrix[ids], **close)
        torch.testing.assert_close(exact["embed_tokens.output"], matrix[ids] * width**0.5, **close)
        torch.testing.assert_close(exact["embed_positions.output"], positions, **close)
        torch.testing.assert_close(exact["sum"], matrix[ids] * width**0.5 + positions, **close)
        at = "S" if stack == "encoder" else "T"
        sizes = [("W, D", ", ".join(map(str, matrix.shape)))] + [(f"{at}, D", f"{len(ids)}, {width}")] * 4
        assert sorted(drawn.shapes) == sorted([(at, str(len(ids))), *sizes])


def test_what_is_no_word_is_marked():
    run = trace(toy_model(), None, SOURCES, TARGETS, search=False)
    encoder, decoder = (Drawn(run.figure(f"{stack}.inputs", sentence=1)) for stack in STACKS)
    assert [line for line in encoder.lines if line in ("start", "end", "padding")] == ["end", "padding"]
    assert [line for line in decoder.lines if line in ("start", "end", "padding")] == ["start", "end"]
    assert encoder.grids["embed_tokens.rows"].rows == ["4", "</s>", "<pad>"]
    assert encoder.grids["embed_positions.output"].rows == ["0", "1", "2"]


def test_dropout_is_drawn_where_it_changed_something():
    model = build_model(vocab_size=5, num_layers=1, dropout=0.5)
    torch.manual_seed(0)
    drawn = Drawn(trace(model, None, SOURCES, TARGETS, training=True, search=False).figure("encoder.inputs"))
    total, dropped = drawn.grids["sum"].exact, drawn.grids["dropped"].exact
    assert "Dropout P = 0.5" in [" ".join(line.split()) for line in drawn.lines]
    assert torch.isclose(dropped, torch.where(dropped == 0, 0, total * 2), atol=1e-5).all()
    quiet = Drawn(trace(model, None, SOURCES, TARGETS, search=False).figure("encoder.inputs"))
    assert "dropped" not in quiet.grids


def test_the_shift_moves_each_label_one_to_the_right(case):
    """Report 36: -100 is a label, never an input; what the last label would have become is said to be cut off."""
    _, run, _, targets = case
    for sentence, (labels, ids) in enumerate(zip(padded(targets, -100), decoder_inputs(targets), strict=True)):
        drawn = Drawn(run.figure("shift", sentence=sentence))
        every = boxes(drawn)
        above, read_, cut = every[: len(ids)], every[len(ids) : -1], every[-1]
        assert [box[0] for box in above] == labels
        assert [box[0] for box in read_] == ids
        assert cut[0] == labels[-1] and "cut off" in drawn.lines
        arrows = [path for path in drawn.root.iter(f"{SVG}path") if path.get("marker-end")]
        assert len(arrows) == len(labels)
        for arrow, start, end in zip(arrows, above, [*read_[1:], cut], strict=True):
            x0, y0, x1, y1 = map(float, re.findall(r"-?[\d.]+", arrow.get("d")))
            assert start[1] < x0 < start[3] and 0 <= y0 - start[4] <= 4
            assert end[1] < x1 < end[3] and 0 <= end[2] - y1 <= 4
        assert [arrow.get("class") for arrow in arrows] == ["line"] * (len(labels) - 1) + ["line dashed"]
        assert drawn.lines.count("start") == 1 and drawn.lines.count("not counted") == labels.count(-100)
        assert drawn.shapes == [("T", str(len(ids)))] * 2
        for token, box in zip(labels, above, strict=True):
            assert written(drawn, box)[-1] == str(token).replace("-", "−")


def by_name(drawn):
    """{name: [its printed numbers with what they are the sum of]} of what the loss is made of."""
    found = {}
    for text in drawn.root.iter(f"{SVG}text"):
        if text.get("data-name"):
            found.setdefault(text.get("data-name"), []).append(
                ("".join(text.itertext()), float(text.get("data-value")))
            )
    return found


def added_up(text):
    """The interval of `0.9·1.234 + 0.1/5·(1.234 + 2.345 + ...)`, where factors are exact and costs rounded."""
    own, own_cost, smoothing, words, costs = re.fullmatch(r"([\d.]+)·(\S+) \+ ([\d.]+)(?:/(\d+))?·(.+)", text).groups()
    costs = [read(cost) for cost in costs.strip("()").split(" + ")]
    assert words is None or int(words) == len(costs)
    total = costs[0]
    for cost in costs[1:]:
        total = total + cost
    own, smoothing = (torch.tensor(float(each), dtype=torch.float64) for each in (own, smoothing))
    share = smoothing / len(costs) if words else smoothing
    return read(own_cost) * Interval(own, own) + total * Interval(share, share)


@pytest.fixture(scope="module", params=[0.1, 0.0], ids=["smoothed", "plain"])
def losses(request, case):
    model, _, sources, targets = case
    return (
        model,
        trace(model, None, sources, targets, label_smoothing=request.param, search=False),
        targets,
        request.param,
    )


def logits_of(model, sources, targets):
    """From a plain run."""
    ids = torch.tensor(padded(sources, 0))
    mask = torch.tensor([[1] * len(row) + [0] * (ids.shape[1] - len(row)) for row in sources])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, labels=torch.tensor(padded(targets, -100))).logits


def test_the_loss_of_each_token_is_the_librarys_and_adds_up(losses, case):
    model, run, targets, smoothing = losses
    logits, labels = logits_of(model, case[2], targets), torch.tensor(padded(targets, -100))
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(
        labels.shape
    )
    smoothed = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", label_smoothing=smoothing
    ).view(labels.shape)
    for sentence in range(len(targets)):
        found = by_name(Drawn(run.figure("loss", sentence=sentence)))
        length = labels.shape[1]
        for name, expected in (("loss.plain_per_token", plain), ("loss.per_token", smoothed)):
            values = torch.tensor([value for _, value in found[name]])
            torch.testing.assert_close(values[:length], expected[sentence], rtol=1e-5, atol=1e-5)
            sums = [expected[sentence].sum()] + [expected.sum() - expected[sentence].sum(), expected.sum()] * (
                len(targets) > 1
            )
            torch.testing.assert_close(values[length:], torch.stack(sums), rtol=1e-5, atol=1e-5)
            for (text, _), value in zip(found[name], expected[sentence].tolist() + sums, strict=True):
                printed = read(text.rpartition("= ")[2])
                assert float(printed.low) - 1e-5 <= float(value) <= float(printed.high) + 1e-5
        for text, _ in found["loss.per_token"][:length]:
            if "=" in text:
                made, printed = added_up(text.rpartition(" = ")[0]), read(text.rpartition(" = ")[2])
                assert made.width < 0.003 and made.meets(printed)
        counted = [("=" in text) for text, _ in found["loss.per_token"][:length]]
        assert counted == [label != -100 for label in labels[sentence].tolist()]
        divisor = (labels != -100).sum()
        for name, total in (("loss.plain", plain.sum()), ("loss.total", smoothed.sum())):
            ((text, value),) = found[name]
            assert value == pytest.approx(float(total / divisor), abs=1e-5)
            batch = read(
                found["loss.plain_per_token" if name == "loss.plain" else "loss.per_token"][-1][0].split()[-1]
            )
            share = Interval(1 / divisor.double(), 1 / divisor.double())
            assert (batch * share).meets(read(text))


def test_log_probabilities_and_targets_follow_from_what_is_printed(losses):
    model, run, targets, smoothing = losses
    words, labels = model.config.vocab_size, padded(targets, -100)
    for sentence, row in enumerate(labels):
        drawn = Drawn(run.figure("loss", sentence=sentence))
        found = drawn.grids["lm_head.logits"].printed.softmax().log()
        assert found.width < 0.003 and found.meets(drawn.grids["lm_head.log_probs"].printed)
        expected = [
            [(label != -100) * ((1 - smoothing) * (label == word) + smoothing / words) for word in range(words)]
            for label in row
        ]
        torch.testing.assert_close(
            drawn.grids["loss.targets"].exact, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6
        )
        output = drawn.grids["decoder.output"].exact
        logits = output @ model.lm_head.weight.detach().double().T
        torch.testing.assert_close(drawn.grids["lm_head.logits"].exact, logits, rtol=1e-4, atol=1e-5)
        width = model.config.d_model
        shapes = [
            ("T, D", f"{len(row)}, {width}"),
            ("D, W", f"{width}, {words}"),
            *[("T, W", f"{len(row)}, {words}")] * 3,
        ]
        assert sorted(drawn.shapes) == sorted(shapes)


def test_right_and_wrong_are_said_in_words(case):
    model, run, sources, targets = case
    best = logits_of(model, sources, targets).argmax(-1).tolist()
    for sentence, labels in enumerate(padded(targets, -100)):
        lines = Drawn(run.figure("loss", sentence=sentence)).lines
        verdicts = [line for line in lines if line in ("✓ right", "✗ wrong", "not counted")]
        assert verdicts == [
            "not counted" if label == -100 else "✓ right" if guess == label else "✗ wrong"
            for label, guess in zip(labels, best[sentence], strict=True)
        ]


def test_the_token_beside_a_position_is_only_the_last_that_it_has_read(case):
    lines = Drawn(case[1].figure("loss")).lines
    assert "reads now" in lines and "has read" not in lines


@pytest.mark.parametrize(
    ("tie", "source", "target", "last"), [(True, "E", "E", "Eᵀ"), (False, "Esrc", "Etgt", "Wout")]
)
def test_matrices_of_their_own_are_not_called_the_embedding(tie, source, target, last):
    run = trace(build_model(vocab_size=5, tie_word_embeddings=tie), None, SOURCES, TARGETS, search=False)
    assert any(line.startswith(f"Linear  {last}  [") for line in Drawn(run.figure("loss")).lines)
    for stack, letter in (("encoder", source), ("decoder", target)):
        lines = Drawn(run.figure(f"{stack}.inputs")).lines
        assert any(line.startswith(f"Embedding: row x of {letter}  [") for line in lines)
        assert {f"{letter}[x]", f"{letter}[x] · √dmodel", f"{letter}[x] · √dmodel + PE"} <= set(lines)


@pytest.fixture(scope="module")
def base():
    model = base_model()
    return model, trace(model, None, *base_ids(), search=False), *base_ids()


def test_of_a_large_vocabulary_the_best_words_are_shown(base):
    model, run, sources, targets = base
    for sentence in range(2):
        drawn = Drawn(run.figure("loss", sentence=sentence))
        assert len(drawn.svg) < 300_000
        found = by_name(drawn)
        labels = padded(targets, -100)[sentence]
        log_probs = logits_of(model, sources, targets)[sentence].log_softmax(-1)
        for t, label in enumerate(labels):
            text, value = found["loss.per_token"][t]
            if label == -100:
                assert (text, value) == ("0.000", 0)
                continue
            assert value == pytest.approx(float(-0.9 * log_probs[t, label] - 0.1 * log_probs[t].mean()), abs=1e-4)
            assert added_up(text.rpartition(" = ")[0]).meets(read(text.rpartition(" = ")[2]))
        for best in log_probs.topk(5).values.flatten().tolist():
            assert f"{best:.3f}".replace("-", "−") in drawn.lines
        assert ("B, T, W", "2, 20, 37000") in drawn.shapes and ("D, W", "512, 37000") in drawn.shapes


@pytest.mark.parametrize("stack", STACKS)
def test_a_large_positional_encoding_is_drawn_in_sines_and_cosines(base, stack):
    """§3.5 by hand, at every 8th pair of columns; and what it is added to at the same ones, so that cells add up."""
    _, run, sources, targets = base
    drawn = Drawn(run.figure(f"{stack}.inputs"))
    levels = drawn.grids["embed_positions.output"].levels
    length = len(padded(sources if stack == "encoder" else targets, 0)[0])
    assert set(levels) == {(t, column) for t in range(length) for column in range(64)}
    for (t, column), level in levels.items():
        pair = 8 * (column // 2)
        angle = t / 10000 ** (2 * pair / 512)
        value = math.cos(angle) if column % 2 else math.sin(angle)
        assert abs((value + 1) / 2 * 11 - level) < 0.52  # white is −1, or next to it, and dark is 1
    for key in ("embed_tokens.output", "sum"):
        value = run[f"{stack}.{key}"].value[0].double()
        own = value[:, [16 * pair + i for pair in range(32) for i in (0, 1)]]
        wanted = ((own - value.min()) / (value.max() - value.min()) * 11).round()
        found = torch.tensor([[drawn.grids[key].levels[t, c] for c in range(64)] for t in range(length)])
        assert torch.equal(found, wanted.long())
    assert sum(line.startswith("every 8th pair of columns") for line in drawn.lines) == 4


def test_the_page_shows_the_same_cells(base):
    """What the page puts into a heat map are the levels that the figure has, and what is said of them."""
    drawn = Drawn(base[1].figure("encoder.inputs"))
    for key in ("embed_tokens.output", "embed_positions.output", "sum"):
        tensor = base[1][f"encoder.{key}"]
        heat = packed(tensor, tensor.value)["heats"][0]
        levels = [drawn.grids[key].levels[row, column] for row in range(20) for column in range(64)]
        assert [int(letter, 36) for letter in heat["levels"]] == levels and heat["size"] == [20, 64]
        assert f"{heat['cells']} · in numbers: the top left corner" in drawn.grids[key].text
    tensor = base[1]["encoder.output"]
    assert packed(tensor, tensor.value)["heats"][0]["cells"] == "each cell the mean of 8 columns"


@pytest.mark.parametrize("name", ["encoder.inputs", "decoder.inputs", "shift"])
def test_inputs_of_a_large_model_stay_small(base, name):
    assert len(base[1].figure(name, sentence=1).svg()) < 300_000


@pytest.mark.parametrize("name", ["encoder.inputs", "decoder.inputs", "shift", "loss"])
def test_what_cannot_be_drawn_is_named(case, name):
    run = case[1]
    last = len(run.info["sentences"])
    with pytest.raises(ValueError, match=rf"sentence is {last}, wanted 0"):
        run.figure(name, sentence=last)
    with pytest.raises(ValueError, match=f"figure '{name}': .*unexpected keyword argument 'head'"):
        run.figure(name, head=0)
