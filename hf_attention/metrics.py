"""BLEU through `evaluate`, with nothing fetched; and the `compute_metrics` of a stock `Seq2SeqTrainer`."""

import logging
from pathlib import Path

import evaluate
import numpy as np
import sacrebleu
from transformers import EvalPrediction, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

IGNORED = -100  # what the collator pads labels with, and the Trainer predictions


def load_bleu(path: str | Path | None = None) -> evaluate.EvaluationModule:
    """An `evaluate` metric from a file on disk, by default the package's own `bleu.py`.

    `evaluate.load("bleu")` would ask the Hub for code. This asks nobody, and keeps its rows in memory, where no other
    process can lock them.
    """
    path = Path(path) if path is not None else Path(__file__).with_name("bleu.py")
    if not path.exists():
        raise ValueError(f"path is {str(path)!r}, wanted a metric module on disk")
    return evaluate.load(str(path.resolve()), keep_in_memory=True)


def chrf(predictions: list[str], references: list[list[str]]) -> dict:
    """chrF2 (Popović, 2015) of `predictions`, each with its list of references: {"score", "signature"}."""
    metric = sacrebleu.CHRF()
    score = metric.corpus_score(predictions, [list(stream) for stream in zip(*references, strict=True)]).score
    return {"score": score, "signature": str(metric.get_signature())}


class TranslationMetrics:
    """For `Seq2SeqTrainer(compute_metrics=compute_metrics(tokenizer))`, with `predict_with_generate=True`.

    Returns {"bleu": 0 to 100, "gen_len": mean tokens of a translation without special ones}. The references are the
    labels decoded, cut where the data were cut; `training/evaluate.py` scores against the file itself.

    Under several processes the Trainer hands every one of them all rows, and each computes the same numbers.
    `signature` holds sacrebleu's signature after the first call, which also logs it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tokenize: str = "13a", lowercase: bool = False):
        self.tokenizer = tokenizer
        self.options = {"tokenize": tokenize, "lowercase": lowercase}
        self.bleu = load_bleu()
        self.signature: str | None = None

    def __call__(self, evaluation: EvalPrediction | tuple) -> dict[str, float]:
        predictions, labels, *_ = evaluation
        predictions, labels = self._rows("predictions", predictions), self._rows("label_ids", labels)
        result = self.bleu.compute(predictions=self._text(predictions), references=self._text(labels), **self.options)
        if result["signature"] != self.signature:
            self.signature = result["signature"]
            logger.info("BLEU signature: %s", self.signature)
        return {"bleu": result["score"], "gen_len": float(np.mean([self._length(row) for row in predictions]))}

    def _rows(self, name: str, ids: np.ndarray | tuple) -> list[np.ndarray]:
        """Token ids, one array per sentence, without the padding that is not in any vocabulary."""
        ids = ids[0] if isinstance(ids, tuple) else ids  # (tokens, further outputs of the model)
        if ids is None or np.ndim(ids) != 2 or not np.issubdtype(np.asarray(ids).dtype, np.integer):
            raise ValueError(
                f"{name} is {'None' if ids is None else f'{np.asarray(ids).dtype} {list(np.shape(ids))}'}, wanted token"
                " ids [sentences, length]: train with predict_with_generate=True and with labels in the evaluation set"
            )
        return [row[row != IGNORED] for row in np.asarray(ids)]

    def _text(self, rows: list[np.ndarray]) -> list[str]:
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)

    def _length(self, row: np.ndarray) -> int:
        return int(np.isin(row, self.tokenizer.all_special_ids, invert=True).sum())


compute_metrics = TranslationMetrics  # the name of the Trainer's argument
