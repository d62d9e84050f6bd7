"""Generated tasks that a tiny model learns: English to Pig Latin in minutes, copying and reversing in seconds.

python -m hf_attention.toy runs/pig_latin  # writes train.en, train.pig, val.en, ...
python -m hf_attention.toy runs/copy_corpus --task copy  # train.txt, val.txt, test.txt and their tokenizer
"""

import argparse
import random
import re
from itertools import product
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from .cli import run
from .loss import LabelSmoothedCrossEntropy
from .model import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from .text_files import write_lines
from .tokenization import SPECIAL_TOKENS, save_tokenizer, word_tokenizer


_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_ONSET = re.compile(r"(?:qu|[^aeiou])(?:qu|[^aeiouy])*", re.IGNORECASE)  # what stands before the first vowel

_LEXICON = {
    "pronoun": "she he they we everyone nobody",
    "determiner": "the a this that every some his her their our",
    "adjective": """
        old young happy sad quick slow bright dark quiet loud angry gentle clever foolish brave tiny huge round flat
        green purple golden silver frozen warm hungry thirsty sleepy lazy busy proud humble ancient empty open honest
        elegant ugly orange early odd icy amber useful unhappy eager upper inner outer strange smooth sharp heavy light
        sweet bitter yellow white black brown crooked polite""",
    "noun": """
        dog cat horse bird fish mouse rabbit fox wolf bear lion tiger goat sheep duck goose owl eagle ant elephant
        otter child girl boy man woman farmer baker teacher doctor sailor pilot painter singer king queen prince knight
        wizard uncle aunt artist actor engineer officer island orchard umbrella apple egg onion orange window door
        table chair garden river mountain forest valley bridge castle tower village city market kitchen letter book
        picture bottle basket blanket candle hammer ladder mirror needle pencil ribbon saddle ticket violin wagon yard
        zebra lantern school ship train plane cloud star stone tree flower grass street church clock brush spoon knife
        shirt skirt glove crown drum flute thief squirrel spider snake frog""",
    "verb": """
        pet saw heard followed chased found lost painted watched carried called helped liked loved feared visited
        passed greeted thanked answered asked ignored admired invited escaped avoided entered examined offered ordered
        opened pulled pushed kicked lifted dropped touched washed cleaned fixed broke bought sold hid kept remembered
        forgot showed threw caught brought drew stole described surprised""",
    "adverb": """
        slowly quickly quietly loudly gladly sadly bravely gently often always never today yesterday again outside
        inside early alone together upstairs""",
    "preposition": "near behind under above beside inside around across beyond without",
}
_WORDS = {kind: words.split() for kind, words in _LEXICON.items()}


def pig_latin(sentence: str) -> str:
    """ "she pet the dog" -> "eshay etpay ethay ogday".

    The consonants in front of a word's first vowel move to its end, and "ay" follows: "she" is "eshay". Vowels are a,
    e, i, o, u and, inside a word, y; "qu" is one consonant. A word that begins with a, e, i, o or u stays as it is,
    and "way" follows: "apple" is "appleway". A capital stays in front ("She" is "Eshay") and capitals stay capitals
    ("USA" is "USAWAY"). What is not a word stays where it is.
    """
    return _WORD.sub(lambda word: _pig_latin_word(word[0]), sentence)


def _pig_latin_word(word: str) -> str:
    onset = _ONSET.match(word)
    translated = word[onset.end() :] + onset[0] + "ay" if onset else word + "way"
    if word.isupper() and len(word) > 1:
        return translated.upper()
    return translated.capitalize() if word[0].isupper() and word[1:].islower() else translated


def pig_latin_corpus(size: int, seed: int = 0) -> list[tuple[str, str]]:
    """`size` different English sentences with their translations, the same for the same seed.

    No sentence comes twice, so any split of the list keeps its parts apart. Lower case, no punctuation; some 275 words
    in billions of combinations.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1_000_000:
        raise ValueError(f"size is {size!r}, wanted an integer from 1 to 1,000,000")
    choose = random.Random(seed)
    sentences: dict[str, None] = {}  # a set that keeps its order
    while len(sentences) < size:
        sentences[_sentence(choose)] = None
    return [(sentence, pig_latin(sentence)) for sentence in sentences]


def _sentence(choose: random.Random) -> str:
    subject = choose.choice(_WORDS["pronoun"]) if choose.random() < 0.3 else _noun_phrase(choose)
    words = [subject, choose.choice(_WORDS["verb"]), _noun_phrase(choose)]
    if choose.random() < 0.4:
        words += [choose.choice(_WORDS["preposition"]), _noun_phrase(choose)]
    if choose.random() < 0.3:
        words.append(choose.choice(_WORDS["adverb"]))
    return " ".join(words)


def _noun_phrase(choose: random.Random) -> str:
    adjectives = choose.sample(_WORDS["adjective"], choose.choice((0, 1, 1, 2)))
    return " ".join([choose.choice(_WORDS["determiner"]), *adjectives, choose.choice(_WORDS["noun"])])


def write_pig_latin(
    folder: str | Path, train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0
) -> None:
    """Writes aligned files `train.en` and `train.pig`, and so for `val` and `test`; no sentence is in two of them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = iter(pig_latin_corpus(train + validation + test, seed))
    for name, size in (("train", train), ("val", validation), ("test", test)):
        part = [next(pairs) for _ in range(size)]
        write_lines(folder / f"{name}.en", [english for english, _ in part])
        write_lines(folder / f"{name}.pig", [latin for _, latin in part])


def copy_corpus(
    size: int, seed: int = 0, vocab_size: int = 11, length: int = 9, shortest: int | None = None
) -> list[dict[str, list[int]]]:
    """The copy task: random ids in, the same ids out, as examples that a collator can pad.

    Symbols are 3 to `vocab_size` - 1, `length` of them or as few as `shortest`, and then the end token 2, on both
    sides. The start token 1 is in no example: shifting the labels puts it in front of the decoder's input, and
    decoding begins with it.
    """
    shortest = length if shortest is None else shortest
    if vocab_size < 4 or size < 1 or not 1 <= shortest <= length:
        raise ValueError(
            f"size is {size}, length is {length}, shortest is {shortest}, vocab_size is {vocab_size}: wanted a "
            "positive size, 1 <= shortest <= length and vocab_size >= 4 (ids 0, 1 and 2 are padding, start and end)"
        )
    choose = random.Random(seed)
    lengths = choose.choices(range(shortest, length + 1), k=size) if shortest < length else [length] * size
    rows = [[*choose.choices(range(3, vocab_size), k=each), 2] for each in lengths]
    return [{"input_ids": row, "labels": list(row)} for row in rows]


def write_copying(
    folder: str | Path, train: int = 10_000, validation: int = 200, test: int = 200, seed: int = 0
) -> None:
    """Writes `train.txt`, `val.txt` and `test.txt`, of which each is source and target, and their `tokenizer`.

    A line such as "3 7 10" is 1 to 9 symbols, each the text of its own id, 3 to 10: with padding, start and end a
    vocabulary of 11. No line of `val` or `test` is in another file; training sees the short ones often.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held_out = validation + test
    rows = copy_corpus(train + 4 * held_out, seed, shortest=1)  # more than enough, as a half of them is new
    lines = [" ".join(map(str, row["labels"][:-1])) for row in rows]
    seen = set(lines[:train])
    unseen = [line for line in dict.fromkeys(lines[train:]) if line not in seen][:held_out]
    write_lines(folder / "train.txt", lines[:train])
    write_lines(folder / "val.txt", unseen[:validation])
    write_lines(folder / "test.txt", unseen[validation:])
    symbols = range(len(SPECIAL_TOKENS), 11)
    save_tokenizer(word_tokenizer([str(symbol) for symbol in symbols]), folder / "tokenizer")


def reversing_model(
    updates: int = 200, seed: int = 0
) -> tuple[VanillaTransformerForConditionalGeneration, PreTrainedTokenizerFast]:
    """A model small enough to follow by hand, trained here and now to reverse "a b" into "b a".

    Two layers, d_model 8, two heads, five tokens: `<pad> <s> </s> a b`. All six sentences of one and two words are its
    corpus, and one batch. It is the same for the same seed, and leaves the global random state as it was.
    """
    tokenizer = word_tokenizer(["a", "b"])
    sentences = [list(words) for length in (1, 2) for words in product("ab", repeat=length)]
    texts = [" ".join(words) for words in sentences]
    batch = tokenizer(texts, text_target=[" ".join(reversed(words)) for words in sentences], padding=True)
    batch = {name: torch.tensor(rows) for name, rows in batch.items()}  # [6, 3] each
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VanillaTransformerForConditionalGeneration(
            VanillaTransformerConfig(vocab_size=len(tokenizer), num_layers=2, d_model=8, d_ff=16, num_heads=2)
        ).eval()  # six sentences are learnt by heart: no dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, betas=(0.9, 0.98), eps=1e-9)
    loss = LabelSmoothedCrossEntropy(0.1)
    with torch.enable_grad():
        for _ in range(updates):
            loss(model(**batch), batch["labels"]).backward()
            optimizer.step()
            optimizer.zero_grad()
    options = {"max_length": 8, "num_beams": 2, "length_penalty": 0.6, "search": "paper"}
    model.generation_config.update(**options, allow_custom_entries=True)  # `search` is one
    return model, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where to write the files")
    parser.add_argument("--task", choices=["pig_latin", "copy"], default="pig_latin")
    arguments = parser.parse_args()
    write = {"pig_latin": write_pig_latin, "copy": write_copying}[arguments.task]
    write(arguments.folder)


if __name__ == "__main__":
    run(main)
