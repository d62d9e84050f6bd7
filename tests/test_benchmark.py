"""training/benchmark.py: it counts what it should, the contenders do the same work, and a run leaves its table."""

import importlib.util
import sys

import pytest
import torch
from conftest import REPOSITORY, build_model
from datasets import Dataset
from test_parity import batch
from torch.utils.flop_counter import FlopCounterMode
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_attention.benchmark import compare, measure, peers, worker
from hf_attention.benchmark.compare import choose, take_turns
from hf_attention.benchmark.flops import forward_flops, multiplication_limit, search_flops, training_flops
from hf_attention.benchmark.meter import Meter, peak_memory
from hf_attention.benchmark.orders import LimitOrder, TrainingOrder, TranslationOrder, from_json, write_pairs
from hf_attention.benchmark.profiles import ELEMENTWISE, KINDS, REST, kind, recorded
from hf_attention.benchmark.table import profile_table, training_table, translation_table, write_section
from hf_attention.benchmark.twins import TorchTransformer, marian, renamed
from hf_attention.loss import LabelSmoothedCrossEntropy
from hf_attention.tokenization import save_tokenizer, word_tokenizer
from hf_attention.toy import pig_latin_corpus


SHAPE = {"vocab_size": 23, "num_layers": 1, "num_decoder_layers": 2, "d_model": 8, "num_heads": 2, "d_k": 3, "d_v": 5}
CPU = torch.device("cpu")


# Counting


@pytest.mark.parametrize("fields", [{}, SHAPE], ids=["plain", "row B"])
def test_the_formula_is_what_pytorch_counts(fields):
    model = build_model(**fields, attn_implementation="eager")
    pair = {"input_ids": torch.tensor([[3, 7, 4, 9, 2]]), "labels": torch.tensor([[4, 6, 2]])}
    source, target = torch.tensor([5]), torch.tensor([3])
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(**pair)
    assert forward_flops(model.config, source, target) == forward.get_total_flops()
    with FlopCounterMode(display=False) as there_and_back:
        model(**pair).loss.backward()
    assert training_flops(model.config, source, target) == there_and_back.get_total_flops()


def test_padding_and_company_change_nothing_of_the_formula():
    config = build_model().config
    one, two = torch.tensor([5]), torch.tensor([9])
    together = forward_flops(config, torch.tensor([5, 9]), torch.tensor([9, 5]))
    assert together == forward_flops(config, one, two) + forward_flops(config, two, one)


def test_the_formula_of_a_search_is_what_pytorch_counts():
    model = build_model(**SHAPE, attn_implementation="eager")
    ids = torch.tensor([[3, 7, 4, 9, 2]])
    with FlopCounterMode(display=False) as counter:
        output = model.generate(ids, num_beams=1, do_sample=False, min_new_tokens=6, max_new_tokens=6)
    assert output.shape == (1, 7)  # behind the start symbol
    assert search_flops(model.config, torch.tensor([5]), torch.tensor([6]), beams=1) == counter.get_total_flops()
    once = search_flops(model.config, torch.tensor([5]), torch.tensor([0]), beams=1)
    one, four = (search_flops(model.config, torch.tensor([5]), torch.tensor([6]), beams=k) for k in (1, 4))
    assert four - once == 4 * (one - once)


def test_a_meter_counts_real_tokens_of_the_updates_behind_the_warm_up():
    meter = Meter(warmup=1, updates=2, device=CPU)
    rows = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    for _ in range(3):
        meter.saw(rows, rows[:, :2])
        meter.updated()
    measured = meter.measured(build_model().config)
    assert measured["tokens"] == 2 * (3 + 3)
    assert measured["padding"] == pytest.approx(1 - 6 / 10)
    lengths = torch.tensor([2, 1, 2, 1])
    assert measured["flops"] == training_flops(build_model().config, lengths, lengths)
    assert measured["seconds"] == meter.marks[2] - meter.marks[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["labels", "labels taken away"])
def test_a_meter_counts_what_the_stock_trainer_trains_on(tmp_path, smoothing):
    """With smoothing the model sees no labels, only decoder inputs. An epoch has every token once."""
    pairs = [{"input_ids": [3] * n + [2], "labels": [4] * (7 - n) + [2]} for n in range(1, 7)]
    model = marian(build_model().config)
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=3, label_smoothing_factor=smoothing, use_cpu=True,
        save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    tokenizer = word_tokenizer([f"w{number}" for number in range(8)])
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(pairs), data_collator=collator
    )
    meter = Meter(warmup=1, updates=2, device=CPU)
    meter.watch(trainer)
    trainer.train()
    counted = [sum(int(side.sum()) for side in batch[:2]) for batch in meter.batches]
    assert sum(counted) == sum(len(pair["input_ids"]) + len(pair["labels"]) for pair in pairs)
    assert meter.measured(build_model().config)["tokens"] == sum(counted[1:])


def test_the_peak_of_memory_is_this_process_s_own():
    before = peak_memory()
    if before is None:
        pytest.skip("no /proc here: the peak is not known")
    block = torch.ones(2**28, dtype=torch.uint8)
    assert peak_memory() >= before
    del block
    assert peak_memory() >= 2**28


# The same work


def torch_weights(model) -> dict[str, torch.Tensor]:
    """Our weights under the names of torch.nn.Transformer, which keeps queries, keys and values in one matrix."""
    names = {
        "model.": "transformer.", "cross_attn_add_norm.norm": "norm2", "feed_forward.fc": "linear",
        "cross_attn.": "multihead_attn.",
    }  # fmt: skip
    weights = renamed({k: v for k, v in model.state_dict().items() if "embed" not in k and "lm_head" not in k}, names)
    weights = {name.replace("self_attn_add_norm.norm", "norm1"): value for name, value in weights.items()}
    for name in [name for name in weights if "feed_forward_add_norm" in name]:
        last = "norm3" if ".decoder." in name else "norm2"
        weights[name.replace("feed_forward_add_norm.norm", last)] = weights.pop(name)
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        weights[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
    return {**weights, "embedding.weight": model.lm_head.weight}


def test_torch_nn_transformer_with_our_weights_gives_our_logits():
    model = build_model(num_layers=2, num_decoder_layers=1)
    theirs = TorchTransformer(model.config).eval()
    theirs.load_state_dict(torch_weights(model))
    assert sum(p.numel() for p in theirs.parameters()) == model.num_parameters()
    rows = batch()
    shifted = model.prepare_decoder_input_ids_from_labels(rows["labels"])
    with torch.no_grad():
        logits = theirs(rows["input_ids"], rows["attention_mask"], shifted)
        expected = model(**rows).logits
    real = rows["labels"] != -100
    torch.testing.assert_close(logits[real], expected[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["fairseq", "joeynmt", "eole"])
def test_a_peer_has_our_shape_and_with_our_weights_our_loss(name, monkeypatch):
    pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.setattr(peers, "SMOOTHING", 0.0)  # with any, each spreads it in a way of its own
    model = build_model(d_model=16, vocab_size=40)
    module, loss = getattr(peers, name)(model.config)
    rows = batch()
    rows["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(rows["labels"])
    own = sum(p.numel() for p in module.parameters())
    more = 2 * 2 * 16 + 40 if name == "eole" else 0  # a norm behind each stack, and a bias in its last layer
    assert own == model.num_parameters() + more
    if name == "eole":  # its decoder is pre-norm: no weights of ours make it ours
        assert 0.3 < float(loss(rows)) / torch.tensor(40.0).log() < 3
        return
    twin = getattr(peers, f"{name}_twin")(model)
    module.eval().load_state_dict(twin.state_dict())
    for ours, theirs in zip(module.modules(), twin.modules(), strict=True):
        for constant in ("eps", "weights"):  # of norms and of fairseq's positions
            if hasattr(theirs, constant):
                setattr(ours, constant, getattr(theirs, constant))
    assert float(loss(rows)) == pytest.approx(float(model(**batch()).loss), abs=1e-4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    pairs = pig_latin_corpus(120)
    (folder / "a.en").write_text("".join(f"{english}\n" for english, _ in pairs))
    (folder / "a.pig").write_text("".join(f"{latin}\n" for _, latin in pairs))
    write_pairs(folder, folder / "a.en", folder / "a.pig", 300)
    return folder


def order(contender: str, folder, **fields) -> TrainingOrder:
    given = {"recipe": str(REPOSITORY / "configs" / "base.yaml"), "shape": "tiny", "tokens_per_batch": 128}
    return TrainingOrder(contender, str(folder), **{**given, "warmup": 1, "updates": 1, "seed": 5, **fields})


def test_contenders_train_on_the_same_tokens_each_in_its_own_kind_of_process(corpus, monkeypatch):
    tuned = []
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: tuned.append(name))
    answers = {}
    for name in ("ours", "marian-loop", "torch", "marian"):
        answers[name] = worker.do(from_json(order(name, corpus).to_json()))
    assert tuned == ["ours"]  # stock ones run as stock
    pairs = order("ours", corpus).batches()
    tokens = sum(len(pair[side]) for pair in pairs[1] for side in ("input_ids", "labels"))
    for name in ("ours", "marian-loop", "torch"):
        assert answers[name]["tokens"] == tokens, name
        assert answers[name]["flops"] == answers["ours"]["flops"]
        assert answers[name]["seconds"] > 0
    assert answers["marian"]["padding"] > 0.1 > answers["ours"]["padding"]


def test_a_profile_is_shares_of_the_time_on_the_clock(corpus, monkeypatch):
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: None)
    times = worker.do(order("marian-loop", corpus, profile=True))["times"]
    assert list(times) == [*KINDS, ELEMENTWISE]
    assert all(seconds > 0 for seconds in times.values()), times


def test_kinds_of_operators():
    assert kind("aten::addmm") == kind("aten::bmm") == "matrix products"
    assert kind("mkl::_mkl_linear") == kind("mkldnn::_linear_pointwise") == "matrix products"  # of packed weights
    assert kind("aten::_scaled_dot_product_flash_attention_for_cpu_backward") == "attention"
    assert kind("aten::_log_softmax_backward_data") == "softmax and loss"
    assert kind("aten::_fused_adam_") == "optimizer"
    assert kind("aten::copy_") == kind("aten::index_select") == kind("aten::_to_copy") == "copies and gathers"
    assert kind("aten::bernoulli_") == "dropout"
    assert kind("aten::_unsafe_view") == kind("aten::t") == kind("Optimizer.step#Adam.step") == REST
    assert (
        kind("aten::add_")
        == kind("aten::native_layer_norm")
        == kind("aten::topk")
        == kind("aten::tril")
        == ELEMENTWISE
    )
    times: dict[str, float] = {}
    with recorded(times):
        torch.ones(50, 50) @ torch.ones(50, 50)
    assert times["matrix products"] > 0 == times["attention"]


def test_translations_of_stock_searches_are_the_same_with_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: None)
    model = build_model(vocab_size=23)
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(word_tokenizer([f"w{number}" for number in range(20)]), tmp_path / "model")
    (tmp_path / "test.en").write_text("w1 w2 w3\nw4\n\nw5 w6 w7 w8 w9 w10\n")
    monkeypatch.setattr(compare, "ask", lambda order, python: worker.do(from_json(order.to_json())))
    options = script().parse(
        ["translate", "--model", str(tmp_path / "model"), "--source", str(tmp_path / "test.en"), "--rounds", "1",
         "--contenders", "ours,ours-stock-search,marian", "--batch-size", "2", "--alone", "2"]
    )  # fmt: skip
    title, body = measure.measure_translation(options)
    assert title == "Beam search: model" and "3 sentences of 4.3 tokens" in body
    given = {"model": str(tmp_path / "model"), "beams": 4, "batch_size": 2, "alone": 1}
    (tmp_path / "sentences.json").write_text("[[8, 9, 10, 11, 12, 13, 2], [4, 5, 6, 2], [7, 2]]")
    outputs = [
        worker.do(TranslationOrder(name, str(tmp_path), **given))["outputs"]
        for name in ("ours-stock-search", "marian")
    ]
    assert outputs[0] == outputs[1] and len(outputs[0]) == 3


# The table


ANSWERS = {
    "marian": [{"tokens": 100, "seconds": 1.0, "flops": 2e9, "padding": 0.5, "peak_memory": 2**30}] * 3,
    "ours": [
        {"tokens": 100, "seconds": seconds, "flops": 2e9, "padding": 0.05, "peak_memory": 2**29}
        for seconds in (0.25, 0.2, 0.5)
    ],
}


def test_medians_ratios_and_shares():
    lines = training_table(ANSWERS, compare.TITLES, [20e9, 19e9, 21e9], "marian").splitlines()
    assert lines[2] == "| stock Marian, stock Trainer | 100 (100–100) | 1.00 | 10% | 50% | 1.00 GiB |"
    assert lines[3] == "| hf_attention, stock Trainer | 400 (200–500) | 4.00 | 40% | 5% | 0.50 GiB |"


def test_a_profile_leaves_out_what_does_not_occur():
    times = dict.fromkeys([*KINDS, ELEMENTWISE], 0.0) | {"matrix products": 1.0, REST: 3.0}
    lines = profile_table({"ours": times}).splitlines()
    assert lines[2:] == ["| matrix products | 25% |", f"| {REST} | 75% |", "| seconds | 4.00 |"]


def test_a_translation_s_row_says_how_alike_it_was():
    turn = {"sentences": 2, "seconds": 1.0, "flops": 1e9, "latency": 0.02, "length": 2.5, "peak_memory": None}
    answers = {"marian": [{**turn, "outputs": [[3, 2], [4, 2]]}], "ours": [{**turn, "outputs": [[3, 2], [5, 6, 2]]}]}
    lines = translation_table(answers, compare.SEARCH_TITLES, [10e9], "marian", "ours").splitlines()
    assert lines[2] == "| stock Marian, stock search | 2.0 | 1.00 | 10% | 20 | 1.00 | 2.50 | 50.0% | – |"
    assert "100.0%" in lines[3]


def test_a_section_is_written_anew_and_the_others_stay(tmp_path):
    path = tmp_path / "benchmark.md"
    write_section(path, "One", "first")
    write_section(path, "Two", "second\n\n### part")
    write_section(path, "One", "third")
    text = path.read_text()
    assert text.startswith("# Benchmarks\n\n") and text.endswith("### part\n")
    assert "\n\n## One\n\nthird\n\n## Two\n\nsecond\n" in text and "first" not in text


# Who takes part


def test_the_absent_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    present, absent = choose([*compare.TITLES], None, {})
    assert present == ["ours", "marian", "marian-grouped", "marian-loop", "torch"]
    assert absent == dict.fromkeys(("fairseq", "joeynmt", "eole"), "not installed")
    present, absent = choose([*compare.TITLES], "eole,ours", {"eole": sys.executable})
    assert (present, absent) == (["ours", "eole"], {})
    with pytest.raises(ValueError, match="'marina' is unknown: want one or more of ours,marian"):
        choose([*compare.TITLES], "marina", {})
    with pytest.raises(ValueError, match="Python of eole is 'no/such': no such file"):
        choose([*compare.TITLES], None, {"eole": "no/such"})
    with pytest.raises(ValueError, match="nobody to measure: eole is not installed"):
        choose([*compare.TITLES], "eole", {})


def test_turns_go_there_and_back_and_a_peer_that_fails_is_out(monkeypatch):
    asked, told, absent = [], [], {}

    def ask(order, python):
        asked.append(order)
        if order == ("eole", 1):
            raise ValueError("eole: it broke")
        return {"tokens": 10, "seconds": 2.0}

    monkeypatch.setattr(compare, "ask", ask)
    answers = take_turns(["ours", "eole"], lambda name, turn: (name, turn), 3, {}, told.append, absent)
    assert asked == [("ours", 0), ("eole", 0), ("eole", 1), ("ours", 1), ("ours", 2)]
    assert {name: len(turns) for name, turns in answers.items()} == {"ours": 3}
    assert absent == {"eole": "failed: eole: it broke"}
    assert told[0] == "round 1 of 3: ours 5 tokens/s" and told[2] == "round 2 of 3: eole failed"
    with pytest.raises(ValueError, match="broke"):
        take_turns(["ours"], lambda name, turn: ("eole", 1), 1, {}, told.append, {})


# The script


def script():
    spec = importlib.util.spec_from_file_location("benchmark_script", REPOSITORY / "training" / "benchmark.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_prints_the_table_and_keeps_it(corpus, tmp_path, monkeypatch, capsys):
    """The one test with workers in processes of their own."""
    kept = tmp_path / "benchmark.md"
    monkeypatch.setattr(
        sys, "argv",
        ["benchmark.py", "train", "--source", str(corpus / "a.en"), "--target", str(corpus / "a.pig"), "--rounds", "1",
         "--updates", "2", "--warmup", "1", "--tokens-per-batch", "128", "--vocab-size", "300", "--contenders",
         "ours,marian,fairseq", "--write", str(kept)],
    )  # fmt: skip
    monkeypatch.setattr(compare, "find_spec", lambda name: None)
    script().main()
    captured = capsys.readouterr()
    assert "## Training: tiny, float32" in captured.out
    assert "| hf_attention, stock Trainer |" in captured.out and "| stock Marian, stock Trainer |" in captured.out
    assert "fairseq: not installed" in captured.err and "Not measured: fairseq, not installed." in captured.out
    assert "round 1 of 1: ours " in captured.err
    assert kept.read_text().endswith(captured.out)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["train", "--contenders", "nobody"], "contender 'nobody' is unknown"),
        (["train", "--rounds", "0"], "rounds is 0, wanted at least 1"),
        (["train", "--source", "a.en"], "one of --source and --target is missing"),
        (["train", "--source", "no/such.en", "--target", "no/such.de"], "no/such.en: no such file"),
        (["train", "--multi30k", "no/such"], "train.lc.norm.tok.en: no such file"),
        (["train", "--python", "eole"], "--python is 'eole', wanted contender=path"),
        (["train", "--write", "no/such/file.md"], "wanted a file in a folder that exists"),
        (["translate", "--model", "no/such", "--contenders", "ours"], "no/such: no model with its tokenizer"),
    ],
)
def test_a_mistake_is_one_line(arguments, error, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", *arguments])
    module = script()
    with pytest.raises(SystemExit) as stopped:
        module.run(module.main)
    assert stopped.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and error in lines[0]


def test_a_worker_knows_the_machine(monkeypatch):
    assert multiplication_limit(torch.float32, CPU, size=64, seconds=0) > 1e6
    monkeypatch.setattr(worker, "multiplication_limit", lambda dtype, device: 3e9)
    answer = worker.do(LimitOrder("matrix products", ""))
    assert answer["limit"] == 3e9 and answer["threads"] == torch.get_num_threads()
    assert answer["versions"]["torch"] == torch.__version__


def test_the_loss_of_the_plain_loop_is_ours():
    from hf_attention.benchmark.training import smoothed_cross_entropy

    logits, labels = torch.randn(2, 3, 11), torch.tensor([[4, 5, 2], [2, -100, -100]])
    torch.testing.assert_close(smoothed_cross_entropy(logits, labels), LabelSmoothedCrossEntropy(0.1)(logits, labels))
