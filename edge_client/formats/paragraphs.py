"""A folder of text files, whose texts are paragraphs: lines in a row, with blank ones between.

Files are read in the order of their names, those of folders within it are not. Its bounds are one
file's: they hold of all its files together.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edge_client.errors import demand
from edge_client.formats.dialect import Dialect
from edge_client.formats.blocks import blocks
from edge_client.formats.lines import Bounds, Whole
from edge_client.formats.opened import LINES, DataError, ending_of, opened

MOST_FILES = 100_000  # in a folder; each is looked at before each piece of work


class Paragraph(NamedTuple):
    """A text of a folder.

    Attributes:
        file: The file that it is in.
        line: Where it ends there, or cannot be used, from 1.
        text: Its lines with spaces between.
        fault: Why it cannot be used; empty if it can.
    """

    file: Path
    line: int
    text: str
    fault: str = ""


def files_in(folder: Path, most: int = MOST_FILES) -> list[Path]:
    """The text files of a folder, `.txt` or `.txt.gz`, in the order of their names.

    Raises:
        DataError: There are too many.
        OSError: It cannot be read.
    """
    names = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = sorted(path for path in names if ending_of(path) == LINES and path.is_file())
    told = f"{folder} holds more than {most:,} files; join them into fewer"
    demand(len(found) <= most, told, DataError)
    return found


def paragraphs_in(
    folder: Path, dialect: Dialect, notes: list[str], bounds: Bounds | None
) -> Iterator[Paragraph]:
    """The paragraphs of a folder's files, good or not.

    Args:
        folder: The folder.
        dialect: How its files are written down: their encoding alone.
        notes: Gets what was found out without being told.
        bounds: What is read at most, of all files together; None: all.

    Raises:
        DataError: A file cannot be read, or there is too much.
    """
    whole = Whole(folder)
    for path in _listed(folder):
        said = list[str]()
        with opened(path, dialect, said, bounds, whole) as (lines, encoding):
            for block in blocks(lines, encoding, _is_blank):
                text = " ".join(line.strip() for line in block.lines)
                yield Paragraph(path, block.line, text, block.fault)
        notes += [note for note in said if note not in notes]


def _listed(folder: Path) -> list[Path]:
    try:
        return files_in(folder)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error


def _is_blank(line: str) -> bool:
    return not line.strip()
