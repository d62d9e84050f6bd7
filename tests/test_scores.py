"""hf_attention.scores: what each BLEU counts, by hand and by sacrebleu's own command line."""

import json
import math
import subprocess
import sys

import pytest

from hf_attention.scores import scores


HYPOTHESES = ["Das ist ein rich-text Editor.", "Ein „Test“ mit Käse & Brot, z. B. um 3.30 Uhr."]
REFERENCES = ["Das ist der rich-text Editor.", "ein „Test“ mit Wurst & Brot, z. B. um 3.30 Uhr."]


def by_name(hypotheses, references, **options):
    return {score.name: score for score in scores(hypotheses, [[line] for line in references], **options)}


def test_bleu_and_chrf_are_the_command_lines(tmp_path):
    for name, lines in (("hypotheses", HYPOTHESES), ("references", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "references", "-i", tmp_path / "hypotheses"]
    command += ["-m", "bleu", "chrf", "-w", "4"]
    bleu, chrf = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    found = by_name(HYPOTHESES, REFERENCES)
    for ours, theirs in ((found["BLEU"], bleu), (found["chrF"], chrf)):
        assert (round(ours.value, 4), ours.signature) == (theirs["score"], theirs["signature"])


def test_compounds_count_by_their_parts_by_hand():
    """the new rich @-@ word box of it, for text: 7 of 8 tokens are right, and 5 of 7, 3 of 6 and 1 of 5 n-grams."""
    counted = by_name(["the new rich-word box of it"], ["the new rich-text box of it"])["BLEU, compounds split"]
    assert counted.value == pytest.approx(100 * (7 / 8 * 5 / 7 * 3 / 6 * 1 / 5) ** 0.25, rel=1e-6)
    assert counted.detail.endswith("8 tokens for 8")


def test_a_chain_of_hyphens_is_split_as_the_script_splits_it():
    """Perl's s{(\\S)-(\\S)}{}g does not look at a letter twice: of A-B-C only the first hyphen is split."""
    counted = by_name(["x A-B-C y"], ["x A-B-C y"])["BLEU, compounds split"]
    assert counted.detail.endswith("5 tokens for 5")  # x A ##AT##-##AT## B-C y


def test_quotes_are_made_plain_and_words_are_moses_tokens():
    """The script replaces unicode punctuation first, so “Test” and "Test" are the same tokens, " Test " apart."""
    counted = by_name(["der “Test” hier ist gut ."], ['der "Test" hier ist gut.'])["BLEU, compounds split"]
    assert counted.value == pytest.approx(100) and counted.detail.endswith("8 tokens for 8")


def test_lower_cased_tokens_are_split_at_spaces_only():
    counted = by_name(["Ein Hund , der läuft ."], ["ein hund , der läuft ."])["BLEU, lower-cased tokens"]
    assert counted.value == pytest.approx(100) and "case:lc" in counted.signature
    glued = by_name(["a b c d e."], ["a b c d e ."])["BLEU, lower-cased tokens"]
    precision = (4 / 5) * (3 / 4) * (2 / 3) * (1 / 2)  # "e." is one token, and wrong
    assert glued.value == pytest.approx(100 * math.exp(1 - 6 / 5) * precision**0.25, rel=1e-6)
