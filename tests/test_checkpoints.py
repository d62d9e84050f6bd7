"""hf_attention.checkpoints and training/average.py, on folders that the stock Trainer and save_pretrained wrote."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build_model
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from stock import byte_tokenizer, run_script, save_stock, tiny_marian
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    GenerationConfig,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from hf_attention.checkpoints import KeepForAveraging, average_checkpoints, last_checkpoints


WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """Ten steps of the stock Trainer, each saved: as names, checkpoint-10 would come before checkpoint-9."""
    folder = tmp_path_factory.mktemp("run")
    tokenizer, model = byte_tokenizer(), tiny_marian()
    model.generation_config.num_beams = 3
    rows = [dict(tokenizer(text), labels=tokenizer(text)["input_ids"]) for text in ("ab", "c d e", "fgh", "")]
    arguments = Seq2SeqTrainingArguments(
        output_dir=folder, max_steps=10, save_steps=1, learning_rate=0.1, report_to="none", use_cpu=True, seed=1,
        per_device_train_batch_size=2, disable_tqdm=True,
    )  # fmt: skip
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    Seq2SeqTrainer(model, arguments, collator, train_dataset=rows, processing_class=tokenizer).train()
    return folder


def bits(folder: Path) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in load_file(folder / WEIGHTS).items()}


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_the_last_by_number_not_by_name(run_folder):
    assert [folder.name for folder in last_checkpoints(run_folder, 3)] == [
        "checkpoint-8",
        "checkpoint-9",
        "checkpoint-10",
    ]


def test_what_is_no_checkpoint_folder_is_not_counted(tmp_path):
    for name in ("checkpoint-7", "checkpoint-20", "checkpoint-x", "checkpoint-5-old", "tmp-checkpoint-30"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-40").touch()
    assert [folder.name for folder in last_checkpoints(tmp_path, 2)] == ["checkpoint-7", "checkpoint-20"]
    with pytest.raises(ValueError, match="holds 2 checkpoints, wanted the last 3"):
        last_checkpoints(tmp_path, 3)


def test_report_43_mean_of_the_last_five(run_folder, tmp_path):
    folders = last_checkpoints(run_folder, 5)
    output = average_checkpoints(folders, tmp_path / "average")
    inputs, result = [load_file(folder / WEIGHTS) for folder in folders], load_file(output / WEIGHTS)
    assert result.keys() == inputs[0].keys()
    for name, weight in result.items():
        assert weight.dtype == np.float32
        exact = np.mean([one[name].astype(np.longdouble) for one in inputs], axis=0)
        np.testing.assert_array_max_ulp(weight, exact.astype(np.float32), maxulp=1)
    name = "model.encoder.layers.0.fc1.weight"
    by_hand = sum(float(one[name][0, 0]) for one in inputs) / 5
    assert result[name][0, 0] == pytest.approx(by_hand, rel=1e-7) and by_hand != inputs[-1][name][0, 0]


def test_report_43_still_tied_and_complete(run_folder, tmp_path):
    folders = last_checkpoints(run_folder, 5)
    output = average_checkpoints(folders, tmp_path / "average")
    training = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}
    assert training <= files(folders[-1]) and files(output) == files(folders[-1]) - training
    assert (output / WEIGHTS).stat().st_size == (folders[-1] / WEIGHTS).stat().st_size  # one matrix
    model, information = AutoModelForSeq2SeqLM.from_pretrained(output, output_loading_info=True)
    assert not any(information.values())
    assert model.lm_head.weight.data_ptr() == model.model.shared.weight.data_ptr()
    assert GenerationConfig.from_pretrained(output).num_beams == 3
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer("Ein Hund!")["input_ids"] == byte_tokenizer()("Ein Hund!")["input_ids"]


@pytest.mark.parametrize("times", [1, 2, 3, 7])
def test_report_43_average_with_itself_is_bit_equal(run_folder, tmp_path, times):
    folder = run_folder / "checkpoint-4"
    assert bits(average_checkpoints([folder] * times, tmp_path / "average")) == bits(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_type_is_kept(tmp_path, dtype):
    for number in range(3):
        tiny_marian(seed=number).to(dtype).save_pretrained(tmp_path / str(number))
    inputs = [load_torch(tmp_path / str(number) / WEIGHTS) for number in range(3)]
    output = average_checkpoints([tmp_path / str(number) for number in range(3)], tmp_path / "average")
    for name, weight in load_torch(output / WEIGHTS).items():
        assert weight.dtype == dtype
        expected = torch.stack([one[name].double() for one in inputs]).mean(dim=0)
        torch.testing.assert_close(
            weight, expected.to(dtype), rtol=1e-2 if dtype != torch.float64 else 1e-12, atol=1e-6
        )
    itself = average_checkpoints([tmp_path / "0"] * 3, tmp_path / "itself")
    assert all(torch.equal(weight, inputs[0][name]) for name, weight in load_torch(itself / WEIGHTS).items())


def test_sharded_and_whole_folders_mix(tmp_path):
    models = [tiny_marian(seed=number) for number in range(2)]
    models[0].save_pretrained(tmp_path / "whole")
    models[1].save_pretrained(tmp_path / "sharded", max_shard_size="10KB")
    shards = {name for name in files(tmp_path / "sharded") if name.startswith("model-")}
    assert len(shards) > 2
    sharded = average_checkpoints([tmp_path / "whole", tmp_path / "sharded"], tmp_path / "a")
    whole = average_checkpoints([tmp_path / "sharded", tmp_path / "whole"], tmp_path / "b")
    assert files(sharded) == files(tmp_path / "sharded") and WEIGHTS in files(whole)
    one, other = (AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in (sharded, whole))
    sources = [model.state_dict() for model in models]
    for name, weight in one.items():
        assert torch.equal(weight, other[name])
        torch.testing.assert_close(weight, (sources[0][name] + sources[1][name]) / 2)


def test_our_model_stays_tied_in_three_places_and_keeps_its_code(tmp_path):
    models = [build_model(seed=seed) for seed in range(3)]
    folders = [tmp_path / str(number) for number in range(3)]
    for model, folder in zip(models, folders, strict=True):
        model.save_pretrained(folder)
    output = average_checkpoints(folders, tmp_path / "average")
    assert files(output) == files(folders[-1]) and any(name.endswith(".py") for name in files(output))
    average = AutoModelForSeq2SeqLM.from_pretrained(output)
    tied = (average.lm_head, average.get_encoder().embed_tokens, average.get_decoder().embed_tokens)
    assert len({module.weight.data_ptr() for module in tied}) == 1
    expected = sum(model.lm_head.weight for model in models) / 3
    torch.testing.assert_close(average.lm_head.weight, expected)


# refused


def changed_json(path: Path, **fields) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def other_vocabulary(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("fields", "change", "message"),
    [
        (
            {"vocab_size": 300},
            None,
            r"(final_logits_bias is F32 \[1, 300\] in .*other and F32 \[1, 259\]"
            r"|model.shared.weight is F32 \[300, 16\] in .*other and F32 \[259, 16\]) in .*last",
        ),
        ({"decoder_layers": 2}, None, r"last has no weight model.decoder.layers.1\S+, which .*other has"),
        ({"encoder_attention_heads": 4}, None, "config field encoder_attention_heads is 4 in .*other and 2 in .*last"),
        ({}, other_vocabulary, "other and .*last have different vocabularies"),
        ({}, lambda folder: (folder / WEIGHTS).unlink(), "other: no weights, wanted model.safetensors or"),
        ({}, lambda folder: (folder / WEIGHTS).write_bytes(b"half a fi"), "not a whole safetensors file"),
        ({}, lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
        ({}, lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        ({}, shutil.rmtree, "other: no such folder"),
    ],
)
def test_report_43_what_does_not_belong_together_is_refused(tmp_path, fields, change, message):
    save_stock(tmp_path / "last")
    save_stock(tmp_path / "other", **fields)
    if change:
        change(tmp_path / "other")
    before = files(tmp_path)
    with pytest.raises(ValueError, match=message):
        average_checkpoints([tmp_path / "other", tmp_path / "last"], tmp_path / "average")
    assert files(tmp_path) == before


def test_a_different_type_is_refused(tmp_path):
    save_stock(tmp_path / "last")
    tiny_marian().bfloat16().save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="is BF16 .* in .*other and F32"):
        average_checkpoints([tmp_path / "other", tmp_path / "last"], tmp_path / "average")


def test_dropout_and_remembered_padding_may_differ(tmp_path):
    save_stock(tmp_path / "last")
    save_stock(tmp_path / "other", seed=1, dropout=0.3)
    changed_json(tmp_path / "other" / "tokenizer.json", truncation={"max_length": 9, "direction": "Right"})
    assert average_checkpoints([tmp_path / "other", tmp_path / "last"], tmp_path / "average").is_dir()


@pytest.mark.parametrize("name", ["last", "."])
def test_nothing_is_overwritten(tmp_path, name):
    folder = save_stock(tmp_path / "last")
    before = bits(folder)
    with pytest.raises(ValueError, match="is there already"):
        average_checkpoints([folder, folder], tmp_path / name)
    assert bits(folder) == before and files(tmp_path) == {"last"}


def test_nothing_is_left_of_an_average_that_fails(tmp_path, monkeypatch):
    folder = save_stock(tmp_path / "last")
    monkeypatch.setattr(
        "hf_attention.checkpoints.save_file", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        average_checkpoints([folder], tmp_path / "average")
    assert files(tmp_path) == {"last"}


def test_no_folders():
    with pytest.raises(ValueError, match="folders is empty"):
        average_checkpoints([], "average")


# training/average.py


def test_command(run_folder, tmp_path, capsys):
    assert run_script("average.py", run_folder, "--last", 2, "--output", tmp_path / "last") == 0
    printed = capsys.readouterr()
    assert "checkpoint-9" in printed.out and "checkpoint-10" in printed.out and "averaging 2" in printed.err
    named = [run_folder / "checkpoint-9", run_folder / "checkpoint-10"]
    assert run_script("average.py", *named, "--output", tmp_path / "named") == 0
    assert bits(tmp_path / "last") == bits(tmp_path / "named")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("RUN", "--last", "50"), 1, "holds 10 checkpoints, wanted the last 50"),
        (("RUN",), 1, "no weights"),
        (("nowhere", "--last", "5"), 1, "error: nowhere: no such folder"),
        (("a", "b", "--last", "5"), 2, "--last takes one training run"),
    ],
)
def test_command_refuses(run_folder, tmp_path, capsys, arguments, code, message):
    arguments = [run_folder if argument == "RUN" else argument for argument in arguments]
    assert run_script("average.py", *arguments, "--output", tmp_path / "average") == code
    printed = capsys.readouterr().err
    assert message in printed and (code == 2 or printed.count("\n") == 1)
    assert files(tmp_path) == set()


def train(folder: Path, *callbacks, resume: bool = False, **arguments) -> None:
    tokenizer, model = byte_tokenizer(), tiny_marian()
    rows = [dict(tokenizer(text), labels=tokenizer(text)["input_ids"]) for text in ("ab", "c d e", "fgh", "")]
    given = {"max_steps": 6, "save_steps": 1, "learning_rate": 0.1, "lr_scheduler_type": "constant"} | arguments
    arguments = Seq2SeqTrainingArguments(
        folder, per_device_train_batch_size=2, report_to="none", use_cpu=True, seed=1, disable_tqdm=True, **given
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model)
    trainer = Seq2SeqTrainer(
        model,
        arguments,
        collator,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tokenizer,
        callbacks=[*callbacks],
    )
    trainer.train(resume_from_checkpoint=resume)


def test_what_averaging_needs_is_kept_and_no_more(tmp_path):
    everything, kept = tmp_path / "everything", tmp_path / "kept"
    train(everything)
    train(kept, KeepForAveraging(3))
    assert files(kept) == {"checkpoint-4", "checkpoint-5", "checkpoint-6"}
    assert files(kept / "checkpoint-6") == files(everything / "checkpoint-6") > {"optimizer.pt", "trainer_state.json"}
    lost = files(everything / "checkpoint-5") - files(kept / "checkpoint-5")
    assert lost == {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "training_args.bin"}
    for folder, name in ((everything, "all"), (kept, "few")):
        average_checkpoints(last_checkpoints(folder, 3), tmp_path / name)
    assert bits(tmp_path / "all") == bits(tmp_path / "few")


def test_a_run_that_keeps_for_averaging_resumes_bit_for_bit(tmp_path):
    train(tmp_path / "whole", KeepForAveraging(2))
    train(tmp_path / "cut", KeepForAveraging(2), max_steps=4)
    train(tmp_path / "cut", KeepForAveraging(2), resume=True)
    assert files(tmp_path / "cut") == files(tmp_path / "whole") == {"checkpoint-5", "checkpoint-6"}
    assert bits(tmp_path / "cut" / "checkpoint-6") == bits(tmp_path / "whole" / "checkpoint-6")


def test_the_best_checkpoint_stays_whole(tmp_path):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "greater_is_better": True}
    train(tmp_path, KeepForAveraging(1), metric_for_best_model="loss", **best)  # the largest loss is the first
    state = json.loads((tmp_path / "checkpoint-6" / "trainer_state.json").read_text())
    name = Path(state["best_model_checkpoint"]).name
    assert name == "checkpoint-1" and files(tmp_path) == {name, "checkpoint-6"}
    assert "optimizer.pt" in files(tmp_path / name)


@pytest.mark.parametrize("n", [0, -1, True, 2.0, "3"])
def test_a_number_of_checkpoints_that_is_none(n):
    with pytest.raises(ValueError, match="wanted at least 1 checkpoint"):
        KeepForAveraging(n)


def test_a_limit_below_what_is_averaged_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="save_total_limit is 2, wanted none, or at least the 5"):
        train(tmp_path, KeepForAveraging(5), save_total_limit=2)
    assert not list(tmp_path.glob("checkpoint-*"))
