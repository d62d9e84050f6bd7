"""BLEU as an `evaluate` metric: `evaluate.load("<path of this file>")`, or `hf_attention.metrics.load_bleu()`.

`evaluate` copies this one file into its cache and imports the copy, so it imports nothing of the package.
"""

import datasets
import evaluate
import sacrebleu


DESCRIPTION = "Corpus BLEU (Papineni et al., 2002) as sacrebleu's command line computes it (Post, 2018)."
INPUTS = """
Args:
    predictions (`list[str]`): one translation per sentence, detokenised.
    references (`list[str]` or `list[list[str]]`): for each sentence its reference, or its references (as many for
        every sentence).
    tokenize (`str`, "13a"): sacrebleu's tokeniser; "none" for text that is tokenised already.
    lowercase (`bool`, False): compare lower-cased text.

Returns:
    `score` (0 to 100), `counts`, `totals` and `precisions` (of 1- to 4-grams), `bp` (brevity penalty), `sys_len` and
    `ref_len` (tokens), `signature` (what to quote beside the score).

Raises:
    ValueError: no predictions, other numbers of references than predictions, a sentence with more or fewer references
        than the first, an unknown tokeniser.
"""
CITATION = """
@inproceedings{post-2018-call,
    title = "A Call for Clarity in Reporting {BLEU} Scores",
    author = "Post, Matt",
    booktitle = "Proceedings of the Third Conference on Machine Translation: Research Papers",
    year = "2018",
    url = "https://aclanthology.org/W18-6319"
}
"""


class Bleu(evaluate.Metric):
    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            inputs_description=INPUTS,
            citation=CITATION,
            features=[
                datasets.Features(predictions=text, references=datasets.Sequence(text)),
                datasets.Features(predictions=text, references=text),
            ],
            homepage="https://github.com/mjpost/sacrebleu",
        )

    def compute(self, *, predictions=None, references=None, **options) -> dict | None:
        """Scores `predictions` against `references`, after those already given to `add` and `add_batch`."""
        if predictions is not None or references is not None:
            check(predictions, references)  # before evaluate, which would turn whatever it gets into strings
        return super().compute(predictions=predictions, references=references, **options)

    def _compute(
        self,
        predictions: list[str],
        references: list[str] | list[list[str]],
        tokenize: str = "13a",
        lowercase: bool = False,
    ) -> dict:
        check(predictions, references)
        if tokenize not in sacrebleu.BLEU.TOKENIZERS:
            raise ValueError(f"tokenize is {tokenize!r}, wanted one of {', '.join(sacrebleu.BLEU.TOKENIZERS)}")
        force = tokenize == "none"  # whoever says that the text is tokenised needs no warning that it looks so
        try:
            bleu = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=force)
        except (RuntimeError, ImportError, OSError) as error:  # some tokenisers want a library or a download
            raise ValueError(f"tokenize is {tokenize!r}, which needs more than is here: {error}") from error
        result = bleu.corpus_score(predictions, streams(references))
        fields = ("score", "counts", "totals", "precisions", "bp", "sys_len", "ref_len")
        return {field: getattr(result, field) for field in fields} | {"signature": str(bleu.get_signature())}


def check(predictions: list[str], references: list[str] | list[list[str]]) -> None:
    """Raises ValueError unless both are lists, as long as each other, of text and of equally many references."""
    for name, rows in (("predictions", predictions), ("references", references)):
        if rows is None or isinstance(rows, str):
            raise ValueError(f"{name} is {rows!r}, wanted a list with an entry for every sentence")
    if len(predictions) == 0:
        raise ValueError("predictions is empty, wanted at least one sentence: BLEU of nothing is not a number")
    if len(predictions) != len(references):
        raise ValueError(f"{len(predictions)} predictions but {len(references)} references, wanted as many of each")
    for number, (prediction, row) in enumerate(zip(predictions, references, strict=True), 1):
        if not isinstance(prediction, str):
            raise ValueError(f"prediction {number} is {prediction!r}, wanted a string")
        if isinstance(row, str) != isinstance(references[0], str):
            raise ValueError(f"reference {number} is {row!r} and reference 1 is not: wanted all strings or all lists")
        if isinstance(row, str):
            continue
        if not row or not all(isinstance(reference, str) for reference in row):
            raise ValueError(f"reference {number} is {row!r}, wanted a string or a list of strings")
        if len(row) != len(references[0]):
            raise ValueError(
                f"sentence {number} has {len(row)} references and sentence 1 has {len(references[0])}, wanted as many"
            )


def streams(references: list[str] | list[list[str]]) -> list[list[str]]:
    """The references as sacrebleu wants them: one list per translator, each with a line for every sentence."""
    if isinstance(references[0], str):
        return [references]
    return [list(stream) for stream in zip(*references, strict=True)]
