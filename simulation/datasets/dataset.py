"""A data set: examples from a reader, assembled, checked and hashed.

Also the tasks of sets with two fields per text, such as headline and body. The first pattern of
each is AUG-FedPrompt's own (its table 1), in lower case as all of ours are; the others are those
for one text, with both fields in its place.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from smidgen.edge_client.files import file_sha256
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.ready_tasks import AG_NEWS, MNLI, YAHOO
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example

XNLI_LANGUAGES = (
    *("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh"),
)
UNKNOWN = "unknown: ask whoever gave it to you"


def narrowed(task: Task, labels: Iterable[str | None]) -> Task:
    """A task restricted to some of its labels, in the same order.

    Raises:
        TaskError: Fewer than two of them.
    """
    wanted = set(labels)
    kept = tuple(label for label in task.labels if label in wanted)
    return replace(task, labels=kept, verbalizer={label: task.verbalizer[label] for label in kept})


@dataclass(frozen=True)
class Parts:
    """What a reader found.

    Attributes:
        task: The question.
        train: To train on; may still hold texts of `test`.
        test: To be judged by.
        files: Every file that was read.
        notes: How this differs from the set as published.
        licence: One line, of a set that lies in several folders; empty: as its own folder states.
    """

    task: Task
    train: Sequence[Example]
    test: Sequence[Example]
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    licence: str = ""


@dataclass(frozen=True)
class DataSet:
    """A labelled set in two parts.

    Attributes:
        name: The name it is asked for by, `ag_news`.
        task: Labels, patterns, label words.
        train: To train on, label (or tags) and language set; no text of `test` is in it.
        test: To be judged by.
        origin: `folder ag_news`, file names, or the hub's name with its revision.
        licence: One line, as the folder or the hub's card states it.
        sha256: Over names and contents of the files read, in order of names; hex.
        notes: How it differs from the set as published.
    """

    name: str
    task: Task
    train: tuple[Example, ...]
    test: tuple[Example, ...]
    origin: str
    licence: str
    sha256: str
    notes: tuple[str, ...]


def build(name: str, parts: Parts, origin: str, licence: str, sha256: str) -> DataSet:
    """Put a set together; training texts that are also test texts are left out and counted.

    Raises:
        DataError: A part is empty, or a label is not the task's.
    """
    train, left_out = disjoint(parts.train, parts.test)
    for part, examples in (("training", train), ("test", parts.test)):
        if not examples:
            raise DataError(f"data set {name} has no {part} texts")
        unknown = _unknown(parts.task, examples)
        if unknown:
            labels = ", ".join(parts.task.labels)
            raise DataError(f"data set {name}: label {min(unknown)!r} is not one of {labels}")
    note = (f"{left_out} training texts left out: they are test texts",) if left_out else ()
    notes = (*parts.notes, *note)
    return DataSet(
        name, parts.task, tuple(train), tuple(parts.test), origin, licence, sha256, notes
    )


def _unknown(task: Task, examples: Iterable[Example]) -> set[str]:
    """Labels of texts, or types of tags, that are not the task's."""
    if task.files.wants == "label":
        return {str(example.label) for example in examples} - set(task.labels)
    found = {tag for example in examples for tag in example.tags}
    return (found - set(task.tags)) if task.files.wants == "tags" else set()


def disjoint(train: Iterable[Example], test: Iterable[Example]) -> tuple[list[Example], int]:
    """Training texts that are not test texts, and how many were left out.

    Case, spaces and punctuation do not tell texts apart here; a pair counts as one text.
    """
    tested = {likeness(example) for example in test}
    before = list(train)
    kept = [example for example in before if likeness(example) not in tested]
    return kept, len(before) - len(kept)


def likeness(example: Example) -> str:
    """What two texts share that differ only in case, spaces and punctuation."""
    return re.sub(r"[\W_]+", "", f"{example.text}\n{example.text_b}".casefold())


def checksum(files: dict[str, Path]) -> str:
    """SHA-256 over names and contents, in order of names.

    Args:
        files: Name that is hashed -> file.

    Raises:
        DataError: A file is not there or cannot be read.
    """
    whole = hashlib.sha256()
    for name, path in sorted(files.items()):
        try:
            content = file_sha256(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        whole.update(f"{content}  {name}\n".encode())
    return whole.hexdigest()


def licence_near(folder: Path) -> str:
    """The licence of a folder: PROVENANCE.md's line, README.md's front matter, LICENSE's title."""
    for name in ("PROVENANCE.md", "README.md"):
        if (folder / name).is_file() and (stated := licence_stated(_read(folder / name))):
            return stated
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"):
        if (folder / name).is_file():
            lines = [line.strip(" #\t") for line in _read(folder / name).splitlines()]
            return next((line for line in lines if line), UNKNOWN)
    return UNKNOWN


def licence_stated(text: str) -> str:
    """The first line `licence: ...` of a text, or empty."""
    match = re.search(r"^\W*licen[cs]e\W*:\s*(.+)$", text, flags=re.IGNORECASE | re.MULTILINE)
    return match[1].strip().strip("\"'") if match else ""


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def of_two(task: Task, first: str) -> Task:
    """A task of one text as one of two fields.

    Args:
        task: Asked by `{text}`.
        first: The pattern that is asked, with `{text_a}` and `{text_b}`.
    """
    others = (pattern.replace("{text}", "{text_a} {text_b}") for pattern in task.patterns)
    return replace(task, patterns=(first, *others))


AG_NEWS_PAIR = of_two(AG_NEWS, "{text_a} ( [MASK] ) {text_b}")
YAHOO_PAIR = of_two(YAHOO, "[ category : ] {text_a} [MASK] {text_b}")
_QUOTED = '" {text_a} " ? [MASK] , " {text_b} "'
MNLI_QUOTED = replace(
    MNLI, patterns=(_QUOTED, *(pattern for pattern in MNLI.patterns if pattern != _QUOTED))
)
