"""Registry of file formats: which one a file has, and known ones that are refused by name.

Other packages add formats by entry points of the group `smidgen.formats`, each a `reader.Reader`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.formats.annotation.brat import BRAT
from smidgen.edge_client.formats.annotation.exports import EXPORTS
from smidgen.edge_client.formats.arrow import ARROW, PARQUET, SAVED_DATASET, SPLITS, STATE
from smidgen.edge_client.formats.conll import CONLL
from smidgen.edge_client.formats.json_rows import ARRAY, JSON_ARRAY, JSON_LINES
from smidgen.edge_client.formats.paragraphs import PARAGRAPHS, PLAIN_LINES
from smidgen.edge_client.formats.source import (
    GENERIC,
    PLAIN,
    DataError,
    Dialect,
    Head,
    LeftOut,
    Reader,
    Rows,
    Source,
    Wants,
    ending_of,
    head_of,
    named,
)
from smidgen.edge_client.formats.table import TABLE
from smidgen.edge_client.tables import plain

COLUMNS = "export CoNLL (a word and its tag on each line) instead"
MARKS = (
    (r"\s*#FORMAT=WebAnno TSV", "WebAnno TSV", COLUMNS + ", such as CoNLL 2002"),
    (r"#\s*webanno\.\w", "WebAnno TSV", COLUMNS + ", such as CoNLL 2002"),
    (r"\s*TOKEN\tNE-\w+", "HIPE-2022 TSV", "keep TOKEN and one column NE-, as .conll"),
    (r"\s*(?:<\?xml[^>]*>\s*)?<(?:xmi:XMI|cas:)", "UIMA CAS XMI", COLUMNS),
    (
        r'\s*\{\s*"(?:%(?:TYPES|FEATURE_STRUCTURES|VIEWS|HEADER)|_context)"',
        "UIMA CAS JSON",
        COLUMNS,
    ),
    (r"FEA1", "a Feather file of version 1", "save it as version 2, or as Parquet"),
    (r"PK\x03\x04", "a zip archive (or a spreadsheet)", "unpack it, or save it as CSV"),
)


def refused(head: Head) -> str:
    """Why a file is not read, in words; empty if nothing is known against it."""
    if head.path and (head.path / SPLITS).is_file():
        names = sorted(one.name for one in head.path.iterdir() if (one / STATE).is_file())
        return f"several splits that datasets saved: {named(names)}; give the folder of one of them"
    found = next(((name, help_) for mark, name, help_ in MARKS if re.match(mark, head.text)), None)
    return f"this is {found[0]}, which is not read here: {found[1]}" if found else ""


GROUP = "smidgen.formats"
OURS: tuple[Reader, ...] = (
    *(TABLE, JSON_LINES, JSON_ARRAY, PARQUET, ARROW, SAVED_DATASET),
    *(CONLL, PLAIN_LINES, PARAGRAPHS),
    *(*EXPORTS, BRAT),
)
PARTS = ("name", "endings", "sniff", "gives", "read")


@cache
def readers() -> tuple[Reader, ...]:
    """Ours, and those of other packages that are installed.

    Raises:
        Failed: One of these cannot be imported; names its package.
    """
    return (*map(_loaded, entry_points(group=GROUP)), *OURS)


def _loaded(point: EntryPoint) -> Reader:
    said = f"package {point.dist.name if point.dist else point.value}: its format {point.name}"
    try:
        reader: Reader = point.load()
    except Exception as error:  # somebody else's code
        raise Failed(
            f"{said} cannot be used: {type(error).__name__}: {plain(str(error))[:200]}"
        ) from error
    for part in PARTS:
        demand(hasattr(reader, part), f"{said} has no `{part}`; see formats/source.py", Failed)
    calls = {name: _naming(said)(getattr(reader, name)) for name in ("sniff", "gives")}

    def read(source: Source) -> Rows:
        with _naming(said):
            yield from reader.read(source)

    return cast(
        Reader, SimpleNamespace(name=reader.name, endings=reader.endings, read=read, **calls)
    )


@contextmanager
def _naming(said: str) -> Iterator[None]:
    """Say whose code it is that raises; what it raises may quote a text."""
    try:
        yield
    except (WrongInput, Failed):
        raise
    except Exception as error:
        raise Failed(f"{said} raised {type(error).__name__}") from error


@cache
def endings() -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for reader in readers() for one in reader.endings if one))


def head(path: Path, dialect: Dialect = PLAIN) -> Head:
    """The beginning of a file, or that it is a folder."""
    known = ("", "") if path.is_dir() else (ending_of(path).lower(), head_of(path, dialect))
    return Head(*known, path, dialect)


def best(found: Head) -> list[tuple[float, Reader]]:
    """The readers that are surest of a file, which may be several, and how sure they are."""
    sure = [(one.sniff(found), one) for one in readers() if found.ending in one.endings]
    most = max((score for score, _ in sure), default=0.0)
    return [(score, one) for score, one in sure if score == most > 0]


def holds(path: Path, dialect: Dialect = PLAIN) -> frozenset[Wants]:
    """What the rows of a file may hold, by its beginning."""
    found = head(path, dialect)
    return frozenset().union(*(one.gives(found) for _, one in best(found)))


def reader_of(source: Source) -> Reader:
    """The reader of a file; a format that is not the plain one of its ending is noted.

    Raises:
        DataError: No reader takes it; names the format where it is known.
    """
    found = head(source.path, source.dialect)
    demand(not (said := refused(found)), f"{source.path}: {said}", DataError)
    is_unnamed = not found.ending and source.path.is_file()  # folders have no ending
    if not (sure := best(found)) or is_unnamed:
        known = f"{', '.join(endings())} (.gz or not) expected"
        named = not is_unnamed and any(found.ending in one.endings for one in readers())
        raise DataError(f"{source.path}: {'nothing that is known here' if named else known}")
    giving = [one for _, one in sure if source.wants in one.gives(found)]
    score, reader = sure[0][0], (giving or [sure[0][1]])[0]
    if score > GENERIC and reader not in (PARQUET, ARROW):
        source.note(f"the format of {reader.name}")
    return reader


def read(source: Source) -> Rows:
    """Every row of a file in order; see `Reader.read`.

    Raises:
        DataError: No such format, or the file cannot be read at all, or holds too much.
    """
    return reader_of(source).read(source)


def read_stream(source: Source) -> Rows:
    """Rows of a stream such as stdin: JSON if its first line begins as such, else lines of text.

    Raises:
        DataError: It is not in the encoding that was told.
    """
    with source.lines() as lines:
        first = lines.first().strip()
        is_json, is_array = first.startswith("{"), first == "[" or ARRAY.match(first)
        reader: Reader = JSON_LINES if is_json else JSON_ARRAY if is_array else PLAIN_LINES
        yield from reader.read(source)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and columns of each row of a file, whatever its columns are called.

    Raises:
        DataError: No such format, or the file or one of its rows cannot be read as it.
    """
    source = Source(path)
    for row in read(source):
        if isinstance(row, LeftOut):
            raise DataError(f"{path}, line {row.line}: {row.said}")
        columns = {name: str(value) for name, value in row.columns.items() if value is not None}
        fault = source.unread("".join((*columns, *columns.values())))
        demand(not fault, f"{path}, line {row.line}: {fault}", DataError)
        yield row.line, columns
