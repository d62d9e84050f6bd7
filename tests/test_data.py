"""hf_attention.data: what is dropped is counted, batches keep their budget, and the stock Trainer trains on them."""

import logging
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from datasets import Dataset
from torch.utils.data import DataLoader, SequentialSampler
from transformers import MarianConfig, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

from hf_attention.corpus import load_pairs
from hf_attention.data import BatchCollator, BatchPlan, TokenBatches, encode_pairs
from hf_attention.tokenization import train_tokenizer
from hf_attention.toy import copy_corpus


MULTI30K = Path(__file__).parents[2] / "shared/data/multi30k"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(["a b c d"]), 259, show_progress=False)  # bytes: a space and a letter, two tokens


@pytest.fixture
def model():
    set_seed(0)
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDES.items()}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = MarianConfig(vocab_size=16, d_model=8, max_position_embeddings=128, dropout=0.1, **sizes, **special)
    return MarianMTModel(config)


SIDES = {"layers": 1, "ffn_dim": 8, "attention_heads": 2}


def encoded(source_lengths, target_lengths):
    """Pair number n is known by its first id, 1000 + n."""
    return Dataset.from_dict(
        {
            "input_ids": [[1000 + n] + [3] * (length - 1) for n, length in enumerate(source_lengths)],
            "labels": [[4] * (length - 1) + [2] for length in target_lengths],
        }
    )


def random_lengths(pairs=1000, longest=100, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(1, longest + 1, pairs), random.integers(1, longest + 1, pairs)


def numbers(batches):
    return [[example["input_ids"][0] - 1000 for example in batch] for batch in batches]


# encode_pairs


def pairs(*rows):
    return Dataset.from_dict({"source": [row[0] for row in rows], "target": [row[1] for row in rows]})


MIXED = [("a b", "c"), ("", "c"), ("a", " \t"), ("a", None), ("a b c d", "c"), ("a", "b c d"), ("d", "d")]


def test_training_pairs_are_dropped_and_counted(tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        kept = encode_pairs(pairs(*MIXED), tokenizer, max_tokens=5)
    # " a b" and </s> are 5 tokens, " b c d" and </s> are 7
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in kept["input_ids"]] == ["a b", "d"]
    assert "3 of 7 pairs dropped: a blank side" in caplog.text
    assert "2 of 4 pairs dropped: more than 5 tokens" in caplog.text


def test_report_55_test_rows_are_never_dropped(tokenizer, caplog):
    with caplog.at_level(logging.WARNING):
        kept = encode_pairs(pairs(*MIXED), tokenizer, max_tokens=5, drop=False)
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in kept["input_ids"]] == [s for s, _ in MIXED]
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in kept["labels"]] == [t or "" for _, t in MIXED]
    assert "3 of 7 pairs kept: a blank side" in caplog.text
    assert "2 of 7 pairs kept: more than 5 tokens" in caplog.text


def test_report_56_the_end_token_is_the_last_of_every_row(tokenizer):
    for row in encode_pairs(pairs(*MIXED), tokenizer, drop=False):
        assert row["input_ids"][-1] == row["labels"][-1] == 2
        assert row["input_ids"].count(2) == row["labels"].count(2) == 1


def test_encoding_is_kept_on_disk(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "a.tsv").write_text("a\tb\nc d\td\n")
    first = encode_pairs(load_pairs(tmp_path / "a.tsv"), tokenizer, 10)
    tokenizer(["a", "b b"], padding=True, truncation=True, max_length=2)  # leaves its mark in the tokenizer
    again = encode_pairs(load_pairs(tmp_path / "a.tsv"), tokenizer, 10)
    assert first.cache_files
    assert again.cache_files == first.cache_files


def test_what_cannot_be_encoded_is_named(tokenizer):
    with pytest.raises(ValueError, match="no column .'target'"):
        encode_pairs(Dataset.from_dict({"source": ["a"]}), tokenizer)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        encode_pairs(pairs(*MIXED), tokenizer, max_tokens=0)
    endless = train_tokenizer(iter(["a"]), 259, show_progress=False)
    endless.add_eos_token = False  # takes the end token out of the template
    with pytest.raises(ValueError, match="does not end a text"):
        encode_pairs(pairs(*MIXED), endless)


# BatchPlan and TokenBatches


def test_cuts_by_hand():
    # sorted 1 2 2 3 4: 3 rows of 2 are 6, a fourth of 3 would make 12; then 3, for 2 rows of 4 would be 8; then 4
    plan = BatchPlan(np.array([2, 4, 1, 3, 1]), np.array([2, 1, 1, 3, 2]), tokens_per_batch=6)
    assert plan.cuts.tolist() == [0, 3, 4, 5]
    order, batches = plan.order(epoch=0)
    assert sorted(order[:3].tolist()) == [0, 2, 4] and order[3:].tolist() == [3, 1]
    assert sorted(batches.tolist()) == [0, 1, 2]
    # source: 2 + 1 + 1 | 3 | 4 = 11 of 3 * 2 + 3 + 4 = 13; target: 2 + 1 + 2 | 3 | 1 = 9 of 6 + 3 + 1 = 10
    assert plan.padding() == pytest.approx(1 - 20 / 23)


def test_report_39_no_batch_over_budget_every_pair_once_new_order_each_epoch(capsys):
    batches = TokenBatches(encoded(*random_lengths()), tokens_per_batch=512, seed=5)
    again = TokenBatches(encoded(*random_lengths()), tokens_per_batch=512, seed=5)
    seen = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        again.set_epoch(epoch)
        items = [batches[index] for index in range(len(batches))]
        for batch in items:
            source = len(batch) * max(len(example["input_ids"]) for example in batch)
            target = len(batch) * max(len(example["labels"]) for example in batch)
            print(len(batch), source, target)
            assert source <= 512 and target <= 512
        assert sorted(sum(numbers(items), [])) == list(range(1000))
        assert [again[index] for index in range(len(again))] == items
        seen.append(numbers(items))
    assert seen[0] != seen[1] != seen[2] != seen[0]
    together = [{frozenset(batch) for batch in epoch} for epoch in seen]
    assert len(together[0] & together[1]) < len(batches) / 2  # not only the order, the company changes too
    other_seed = TokenBatches(encoded(*random_lengths()), tokens_per_batch=512, seed=6)
    assert numbers(other_seed[index] for index in range(len(other_seed))) != seen[0]
    assert len(capsys.readouterr().out.splitlines()) == 3 * len(batches)


def test_batches_mix_among_pairs_of_like_length():
    plan = BatchPlan(*random_lengths(2000, 12), tokens_per_batch=512)
    together = []
    for epoch in range(3):
        order, _ = plan.order(epoch)
        together.append({frozenset(batch.tolist()) for batch in np.split(order, plan.cuts[1:-1])})
    assert max(len(together[0] & together[1]), len(together[1] & together[2]), len(together[0] & together[2])) <= 1


@pytest.mark.parametrize(("multiple_of", "batches"), [(1, 3), (2, 4), (3, 3), (4, 4), (5, 5), (10, 10), (11, 10)])
def test_the_number_of_batches_is_a_multiple(multiple_of, batches):
    plan = BatchPlan(np.full(10, 4), np.full(10, 4), tokens_per_batch=16, multiple_of=multiple_of)  # 4, 4 and 2 rows
    assert len(plan) == batches
    assert plan.cuts[0] == 0 and plan.cuts[-1] == 10 and np.diff(plan.cuts).min() >= 1


@pytest.mark.parametrize(
    ("pairs", "longest", "budget"), [(1, 1, 1), (1, 9, 9), (50, 1, 7), (300, 30, 30), (77, 5, 500)]
)
def test_edges_of_the_budget(pairs, longest, budget):
    plan = BatchPlan(*random_lengths(pairs, longest), tokens_per_batch=budget)
    order, batches = plan.order(epoch=4)
    assert sorted(order.tolist()) == list(range(pairs)) and sorted(batches.tolist()) == list(range(len(plan)))
    for start, end in zip(plan.cuts, plan.cuts[1:], strict=False):
        assert 1 <= end - start <= budget // plan.longer[order[start:end]].max()
        if end < pairs:  # and none is cut too early
            assert (end - start + 1) * plan.longer[order[start : end + 1]].max() > budget


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs Multi30k beside the repository")
def test_multi30k_batches_of_4096_are_less_than_a_tenth_padding(tmp_path):
    files = [MULTI30K / "val.en", MULTI30K / "val.de", MULTI30K / "train.en", MULTI30K / "train.de"]
    tokenizer = train_tokenizer(files, 8000, show_progress=False)
    pairs = load_pairs(files[2], files[3], cache_dir=tmp_path)
    batches = TokenBatches(encode_pairs(pairs, tokenizer), 4096)
    real = padded = rows = 0
    for batch in (batches[index] for index in range(len(batches))):
        rows += len(batch)
        for side in ("input_ids", "labels"):
            lengths = [len(example[side]) for example in batch]
            real, padded = real + sum(lengths), padded + len(batch) * max(lengths)
    assert rows == 29_000
    assert 1 - real / padded < 0.05
    assert batches.plan.padding() == pytest.approx(1 - real / padded)


def test_in_the_first_epochs_half_of_the_pairs_others_in_each_are_turned_around():
    given = encoded(*random_lengths())
    rows = [(row["input_ids"], row["labels"]) for row in given]

    def epoch_of(ours, epoch):
        ours.set_epoch(epoch)
        items = [ours[index] for index in range(len(ours))]
        found = [(example["input_ids"], example["labels"]) for item in items for example in item]
        assert all(len(item) * max(len(side) for e in item for side in e.values()) <= 512 for item in items)
        padded = [len(item) * max(len(e[side]) for e in item) for item in items for side in item[0]]
        assert ours.plan.padding(epoch) == pytest.approx(1 - sum(map(len, sum(rows, ()))) / sum(padded))
        turned = [target[0] >= 1000 for _, target in found]
        assert sorted(row[::-1] if turn else row for row, turn in zip(found, turned, strict=True)) == sorted(rows)
        return items, {row[1][0] for row, turn in zip(found, turned, strict=True) if turn}

    ours, plain = TokenBatches(given, 512, bidirectional_epochs=2), TokenBatches(given, 512)
    (_, turned), (second, others) = epoch_of(ours, 0), epoch_of(ours, 1)
    assert 437 <= len(turned) <= 563 and 437 <= len(others) <= 563  # 500 and four standard deviations
    assert 187 <= len(turned & others) <= 313  # 250 likewise, of those that are turned twice
    assert epoch_of(ours, 2) == epoch_of(plain, 2) == (epoch_of(plain, 2)[0], set())
    resumed = TokenBatches(given, 512, bidirectional_epochs=2)
    assert epoch_of(resumed, 1)[0] == second != epoch_of(TokenBatches(given, 512, 1, bidirectional_epochs=2), 1)[0]
    for wrong in (-1, 1.5, True, None, "2"):
        with pytest.raises(ValueError, match=f"bidirectional_epochs is {wrong!r}, wanted an integer that is not neg"):
            TokenBatches(given, 512, bidirectional_epochs=wrong)


def test_lengths_come_from_a_selection_too():
    chosen = encoded(*random_lengths()).select([7, 3, 900, 5]).add_column("other", ["x"] * 4)
    batches = TokenBatches(chosen, 1000)
    assert sorted(sum(numbers(batches[index] for index in range(len(batches))), [])) == [3, 5, 7, 900]
    assert set(batches[0][0]) == {"input_ids", "labels"}


def test_what_cannot_be_planned_is_named():
    data = encoded([3, 9, 4], [3, 2, 4])
    with pytest.raises(ValueError, match="pair 1 has 9 source and 2 target tokens, more than tokens_per_batch, 8"):
        TokenBatches(data, 8)
    for budget in (0, -5, 2.5, "512", True):
        with pytest.raises(ValueError, match="tokens_per_batch is"):
            TokenBatches(data, budget)
    with pytest.raises(ValueError, match="seed is -1"):
        TokenBatches(data, 9, seed=-1)
    with pytest.raises(ValueError, match="no pairs"):
        TokenBatches(data.select([]), 9)
    with pytest.raises(ValueError, match="no column .'labels'"):
        TokenBatches(data.remove_columns("labels"), 9)
    with pytest.raises(IndexError):
        TokenBatches(data, 9)[5]


# BatchCollator


def test_a_batch_by_hand(tokenizer, model):
    first = {"input_ids": [5, 6, 2], "labels": [7, 2]}
    second = {"input_ids": [8, 2], "labels": [9, 10, 2]}
    expected = {
        "input_ids": [[5, 6, 2], [8, 2, 0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "labels": [[7, 2, -100], [9, 10, 2]],
        "decoder_input_ids": [[1, 7, 2], [1, 9, 10]],
    }
    collate = BatchCollator(tokenizer, model=model)
    for features in ([[first, second]], [[first], [second]], [first, second]):  # one batch, two, two examples
        assert {name: tensor.tolist() for name, tensor in collate(features).items()} == expected


def test_report_33_a_collator_without_the_model_says_what_to_pass(tokenizer):
    with pytest.raises(ValueError, match="model=model"):
        BatchCollator(tokenizer)
    with pytest.raises(ValueError, match="model is Linear"):
        BatchCollator(tokenizer, model=torch.nn.Linear(1, 1))


# Accelerate and the stock Trainer


def loaders(batches, processes, **options):
    for process in range(processes):
        loader = DataLoader(batches, sampler=SequentialSampler(batches), collate_fn=lambda items: items[0], **options)
        yield prepare_data_loader(loader, num_processes=processes, process_index=process, put_on_device=False)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["main", "workers"])
@pytest.mark.parametrize("processes", [1, 2])
def test_every_process_knows_the_epoch_from_its_start_and_in_the_middle(processes, options):
    # a copy of the dataset for each process, as in life
    data = encoded(*random_lengths(300))
    expected = TokenBatches(data, 512)
    expected.set_epoch(1)
    wanted = numbers(expected[index] for index in range(len(expected)))
    for process in range(processes):
        loader = list(loaders(TokenBatches(data, 512), processes, **options))[process]
        epochs = [numbers(loader) for _ in range(2)]
        assert epochs[0] != epochs[1]
        mine = wanted[process::processes]
        assert epochs[1][: len(mine)] == mine
        resumed = skip_first_batches(list(loaders(TokenBatches(data, 512), processes, **options))[process], 3)
        resumed.set_epoch(1)
        assert numbers(resumed) == epochs[1][3:]


def test_an_odd_batch_is_made_up_for_by_the_first():
    batches = TokenBatches(encoded([4] * 10, [4] * 10), 16)  # 4, 4 and 2 rows
    shares = [numbers(loader) for loader in loaders(batches, 2)]
    assert len(shares[0]) == len(shares[1]) == 2
    assert shares[1][1] == shares[0][0]


def trainer(model, tokenizer, folder, **options):
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=4,
        train_sampling_strategy="sequential",
        num_train_epochs=3,
        learning_rate=1e-2,
        label_smoothing_factor=0.1,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    random = np.random.default_rng(0)
    examples = [copy_corpus(1, seed, length=int(length))[0] for seed, length in enumerate(random.integers(1, 12, 60))]
    return Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=TokenBatches(Dataset.from_list(examples), 64),
        eval_dataset=Dataset.from_list(examples[:6]),
        data_collator=BatchCollator(tokenizer, model=model),
        processing_class=tokenizer,
    )


def test_the_stock_trainer_trains_on_every_token_and_evaluates(model, tokenizer, tmp_path):
    stock = trainer(
        model, tokenizer, tmp_path, include_num_input_tokens_seen="non_padding", save_strategy="no",
        predict_with_generate=True, generation_max_length=5, gradient_accumulation_steps=2,
    )  # fmt: skip
    before = stock.evaluate()["eval_loss"]
    stock.train()
    lengths = stock.train_dataset.plan.source_lengths
    assert stock.state.num_input_tokens_seen == 3 * lengths.sum()
    assert stock.state.global_step == 3 * -(-len(stock.train_dataset) // 2)
    assert stock.state.total_flos > 0
    assert stock.evaluate()["eval_loss"] < before


def test_resumed_in_the_middle_of_an_epoch_it_is_bit_for_bit_the_uninterrupted_run(model, tokenizer, tmp_path):
    start = {name: value.clone() for name, value in model.state_dict().items()}
    whole = trainer(model, tokenizer, tmp_path, save_steps=1)
    whole.train()
    finished = {name: value.clone() for name, value in model.state_dict().items()}
    steps = len(whole.train_dataset)
    model.load_state_dict(start)
    set_seed(99)
    resumed = trainer(model, tokenizer, tmp_path, save_strategy="no")
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{steps + 2}"))  # two steps into the second epoch
    assert steps > 2 and resumed.state.global_step == 3 * steps
    for name, value in model.state_dict().items():
        assert torch.equal(value, finished[name]), name


def test_token_batches_of_plain_examples():
    examples = [{"input_ids": [3, 2], "labels": [4, 2]}, {"input_ids": [5, 5, 2], "labels": [6, 2]}]
    batches = TokenBatches(examples, tokens_per_batch=6)
    assert [sorted(batch, key=str) for batch in batches] == [sorted(examples, key=str)]
