"""Two generated tasks that a tiny model learns in minutes: English to Pig Latin, and copying.

python -m hf_attention.toy runs/pig_latin  # writes train.en, train.pig, val.en, ...
"""

import argparse
import random
import re
from pathlib import Path

from .cli import run
from .text_files import write_lines


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


def copy_corpus(size: int, seed: int = 0, vocab_size: int = 11, length: int = 9) -> list[dict[str, list[int]]]:
    """The copy task: random ids in, the same ids out, as examples that a collator can pad.

    Symbols are 3 to `vocab_size` - 1, `length` of them and then the end token 2 on both sides. The start token 1 is in
    no example: shifting the labels puts it in front of the decoder's input, and decoding begins with it.
    """
    if vocab_size < 4 or size < 1 or length < 1:
        raise ValueError(
            f"size is {size}, length is {length}, vocab_size is {vocab_size}: wanted 1, 1 and 4 at the least "
            "(ids 0, 1 and 2 are padding, start and end)"
        )
    choose = random.Random(seed)
    rows = [[*choose.choices(range(3, vocab_size), k=length), 2] for _ in range(size)]
    return [{"input_ids": row, "labels": list(row)} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the English to Pig Latin corpus.")
    parser.add_argument("folder", help="where to write train.en, train.pig and so on")
    write_pig_latin(parser.parse_args().folder)


if __name__ == "__main__":
    run(main)
