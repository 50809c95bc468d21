"""Data sets for experiments: labelled ones, known or yours or the hub's; unlabelled languages.

Each labelled one comes with its task, origin, licence, a checksum of what was read, and how it
differs from the published set. No training text is also a test text.

    data = read_dataset("masakhanews", Path("data"), languages=("eng", "hau"))

The unlabelled texts are in nine languages, for silos that train a language model together. A
sentence of the news set has one number in eight languages, which decides its side in all of them:
no silo is scored on a translation of what another trains on. Training texts are cut to the
proportions of the federated healthcare paper's silos (its table 1), as far as there are texts:
English keeps all.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.task import Task, read_task
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import ANY, find_part
from smidgen.edge_client.texts.prompts.patterns import TaskError
from smidgen.simulation.datasets import known
from smidgen.simulation.datasets.dataset import (
    DataSet,
    Parts,
    build,
    checksum,
    licence_near,
    likeness,
)
from smidgen.simulation.datasets.hub import read_hub
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


SILO_READERS: dict[str, Callable[[Path, Sequence[str]], Parts]] = {
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


READERS = known.READERS | SILO_READERS
FOLDERS = dict.fromkeys(SILO_READERS, NEWS) | {  # of sets that are not called as theirs
    "ag_news_instructions": "ag_news",
    "tico19_instructions": MEDICAL,
}
NAMES = tuple(sorted(READERS))
VARIABLE = "SMIDGEN_DATA"
TASK = "task.toml"
WRITES = "`smidgen simulate data NAME --out FOLDER` writes a folder as it should be"


def read_dataset(name: str, where: Path | None = None, languages: Sequence[str] = ()) -> DataSet:
    """Read a data set by its name, as an experiment says it.

    Args:
        name: One of `NAMES`; `folder:PATH`, a set of one's own; or `hub:OWNER/NAME[@REVISION]`.
        where: Folder that holds one of `NAMES`; None takes `$SMIDGEN_DATA`.
        languages: Languages wanted of a set in several; none means all it has.

    Raises:
        DataError: No such set, folder, file or language; says what to do.
    """
    if name.startswith("folder:"):
        return read_own_folder(Path(name.removeprefix("folder:")), languages)
    if name.startswith("hub:"):
        return read_hub(name.removeprefix("hub:"), languages)
    if name not in READERS:
        names = ", ".join(NAMES)
        raise DataError(f"no data set {name!r}; one of {names}, folder:PATH or hub:OWNER/NAME")
    folder = _folder(where) / FOLDERS.get(name, name)
    if not folder.is_dir():
        raise DataError(f"no folder {folder.name} in {folder.parent}; put the data set there")
    parts = READERS[name](folder, languages)
    files = {path.relative_to(folder.parent).as_posix(): path for path in parts.files}
    licence = parts.licence or licence_near(folder)
    folders = dict.fromkeys(name.split("/")[0] for name in files)
    return build(
        name,
        parts,
        f"folder{'s' if len(folders) > 1 else ''} {', '.join(folders)}",
        licence,
        checksum(files),
    )


def read_own_folder(folder: Path, languages: Sequence[str] = ()) -> DataSet:
    """Read a set of one's own: a folder with `train.*`, `test.*` and `task.toml`.

    What `smidgen simulate data --out` writes reads back equal. The checksum is over the three
    files and not over the folder's name.

    Args:
        folder: Where they are; the parts as `read_local` takes them.
        languages: Languages wanted; none means all texts. Labels stay those of the task.

    Raises:
        DataError: A file is missing or cannot be read, or no text is in such a language.
    """
    demand(folder.is_dir(), f"no folder {folder}; {WRITES}", DataError)
    task_file = folder / TASK
    task = _own_task(task_file) if task_file.is_file() else None
    own = (task or ANY).files
    train, test = (find_part(folder, part, own) for part in ("train", "test"))
    if train is None or test is None or task is None:
        there = {"train.*": train, "test.*": test, TASK: task}
        missing = ", ".join(name for name, found in there.items() if not found)
        raise DataError(f"folder:{folder} has no {missing}; {WRITES}")
    texts, tests = (read_file(path, task, labelled=True) for path in (train, test))
    if languages:
        have = sorted({example.language for example in (*texts, *tests)} - {""})
        wanted = chosen(f"folder:{folder}", languages, have)
        texts, tests = ([e for e in part if e.language in wanted] for part in (texts, tests))
    files = {path.name: path for path in (train, test, task_file)}
    origin = f"folder {folder.resolve().name}"
    found = Parts(task, texts, tests, tuple(files.values()))
    return build(task.name, found, origin, licence_near(folder), checksum(files))


def read_local(train: Path, test: Path | None, task: Task) -> DataSet:
    """Read labelled files of one's own: CSV, TSV, JSONL or Parquet, gzipped or not.

    Args:
        train: Columns `text` (or `text_a`, `text_b`), `label`, optional `language`.
        test: The same; None keeps about every fifth text of `train` back, chosen by its hash, so
            that a text stays on its side whatever is added to the file.
        task: What the labels must be of.

    Raises:
        DataError: A file cannot be read, or one of the parts is empty.
    """
    files = {path.name: path for path in (train, test) if path}
    if test and train.name == test.name:
        files = {"train": train, "test": test}
    sha256 = checksum(files)
    examples = read_file(train, task, labelled=True)
    if test:
        parts = Parts(task, examples, read_file(test, task, labelled=True), ())
    else:
        kept_back = [example for example in examples if _is_kept_back(example)]
        rest = [example for example in examples if not _is_kept_back(example)]
        parts = Parts(task, rest, kept_back, (), ("about every fifth text kept back to test on",))
    origin = f"files {', '.join(files)}" if test else f"file {train.name}"
    return build(task.name, parts, origin, licence_near(train.parent), sha256)


def _own_task(file: Path) -> Task:
    try:
        return read_task(file)
    except TaskError as error:
        raise DataError(str(error)) from error


def _is_kept_back(example: Example) -> bool:
    return hashlib.sha256(likeness(example).encode()).digest()[0] % 5 == 0


def _folder(where: Path | None) -> Path:
    if where is not None:
        return where
    if not os.environ.get(VARIABLE):
        raise DataError(
            f"no folder of data sets; give one, set {VARIABLE}, or ask the hub: hub:OWNER/NAME"
        )
    return Path(os.environ[VARIABLE])
