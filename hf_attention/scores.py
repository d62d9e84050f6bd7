"""One translation, every BLEU of the literature: they differ by more than most models do.

For the same output of one base model on newstest2014, tensor2tensor#317 counts 27.5 by sacrebleu and 29.0 by the
paper's script. So each figure here has the name of its kind, and the signature to quote beside it.
"""

import re
from dataclasses import dataclass

import sacrebleu
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from .metrics import load_bleu


@dataclass(frozen=True)
class Score:
    """`value` from 0 to 100; `detail` says what it is made of, where that is more than the value."""

    name: str
    value: float
    signature: str
    detail: str = ""


def scores(
    hypotheses: list[str],
    references: list[list[str]],
    tokenize: str = "13a",
    lowercase: bool = False,
    language: str = "de",
) -> list[Score]:
    """All scores of `hypotheses`, each with its list of references (as many for every sentence).

    - `BLEU` is sacrebleu's, with its `tokenize` and `lowercase`: what to quote unless you compare with older figures.
    - `BLEU, lower-cased tokens` takes text as tokens that are parted by spaces: the multi-bleu figures of Multi30k,
      whose published text is tokenised already. Of other text it is no figure to quote.
    - `BLEU, compounds split` is that of the paper's Table 2: Moses tokens of `language` with `rich-text` counted as
      `rich ##AT##-##AT## text`. It is higher, as a compound can then be half right.
    - `chrF` is sacrebleu's chrF2.

    ValueError: as the `evaluate` metric in `bleu.py`.
    """
    bleu = load_bleu()
    tokens = [_split_compounds(hypotheses, language), [_split_compounds(row, language) for row in references]]
    kinds = {
        "BLEU": (hypotheses, references, {"tokenize": tokenize, "lowercase": lowercase}),
        "BLEU, lower-cased tokens": (hypotheses, references, {"tokenize": "none", "lowercase": True}),
        "BLEU, compounds split": (*tokens, {"tokenize": "none"}),
    }
    found = []
    for name, (predictions, rows, options) in kinds.items():
        result = bleu.compute(predictions=predictions, references=rows, **options)
        precisions = "/".join(f"{precision:.1f}" for precision in result["precisions"])
        lengths = f"brevity penalty {result['bp']:.3f}, {result['sys_len']} tokens for {result['ref_len']}"
        signature = result["signature"]
        if predictions is not hypotheses:
            signature = signature.replace("tok:none", f"tok:moses-{language}+compounds")
        found.append(Score(name, result["score"], signature, f"{precisions}, {lengths}"))
    letters = sacrebleu.CHRF(lowercase=lowercase)
    value = letters.corpus_score(hypotheses, [list(stream) for stream in zip(*references, strict=True)]).score
    return [*found, Score("chrF", value, str(letters.get_signature()))]


def _split_compounds(lines: list[str], language: str) -> list[str]:
    """As tensor2tensor's script for newstest2014: plain punctuation, Moses tokens, then hyphens between them."""
    punctuation, moses = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    tokenised = (moses.tokenize(punctuation.replace_unicode_punct(line), return_str=True) for line in lines)
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line) for line in tokenised]
