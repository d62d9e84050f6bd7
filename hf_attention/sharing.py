"""The model card: what a checkpoint was trained on, how, how well it translates, and how to use it."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from .text_files import replacing


if TYPE_CHECKING:
    from transformers import Trainer

TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

The Transformer of [Attention Is All You Need](https://arxiv.org/abs/1706.03762), trained from scratch with
`hf_attention` to translate {{ languages }}.

## Use

```python
from transformers import pipeline

translator = pipeline("translation", model={{ model_id }}, trust_remote_code=True)
print(translator({{ example }})[0]["translation_text"])
```

`trust_remote_code=True` lets the code in this repository run. Where the package `hf_attention` is installed,
`import hf_attention` makes it unnecessary.

## Data

{{ data }}

## Results
{% if results %}
| data | BLEU |
| --- | --- |
{%- for name, bleu in results %}
| {{ name }} | {{ bleu }} |
{%- endfor %}

sacrebleu: `{{ signature }}`
{% else %}
Not evaluated.
{% endif %}
## Recipe

```yaml
{{ recipe }}
```
"""


def write_model_card(
    folder: str | os.PathLike,
    *,
    title: str,
    languages: Sequence[str],
    data: str,
    recipe: Mapping[str, Any],
    results: Mapping[str, float],
    signature: str | None = None,
    model_id: str | None = None,
    example: str = "A dog runs through the park.",
    dataset_ids: Sequence[str] = (),
    license: str | None = None,
) -> Path:
    """Writes `README.md`, the card that the Hub shows, into a folder and returns its path.

    Args:
        folder: where the model is saved; made if it is missing.
        title: heading of the card, and the model's name in its metadata.
        languages: source and target, as ISO 639 codes (`["en", "de"]`).
        data: what the model was trained on: name, size, preparation. Markdown.
        recipe: the settings of the run, by the names of their fields; printed as YAML. Tokens of the Hub are left out.
        results: BLEU, 0 to 100, by the name of the data it was measured on. Empty if it was not measured.
        signature: sacrebleu's signature of these figures; without it they compare to nothing, so it is asked for.
        model_id: `user/name` on the Hub, for the snippet; the folder if not given.
        example: a sentence of the source language, for the snippet.
        dataset_ids: datasets on the Hub, for the metadata.
        license: licence of the weights, by the Hub's identifier, if one was chosen.

    Raises:
        ValueError: results without a signature, or a result that is no BLEU.
    """
    if results and not signature:
        raise ValueError(f"signature={signature!r}: want sacrebleu's signature of the results {dict(results)}.")
    results = {name: round(bleu, 6) for name, bleu in results.items()}  # sacrebleu's best is 100.00000000000004
    for name, bleu in results.items():
        if not 0 <= bleu <= 100 or math.isnan(bleu):
            raise ValueError(f"results[{name!r}]={bleu!r}: want a BLEU from 0 to 100.")
    metadata = ModelCardData(
        language=list(dict.fromkeys(languages)),
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla_transformer", "attention-is-all-you-need"],
        datasets=list(dataset_ids) or None,
        metrics=["sacrebleu"] if results else None,
        model_name=title,
        eval_results=[
            EvalResult("translation", dataset_type=name, dataset_name=name, metric_type="sacrebleu", metric_value=bleu)
            for name, bleu in results.items()
        ]
        or None,
    )
    card = ModelCard.from_template(
        metadata,
        template_str=TEMPLATE,
        title=title,
        languages=" → ".join(languages),
        model_id=json.dumps(model_id or os.fspath(folder), ensure_ascii=False),
        example=json.dumps(example, ensure_ascii=False),
        data=data,
        results=[(name, f"{bleu:.2f}") for name, bleu in results.items()],
        signature=signature,
        recipe=_yaml(recipe),
    )
    path = Path(folder) / "README.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(str(card))
    return path


def prepare_sharing(trainer: "Trainer", **card: Any) -> None:
    """Puts into this Trainer's `output_dir` what its pushes to the Hub would lack. Call it again to change the card.

    The model's code: the pushes while training take weights and config out of a checkpoint, and leave the code there.

    The card of `write_model_card(output_dir, **card)`: `push_to_hub`, and `save_model` where `push_to_hub: true`,
    draft a card of their own over README.md every time, by the public method that is replaced here. `model_id` is
    the Trainer's repository unless given.
    """

    def create_model_card(*_: Any, **__: Any) -> None:
        if trainer.is_world_process_zero():
            model_id = getattr(trainer, "hub_model_id", None)
            write_model_card(trainer.args.output_dir, **{"model_id": model_id, **card})

    trainer.create_model_card = create_model_card
    create_model_card()
    if trainer.is_world_process_zero():
        trainer.model.config.save_pretrained(trainer.args.output_dir)


def _yaml(settings: Mapping[str, Any]) -> str:
    plain = (str, int, float, bool, list, type(None))
    shown = {
        name: value if isinstance(value, plain) else str(value)
        for name, value in settings.items()
        if not name.endswith("_token")  # hub_token: a secret
    }
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).rstrip()


__all__ = ["prepare_sharing", "write_model_card"]
