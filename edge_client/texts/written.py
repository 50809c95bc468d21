"""Writes texts as files that can be read back: tables of texts, JSON with tags or messages."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.texts.examples import Example

NO_LABEL = "[]"  # of a text that was looked at and has no label; an empty cell is one that was not


def write_csv(path: Path, examples: Sequence[Example]) -> None:
    """Write texts as CSV, with those columns alone in which some text has something.

    Where all texts have a label, or none has, `read_file` gives equal examples back, but for texts
    of spaces alone or with NUL, which it leaves out. Equal examples write equal bytes.

    Raises:
        DataError: A text is not Unicode; half a surrogate pair, say.
        OSError: The file cannot be written.
    """
    empty = Example("")
    others = ("text_b", "label", "language")
    used = [c for c in others if any(getattr(e, c) != getattr(empty, c) for e in examples)]
    columns = ["text", *used]
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)  # its "\r\n" makes every version quote both characters
            writer.writerow(columns)
            for one in examples:
                cells = {column: getattr(one, column) for column in columns}
                cells |= {"label": NO_LABEL} if one.label == "" else {}
                writer.writerow(cells.values())
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: a text cannot be written as UTF-8: {error.reason}") from error


def write_tagged(path: Path, examples: Sequence[Example]) -> None:
    """Write texts whose words are tagged as JSONL: a row with `tokens` and `tags` for each.

    `read_file` gives equal examples back, as long as no word is empty or has NUL, and the tags are
    BIO. Equal examples write equal bytes.

    Raises:
        DataError: A word is not Unicode; half a surrogate pair, say.
        OSError: The file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for one in examples:
                language = {"language": one.language} if one.language else {}
                row = {"tokens": one.words, "tags": one.tags, **language}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: a word cannot be written as UTF-8: {error.reason}") from error


def write_messages(path: Path, examples: Sequence[Example]) -> None:
    """Write conversations, which tasks hold as JSON, as JSONL: a row with `messages` for each.

    `read_file` gives equal examples back. Equal examples write equal bytes.

    Raises:
        OSError: The file cannot be written.
    """
    rows = (f'{{"messages": {one.text}}}\n' for one in examples)
    path.write_text("".join(rows), encoding="utf-8", newline="\n")
