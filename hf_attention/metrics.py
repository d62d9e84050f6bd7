"""BLEU through `evaluate`, with nothing fetched; and the `compute_metrics` of a stock `Seq2SeqTrainer`."""

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from transformers import EvalPrediction, PreTrainedTokenizerBase, TrainerCallback


if TYPE_CHECKING:
    from evaluate import EvaluationModule


def _evaluate() -> ModuleType:
    """The installed library, also for a script beside an evaluate.py of its own, as those of `training/` are."""
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if not Path(folder, "evaluate.py").is_file()]
    try:
        return importlib.import_module("evaluate")
    finally:
        sys.path[:] = path


evaluate = _evaluate()
logger = logging.getLogger(__name__)

IGNORED = -100  # what the collator pads labels with, and the Trainer predictions


def load_bleu(path: str | Path | None = None) -> "EvaluationModule":
    """An `evaluate` metric from a file on disk, by default the package's own `bleu.py`.

    `evaluate.load("bleu")` would ask the Hub for code. This asks nobody, and keeps its rows in memory, where no other
    process can lock them.
    """
    path = Path(path) if path is not None else Path(__file__).with_name("bleu.py")
    if not path.exists():
        raise ValueError(f"path is {str(path)!r}, wanted a metric module on disk")
    return evaluate.load(str(path.resolve()), keep_in_memory=True)


class TranslationMetrics(TrainerCallback):
    """For a stock `Seq2SeqTrainer` with `predict_with_generate=True`:

        metrics = compute_metrics(tokenizer)
        Seq2SeqTrainer(..., compute_metrics=metrics, callbacks=[metrics])

    Called, it returns {"bleu": 0 to 100, "gen_len": mean tokens of a translation without special ones}. The references
    are the labels decoded, cut where the data were cut; `training/evaluate.py` scores against the file itself.

    Several processes need it among the callbacks: to fill its last batches the Trainer translates the first sentences
    again, and `Seq2SeqTrainer` leaves them in. As a callback it learns how many sentences there are and drops the
    surplus, so that BLEU is that of one process (every process is handed all rows, and computes the same).

    `signature` holds sacrebleu's signature after the first call, which also logs it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tokenize: str = "13a", lowercase: bool = False):
        self.tokenizer = tokenizer
        self.options = {"tokenize": tokenize, "lowercase": lowercase}
        self.bleu = load_bleu()
        self.signature: str | None = None
        self.sentences: int | None = None  # in the evaluation set, ...
        self.filler = 0  # ... and what fills its last batches is less than this; both known under several processes

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **_) -> None:
        if args.world_size > 1:
            self.sentences = len(eval_dataloader.dataset)
            self.filler = args.eval_batch_size * args.world_size

    def __call__(self, evaluation: EvalPrediction | tuple) -> dict[str, float]:
        predictions, labels, *_ = evaluation
        predictions, labels = self._rows("predictions", predictions), self._rows("label_ids", labels)
        result = self.bleu.compute(predictions=self._text(predictions), references=self._text(labels), **self.options)
        if result["signature"] != self.signature:
            self.signature = result["signature"]
            logger.info("BLEU signature: %s", self.signature)
        special = set(self.tokenizer.all_special_ids)
        lengths = [sum(token not in special for token in row) for row in predictions]
        return {"bleu": result["score"], "gen_len": float(np.mean(lengths))}

    def _rows(self, name: str, ids: np.ndarray | tuple) -> list[list[int]]:
        """Token ids, one list per sentence, without the padding that is not in any vocabulary."""
        ids = ids[0] if isinstance(ids, tuple) else ids  # (tokens, further outputs of the model)
        array = np.asarray(ids)
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"{name} is {'None' if ids is None else f'{array.dtype} {list(array.shape)}'}, wanted token ids"
                " [sentences, length]: evaluate with predict_with_generate=True, on a set that has labels"
            )
        return [row[row != IGNORED].tolist() for row in self._without_surplus(array)]

    def _without_surplus(self, ids: np.ndarray) -> np.ndarray:
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            return ids
        if self.sentences is None:
            raise ValueError("several processes: pass the same object as compute_metrics and in callbacks")
        if not self.sentences <= len(ids) < self.sentences + self.filler:
            raise ValueError(
                f"{len(ids)} translations of {self.sentences} items, wanted one sentence in each item of the"
                " evaluation set: several processes can't evaluate items that are whole batches"
            )
        return ids[: self.sentences]

    def _text(self, rows: list[list[int]]) -> list[str]:
        return self.tokenizer.batch_decode(rows, skip_special_tokens=True)


compute_metrics = TranslationMetrics  # the name of the Trainer's argument
