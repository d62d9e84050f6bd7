"""A GPU works through what it is given while the CPU prepares what follows; who asks it for a value stops both.

No GPU is needed to see who asks. A tensor on the device `meta` has no values, and raises where one is read; and a
dispatch mode counts the operators that hand a value, or a shape which depends on values, to Python.
"""

import pytest
import torch
from conftest import REPOSITORY, build_model
from torch.utils._python_dispatch import TorchDispatchMode

from hf_attention.recipes import load_recipe
from hf_attention.runs import build_trainer, load_data
from hf_attention.toy import write_pig_latin


aten = torch.ops.aten
READERS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}


class Readings(TorchDispatchMode):
    """Counts, in `count`, how often a value was asked for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        indices = args[1] if func is aten.index.Tensor else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        self.count += by_mask or func in READERS
        return func(*args, **(kwargs or {}))


def test_readings_are_counted():
    value = torch.tensor([1.0, 0.0])
    with Readings() as readings:
        assert (value + value).shape == (2,)
        assert readings.count == 0
        value[value > 0], value.nonzero(), value.max().item(), bool(value.any()), torch.equal(value, value)
    assert readings.count == 5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_forwards_and_backwards_nothing_is_read(attention):
    with torch.device("meta"):
        model = build_model(attn_implementation=attention).train()
        source, target = torch.ones(3, 7, dtype=torch.long), torch.ones(3, 5, dtype=torch.long)
    outputs = model(input_ids=source, attention_mask=source, decoder_input_ids=target)
    outputs.logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


SMALL = [
    *("num_layers=1", "d_model=32", "d_ff=64", "num_heads=2", "vocab_size=300", "tokens_per_batch=256"),
    *("eval_strategy=no", "save_strategy=no", "logging_steps=100", "report_to=none"),
    "dataloader_num_workers=1",  # its process knows the epoch from a tensor, which is no device's
]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["muon=true", "weight_decay=0.1", "bf16=true", "dropout_warmup_steps=10"],
        ["max_grad_norm=1.0", "gradient_accumulation_steps=2"],
    ],
    ids=["adam", "muon", "accumulation"],
)
def test_an_update_reads_nothing_but_the_masks_that_a_cpu_may_look_into(tmp_path, fields):
    write_pig_latin(tmp_path, train=300, validation=7, test=5)
    counts = []
    for updates in (3, 6):
        run = [f"data_dir={tmp_path}", f"output_dir={tmp_path / 'run'}", f"max_steps={updates}"]
        recipe = load_recipe(REPOSITORY / "configs" / "tiny.yaml", [*SMALL, *fields, *run])
        tokenizer, encoded = load_data(recipe)
        trainer = build_trainer(recipe, tokenizer, encoded)
        with Readings() as readings:
            trainer.train()
        counts.append(readings.count)
    forwards = 3 * recipe.training.gradient_accumulation_steps  # that the second run has more
    assert counts[1] - counts[0] == 2 * forwards  # the encoder's mask and the memory's


def test_a_step_of_the_search_asks_once_who_is_done(toy):
    counts = []
    for steps in (3, 6):
        with Readings() as readings:
            out = toy.generate(
                torch.tensor([[4, 5, 2], [6, 2, 0]]), attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]),
                search="paper", num_beams=2, max_new_tokens=steps, eos_token_id=99,
            )  # fmt: skip
        assert out.shape[1] == 1 + steps  # no token is the end
        counts.append(readings.count)
    assert counts[1] - counts[0] == 3
