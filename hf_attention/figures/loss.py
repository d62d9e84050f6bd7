"""From the decoder's output to the loss of a batch: logits, log p, prediction beside label (§3.4, §5.4)."""

from collections.abc import Callable
from functools import partial

import torch

from ..tracing.trace import Trace
from .canvas import Box, Canvas
from .choices import chosen_sentence, letters
from .layout import GAP, Cell, Matrix, aside, below, caption, labels, matrix, padding, put, step, table, tokens
from .writing import number, shape_text


WORDS = 12  # a vocabulary of so many is drawn whole; of a larger one, the best words
BEST = ("prediction", "2nd", "3rd", "4th", "5th")
PER_TOKEN = ("plain_per_token", "per_token")


def figures(trace: Trace) -> dict[str, Callable[..., Canvas]]:
    return {"loss": partial(loss, trace)}


def loss(trace: Trace, sentence: int = 0) -> Canvas:
    """One sentence from the decoder's output to the loss, plain and with label smoothing; then that of the batch."""
    sentence = chosen_sentence(trace, sentence)
    plain, total = (number(float(trace[f"loss.{name}"].value)) for name in ("plain", "total"))
    canvas = Canvas(
        f"Output and loss: sentence {sentence}",
        "The decoder's output, through the last linear and a softmax, gives each word a probability. A label costs "
        "the negative logarithm of its word's; with label smoothing the other words count a little too. "
        f"Loss of the batch: {plain} plain, {total} with smoothing.",
    )
    output = _matrix(trace, sentence, "decoder.output", "x, the decoder's output")
    center = output.cells.width / 2
    box = output.draw(canvas, 0, output.head + 44)
    width, words = trace["decoder.output"].shape[-1], trace["lm_head.logits"].shape[-1]
    line = f"Linear  {letters(trace)['lm_head']}  {shape_text(('D', 'W'), (width, words))}"
    box = step(canvas, [box], line, "linear", center)
    if words <= WORDS:
        box, left = _every_word(canvas, trace, sentence, box)
    else:
        box = _onwards(canvas, trace, "logits", box, "log SoftMax", "softmax")
        box, left = _onwards(canvas, trace, "log_probs", box, "− Σ_w  target · log p", "norm"), -output.left
    caption(canvas, left, "Output and loss", f"sentence {sentence}")
    y = box.bottom[1] + GAP
    canvas.arrow([box.bottom, (center, y)])
    smoothing = trace.info["loss"]["smoothing"]
    hit, rest = f"{1 - smoothing + smoothing / words:.4g}", f"{smoothing / words:.3g}"
    text = f"ε = {smoothing:g}, W = {words}: the target is {hit} for the label, {rest} for every other word."
    canvas.text(left + 8, y + 20, text + " Under a word, its log p.", size=12)
    box = _by_token(canvas, trace, sentence, left, y + 40)
    _by_batch(canvas, trace, sentence, left, box.bottom[1] + GAP)
    return canvas


def _matrix(trace: Trace, sentence: int, name: str, title: str) -> Matrix:
    """Its rows named by what the decoder has read, its columns by the words."""
    tensor = trace[name]
    words = [trace.token(word) for word in range(tensor.shape[-1])] if tensor.axes[-1] == "W" else []
    read, faint = tokens(trace, sentence, "T"), padding(trace)
    return matrix(tensor, [sentence], title, name, rows=read, columns=words, faint=faint)


def _every_word(canvas: Canvas, trace: Trace, sentence: int, linear: Box) -> tuple[Box, float]:
    """Logits, log-probabilities and targets of a small vocabulary; the last operation, and how far left it reaches."""
    logits, log_probs = (_matrix(trace, sentence, f"lm_head.{name}", title)
                         for name, title in (("logits", "logits"), ("log_probs", "log p")))  # fmt: skip
    targets = _matrix(trace, sentence, "loss.targets", "target = (1−ε)·[w = y] + ε/W")
    center = linear.top[0]
    box = put(canvas, logits, below(linear, logits), linear)
    soften = step(canvas, [box], "log SoftMax", "softmax", center)
    y = below(soften, log_probs, targets)
    box = put(canvas, log_probs, y, soften)
    left = min(0, center - log_probs.cells.width / 2) - log_probs.left - 2 * GAP
    beside = targets.draw(canvas, left - targets.right, y)
    cross = step(canvas, [box, beside], "− Σ_w  target · log p", "norm", center)
    aside(canvas, beside, cross)
    return cross, left - targets.width


def _onwards(canvas: Canvas, trace: Trace, name: str, start: Box, line: str, kind: str) -> Box:
    """The next operation, what is too wide to be drawn beside the arrow to it."""
    tensor = trace[f"lm_head.{name}"]
    x, y = start.bottom
    box = step(canvas, [Box(start.x, start.y, start.width, start.height + GAP)], line, kind, x)
    canvas.arrow([start.bottom, box.top])
    text = f"{name.replace('_probs', ' p')}  {shape_text(tensor.axes, tensor.shape)}"
    canvas.text(x + 8, (y + box.y) / 2 + 4, text, size=11, kind="faint")
    return box


def _by_token(canvas: Canvas, trace: Trace, sentence: int, x: float, y: float) -> Box:
    """A row for each position: what has been read, what is predicted, the label, and what it costs."""
    log_probs = trace["lm_head.log_probs"].value[sentence].double()
    smoothing, words = trace.info["loss"]["smoothing"], log_probs.shape[-1]
    best = log_probs.topk(1 if words <= WORDS else len(BEST)).indices.tolist()
    targets, spelt = trace["target.labels"].value[sentence].tolist(), labels(trace, sentence)
    counted = trace["loss.counted"].value[sentence].tolist()
    rows = []
    for t, word in enumerate(tokens(trace, sentence, "T")):
        kind = "" if counted[t] else "faint"
        found = [Cell(trace.token(w), number(float(log_probs[t, w])), kind) for w in best[t]]
        row = [Cell(str(t), kind="faint"), Cell(word, kind=kind), *found]
        if counted[t]:
            right = best[t][0] == targets[t]
            row.append(Cell(spelt[t], number(float(log_probs[t, targets[t]])), "bold"))
            row.append(Cell("✓ right" if right else "✗ wrong"))
            sum_ = _sum(-log_probs[t], targets[t], smoothing)
        else:
            row += [Cell(spelt[t], kind="faint"), Cell("not counted", kind="faint")]
            sum_ = ""
        for name, before in zip(PER_TOKEN, ("", sum_), strict=True):
            value = float(trace[f"loss.{name}"].value[sentence, t])
            row.append(Cell(before + number(value), kind=f"number {kind}".strip(), data=_data(name, value, row=t)))
        rows.append(row)
    titles = BEST if words > WORDS else BEST[:1]
    sum_ = "(1−ε)·(−log p(y)) + ε/W·Σ_w(−log p(w))" if words <= WORDS else "(1−ε)·(−log p(y)) + ε·mean_w(−log p(w))"
    return table(canvas, x, y, ["t", "reads now", *titles, "label y", "", "−log p(y)", sum_], rows)


def _sum(costs: torch.Tensor, label: int, smoothing: float) -> str:
    """What label smoothing adds up, in numbers; `costs` [W] are −log p of each word."""
    own = f"{1 - smoothing:.6g}·{number(float(costs[label]))}"
    if len(costs) <= WORDS:
        others = f"{smoothing:.6g}/{len(costs)}·({' + '.join(number(float(cost)) for cost in costs)})"
    else:
        others = f"{smoothing:.6g}·{number(float(costs.mean()))}"
    return f"{own} + {others} = "


def _by_batch(canvas: Canvas, trace: Trace, sentence: int, x: float, y: float) -> Box:
    """The sums of this sentence and of the others, and the losses: of all, by the number of labels that count."""
    counted = trace["loss.counted"].value
    own = torch.arange(len(counted)) == sentence
    others = "the other sentence" if len(own) == 2 else f"the other {len(own) - 1} sentences"
    groups = {"this sentence": own, others: ~own, "the batch": own | ~own}
    rows = []
    for title, group in list(groups.items())[: None if len(own) > 1 else 1]:
        sums = {name: float(trace[f"loss.{name}"].value[group].double().sum()) for name in PER_TOKEN}
        cells = [Cell(number(value), kind="number", data=_data(name, value)) for name, value in sums.items()]
        rows.append([Cell(title), Cell(str(int(counted[group].sum())), kind="number"), *cells])
    losses = {name: float(trace[f"loss.{name}"].value) for name in ("plain", "total")}
    cells = [Cell(number(value), kind="number bold", data=_data(name, value)) for name, value in losses.items()]
    divisor = str(int(trace["loss.divisor"].value))
    rows.append(
        [Cell("loss: the sum ÷ the labels that count", kind="bold"), Cell(f"÷ {divisor}", kind="number"), *cells]
    )
    return table(canvas, x, y, ["", "labels that count", "Σ −log p(y)", "Σ with smoothing"], rows)


def _data(name: str, value: float, **where: int) -> dict[str, str | int]:
    return {"name": f"loss.{name}", "value": f"{value:.7g}", **where}
