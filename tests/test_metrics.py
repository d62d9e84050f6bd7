"""hf_attention.metrics and bleu.py: truth is sacrebleu's own command line, in another process."""

import json
import logging
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stock import byte_tokenizer

from hf_attention.metrics import compute_metrics, load_bleu


REPOSITORY = Path(__file__).parents[1]

HYPOTHESES = [
    'Ein Mann, der "Hallo" sagt, geht um 3.30 Uhr.',
    "Zwei Hunde &amp; eine Katze spielen im Gras.",
    "",
    "Die Frau trägt ein T-Shirt in Größe XL !",
    "  Ein Kind   lacht — laut 😀 .  ",
    "Wort",
]
REFERENCES = [
    "Ein Mann, der „Hallo“ sagt, geht um 3.30 Uhr.",
    "Zwei Hunde & eine Katze spielen auf dem Gras.",
    "Niemand ist zu sehen.",
    "Die frau trägt ein T-Shirt in Größe XL!",
    "Ein Kind lacht — laut 😀 .",
    "",
]
OTHERS = [
    "Ein Mann sagt um 3.30 Uhr Hallo.",
    *REFERENCES[1:3],
    "Eine Frau im T-Shirt.",
    "Das Kind lacht laut 😀.",
    "Wort",
]


@pytest.fixture(scope="module")
def bleu():
    return load_bleu()


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def sacrebleu_command(folder: Path, hypotheses: list[str], *references: list[str], options: tuple[str, ...] = ()):
    """{name, score, signature, ...} of each metric as `sacrebleu --format json` prints it."""
    files = [write(folder / f"reference{number}", lines) for number, lines in enumerate(references)]
    hypotheses = write(folder / "hypotheses", hypotheses)
    command = [sys.executable, "-m", "sacrebleu", *files, "-i", hypotheses, "--width", "10", *options]
    printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return printed if isinstance(printed, list) else [printed]


def assert_same(ours: dict, theirs: dict):
    assert ours["score"] == pytest.approx(theirs["score"], abs=1e-9)
    assert ours["signature"] == theirs["signature"]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, ()),
        ({"lowercase": True}, ("--lowercase",)),
        ({"tokenize": "none"}, ("--tokenize", "none")),
        ({"tokenize": "intl", "lowercase": True}, ("--tokenize", "intl", "--lowercase")),
        ({"tokenize": "char"}, ("--tokenize", "char")),
    ],
)
def test_same_as_the_command_line(bleu, tmp_path, options, flags):
    [theirs] = sacrebleu_command(tmp_path, HYPOTHESES, REFERENCES, options=flags)
    ours = bleu.compute(predictions=HYPOTHESES, references=REFERENCES, **options)
    assert 0 < theirs["score"] < 100
    assert_same(ours, theirs)
    precisions = "/".join(f"{precision:.1f}" for precision in ours["precisions"])
    assert theirs["verbose_score"] == (
        f"{precisions} (BP = {ours['bp']:.3f} ratio = {ours['sys_len'] / ours['ref_len']:.3f} "
        f"hyp_len = {ours['sys_len']} ref_len = {ours['ref_len']})"
    )


def test_same_as_the_command_line_with_two_references(bleu, tmp_path):
    [theirs] = sacrebleu_command(tmp_path, HYPOTHESES, REFERENCES, OTHERS)
    pairs = [list(pair) for pair in zip(REFERENCES, OTHERS, strict=True)]
    assert_same(bleu.compute(predictions=HYPOTHESES, references=pairs), theirs)


def test_same_as_the_command_line_on_multi30k(bleu, tmp_path):
    path = REPOSITORY.parent / "shared/data/multi30k"
    files = sorted(path.rglob("val*.de")) if path.is_dir() else []
    if not files:
        pytest.skip("needs Multi30k's validation set beside the repository")
    references = files[0].read_text(encoding="utf-8").split("\n")[:-1]
    hypotheses = [" ".join(word for place, word in enumerate(line.split()) if place % 7 != 3) for line in references]
    [theirs] = sacrebleu_command(tmp_path, hypotheses, references)
    assert len(references) > 1000 and 0 < theirs["score"] < 100
    assert_same(bleu.compute(predictions=hypotheses, references=references), theirs)


def test_by_hand(bleu):
    """Six words, one of them wrong: 5/6, 3/5, 2/4 and 1/3 of the n-grams are in the reference."""
    result = bleu.compute(predictions=["the cat sat on the mat"], references=["the cat sat on a mat"])
    assert result["counts"] == [5, 3, 2, 1] and result["totals"] == [6, 5, 4, 3]
    assert result["score"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    short = bleu.compute(predictions=["a b c d e"], references=[["a b c d e f g h"]])
    assert short["bp"] == pytest.approx(math.exp(1 - 8 / 5)) and short["score"] == pytest.approx(100 * short["bp"])


def test_rows_given_one_by_one_and_in_batches(bleu):
    at_once = bleu.compute(predictions=HYPOTHESES, references=REFERENCES)
    bleu.add(prediction=HYPOTHESES[0], reference=REFERENCES[0])
    bleu.add_batch(predictions=HYPOTHESES[1:], references=REFERENCES[1:])
    assert bleu.compute() == at_once


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "predictions is empty"),
        (["a"], ["a", "b", "c"], "1 predictions but 3 references"),
        (["a", "b"], [["a", "A"], ["b"]], "sentence 2 has 1 references and sentence 1 has 2"),
        (["a", "b"], ["a", ["b"]], "reference 2"),
        (["a", "b"], [["a"], "b"], "reference 2"),
        (["a"], [[]], "reference 1"),
        (["a", "b"], ["a", None], "reference 2"),
        (["a"], [["a", None]], "reference 1"),
        (["a", None], ["a", "b"], "prediction 2 is None"),
        (["a", 7], ["a", "b"], "prediction 2 is 7"),
        ("a", ["a"], "predictions is 'a'"),
        (["a"], "a", "references is 'a'"),
        (["a"], None, "references is None"),
    ],
)
def test_refused(bleu, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        bleu.compute(predictions=predictions, references=references)
    again = bleu.compute(predictions=["a b c d"], references=[["a b c d"]])  # nothing of it is left behind
    assert (again["score"], again["sys_len"]) == (pytest.approx(100), 4)


def test_unknown_tokeniser_is_refused(bleu):
    with pytest.raises(ValueError, match=r"tokenize is '13b', wanted one of .*13a"):
        bleu.compute(predictions=["a"], references=["a"], tokenize="13b")


@pytest.mark.skipif(find_spec("MeCab") is not None, reason="needs MeCab not to be installed")
def test_a_tokeniser_without_its_library_is_refused(bleu):
    with pytest.raises(ValueError, match="tokenize is 'ja-mecab', which needs more than is here"):
        bleu.compute(predictions=["a"], references=["a"], tokenize="ja-mecab")


def test_a_metric_that_is_not_on_disk_is_refused():
    with pytest.raises(ValueError, match="path is 'bleu'"):
        load_bleu("bleu")


def test_report_44_no_network_and_an_empty_cache(tmp_path):
    [theirs] = sacrebleu_command(tmp_path, HYPOTHESES, REFERENCES)
    script = f"""
import json, socket
def refuse(*_, **__): raise AssertionError("the network was asked")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from hf_attention.metrics import load_bleu
print(json.dumps(load_bleu().compute(predictions={HYPOTHESES!r}, references={REFERENCES!r})))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_HOME": str(tmp_path / "empty"), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert_same(json.loads(result.stdout), theirs)


# compute_metrics


def padded(tokenizer, sentences: list[str], width: int, value: int) -> np.ndarray:
    rows = tokenizer(sentences)["input_ids"]
    return np.array([row + [value] * (width - len(row)) for row in rows])


@pytest.mark.parametrize("form", ["tuple", "EvalPrediction", "predictions in a tuple"])
@pytest.mark.parametrize(("prediction_padding", "label_padding"), [(-100, -100), (0, -100), (-100, 0)])
def test_report_36_ignored_ids_in_predictions_and_labels(prediction_padding, label_padding, form):
    from transformers import EvalPrediction

    tokenizer = byte_tokenizer()
    predictions = padded(tokenizer, ["the cat sat on the mat", ""], 40, prediction_padding)
    labels = padded(tokenizer, ["the cat sat on a mat", "b"], 30, label_padding)
    evaluation = {
        "tuple": (predictions, labels),
        "EvalPrediction": EvalPrediction(predictions=predictions, label_ids=labels),
        "predictions in a tuple": ((predictions, np.zeros(3)), labels),
    }[form]
    metrics = compute_metrics(tokenizer)(evaluation)
    expected = load_bleu().compute(
        predictions=["the cat sat on the mat", ""], references=["the cat sat on a mat", "b"]
    )
    assert metrics == {"bleu": expected["score"], "gen_len": 11.0}  # 22 bytes and none, without `</s>` and padding


def test_signature_is_kept_and_logged_once(caplog):
    tokenizer = byte_tokenizer()
    measure = compute_metrics(tokenizer, tokenize="none", lowercase=True)
    rows = padded(tokenizer, ["A b c d"], 9, -100), padded(tokenizer, ["a B c d"], 9, -100)
    assert measure.signature is None
    with caplog.at_level(logging.INFO, logger="hf_attention.metrics"):
        assert measure(rows)["bleu"] == measure(rows)["bleu"] == pytest.approx(100)
    assert measure.signature.startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:")
    assert [record.getMessage() for record in caplog.records] == [f"BLEU signature: {measure.signature}"]


@pytest.mark.parametrize(
    ("predictions", "labels", "message"),
    [
        (np.zeros((2, 3, 9), dtype=np.float32), np.zeros((2, 3), dtype=int), r"predictions is float32 \[2, 3, 9\]"),
        (np.zeros((2, 3), dtype=int), None, "label_ids is None"),
    ],
)
def test_what_is_not_token_ids_is_refused(predictions, labels, message):
    with pytest.raises(ValueError, match=message):
        compute_metrics(byte_tokenizer())((predictions, labels))


COPYING_TRAINER = '''
"""Evaluates, with the stock Trainer, a model that copies its source: five rows of 2 to 30 tokens, two to a batch."""
import json, sys
import torch
from stock import byte_tokenizer, tiny_marian
from transformers import DataCollatorForSeq2Seq, MarianMTModel, Seq2SeqTrainer, Seq2SeqTrainingArguments
from hf_attention.metrics import compute_metrics

class Copying(MarianMTModel):
    def generate(self, input_ids, **_):  # as ragged across batches as the sources are
        return torch.cat([torch.full_like(input_ids[:, :1], 1), input_ids], dim=1)

sources = ["a", "a man walks past the big house", "two", "yes a dog runs there", "b"]
targets = ["a", "a man walks past the red house", "two", "yes a dog runs there", "c"]
tokenizer = byte_tokenizer()
rows = [dict(tokenizer(source), labels=tokenizer(target)["input_ids"]) for source, target in zip(sources, targets)]
model = Copying(tiny_marian().config)
arguments = Seq2SeqTrainingArguments(
    output_dir=sys.argv[1], per_device_eval_batch_size=2, predict_with_generate=True, report_to="none", use_cpu=True,
    disable_tqdm=True,
)
measure = compute_metrics(tokenizer)
trainer = Seq2SeqTrainer(
    model, arguments, data_collator=DataCollatorForSeq2Seq(tokenizer, model), processing_class=tokenizer,
    eval_dataset=rows, compute_metrics=measure, callbacks=[measure],
)
output = trainer.predict(rows, max_length=64)
predictions = [[token for token in row if token > 2] for row in output.predictions[: len(rows)].tolist()]
if trainer.is_world_process_zero():
    print(json.dumps({
        "processes": arguments.world_size, "bleu": output.metrics["test_bleu"], "signature": measure.signature,
        "gen_len": output.metrics["test_gen_len"], "texts": tokenizer.batch_decode(predictions),
    }))
'''


def run_copying_trainer(folder: Path, script: str, processes: int) -> subprocess.CompletedProcess:
    (folder / "script.py").write_text(script)
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    )
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "empty")}
    command = [sys.executable, *launcher, str(folder / "script.py"), str(folder / "run")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("processes", [1, 2])
def test_reports_36_and_49_stock_trainer(tmp_path, processes):
    sources = ["a", "a man walks past the big house", "two", "yes a dog runs there", "b"]
    targets = ["a", "a man walks past the red house", "two", "yes a dog runs there", "c"]
    [theirs] = sacrebleu_command(tmp_path, sources, targets)
    result = run_copying_trainer(tmp_path, COPYING_TRAINER, processes)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout.splitlines()[-1])
    assert (seen["processes"], seen["texts"]) == (processes, sources)
    assert_same({"score": seen["bleu"], "signature": seen["signature"]}, theirs)
    assert seen["gen_len"] == sum(map(len, sources)) / 5


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "several processes: pass the same object as compute_metrics and in callbacks"),
        (3, "8 translations of 3 items, wanted one sentence in each item"),  # whole batches as items
        (9, "8 translations of 9 items"),
    ],
)
def test_report_49_surplus_rows_are_never_scored_in_silence(monkeypatch, sentences, message):
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    tokenizer = byte_tokenizer()
    measure = compute_metrics(tokenizer)
    if sentences is not None:
        loader = SimpleNamespace(dataset=range(sentences))
        measure.on_prediction_step(
            SimpleNamespace(world_size=2, eval_batch_size=2), None, None, eval_dataloader=loader
        )
    rows = padded(tokenizer, ["a"] * 8, 4, -100)
    with pytest.raises(ValueError, match=message):
        measure((rows, rows))
