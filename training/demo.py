"""`make demo`: writes an English → Pig Latin corpus, trains a tiny model on it, scores it, translates and draws it.

python training/demo.py [field=value ...]
"""

import shutil
import subprocess
import sys
from pathlib import Path

from transformers import pipeline

from hf_attention import trace  # and Transformers has the model and the task
from hf_attention.cli import run
from hf_attention.toy import pig_latin, write_pig_latin


HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
SENTENCES = ["she pet the dog", "a thirsty owl watched the quiet village", "nobody found our golden crown yesterday"]


def main() -> None:
    data, model = RUNS / "pig_latin", RUNS / "demo"
    print(f"1. A corpus of generated sentences: {data}")
    write_pig_latin(data)
    print(f"2. Vocabulary, training and BLEU on sentences that were held out: {model}", flush=True)
    if model.exists():  # the last demo's
        previous = model.with_name("demo.previous")
        shutil.rmtree(previous, ignore_errors=True)
        model.rename(previous)
    arguments = [HERE.parent / "configs" / "tiny.yaml", f"data_dir={data}", f"output_dir={model}", *sys.argv[1:]]
    trained = subprocess.run([sys.executable, HERE / "train.py", *arguments], check=False)
    if trained.returncode:
        sys.exit(trained.returncode)
    print('3. pipeline("translation")')
    translator = pipeline("translation", model=str(model))
    for sentence, result in zip(SENTENCES, translator(SENTENCES), strict=True):
        right = "right" if result["translation_text"] == pig_latin(sentence) else f"wanted: {pig_latin(sentence)}"
        print(f"   {sentence} → {result['translation_text']}   ({right})")
    page = model / "trace.html"
    trace(translator.model, translator.tokenizer, SENTENCES[0], pig_latin(SENTENCES[0])).to_html(page)
    print(f"4. Every number of the first sentence's run, drawn: open {page} in a browser")


if __name__ == "__main__":
    run(main)
