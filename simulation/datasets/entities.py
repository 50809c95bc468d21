"""Tagged data sets for experiments: entities in medical abstracts, case reports and Wikipedia.

One word per line with its tag last, a blank line after each text. Sets in several languages have
one file for each.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from edge_client.formats.opened import DataError
from edge_client.formats.tags import OUTSIDE
from edge_client.tasks.task import Task
from edge_client.texts.examples import Example
from simulation.datasets.dataset import Parts
from simulation.datasets.known import chosen, refuse_languages

BC5CDR = Task("bc5cdr", ("Entity",), kind="tagging")
NCBI = Task("ncbi_disease", ("Disease",), kind="tagging")
E3C = Task("e3c_clinical", ("ety",), kind="tagging")
PANX = Task("panx", ("PER", "LOC", "ORG"), kind="tagging")
DOCUMENT = "-DOCSTART-"


def abstracts(
    folder: Path, languages: Sequence[str], name: str, task: Task, notes: tuple[str, ...]
) -> Parts:
    """A set of English abstracts; its development part is left out."""
    refuse_languages(name, languages)
    files = folder / "train.conll.gz", folder / "test.conll.gz"
    train, test = (list(tagged_texts(path, "en")) for path in files)
    return Parts(task, train, test, files, (*notes, "its dev part is left out"))


def by_language(
    folder: Path,
    languages: Sequence[str],
    name: str,
    task: Task,
    parts: tuple[str, str],
    notes: tuple[str, ...],
) -> Parts:
    """A set with files of each language.

    Args:
        folder: The set's.
        languages: Those wanted; none means all.
        name: The set's.
        task: Its entities.
        parts: Names of the training and the test file behind the language's.
        notes: How it differs from the set as published.
    """
    have = sorted(path.name.split(".")[0] for path in folder.glob(f"*.{parts[1]}"))
    names = chosen(name, languages, have)
    train, test = ({one: folder / f"{one}.{part}" for one in names} for part in parts)
    return Parts(
        task,
        [text for one, path in train.items() for text in tagged_texts(path, one)],
        [text for one, path in test.items() for text in tagged_texts(path, one)],
        (*train.values(), *test.values()),
        notes,
    )


READERS: dict[str, Callable[[Path, Sequence[str]], Parts]] = {
    "ner_bc5cdr": partial(
        abstracts,
        name="ner_bc5cdr",
        task=BC5CDR,
        notes=("chemicals and diseases are one type",),
    ),
    "ner_ncbi_disease": partial(abstracts, name="ner_ncbi_disease", task=NCBI, notes=()),
    "ner_e3c_clinical": partial(
        by_language,
        name="ner_e3c_clinical",
        task=E3C,
        parts=("train.iob.gz", "test.iob.gz"),
        notes=("layer 1, annotated by hand",),
    ),
    "ner_panx": partial(
        by_language,
        name="ner_panx",
        task=PANX,
        parts=("train.tsv.gz", "dev.tsv.gz"),
        notes=("judged by its dev part: the test parts at hand carry no tags",),
    ),
}


def tagged_texts(path: Path, language: str) -> Iterator[Example]:
    """The texts of a file, an inner tag that begins an entity told as its first.

    Raises:
        DataError: The file cannot be read, or a line is not a word and its tag.
    """
    words: list[str] = []
    tags: list[str] = []
    for line, columns in _columns(path):
        if not columns or columns[0] == DOCUMENT:
            if words:
                yield _text(words, tags, language)
            words, tags = [], []
        elif len(columns) < 2:
            raise DataError(f"{path}, line {line}: a word and its tag are expected")
        else:
            words.append(columns[0])
            tags.append(columns[-1])
    if words:
        yield _text(words, tags, language)


def _columns(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.split()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def begun(tags: Sequence[str]) -> Iterator[str]:
    """Tags as BIO has them: the first word of an entity is B, where the file calls it inner.

    Laws: types stay; tags that are so already stay as they are.
    """
    before = OUTSIDE
    for tag in tags:
        place, _, label = tag.partition("-")
        is_inner = place == "I" and before.partition("-")[2] == label
        before = tag if place != "I" or is_inner else f"B-{label}"
        yield before


def _text(words: Sequence[str], tags: Sequence[str], language: str) -> Example:
    return Example(" ".join(words), language=language, words=tuple(words), tags=tuple(begun(tags)))
