"""The model under the stock Trainer with none of our parts: stock collator, stock label smoothing, stock arguments."""

import pytest
import torch
from conftest import build_model
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_attention.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(iter(["a b c d e"]), 259, show_progress=False)


def trainer(tokenizer, tmp_path, with_model: bool, **options) -> Seq2SeqTrainer:
    model = build_model(vocab_size=len(tokenizer))
    texts = ["a b", "a b c d", "e", "b c", "d a a a a a"]
    rows = Dataset.from_list(
        [{**tokenizer(text), "labels": tokenizer(text_target=text)["input_ids"]} for text in texts]
    )
    arguments = {"max_steps": 2, "per_device_train_batch_size": 2, "report_to": "none", "use_cpu": True}
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(str(tmp_path), **arguments, **options),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model if with_model else None),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("generate", [False, True])
@pytest.mark.parametrize(("smoothing", "with_model"), [(0.1, True), (0.0, True), (0.0, False)])
def test_report_33_training_and_evaluation_with_and_without_generation(
    tokenizer, tmp_path, smoothing, with_model, generate
):
    run = trainer(
        tokenizer, tmp_path, with_model, label_smoothing_factor=smoothing, predict_with_generate=generate,
        generation_max_length=5,
    )  # fmt: skip
    assert run.train().global_step == 2
    result = run.predict(run.eval_dataset)
    assert 0 < result.metrics["test_loss"] < 20 and result.label_ids is not None
    assert len(result.predictions if generate else result.predictions[0]) == 5


def test_report_33_smoothing_and_a_collator_without_the_model_say_what_to_pass(tokenizer, tmp_path):
    run = trainer(tokenizer, tmp_path, with_model=False, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="decoder_input_ids is missing.*give its collator the model"):
        run.train()


def test_report_9_a_mapping_of_ties_survives_save_load_meta_and_resume(tokenizer, tmp_path):
    run = trainer(tokenizer, tmp_path, with_model=True, save_steps=1)
    run.train()
    again = trainer(tokenizer, tmp_path, with_model=True, save_steps=1)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    expected = run.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.model.state_dict().items())
    tied = {"lm_head.weight", "model.decoder.embed_tokens.weight"}
    assert set(run.model._tied_weights_keys) == tied and len({expected[name].data_ptr() for name in tied}) == 1
    with torch.device("meta"):
        assert type(run.model)(run.model.config).num_parameters() == run.model.num_parameters()
