"""The tests' task of decoding: reversing up to six digits, 3 to 10, at which hypotheses compete and rows end by
themselves at different lengths."""

from collections.abc import Callable

import torch


PAD, START, END, FIRST, VOCABULARY = 0, 1, 2, 3, 11
LONGEST = 6
ROWS = [[3, 4, 5, 6, 7, 8], [10], [9, 9, 4], [5, 3]]


def random_digits(rows: int, length: int) -> torch.Tensor:
    return torch.randint(FIRST, VOCABULARY, (rows, length))


def padded(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Sources that end in `END`, padded on the right, with their mask."""
    width = max(map(len, rows)) + 1
    ids = torch.tensor([[*row, END] + [PAD] * (width - len(row) - 1) for row in rows])
    return {"input_ids": ids, "attention_mask": ids.ne(PAD).long()}


@torch.no_grad()
def log_prob(model, source: list[int], target: list[int]) -> float:
    """log P of a whole target by one plain forward pass, without a cache."""
    decoder = torch.tensor([[START, *target[:-1]]])
    logits = model(**padded([source]), decoder_input_ids=decoder, use_cache=False).logits
    return float(logits.double().log_softmax(-1)[0].gather(1, torch.tensor(target)[:, None]).sum())


def train_to_reverse(model, steps: int = 100, share: Callable[[int], float] = lambda step: 1.0):
    """100 steps half teach it; a few hundred with a rate that falls, `share(step)` of its peak, teach it wholly."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * share(step)
        digits = random_digits(64, int(torch.randint(1, LONGEST + 1, ())))
        ends = torch.full((64, 1), END)
        model(input_ids=torch.cat([digits, ends], 1), labels=torch.cat([digits.flip(1), ends], 1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
