"""Contenders of a translation: token ids in, token ids out, beam search with the same model's weights.

Ours searches as in the paper; the stock search weighs length by another formula (`hf_attention.generation`), so that
a part of the translations differs. `outputs` shows how alike the work was.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel

from ..cli import into_heap
from ..model import VanillaTransformerForConditionalGeneration
from .flops import search_flops
from .orders import TranslationOrder
from .peers import fairseq_twin, joeynmt_twin
from .profiles import profiled
from .twins import marian_twin


Sentences = list[list[int]]
Translate = Callable[[Sentences], Sentences]  # a batch of sources, each with its end, into targets with theirs

ALPHA, EXTRA_TOKENS = 0.6, 50  # §6.1
PROFILED_ALONE = 5  # a sentence is 10,000 operators, and a recorded one takes long to count


def translate(order: TranslationOrder) -> dict[str, Any]:
    """Seconds for all sentences and for one alone, and the translations; or `times` of a profile of each."""
    sentences, search = order.sentences(), TRANSLATIONS[order.contender](order)
    alone = _spread(sentences, PROFILED_ALONE if order.profile else order.alone)

    def one_by_one() -> None:
        for sentence in alone:
            search([sentence])

    with torch.inference_mode():
        for warmup in (sentences[: order.batch_size], sentences[-order.batch_size :], sentences[-1:]):
            search(warmup)
        if order.profile:
            batches = _spread(sentences, 2 * order.batch_size)
            return {"times": profiled(lambda: search(batches)), "times_alone": profiled(one_by_one)}
        start = time.perf_counter()
        outputs = search(sentences)
        seconds = time.perf_counter() - start  # ids are on the CPU by now: no GPU has anything left to do
        start = time.perf_counter()
        one_by_one()
        latency = (time.perf_counter() - start) / len(alone)
    source, target = (torch.tensor([len(ids) for ids in side]) for side in (sentences, outputs))
    return {
        "seconds": seconds,
        "sentences": len(sentences),
        "length": float(target.float().mean()),
        "latency": latency,
        "flops": search_flops(AutoConfig.from_pretrained(order.model), source, target, order.beams),
        "outputs": outputs,
    }


def _spread(sentences: Sentences, count: int) -> Sentences:
    """`count` of them, of all lengths."""
    return sentences[:: max(1, len(sentences) // count)][:count]


def ours(order: TranslationOrder) -> Translate:
    model = into_heap(_load(order))  # as translate.py does, and where the twins' weights are
    return _with_generate(model, order, search="paper", max_extra_tokens=EXTRA_TOKENS)


def ours_stock_search(order: TranslationOrder) -> Translate:
    return _with_generate(into_heap(_load(order)), order, search="stock")


def stock_marian(order: TranslationOrder) -> Translate:
    return _with_generate(marian_twin(_load(order)), order)


def _load(order: TranslationOrder) -> VanillaTransformerForConditionalGeneration:
    return AutoModelForSeq2SeqLM.from_pretrained(order.model).eval()


def _with_generate(model: PreTrainedModel, order: TranslationOrder, **options: Any) -> Translate:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    model.generation_config.max_length = None  # a limit below takes its place
    options = {**options, "num_beams": order.beams, "length_penalty": ALPHA, "early_stopping": False}

    def batch(sentences: Sentences) -> Sentences:
        ids = _padded(sentences, pad).to(device)
        targets = model.generate(
            input_ids=ids, attention_mask=(ids != pad).long(), max_new_tokens=ids.shape[1] + EXTRA_TOKENS, **options
        )
        return [_cut(row, pad, end) for row in targets[:, 1:].tolist()]

    return _in_batches(batch, order.batch_size)


def _padded(sentences: Sentences, pad: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(ids) for ids in sentences], batch_first=True, padding_value=pad)  # [B, S]


def _cut(ids: list[int], pad: int, end: int) -> list[int]:
    """Up to and with the end, or up to the padding of a hypothesis that was cut off."""
    if end in ids:
        return ids[: ids.index(end) + 1]
    return [token for token in ids if token != pad]


def _in_batches(batch: Translate, size: int) -> Translate:
    def run(sentences: Sentences) -> Sentences:
        starts = range(0, len(sentences), size)
        return [target for start in starts for target in batch(sentences[start : start + size])]

    return run


def ctranslate2(order: TranslationOrder, compute_type: str, workers: int) -> Translate:
    """So many workers share the threads that the others have. It sorts the sentences by itself."""
    import ctranslate2 as library

    tokenizer = AutoTokenizer.from_pretrained(order.model)
    translator = library.Translator(
        str(Path(order.folder, "ctranslate2")),
        device="cuda" if torch.cuda.is_available() else "cpu",
        compute_type=compute_type,
        inter_threads=workers,
        intra_threads=max(1, torch.get_num_threads() // workers),
    )

    def run(sentences: Sentences) -> Sentences:
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(ids) for ids in sentences],
            beam_size=order.beams,
            length_penalty=ALPHA,
            max_batch_size=order.batch_size,
            max_decoding_length=max(map(len, sentences)) + EXTRA_TOKENS,
            return_end_token=True,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

    return run


def fairseq(order: TranslationOrder) -> Translate:
    from fairseq.sequence_generator import SequenceGenerator

    model = _load(order)
    config, twin = model.config, fairseq_twin(model)
    dictionary = twin.decoder.dictionary
    generator = SequenceGenerator(
        [twin], dictionary, beam_size=order.beams, max_len_a=1, max_len_b=EXTRA_TOKENS, len_penalty=ALPHA
    )

    def batch(sentences: Sentences) -> Sentences:
        ids = _padded(sentences, config.pad_token_id)
        inputs = {"src_tokens": ids, "src_lengths": (ids != config.pad_token_id).sum(1)}
        found = generator.generate([twin], {"net_input": inputs}, bos_token=config.decoder_start_token_id)
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    return _in_batches(batch, order.batch_size)


def joeynmt(order: TranslationOrder) -> Translate:
    from joeynmt.search import beam_search

    model = _load(order)
    config, twin = model.config, joeynmt_twin(model)

    def batch(sentences: Sentences) -> Sentences:
        ids = _padded(sentences, config.pad_token_id)
        mask = (ids != config.pad_token_id)[:, None]  # [B, 1, S]
        memory, *_ = twin(return_type="encode", src=ids, src_length=mask.sum(-1), src_mask=mask)
        found, *_ = beam_search(twin, order.beams, memory, None, mask, ids.shape[1] + EXTRA_TOKENS, ALPHA)
        return [_cut(row, config.pad_token_id, config.eos_token_id) for row in found.tolist()]

    return _in_batches(batch, order.batch_size)


TRANSLATIONS: dict[str, Callable[[TranslationOrder], Translate]] = {
    "ours": ours,
    "ours-stock-search": ours_stock_search,
    "marian": stock_marian,
    "fairseq": fairseq,
    "joeynmt": joeynmt,
    "ctranslate2": lambda order: ctranslate2(order, "float32", 1),
    "ctranslate2-workers": lambda order: ctranslate2(order, "float32", torch.get_num_threads()),
    "ctranslate2-int8": lambda order: ctranslate2(order, "int8", torch.get_num_threads()),
}
