"""Dropout by its definition: what is kept, how often, how scaled; and the stock module's behaviour at the edges."""

import math

import pytest
import torch
from conftest import build_model
from torch import nn
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from hf_attention.dropout import DropoutWarmup, QuickDropout, quicken


@pytest.mark.parametrize("p", [0.1, 0.2, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1000, 999), (7, 11, 12_987)], ids=str)
def test_so_many_are_dropped_and_the_others_scaled(p, shape):
    """Of n draws the share dropped is within five standard deviations of p, and so in each quarter of a number."""
    torch.manual_seed(0)
    output = QuickDropout(p)(torch.ones(shape))
    assert output.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=1e-4)
    zeros = (output == 0).double().flatten()
    for part in (zeros, *(zeros[place::4] for place in range(4))):
        assert abs(part.mean() - p) < 5 * math.sqrt(p * (1 - p) / len(part))
    for distance in (1, 2, 3, 4):  # neighbours fall independently of each other
        both = (zeros[:-distance] * zeros[distance:]).mean()
        assert abs(both - p * p) < 5 * math.sqrt(p * p * (1 - p * p) / len(zeros)) + 1e-3


def test_the_gradient_passes_where_the_value_did():
    torch.manual_seed(0)
    hidden = torch.randn(5, 7, 3, requires_grad=True)
    output = QuickDropout(0.3)(hidden)
    output.sum().backward()
    torch.testing.assert_close(hidden.grad * hidden, output, rtol=1e-6, atol=0)
    assert 0 < hidden.grad.eq(0).sum() < hidden.numel()


def test_a_seed_repeats_it_and_a_new_call_does_not():
    layer, ones = QuickDropout(0.5), torch.ones(64)
    torch.manual_seed(1)
    first, second = layer(ones), layer(ones)
    torch.manual_seed(1)
    assert torch.equal(layer(ones), first) and not torch.equal(first, second)


@pytest.mark.parametrize("p", [0.0, 1.0, 1e-9])
def test_at_the_edges_it_is_the_stock_module(p):
    ones = torch.ones(3, 5)
    assert torch.equal(QuickDropout(p)(ones), nn.Dropout(p)(ones))
    assert torch.equal(QuickDropout(0.5).eval()(ones), ones)


def test_a_model_keeps_its_weights_and_its_answers():
    ids = {"input_ids": torch.tensor([[3, 4, 2]]), "decoder_input_ids": torch.tensor([[1, 5]])}
    plain, quick = build_model(dropout=0.2), build_model(dropout=0.2)
    quicken(quick)
    kinds = [type(module) for module in quick.modules() if isinstance(module, nn.Dropout)]
    assert kinds == [QuickDropout] * (2 * 2 + 2 * 3 + 2)  # N = 2: one a sub-layer, and one a stack on the embeddings
    assert plain.state_dict().keys() == quick.state_dict().keys()
    assert torch.equal(plain(**ids).logits, quick(**ids).logits)
    assert not torch.equal(quick.train()(**ids).logits, quick(**ids).logits)


@pytest.mark.parametrize("resumed", [False, True])
def test_dropout_rises_with_the_updates_and_is_its_own_again_at_the_end(tmp_path, resumed):
    """Over 4 updates to 0.2: 0, 0.05, 0.1, 0.15, and 0.2 from then on. A run that is resumed knows where it was."""

    class Watch(TrainerCallback):
        def __init__(self):
            self.seen = {}

        def on_step_end(self, args, state, control, model, **kwargs):
            self.seen[state.global_step] = {module.p for module in model.modules() if isinstance(module, nn.Dropout)}

    def train(steps, checkpoint=None):
        model, watch = build_model(dropout=0.2), Watch()
        quicken(model)
        options = {"max_steps": steps, "save_steps": 3, "report_to": "none", "use_cpu": True, "disable_tqdm": True}
        trainer = Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(str(tmp_path), per_device_train_batch_size=1, **options),
            train_dataset=[{"input_ids": [3, 4, 2], "labels": [5, 2]}] * 8,
            data_collator=lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]},
            callbacks=[DropoutWarmup(4), watch],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.2}
        return watch.seen

    expected = {1: 0.0, 2: 0.05, 3: 0.1, 4: 0.15, 5: 0.2, 6: 0.2}
    seen = train(3)
    if resumed:
        seen |= train(6, str(tmp_path / "checkpoint-3"))
    assert {step: max(ps) for step, ps in seen.items()} == pytest.approx({n: expected[n] for n in seen})
    assert all(len(ps) == 1 for ps in seen.values()) and len(seen) == (6 if resumed else 3)
