"""Where the parts of a device's texts lie: `labelled.*`, `unlabelled.*` and `test.*` in one folder.

Which formats are looked at depends on the kind of task, so that one folder may serve several; of
`.tsv` and `.jsonl`, which may be tables or tagged words, the first row says which they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from edge_client.errors import demand
from edge_client.texts.formats import tagged
from edge_client.formats.opened import FORMATS, LINES, DataError
from edge_client.texts.tasks import Kind

PARTS = ("labelled", "unlabelled", "test")
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
    """The formats that a part may have, gzipped or not."""
    if kind == "mlm":
        return (*FORMATS, LINES)
    return tagged.FORMATS if kind == "tagging" and part != "unlabelled" else FORMATS


def files_of(folder: Path, kind: Kind = "labels") -> dict[str, Path]:
    """The files of a client data folder, by what they hold; of `mlm` a part may be a folder.

    Raises:
        DataError: There are none, or two of one kind, or a file is for tasks of another one.
    """
    if folder.is_file():
        told = f"{folder} is not for a task of kind {kind}; {WHAT[kind]} is expected"
        demand(_is_of(folder, "labelled", kind), told, DataError)
        return {"labelled": folder}
    if not folder.is_dir():
        raise DataError(f"no data at {folder}; {WHAT[kind]} is expected")
    found = {part: path for part in PARTS if (path := find_part(folder, part, kind))}
    if not found:
        known = [ending[1:] for ending in endings_of(PARTS[0], kind) if ending != ".parquet"]
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
    found = [path for path in found if _is_of(path, part, kind)]
    return [*found, folder / part] if kind == "mlm" and (folder / part).is_dir() else found


def _is_of(path: Path, part: str, kind: Kind) -> bool:
    """Whether a file is not plainly for tasks of another kind."""
    wants_words = kind == "tagging" and part != "unlabelled"
    return tagged.is_of_words(path) in (wants_words, None)
