"""Unlabelled texts in nine languages, for silos that train a language model together.

A sentence of the news set has one number in eight languages, which decides its side in all of them:
no silo is scored on a translation of what another trains on. Training texts are cut to the
proportions of the federated healthcare paper's silos (its table 1), as far as there are texts:
English keeps all.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.simulation.datasets.dataset import Parts, licence_near
from smidgen.simulation.datasets.known import chosen

Side = Literal["train", "dev", "test"]
Numbered = tuple[str, str]  # a sentence's number, the same in all its languages; the sentence
NEWS, MEDICAL, ENGLISH = "text_wiki_news_parallel", "text_medical_tico19", "text_wikitext103"
LANGUAGES = ("ar", "de", "en", "es", "fr", "he", "it", "pt", "ru")
MEDICAL_LANGUAGES = ("ar", "en", "es", "fr", "pt", "ru")
# Texts that a silo trains on at most; 60 : 34,104 of what the paper's have, English all it has.
MOST = {"ar": 148, "de": 1013, "es": 884, "fr": 840, "he": 60, "it": 726, "pt": 704, "ru": 177}
# Of another name where others are asked: results are told apart by task and files.
TASKS: dict[Side, Task] = {
    "test": Task("silo_texts", kind="mlm"),
    "dev": Task("silo_texts_dev", kind="mlm"),
}
JOINED = re.compile(r" @([-,.])@ ")  # as WikiText writes 1 @,@ 000 and well @-@ known
NOTES = (
    f"tested on sentences of {NEWS} alone, whose numbers are the same in all languages but Hebrew, "
    "which has sentences of its own",
    f"trained on its other sentences, {MEDICAL} and {ENGLISH}; cut to table 1's proportions, "
    "but for English",
)


def side_of(number: int) -> Side:
    """On which side the sentences with a number are, in every language: a quarter are tests."""
    return "test" if number % 4 == 0 else "dev" if number % 8 == 1 else "train"


def silo_texts(folder: Path, languages: Sequence[str], tested: Side = "test") -> Parts:
    """Read what silos train on, and the texts they are judged by.

    Training texts are the same for either side.

    Args:
        folder: The news set's; the others lie beside it.
        languages: Those wanted; none means all nine.
        tested: `test`, or `dev`: other sentences, to choose settings by.
    """
    names = chosen("silo_texts", languages, LANGUAGES)
    train: list[Example] = []
    test: list[Example] = []
    files: list[Path] = []
    for language in names:
        sides: dict[Side, list[Numbered]] = {"train": [], "dev": [], "test": []}
        path = folder / f"{language}.txt.gz"
        files.append(path)
        for line, row in read_rows(path):
            sides[side_of(line - 1)].append((f"news {line}", row["text"]))
        if language in MEDICAL_LANGUAGES:
            files.append(folder.parent / MEDICAL / "parallel.csv.gz")
            sides["train"] += _medical(files[-1], language)
        if language == "en":
            files.append(folder.parent / ENGLISH / "wiki.valid.txt.gz")
            sides["train"] += _english(files[-1])
        kept = _first(sides["train"], MOST.get(language))
        train += [Example(text, language=language) for _, text in kept]
        test += [Example(text, language=language) for _, text in sides[tested]]
    folders = dict.fromkeys(path.parent for path in files)
    licence = "; ".join(f"{one.name}: {licence_near(one)}" for one in folders)
    return Parts(TASKS[tested], train, test, tuple(dict.fromkeys(files)), NOTES, licence)


READERS: dict[str, Callable[[Path, Sequence[str]], Parts]] = {
    "silo_texts": silo_texts,
    "silo_texts_dev": partial(silo_texts, tested="dev"),
}


def _first(texts: Sequence[Numbered], most: int | None) -> list[Numbered]:
    """Texts in the order of their numbers' hashes, so that languages take the same ones first."""
    return sorted(texts, key=lambda one: hashlib.sha256(one[0].encode()).digest())[:most]


def _medical(path: Path, language: str) -> Iterator[Numbered]:
    for _, row in read_rows(path):
        if text := (row.get(language) or "").strip():
            yield f"medical {row.get('id')}", text


def _english(path: Path) -> Iterator[Numbered]:
    """Sentences of WikiText; headings, short ones and those with a word left out are not."""
    for line, row in read_rows(path):
        if row["text"].startswith(" ="):
            continue
        for place, sentence in enumerate(JOINED.sub(r"\1", row["text"]).split(" . ")):
            text = sentence.strip(" .")
            if len(text.split()) >= 5 and "<unk>" not in text:
                yield f"english {line} {place}", f"{text} ."
