import re
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hf_attention.bpe_dropout import BpeDropout, Sentences
from hf_attention.data import TokenBatches, encode_pairs
from hf_attention.tokenization import train_tokenizer, word_tokenizer


WORDS = ["the", "then", "there", "these", "other", "others", "mother", "brother", "father", "gather", "together"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter([" ".join(WORDS)] * 5), vocab_size=340, show_progress=False)


def sentences(tokenizer, texts):
    ids = [tokenizer(text)["input_ids"] for text in texts]
    return Sentences(np.concatenate([np.array(some, dtype=np.int32) for some in ids]), np.array([len(s) for s in ids]))


def test_probabilities_by_hand():
    # abc is ab + c, ab is a + b. Whole with 1 - p; ab, c with p (1 - p); a, b, c with p².
    vocabulary = {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c")]))
    dropout = BpeDropout(PreTrainedTokenizerFast(tokenizer_object=backend), 0.3)
    n = 100_000
    pieces = dropout(Sentences(np.full(n, 4), np.ones(n, dtype=int)), np.random.default_rng(0))
    counts = {(4,): 0, (3, 2): 0, (0, 1, 2): 0}
    for index in range(n):
        counts[tuple(pieces[index])] += 1
    spread = 4 * 0.5 / n**0.5  # four standard deviations at the most
    assert counts[4,] / n == pytest.approx(0.7, abs=spread)
    assert counts[3, 2] / n == pytest.approx(0.21, abs=spread)
    assert counts[0, 1, 2] / n == pytest.approx(0.09, abs=spread)


def test_about_as_many_pieces_as_the_dropout_in_tokenizers():
    text, p, times = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8"), 0.1, 20
    tokenizer = train_tokenizer(iter(text.splitlines()), vocab_size=1000, show_progress=False)
    whole = len(tokenizer(text)["input_ids"])
    ours = BpeDropout(tokenizer, p)(sentences(tokenizer, [text] * times), np.random.default_rng(1)).lengths.mean()
    theirs = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    theirs.model.dropout = p
    expected = np.mean([len(theirs.encode(text).ids) for _ in range(times)])
    assert expected > 1.08 * whole  # what is compared is well visible
    assert ours == pytest.approx(expected, rel=0.06)


def test_the_text_stays_and_so_do_special_tokens(tokenizer):
    texts = ["the other weather", "", "mother  gathers ß 你", "together"]
    given = sentences(tokenizer, texts)
    pieces = BpeDropout(tokenizer, 0.5)(given, np.random.default_rng(2))
    assert pieces.lengths.sum() > given.lengths.sum()
    for index, text in enumerate(texts):
        assert tokenizer.decode(pieces[index], skip_special_tokens=True) == text
        assert pieces[index][-1] == tokenizer.eos_token_id and pieces[index].count(tokenizer.eos_token_id) == 1


def test_nothing_is_undone_with_probability_0(tokenizer):
    given = sentences(tokenizer, WORDS)
    same = BpeDropout(tokenizer, 0.0)(given, np.random.default_rng(0))
    assert same.ids.tolist() == given.ids.tolist() and same.lengths.tolist() == given.lengths.tolist()


def batches(tokenizer, seed=1):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=random.integers(1, 12))) for _ in range(400)]
    pairs = Dataset.from_dict({"source": texts, "target": [text.upper() for text in texts]})
    return texts, TokenBatches(encode_pairs(pairs, tokenizer), 256, seed, bpe_dropout=BpeDropout(tokenizer, 0.2))


def test_each_epoch_has_every_pair_in_other_pieces_and_as_many_batches(tokenizer):
    texts, ours = batches(tokenizer)
    _, again = batches(tokenizer)
    seen = []
    for epoch in (0, 1, 2):
        ours.set_epoch(epoch)
        items = [ours[index] for index in range(len(ours))]
        decoded = [
            [tokenizer.decode(example[side], skip_special_tokens=True) for item in items for example in item]
            for side in ("input_ids", "labels")
        ]
        assert sorted(decoded[0]) == sorted(texts)
        assert decoded[1] == [text.upper() for text in decoded[0]]
        assert max(len(item) * max(len(e["labels"]) for e in item) for item in items) <= 256 * 1.25
        seen.append(items)
        assert ours.plan.padding(epoch) < 0.1
    assert seen[0] != seen[1] != seen[2]
    again.set_epoch(2)  # as a run that is resumed there
    assert [again[index] for index in range(len(again))] == seen[2]
    assert list(batches(tokenizer, seed=2)[1]) != seen[0]


def test_pairs_that_are_turned_around_are_in_other_pieces_too(tokenizer):
    texts, _ = batches(tokenizer)
    pairs = encode_pairs(Dataset.from_dict({"source": texts, "target": [t.upper() for t in texts]}), tokenizer)
    ours = TokenBatches(pairs, 256, 1, bpe_dropout=BpeDropout(tokenizer, 0.2), bidirectional_epochs=1)
    examples = [example for index in range(len(ours)) for example in ours[index]]
    sides = ("input_ids", "labels")
    found = [[tokenizer.decode(example[side], skip_special_tokens=True) for side in sides] for example in examples]
    turned = [source.isupper() for source, _ in found]
    assert sorted(min(pair, key=str.isupper) for pair in found) == sorted(texts)
    assert all(pair[0].lower() == pair[1].lower() and pair[0] != pair[1] for pair in found)
    assert 160 <= sum(turned) <= 240
    lengths = np.array([[len(example[side]) for example in examples] for side in sides])
    assert sorted(zip(*lengths.tolist(), strict=True)) == sorted(
        zip(ours.plan.source_lengths.tolist(), ours.plan.target_lengths.tolist(), strict=True)
    )


@pytest.mark.parametrize("p", [-0.1, 1, 1.5])
def test_a_probability_out_of_range_is_refused(tokenizer, p):
    with pytest.raises(ValueError, match=re.escape(f"bpe_dropout={p}: want a probability")):
        BpeDropout(tokenizer, p)


def test_whole_words_have_no_merges_to_undo():
    with pytest.raises(ValueError, match="wants a tokenizer of byte pairs, got WordLevel"):
        BpeDropout(word_tokenizer(WORDS), 0.1)
