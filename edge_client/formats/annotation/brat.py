"""brat standoff: a folder of texts (`.txt`), each with its annotations (`.ann`) beside it.

    T1  Person 0 7  Ann Lee

Each line of a text is a row, since brat shows lines separately and sentences end there. Word tags
cannot express a span in several parts or over several lines: rows it touches are left out.
Annotations other than spans (relations, events, attributes, notes) are counted and ignored.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from smidgen.edge_client.formats.annotation.answers import Span
from smidgen.edge_client.formats.conll import LINE
from smidgen.edge_client.formats.paragraphs import files_in
from smidgen.edge_client.formats.source import DataError, Head, LeftOut, Row, Rows, Source, Wants

SPAN = re.compile(r"T\d+\t(\S+) (\d+ \d+(?:;\d+ \d+)*)\t(.*)")
OTHERS = {"R": "relations", "E": "events", "A": "attributes", "M": "attributes", "N": "references"}


class BratEntity(NamedTuple):
    """A `T` line.

    Attributes:
        label: Its type.
        parts: Where each part of it begins and ends in the text.
        fault: Why it cannot be used; empty if it can.
    """

    label: str
    parts: tuple[tuple[int, int], ...]
    fault: str = ""


def entities_of(annotations: str, text: str) -> tuple[list[BratEntity], list[str]]:
    """The entities that an `.ann` file names, and what else is in it, in words."""
    found, others = list[BratEntity](), dict[str, None]()
    for line in annotations.splitlines():
        match = SPAN.fullmatch(line)
        if match is None:
            others |= dict.fromkeys([OTHERS[line[0]]] if line[:1] in OTHERS else [])
            others |= {"spans that are not written as brat does": None} if line[:1] == "T" else {}
            continue
        parts = tuple(
            (int(start), int(end)) for start, end in (one.split() for one in match[2].split(";"))
        )
        kept = " ".join(text[start:end] for start, end in parts)
        fault = "a span that is in several parts" if len(parts) > 1 else ""
        if kept.split() != match[3].split():
            fault = "a span whose own text is not at its place"
        found.append(BratEntity(match[1], parts, fault))
    return found, list(others)


def rows_of(text: str, entities: Sequence[BratEntity], labelled: bool) -> Iterator[Row | LeftOut]:
    """A row for each line of a text that is not blank.

    Law: its spans are the entities within it, counted from its first character; where one is
    faulty or leaves the line, the row is left out.

    Args:
        text: The whole text, line ends as they are in its file.
        entities: Its entities.
        labelled: Whether they are wanted.
    """
    start = 0
    for number, line in enumerate(LINE.findall(text), start=1):
        end = start + len(line)
        if line.strip():
            yield _row(number, line.rstrip("\r\n"), start, entities if labelled else None)
        start = end


def _row(
    number: int, line: str, start: int, entities: Sequence[BratEntity] | None
) -> Row | LeftOut:
    if entities is None:
        return Row(number, {"text": line})
    spans, stop = list[Span](), start + len(line)
    for one in entities:
        if not any(first < stop and last > start for first, last in one.parts):
            continue
        first, last = one.parts[0]
        if one.fault or not (start <= first and last <= stop):
            return LeftOut(number, "ambiguous", one.fault or "a span over several lines")
        spans.append((first - start, last - start, one.label))
    return Row(number, {"text": line}, spans=tuple(spans))


class Brat:
    """A folder that brat annotates."""

    name = "brat's standoff"
    endings = ("",)

    def sniff(self, head: Head) -> float:
        return 0.9 if head.path is not None and any(head.path.glob("*.ann")) else 0.0

    def gives(self, head: Head) -> frozenset[Wants]:
        return frozenset(("text", "tags"))

    def read(self, source: Source) -> Rows:
        """See `Reader`; each line of each text is a row, blank ones aside."""
        labelled, left_aside = source.wants == "tags", dict[str, None]()
        for path in files_in(source.path):
            found = list[BratEntity]()
            text, annotations = _whole(source, path), path.with_suffix(".ann")
            if labelled and annotations.is_file():
                found, others = entities_of(_whole(source, annotations), text)
                left_aside |= dict.fromkeys(others)
            for row in rows_of(text, found, labelled):
                if labelled and not annotations.is_file():
                    row = LeftOut(row.line, "unanswered", "no .ann file beside its text")
                yield replace(row, file=f"{source.path.name}/{path.name}")
        if left_aside:
            source.note(f"its {', '.join(left_aside)} left aside")


def _whole(source: Source, path: Path) -> str:
    """All of a file.

    Raises:
        DataError: It cannot be read, or its bytes are not of its encoding.
    """
    text = replace(source, path=path).whole()
    if unread := source.unread(text):
        raise DataError(f"{path}: {unread}")
    return text


BRAT = Brat()
