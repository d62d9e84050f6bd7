"""The gradients of a trace: those of the parameters follow from them, and so does a small change of the loss."""

import copy
from contextlib import contextmanager

import pytest
import torch
from recorded import assert_close, case, padded
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.trainer_pt_utils import LabelSmoother

from hf_attention import trace


@pytest.fixture(scope="module")
def toy_trace():
    model, sources, targets = case("the toy")
    return trace(model, None, sources, targets, backward=True, search=False)


WITHOUT_GRADIENT = {
    *("source.input_ids", "source.attention_mask", "target.labels", "target.decoder_input_ids"),
    *("loss.targets", "loss.counted", "loss.plain_per_token", "loss.divisor", "loss.plain"),
}


@pytest.mark.parametrize("frozen", [False, True])
def test_all_that_the_loss_is_made_of_has_a_gradient_and_parameters_keep_theirs(frozen):
    model, sources, targets = case("learned positions")
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(not frozen)
        parameter.grad = torch.full_like(parameter, i) if i % 2 else None
    found = trace(model, None, sources, targets, backward=True, search=False)
    without = {name for name, tensor in found.items() if tensor.gradient is None}
    assert without == WITHOUT_GRADIENT | {name for name in found if name.endswith("mask")}
    assert {tensor.gradient.shape for tensor in found.values() if tensor.name.endswith(".q")} == {(2, 4, 8), (2, 5, 8)}
    for i, parameter in enumerate(model.parameters()):
        assert parameter.requires_grad is not frozen
        assert parameter.grad is None if i % 2 == 0 else parameter.grad.eq(i).all()


def test_inference_mode_outside_takes_no_gradient_away():
    model, sources, targets = case("the toy")
    plain = trace(model, None, sources, targets, backward=True, search=False)
    with torch.inference_mode():
        inside = trace(model, None, sources, targets, backward=True, search=False)
    name = "encoder.embed_tokens.rows"
    assert torch.equal(inside[name].gradient, plain[name].gradient)


def test_without_backward_there_are_none():
    model, sources, targets = case("the toy")
    found = trace(model, None, sources, targets, search=False)
    assert {tensor.gradient for tensor in found.values()} == {None}


def test_gradients_lead_to_those_of_the_parameters():
    """For y = x Wᵀ + b the gradient of W is Σ dyᵀ x and that of b is Σ dy: so the stock backward pass confirms dy."""
    model, sources, targets = case("untied")
    batch = padded(sources, targets)
    model.zero_grad()
    LabelSmoother(epsilon=0.1)({"logits": model(**batch).logits}, batch["labels"]).backward()
    right = {name.removeprefix("model."): parameter.grad for name, parameter in model.named_parameters()}
    found = trace(model, None, sources, targets, backward=True, search=False)

    edges = {"lm_head": ("decoder.output", "lm_head.logits")}
    for layer in ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0"):
        for kind in ("self_attn", "cross_attn") if layer.startswith("decoder") else ("self_attn",):
            at = f"{layer}.{kind}"
            edges[f"{at}.q_proj"] = f"{at}.input", f"{at}.q"
            edges[f"{at}.k_proj"] = edges[f"{at}.v_proj"] = None
            for part in "kv":
                edges[f"{at}.{part}_proj"] = f"{at}.{'memory' if kind == 'cross_attn' else 'input'}", f"{at}.{part}"
            edges[f"{at}.out_proj"] = f"{at}.concat", f"{at}.output"
        after = "cross_attn" if layer.startswith("decoder") else "self_attn"
        edges[f"{layer}.feed_forward.fc1"] = f"{layer}.{after}_add_norm.output", f"{layer}.feed_forward.inner"
        edges[f"{layer}.feed_forward.fc2"] = f"{layer}.feed_forward.relu", f"{layer}.feed_forward.output"
    assert set(edges) == {name.removesuffix(".weight") for name in right if right[name].ndim == 2} - {
        "encoder.embed_tokens",
        "decoder.embed_tokens",
    }
    for module, (before, after) in edges.items():
        x, dy = found[before].value.flatten(0, 1), found[after].gradient.flatten(0, 1)
        assert_close(module, dy.T @ x, right[f"{module}.weight"])
        if f"{module}.bias" in right:
            assert_close(module, dy.sum(0), right[f"{module}.bias"])
    for stack, ids in (("encoder", "source.input_ids"), ("decoder", "target.decoder_input_ids")):
        table = torch.zeros(11, 8).index_add(
            0, found[ids].value.flatten(), found[f"{stack}.embed_tokens.rows"].gradient.flatten(0, 1)
        )
        torch.testing.assert_close(table, right[f"{stack}.embed_tokens.weight"])


class Nudge:
    """Adds ε to one number of a run. An attention function of the test's own, in float64, nudges inside attention."""

    def __init__(self):
        self.where, self.at, self.by = None, None, 0.0

    def __call__(self, where, value, scale=1.0):
        if where != self.where:
            return value
        value = value.double()  # sinusoids are float32 in any model
        value[self.at] += self.by * scale
        return value

    def attend(self, module, query, key, value, attention_mask, scaling, **kwargs):
        here = self.paths[module]
        query, key, value = (self(f"{here}.{n}_heads", v) for n, v in (("q", query), ("k", key), ("v", value)))
        query, key, value = (
            self(f"{here}.{n}_split", v.transpose(1, 2)).transpose(1, 2)
            for n, v in (("q", query), ("k", key), ("v", value))
        )
        scores = self(f"{here}.scores", self(f"{here}.products", query @ key.transpose(2, 3)) * scaling)
        scores = scores if attention_mask is None else scores + attention_mask
        weights = self(f"{here}.weights", self(f"{here}.masked_scores", scores).softmax(-1))
        return self(f"{here}.heads", weights @ value).transpose(1, 2), weights


NUDGE = Nudge()


def _attend(*args, **kwargs):
    return NUDGE.attend(*args, **kwargs)


AttentionInterface.register("nudged", _attend)
AttentionMaskInterface.register("nudged", eager_mask)


@contextmanager
def nudging(model):
    """`model` with hooks that nudge what enters or leaves its modules, for the tensors whose name is a module's."""
    NUDGE.paths = {module: name.removeprefix("model.") for name, module in model.named_modules()}
    handles = []

    def leaving(path, name, scale=1.0):
        def hook(module, args, output):
            whole = hasattr(output, "last_hidden_state")
            nudged = NUDGE(name, output.last_hidden_state if whole else output, scale)
            if whole:
                output.last_hidden_state = nudged
            return output if whole else nudged

        handles.append(model.get_submodule(path).register_forward_hook(hook))

    def entering(path, name):
        hook = model.get_submodule(path).register_forward_pre_hook(lambda module, args: (NUDGE(name, args[0]),))
        handles.append(hook)

    for stack in ("encoder", "decoder"):
        leaving(f"model.{stack}.embed_tokens", f"{stack}.embed_tokens.rows", scale=model.config.d_model**0.5)
        leaving(f"model.{stack}.embed_positions", f"{stack}.embed_positions.output")
        leaving(f"model.{stack}", f"{stack}.output")
        entering(f"model.{stack}.dropout", f"{stack}.sum")
    entering("model.decoder.layers.0.feed_forward.fc2", "decoder.layers.0.feed_forward.relu")
    entering("model.decoder.layers.1.cross_attn.out_proj", "decoder.layers.1.cross_attn.concat")
    entering("model.encoder.layers.0.self_attn_add_norm.norm", "encoder.layers.0.self_attn_add_norm.sum")
    leaving("model.encoder.layers.1.self_attn_add_norm.norm", "encoder.layers.1.self_attn_add_norm.output")
    leaving("lm_head", "lm_head.logits")
    yield
    for handle in handles:
        handle.remove()


@pytest.fixture(scope="module")
def nudged_case():
    model, sources, targets = case("d_k is not d_v")
    found = trace(model, None, sources, targets, backward=True, search=False)
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("nudged")
    batch = padded(sources, targets)

    def loss() -> float:
        with torch.no_grad():
            logits = model(**batch).logits.flatten(0, 1)
            return float(torch.nn.functional.cross_entropy(logits, batch["labels"].flatten(), label_smoothing=0.1))

    with nudging(model):
        yield found, loss


INSIDE = ["q_split", "q_heads", "k_heads", "v_split", "products", "scores", "masked_scores", "weights", "heads"]


@pytest.mark.parametrize(
    "name",
    [
        *("encoder.embed_tokens.rows", "encoder.embed_positions.output", "decoder.embed_positions.output"),
        *("decoder.embed_tokens.rows", "decoder.sum", "encoder.output", "decoder.output", "lm_head.logits"),
        *("encoder.layers.0.self_attn_add_norm.sum", "encoder.layers.1.self_attn_add_norm.output"),
        *("decoder.layers.0.feed_forward.relu", "decoder.layers.1.cross_attn.concat"),
        *(f"encoder.layers.0.self_attn.{name}" for name in INSIDE),
        *(f"decoder.layers.0.self_attn.{name}" for name in INSIDE),
        *(f"decoder.layers.1.cross_attn.{name}" for name in INSIDE),
    ],
)
def test_gradients_are_what_a_small_change_does_to_the_loss(name, nudged_case):
    found, loss = nudged_case
    gradient = found[name].gradient
    # The largest, and some at random.
    some = torch.randperm(gradient.numel(), generator=torch.Generator().manual_seed(0))[:4].tolist()
    places = {int(gradient.abs().argmax()), *some}
    for place in places:
        NUDGE.where, NUDGE.at = name, torch.unravel_index(torch.tensor(place), gradient.shape)
        losses = []
        for NUDGE.by in (1e-5, -1e-5):
            losses.append(loss())
        NUDGE.where = None
        expected = (losses[0] - losses[1]) / 2e-5
        assert float(gradient.flatten()[place]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert gradient.abs().max() > 1e-5


def test_the_last_gradients_are_known_by_hand(toy_trace):
    """d loss / d log p(w) = -target(w) / divisor; d loss / d per-token = 1 / divisor; d loss / d loss = 1."""
    divisor = 5  # labels of three and two
    assert int(toy_trace["loss.divisor"].value) == divisor
    expected = -toy_trace["loss.targets"].value / divisor
    torch.testing.assert_close(toy_trace["lm_head.log_probs"].gradient, expected)
    torch.testing.assert_close(toy_trace["loss.per_token"].gradient, torch.full((2, 3), 1 / divisor))
    assert toy_trace["loss.total"].gradient == 1
    probabilities = toy_trace["lm_head.logits"].value.softmax(-1)
    residue = (probabilities - toy_trace["loss.targets"].value) * toy_trace["loss.counted"].value[..., None]
    torch.testing.assert_close(toy_trace["lm_head.logits"].gradient, residue / divisor)


def test_gradient_checkpointing_hides_nothing_and_stays_on():
    model, sources, targets = case("untied")
    plain = trace(model, None, sources, targets, backward=True, training=True, search=False)
    model.activation_checkpointing_enable()
    found = trace(model, None, sources, targets, backward=True, training=True, search=False)
    assert model.is_activation_checkpointing
    for name, tensor in plain.items():
        assert torch.equal(found[name].value, tensor.value)
        assert tensor.gradient is None or torch.equal(found[name].gradient, tensor.gradient)
