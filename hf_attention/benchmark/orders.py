"""What one worker is asked to do, once: a process reads an order, does it, and answers with one line of JSON."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, load_from_disk
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from ..corpus import load_pairs
from ..data import TokenBatches, encode_pairs
from ..model import VanillaTransformerConfig
from ..tokenization import save_tokenizer, train_tokenizer


SHAPES = {
    "tiny": {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4},
    "base": {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
}
MAX_TOKENS = 256  # pairs with a longer side are dropped, as configs/base.yaml does
SMOOTHING = 0.1


@dataclass(frozen=True)
class Order:
    """Which contender, and where the files are that the parent has made for all of them."""

    contender: str
    folder: str

    def to_json(self) -> str:
        return json.dumps({"kind": type(self).__name__, **dataclasses.asdict(self)})


@dataclass(frozen=True)
class LimitOrder(Order):
    """Multiply matrices as fast as the machine can."""

    bf16: bool = False


@dataclass(frozen=True)
class TrainingOrder(Order):
    """Train `warmup` updates that are not measured, and then `updates` that are; a seed is a choice of batches.

    With `profile`, say what the time goes to instead.
    """

    recipe: str
    shape: str
    tokens_per_batch: int
    warmup: int
    updates: int
    seed: int
    bf16: bool = False
    profile: bool = False

    def tokenizer(self) -> PreTrainedTokenizerBase:
        return AutoTokenizer.from_pretrained(Path(self.folder, "tokenizer"))

    def pairs(self) -> Dataset:
        return load_from_disk(Path(self.folder, "pairs"))

    def batches(self) -> TokenBatches:
        return TokenBatches(self.pairs(), self.tokens_per_batch, self.seed)

    def config(self) -> VanillaTransformerConfig:
        return VanillaTransformerConfig(vocab_size=len(self.tokenizer()), dropout=0.1, **SHAPES[self.shape])


@dataclass(frozen=True)
class TranslationOrder(Order):
    """Translate the sentences in `sentences.json`, batch by batch; then as many as `alone` says one by one.

    With `profile`, two batches of them are translated, and `alone` one by one, to say what the time goes to.
    """

    model: str
    beams: int
    batch_size: int
    alone: int
    profile: bool = False

    def sentences(self) -> list[list[int]]:
        """Source ids, the longest first."""
        return json.loads(Path(self.folder, "sentences.json").read_text(encoding="utf-8"))


ORDERS = {order.__name__: order for order in (LimitOrder, TrainingOrder, TranslationOrder)}


def from_json(text: str) -> Order:
    given = json.loads(text)
    return ORDERS[given.pop("kind")](**given)


def write_pairs(folder: Path, source: Path, target: Path, vocab_size: int) -> str:
    """The files of a `TrainingOrder`, from aligned text files, and a line about them."""
    pairs = load_pairs(source, target)
    texts = (text for batch in pairs.iter(batch_size=1000) for text in [*batch["source"], *batch["target"]])
    tokenizer = train_tokenizer(texts, vocab_size, show_progress=False)
    save_tokenizer(tokenizer, folder / "tokenizer")
    encoded = encode_pairs(pairs, tokenizer, MAX_TOKENS)
    encoded.save_to_disk(folder / "pairs")
    return f"{len(encoded):,} pairs, vocabulary of {len(tokenizer):,} pieces"


def write_sentences(folder: Path, model: str, lines: list[str]) -> str:
    """The file of a `TranslationOrder`, and a line about it. Blank lines are left out.

    Raises:
        ValueError: `model` does not load, is none of ours, or no line is left.
    """
    try:
        config, tokenizer = AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ValueError(f"{model}: no model with its tokenizer: {error}") from error
    if not isinstance(config, VanillaTransformerConfig):
        raise ValueError(f"{model} is a {config.model_type}, wanted a model of ours: the others get its weights")
    written = [line for line in lines if line.strip()]
    if not written:
        raise ValueError("no sentences to translate: every line is blank, or there is none")
    ids = sorted(tokenizer(written)["input_ids"], key=len, reverse=True)
    Path(folder, "sentences.json").write_text(json.dumps(ids), encoding="utf-8")
    return f"{len(ids):,} sentences of {sum(map(len, ids)) / len(ids):.1f} tokens"
