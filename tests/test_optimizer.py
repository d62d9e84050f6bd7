"""Muon with Adam: whose parameters are whose, the step by its definition, and resuming."""

import copy

import pytest
import torch
from conftest import build_model

from hf_attention import MuonWithAdam
from hf_attention.optimizer import orthogonal


def loss_of(model, seed=0):
    draw = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(4, model.config.vocab_size, (3, 5), generator=draw) for _ in range(2))
    return model(input_ids=source, labels=target).loss


def stepped(model, optimizer, updates=1, seed=0):
    for update in range(updates):
        optimizer.zero_grad()
        loss_of(model, seed + update).backward()
        optimizer.step()
    return model


def test_matrices_of_the_layers_are_for_muon_and_the_rest_for_adam():
    model = build_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    muon, tables, vectors = MuonWithAdam(model, lr=1e-3, weight_decay=0.1).param_groups
    of = [{names[id(parameter)] for parameter in group["params"]} for group in (muon, tables, vectors)]
    # N = 2: four projections an attention, two matrices a feed-forward network; one table in three places (§3.4).
    assert len(of[0]) == 2 * (4 + 2) + 2 * (4 + 4 + 2) and all("layers" in name for name in of[0])
    assert of[1] == {"model.encoder.embed_tokens.weight"}
    assert of[2] == {name for name in names.values() if name.endswith("bias") or ".norm." in name}
    assert sum(map(len, of)) == len(names)
    assert [group["weight_decay"] for group in (muon, tables, vectors)] == [0.1, 0.1, 0.0]


def test_untied_output_and_learned_positions_are_for_adam():
    model = build_model(tie_word_embeddings=False, position_encoding="learned")
    matrices = {id(parameter) for parameter in MuonWithAdam(model, lr=1e-3).param_groups[0]["params"]}
    for module in (model.lm_head, model.model.encoder.embed_positions, model.model.decoder.embed_tokens):
        assert id(module.weight) not in matrices


def test_a_matrix_moves_by_its_gradient_made_orthogonal():
    """Jordan et al. 2024: of G = U S V^T the step has U V^T, singular values within 0.3 of 1; Liu et al. 2025: its
    root mean square is 0.2 of the rate where the matrix is square."""
    model = build_model()
    before = copy.deepcopy(model)
    optimizer = MuonWithAdam(model, lr=0.01)
    stepped(model, optimizer)
    checked = 0
    for (name, after), start in zip(model.named_parameters(), before.parameters(), strict=True):
        if name.endswith(("fc1.weight", "out_proj.weight")):
            u, values, v = torch.linalg.svd(after.grad, full_matrices=False)
            strong = values > 0.05 * values[0]  # five iterations do not bring up directions that are hardly there
            step = (start - after) / (0.01 * 0.2 * max(after.shape) ** 0.5)
            along = torch.einsum("ir,ij,rj->r", u, step, v)[strong]
            assert along.sub(1).abs().max() < 0.35, name
            checked += 1
    assert checked == 2 * (1 + 1) + 2 * (1 + 2)


@pytest.mark.parametrize("updates", [1, 5])
def test_matrices_move_as_with_the_stock_muon(updates, monkeypatch):
    """To what bfloat16, which the stock one always takes, leaves of it: one shape after the other, or all at once, is
    rounded in another order."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    model, other = build_model(), build_model()
    stock = [p for name, p in other.named_parameters() if "layers" in name and p.ndim == 2]
    options = {"lr": 0.01, "weight_decay": 0.1}
    ours = MuonWithAdam(model, **options)
    ours.parts = ours.parts[:1]
    start = [p.clone() for p in stock]
    stepped(model, ours, updates)
    stepped(other, torch.optim.Muon(stock, adjust_lr_fn="match_rms_adamw", **options), updates)
    matrices = ours.param_groups[0]["params"]
    for before, moved, expected in zip(start, matrices, stock, strict=True):
        assert (moved - expected).norm() < 0.03 * (expected - before).norm()


@pytest.mark.parametrize("names, precision", [((), 1e-5), (("avx512_bf16",), 0.1), (("bf16",), 0.1)])
def test_bfloat16_is_used_where_the_cpu_multiplies_it(monkeypatch, names, precision):
    """What five iterations do to singular values is a polynomial of each, here in float64. bfloat16 keeps 8 bits of
    it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, **dict.fromkeys(names, True)})
    matrices = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    u, values, v = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    first, third, fifth = 3.4445, -4.7750, 2.0315  # Jordan et al. 2024
    for _ in range(5):
        values = first * values + third * values**3 + fifth * values**5
    expected = u @ (values[..., None] * v)
    difference = (orthogonal(matrices, (first, third, fifth), 5, 1e-7) - expected).abs().max()
    assert 0.01 * precision < difference < precision


def test_the_rest_moves_as_with_the_stock_adamw():
    model, other = build_model(), build_model()
    optimizer = MuonWithAdam(model, lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    stepped(model, optimizer)
    rest = [p for name, p in other.named_parameters() if "layers" not in name or p.ndim == 1]
    groups = [{"params": [p for p in rest if p.ndim == 2]}, {"params": [p for p in rest if p.ndim == 1]}]
    groups[1]["weight_decay"] = 0.0
    stepped(other, torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1))
    for (name, ours), stock in zip(model.named_parameters(), other.parameters(), strict=True):
        if any(stock is parameter for parameter in rest):
            torch.testing.assert_close(ours, stock, rtol=0, atol=0, msg=name)


def test_a_schedule_holds_for_both_also_after_loading():
    model = build_model()
    optimizer = MuonWithAdam(model, lr=0.01)
    optimizer.load_state_dict(optimizer.state_dict())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = copy.deepcopy(model.state_dict())
    stepped(model, optimizer)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert schedule.get_last_lr() == [0.0] * 3


def test_it_goes_on_bit_for_bit_from_what_it_saves(tmp_path):
    whole = stepped(model := build_model(), MuonWithAdam(model, lr=0.01), updates=4)
    first = build_model()
    optimizer = MuonWithAdam(first, lr=0.01)
    stepped(first, optimizer, updates=2)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    second = build_model()
    second.load_state_dict(first.state_dict())
    again = MuonWithAdam(second, lr=0.01)
    again.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    stepped(second, again, updates=2, seed=2)
    assert all(torch.equal(second.state_dict()[name], weight) for name, weight in whole.state_dict().items())


def test_a_closure_is_called_once_and_its_loss_comes_back():
    model = build_model()
    optimizer = MuonWithAdam(model, lr=0.01)
    calls = []

    def closure():
        calls.append(1)
        loss = loss_of(model)
        loss.backward()
        return loss

    expected = loss_of(model).item()
    assert optimizer.step(closure).item() == pytest.approx(expected) and len(calls) == 1
    assert loss_of(model).item() < expected
