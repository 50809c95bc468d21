"""Finds the parts of a device's texts: `labelled.*`, `unlabelled.*` and `test.*` in one folder.

A copy of a data set's repository will do: its files are called by their split (`train.csv`,
`data/train-00000-of-00001.parquet`), as `datasets` finds and writes them.

Which files are considered depends on the kind of task, so that one folder may serve several; their
first bytes decide the format (`formats.registry.holds`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.annotation.brat import BRAT
from smidgen.edge_client.formats.arrow import SAVED_DATASET, SPLITS
from smidgen.edge_client.formats.conll import CONLL
from smidgen.edge_client.formats.json_rows import MESSAGES
from smidgen.edge_client.formats.paragraphs import LINES
from smidgen.edge_client.formats.registry import endings, holds
from smidgen.edge_client.formats.source import Columns, DataError, Dialect, Head, Wants
from smidgen.edge_client.texts.accounting import Fault, label_of

PARTS = ("labelled", "unlabelled", "test")
SPLITS_OF = {"labelled": "train", "unlabelled": "unsupervised", "test": "test"}  # of `datasets`

Gold: TypeAlias = Callable[[Mapping[str, Any], Columns, Sequence[str]], "str | Fault"]
Marked: TypeAlias = Callable[[str, Mapping[str, Any]], "str | Fault"]
Turns: TypeAlias = Callable[[Mapping[str, Any], Columns], "str | Fault | None"]


@dataclass(frozen=True)
class Files:
    """How the texts of one kind of task lie in files, and what messages say of that.

    Attributes:
        kind: The kind's name; empty where no task is known yet.
        wants: What rows of labelled parts hold beside a text: a label, a tag of each word, or
            nothing that is read.
        lacks: What to do about a folder that has nothing to train on.
        what: A folder of such texts, in words.
        tests: What to do about one that has nothing to test on.
        is_several: Whether a text may have several labels, or none of them.
        gold: The label that a row gives, or why it gives none.
        has_gold: Whether a file with columns of these names has labels, by the task's labels.
        marked: What a row's text is read as, labelled or not, or why it cannot be; None: as it is.
        columns: Two columns that are read where no others are told; empty: `text`, and so on.
        turns: Of conversations, which `labelled` and `test` files hold alone: what a row is read
            as, by its `messages` or those columns; None: it is a text.
    """

    kind: str = ""
    wants: Wants = "label"
    lacks: str = (
        "put a labelled.csv with columns text,label there (a word and its tag on each line of "
        "labelled.conll for tagging, texts in unlabelled.txt for masked words)"
    )
    what: str = "a folder with labelled.csv (text,label)"
    tests: str = "put a test.csv with columns text,label"
    is_several: bool = False
    gold: Gold = label_of
    has_gold: Callable[[Sequence[str], Sequence[str]], bool] = lambda names, labels: False
    marked: Marked | None = None
    columns: str = ""
    turns: Turns | None = None

    @property
    def nouns(self) -> str:
        return "texts to train on" if self.wants == "text" else "labelled texts"

    @property
    def is_plain(self) -> bool:
        """Whether texts are read that have nothing beside them."""
        return self.wants == "text" and self.turns is None

    @property
    def parts(self) -> tuple[str, ...]:
        """What files of a folder are called."""
        return PARTS if self.turns is None else ("labelled", "test")


class Wanted(Protocol):
    """What of a task says how its texts are read; every `Task` is one."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def files(self) -> Files: ...


@dataclass(frozen=True)
class Labels:
    """The labels alone, where there is no task yet; without labels any will do."""

    labels: tuple[str, ...] = ()
    files: Files = field(default_factory=Files)


ANY = Labels()


def read_as(wanted: Wanted, text: str, what: str) -> str:
    """What a text of no file is read as.

    Args:
        wanted: The task.
        text: The text.
        what: How messages call it.

    Raises:
        DataError: It is none of such a task.
    """
    marked = wanted.files.marked
    found = text if marked is None else marked(text, {})
    if isinstance(found, Fault):
        raise DataError(f"{what}: {found.said}")
    return found


def wanted_by(task: Wanted) -> Labels:
    """What of a task says how its texts are read: tasks that agree in it read them alike."""
    return Labels(task.labels, task.files)


def endings_of(part: str, files: Files = ANY.files) -> tuple[str, ...]:
    """Endings of files that may hold a part, gzipped or not."""
    words = [one for one in CONLL.endings if one != ".tsv"]
    if files.wants == "tags" and part != "unlabelled":
        return tuple(one for one in endings() if one != LINES)
    every = (one for one in endings() if one not in words)
    return tuple(one for one in every if files.is_plain or one != LINES)


def files_of(folder: Path, files: Files = ANY.files) -> dict[str, Path]:
    """The files of a client data folder, by what they hold; where labels are not read also folders.

    Raises:
        DataError: There are none, or two of one kind, or a file is for tasks of another one.
    """
    is_one = any(reader.sniff(Head("", "", folder)) for reader in (SAVED_DATASET, BRAT))
    if folder.is_file() or is_one:
        demand(
            _is_of(folder, "labelled", files),
            f"{folder} is not for a task of kind {files.kind}; {files.what} is expected",
            DataError,
        )
        return {"labelled": folder}
    demand(folder.is_dir(), f"no data at {folder}; {files.what} is expected", DataError)
    found = {part: path for part in files.parts if (path := find_part(folder, part, files))}
    if not found:
        known = [ending[1:] for ending in endings_of(PARTS[0], files)]
        formats = f"{', '.join(known[:-1])} or {known[-1]}, .gz or not"
        raise DataError(
            f"{folder} holds no labelled.*, unlabelled.* or test.* ({formats})"
            f"{_others(folder, files)}; {files.lacks}"
        )
    return found


def _others(folder: Path, files: Files) -> str:
    """Parts that are there for tasks of another kind."""
    wants: tuple[Wants, ...] = ("label", "tags", "text")
    others = [Files(wants=one) for one in wants if one != files.wants]
    names = (path.name for other in others for part in PARTS for path in _all(folder, part, other))
    found = next(names, "")
    return f", and {found} is not for a task of kind {files.kind}" if found else ""


def find_part(folder: Path, part: str, files: Files = ANY.files) -> Path | None:
    """The one file of a folder that is called so, `train` in any format; None if there is none.

    Raises:
        DataError: There are two.
    """
    found = _all(folder, part, files)
    if not found and not any(_all(folder, one, files) for one in ("labelled", "unlabelled")):
        found = [path for path in _of_split(folder, part) if _is_of(path, part, files)]
    if parted := [path.name for path in found if re.search(r"-of-(?!00001\.)\d{5}\.", path.name)]:
        raise DataError(f"{folder} holds {parted[0]}, a part of a split; join all of its files")
    if len(found) > 1:
        raise DataError(f"{folder} holds both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def _all(folder: Path, part: str, files: Files) -> Sequence[Path]:
    names = [f"{part}{ending}{gz}" for ending in endings_of(part, files) for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    found += [one for one in _folders(folder, part) if files.is_plain or holds(one) != {"text"}]
    return [path for path in found if _is_of(path, part, files)]


def _folders(folder: Path, part: str) -> list[Path]:
    """The folders that may hold a part: one called so, or a split that `datasets` saved."""
    splits = [folder / SPLITS_OF[part]] if part in SPLITS_OF and is_split(folder) else []
    return [one for one in dict.fromkeys((folder / part, *splits)) if one.is_dir()]


def _of_split(folder: Path, part: str) -> list[Path]:
    """The files of a split in a copy of a data set's repository."""
    name = SPLITS_OF.get(part, part)
    inside = [one for place in (folder, folder / "data") for one in sorted(place.glob(f"{name}*"))]
    called = re.compile(
        rf"{name}(-\d{{5}}-of-\d{{5}})?({'|'.join(map(re.escape, endings()))})(\.gz)?"
    )
    return [path for path in inside if called.fullmatch(path.name) and path.is_file()]


def is_split(folder: Path) -> bool:
    """Whether it is a folder of several splits that `datasets` saved."""
    return (folder / SPLITS).is_file()


def _is_of(path: Path, part: str, files: Files) -> bool:
    """Whether a file is not plainly for tasks of another kind."""
    given = holds(path)
    if not given or (files.wants == "tags" and part != "unlabelled"):
        return "tags" in given or not given
    if files.wants == "label" and part != "unlabelled":
        return "label" in given
    return given != {"text", "tags"}


def without_texts(paths: Mapping[str, Path], files: Files, dialect: Dialect) -> DataError:
    holds = " holds" if len(paths) == 1 else " hold"
    wanted = expected(files, bool({"labelled", "test"} & paths.keys()), dialect)
    return DataError(f"{' and '.join(map(str, paths.values()))}{holds} no texts; {wanted}")


def expected(files: Files, labelled: bool, dialect: Dialect) -> str:
    """What a file holds, in words."""
    if files.turns is not None:
        columns = dialect.text_column or files.columns
        return f"a list `{MESSAGES}` or columns {columns} in each row are expected"
    if files.wants == "text":
        return (
            "a text on each line, a column `text`, or paragraphs in a folder's files are expected"
        )
    if files.wants == "tags" and labelled:
        return "a word and its tag on each line are expected, and blank lines between texts"
    return dialect.wanted(labelled)
