"""Where the parts of a device's texts lie: `labelled.*`, `unlabelled.*` and `test.*` in one folder.

Which files are looked at depends on the kind of task, so that one folder may serve several; what a
file holds, its beginning says (`formats.registry.holds`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from edge_client.errors import demand
from edge_client.formats.annotation.brat import BRAT
from edge_client.formats.arrow import SAVED_DATASET, SPLITS
from edge_client.formats.conll import CONLL
from edge_client.formats.opened import DataError
from edge_client.formats.paragraphs import LINES
from edge_client.formats.reader import Head
from edge_client.formats.registry import endings, holds
from edge_client.texts.tasks import Kind

PARTS = ("labelled", "unlabelled", "test")
SPLITS_OF = {"labelled": "train", "unlabelled": "unsupervised", "test": "test"}  # of `datasets`
# What a folder that has nothing to train on lacks, by the kind of task.
LACKS: dict[Kind, str] = {
    "labels": "put a labelled.csv with columns text,label there (a word and its tag on each line "
    "of labelled.conll for tagging, texts in unlabelled.txt for masked words)",
    "tagging": "put a labelled.conll there, with a word and its tag on each line",
    "mlm": "put an unlabelled.txt with a text on each line there, or a folder unlabelled of .txt "
    "files with paragraphs",
}
WHAT: dict[Kind, str] = {
    "labels": "a folder with labelled.csv (text,label)",
    "tagging": "a folder with labelled.conll (words and tags)",
    "mlm": "a folder with unlabelled.txt or unlabelled/*.txt",
}


def endings_of(part: str, kind: Kind = "labels") -> tuple[str, ...]:
    """Endings of files that may hold a part, gzipped or not."""
    words = [one for one in CONLL.endings if one != ".tsv"]
    if kind == "tagging" and part != "unlabelled":
        return tuple(one for one in endings() if one != LINES)
    every = (one for one in endings() if one not in words)
    return tuple(one for one in every if kind == "mlm" or one != LINES)


def files_of(folder: Path, kind: Kind = "labels") -> dict[str, Path]:
    """The files of a client data folder, by what they hold; of `mlm` a part may be a folder.

    Raises:
        DataError: There are none, or two of one kind, or a file is for tasks of another one.
    """
    is_one = any(reader.sniff(Head("", "", folder)) for reader in (SAVED_DATASET, BRAT))
    if folder.is_file() or is_one:
        told = f"{folder} is not for a task of kind {kind}; {WHAT[kind]} is expected"
        demand(_is_of(folder, "labelled", kind), told, DataError)
        return {"labelled": folder}
    if not folder.is_dir():
        raise DataError(f"no data at {folder}; {WHAT[kind]} is expected")
    found = {part: path for part in PARTS if (path := find_part(folder, part, kind))}
    if not found:
        known = [ending[1:] for ending in endings_of(PARTS[0], kind)]
        formats = f"{', '.join(known[:-1])} or {known[-1]}, .gz or not"
        raise DataError(
            f"{folder} holds no labelled.*, unlabelled.* or test.* ({formats})"
            f"{_others(folder, kind)}; {LACKS[kind]}"
        )
    return found


def _others(folder: Path, kind: Kind) -> str:
    """Parts that are there for tasks of another kind."""
    others = [other for other in get_args(Kind) if other != kind]
    names = (path.name for other in others for part in PARTS for path in _all(folder, part, other))
    found = next(names, "")
    return f", and {found} is not for a task of kind {kind}" if found else ""


def find_part(folder: Path, part: str, kind: Kind = "labels") -> Path | None:
    """The one file of a folder that is called so, `train` in any format; None if there is none.

    Raises:
        DataError: There are two.
    """
    found = _all(folder, part, kind)
    if len(found) > 1:
        raise DataError(f"{folder} holds both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def _all(folder: Path, part: str, kind: Kind) -> Sequence[Path]:
    names = [f"{part}{ending}{gz}" for ending in endings_of(part, kind) for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    found += [one for one in _folders(folder, part) if kind == "mlm" or holds(one) != {"text"}]
    return [path for path in found if _is_of(path, part, kind)]


def _folders(folder: Path, part: str) -> list[Path]:
    """The folders that may hold a part: one called so, or a split that `datasets` saved."""
    splits = [folder / SPLITS_OF[part]] if part in SPLITS_OF and is_split(folder) else []
    return [one for one in dict.fromkeys((folder / part, *splits)) if one.is_dir()]


def is_split(folder: Path) -> bool:
    """Whether it is a folder of several splits that `datasets` saved."""
    return (folder / SPLITS).is_file()


def _is_of(path: Path, part: str, kind: Kind) -> bool:
    """Whether a file is not plainly for tasks of another kind."""
    given = holds(path)
    if not given or (kind == "tagging" and part != "unlabelled"):
        return "tags" in given or not given
    if kind == "labels" and part != "unlabelled":
        return "label" in given
    return given != {"text", "tags"}
