"""Annotators' answers, reduced to one label, one set of spans, or nothing.

Rows with one key are one text answered by several people. For labels, if all answers agree the
first row is read and the others are left out as duplicates; if they disagree all are left out, for
a person to decide in the tool.

Spans become BIO tags of words and back. A span is its first code point, the one after its last, and
its type. A text with a span that does not end at word boundaries is refused, never moved.

    tagged("Ann Lee left.", [(0, 7, "PER")])  # (("Ann", "Lee", "left", "."), ("B-PER", "I-PER", ...
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

from smidgen.edge_client.formats.source import (
    SEVERAL,
    Dialect,
    LeftOut,
    Reason,
    Row,
    Rows,
    Wants,
    named,
)
from smidgen.edge_client.formats.tags import OUTSIDE

WORD = re.compile(r"\w+|[^\w\s]")

Span: TypeAlias = tuple[int, int, str]


class Unaligned(ValueError):
    """Spans that tags of words cannot express; says why, and quotes no text."""


def places_in(text: str) -> list[tuple[int, int]]:
    """Where each word of a text begins and ends: letters and digits in a row, or another sign."""
    return [match.span() for match in WORD.finditer(text)]


def tagged(text: str, spans: Iterable[Span]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A text's words and their BIO tags.

    Laws: as many tags as words; the words' places and the tags give the spans again,
    without white space at their ends and each once, in the text's order.

    Raises:
        Unaligned: A span is empty or leaves the text, cuts a word, or overlaps another.
    """
    places, wanted = places_in(text), sorted({trimmed(text, span) for span in spans})
    for one, other in pairwise(wanted):
        if other[0] < one[1]:
            raise Unaligned("two of its spans overlap; a word has one tag")
    starts = {start: number for number, (start, _) in enumerate(places)}
    ends = {end: number for number, (_, end) in enumerate(places)}
    tags = [OUTSIDE] * len(places)
    for start, end, label in wanted:
        if start not in starts or end not in ends:
            raise Unaligned(f"its span {start} to {end} cuts a word")
        first, last = starts[start], ends[end]
        tags[first : last + 1] = [f"B-{label}", *[f"I-{label}"] * (last - first)]
    return tuple(text[start:end] for start, end in places), tuple(tags)


def trimmed(text: str, span: Span) -> Span:
    """A span without white space at its ends.

    Raises:
        Unaligned: It is empty, or leaves the text.
    """
    start, end, label = span
    if not 0 <= start < end <= len(text):
        raise Unaligned(f"its span {start} to {end} is not within its {len(text)} characters")
    inner = text[start:end].strip()
    if not inner:
        raise Unaligned(f"its span {start} to {end} is white space alone")
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return start, start + len(inner), label


def from_utf16(text: str, offset: int) -> int | None:
    """The code point that lies so many UTF-16 units (as JavaScript counts) into a text.

    None: the offset is behind the text, or within a pair of surrogates.
    """
    units = text.encode("utf-16-le", "surrogatepass")
    if not 0 <= offset <= len(units) // 2:
        return None
    try:
        return len(units[: 2 * offset].decode("utf-16-le"))
    except UnicodeDecodeError:
        return None


TEXTS = ("text", "text_b")
KEY = re.compile(r'(?<!\\)"(\w+)"\s*:')


@dataclass(frozen=True, slots=True)
class Annotation:
    """What one annotator said of a text.

    Attributes:
        labels: The labels chosen, at least one unless there are spans.
        spans: Labelled spans; none is an answer too. None: spans were not asked for.
    """

    labels: tuple[str, ...] = ()
    spans: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedRow:
    """A row of a file with all that annotators said of it.

    Attributes:
        row: Its text and other columns, without a label.
        answers: Those that count; empty: none does.
        reason: Why none counts.
        said: See `LeftOut`.
        key: Rows of one key are one text; None: it is a text of its own.
        fault: Why its text cannot be read, whether answers are wanted or not.
    """

    row: Row
    answers: tuple[Annotation, ...] = ()
    reason: Reason = "unanswered"
    said: str = "nobody has answered it yet"
    key: Hashable = None
    fault: LeftOut | None = None


def settled(
    rows: Iterable[AnnotatedRow], wants: Wants, notes: list[str], is_several: bool = False
) -> Rows:
    """What each row comes to, in order.

    Law: one `Row` or `LeftOut` for each that is given.

    Args:
        rows: All rows of a file.
        wants: What is looked for; where it is a text, each row is one, whatever was said of it.
        notes: Gets how many spans were read without the white space at their ends.
        is_several: Whether a text may have several labels, which `label` then holds as a list.
    """
    if wants == "text":
        yield from (one.fault or one.row for one in rows)
        return
    none = set() if is_several else {Annotation()}
    every = [(one, {_wanted(answer, wants) for answer in one.answers} - none) for one in rows]
    cut = sum(_count_trimmed(one) for one, _ in every) if wants == "tags" else 0
    together: dict[Hashable, set[Annotation]] = {}
    for number, (one, answers) in enumerate(every):
        together.setdefault(_key(one, number), set()).update(answers)
    read: set[Hashable] = set()
    for number, (one, answers) in enumerate(every):
        key = _key(one, number)
        yield _settled(one, together[key] if answers else set(), key in read, is_several)
        read |= {key} if answers else set()
    if cut:
        notes.append(f"{cut} spans without the white space at their ends")


def _key(one: AnnotatedRow, number: int) -> Hashable:
    return ("row", number) if one.key is None else ("key", one.key)


def _settled(
    one: AnnotatedRow, answers: set[Annotation], is_read: bool, is_several: bool
) -> Row | LeftOut:
    line = one.row.line
    if one.fault is not None:
        return one.fault
    if not answers:
        is_other = bool(set(one.answers) - {Annotation()})
        said = "an answer of another kind than what is asked for" if is_other else one.said
        return LeftOut(line, one.reason, said)
    if len(answers) > 1:
        return LeftOut(line, "ambiguous", f"annotators answered it in {len(answers)} ways")
    if is_read:
        return LeftOut(line, "duplicate", "the same text and answer as in a row before")
    (answer,) = answers
    if len(answer.labels) > 1 and not is_several:
        return LeftOut(
            line, "ambiguous", f"{len(answer.labels)} labels; one is expected; {SEVERAL}"
        )
    labels = list(answer.labels) if is_several else next(iter(answer.labels), None)
    label = {"label": labels} if labels or is_several else {}
    return replace(one.row, columns={**one.row.columns, **label}, spans=answer.spans)


def _wanted(answer: Annotation, wants: Wants) -> Annotation:
    """What of an answer is looked for, whatever the order in which it was given."""
    if wants == "label":
        return Annotation(tuple(sorted(set(answer.labels))))
    return Annotation((), None if answer.spans is None else tuple(sorted(set(answer.spans))))


def _count_trimmed(one: AnnotatedRow) -> int:
    """How many spans have white space at their ends; faulty spans are left out elsewhere."""
    text, count = str(one.row.columns.get("text", "")), 0
    for span in (span for answer in one.answers for span in answer.spans or ()):
        try:
            count += trimmed(text, span) != span
        except Unaligned:
            continue
    return count


def span_of(start: Any, end: Any, label: Any) -> Span:
    """A span as JSON has it.

    Raises:
        ValueError: Its offsets are not whole numbers, or its type is not text.
    """
    if not (_is_whole(start) and _is_whole(end) and isinstance(label, str) and label):
        raise ValueError("a span without whole offsets or without a label")
    return start, end, label


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def labels_of(values: Iterable[Any]) -> tuple[str, ...]:
    """Labels as JSON has them; a whole number is a name here.

    Raises:
        ValueError: One is neither text nor a whole number.
    """
    found = list(values)
    for one in found:
        if not (isinstance(one, str) or _is_whole(one)):
            raise ValueError(f"a label of type {type(one).__name__}; text is expected")
    return tuple(map(str, found))


def text_columns(
    names: Sequence[str], dialect: Dialect, hints: Iterable[str] = ()
) -> tuple[str, str | None]:
    """Which fields of an export are the text, and the second of a pair.

    Those that the user names, else `text` (or `text_a` and `text_b`), else the one field that an
    answer refers to, else the only one.

    Args:
        names: Fields that hold strings.
        dialect: What the user says of them.
        hints: Fields that answers refer to, where they do.

    Raises:
        ValueError: It is none of them, or could be several; says what to do.
    """
    columns = dialect.columns(names)
    if columns.text is not None:
        return columns.text, columns.text_b
    if dialect.text_column:
        raise ValueError(f"no field `{dialect.text_column}`; found {named(names)}")
    hinted = [name for name in dict.fromkeys(hints) if name in names]
    for candidates in (hinted, list(names)):
        if len(candidates) == 1:
            return candidates[0], None
    if not names:
        raise ValueError("it has no field with a text")
    raise ValueError(f"which field is the text, of {named(names)}? say it by --text-column")


def text_of(fields: Mapping[str, Any], columns: tuple[str, str | None]) -> dict[str, Any]:
    """The texts of a row, called as `reader.Row` calls them."""
    found = zip(TEXTS, columns, strict=True)
    return {usual: fields.get(name) for usual, name in found if name is not None}


def string_fields(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Fields that hold a string in some row, in their order."""
    return list(
        dict.fromkeys(name for row in rows for name, one in row.items() if isinstance(one, str))
    )


def id_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"]} if fields.get("id") is not None else {}


def answered_in(
    items: Iterable[Row | LeftOut],
    reading: Callable[[Sequence[Row]], Iterable[AnnotatedRow]],
    wants: Wants,
    notes: list[str],
    is_several: bool = False,
) -> Rows:
    """What each item of a file comes to, those that could not be read included, in order.

    Law: one `Row` or `LeftOut` for each that is given.

    Args:
        items: What JSON or a table holds, as its own reader has it.
        reading: What annotators answered, for each row.
        wants, notes, is_several: As `settled` takes them.
    """
    every = list(items)
    answers = iter(reading([one for one in every if isinstance(one, Row)]))
    rows = [
        AnnotatedRow(Row(one.line), fault=one) if isinstance(one, LeftOut) else next(answers)
        for one in every
    ]
    return settled(rows, wants, notes, is_several)


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a model read in a text, for a person to correct in an annotation tool.

    Attributes:
        text: The text.
        text_b: The second of a pair, or empty.
        label: Its label; empty: it has spans instead.
        spans: Its spans; None: it has a label instead.
        score: How sure the model is, 0 to 1.
        id: Its id in its own file, or empty.
    """

    text: str
    text_b: str = ""
    label: str = ""
    spans: tuple[Span, ...] | None = None
    score: float | None = None
    id: str = ""

    def data(self) -> dict[str, str]:
        """Its texts and its id, called as the readers call them."""
        named = {"text": self.text, "text_b": self.text_b, "id": self.id}
        return {name: value for name, value in named.items() if value or name == "text"}


# What a value of JSON holds, whatever it is


def object_in(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def list_in(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in list_in(value) if isinstance(one, dict)]


def first_object(text: str) -> Mapping[str, Any]:
    """What the objects of JSON lines or of a list hold, by a file's beginning; the first counts.

    Further ones add what it lacks: a row need not have all marks of its format. Of a first object
    that goes on behind the beginning only the keys are known, at whatever depth; a file of another
    kind has none.
    """
    start = text.lstrip("\ufeff \t\r\n").removeprefix("[").lstrip()
    found, place, decoder = dict[str, Any](), 0, json.JSONDecoder()
    while start.startswith("{", place):
        try:
            one, place = decoder.raw_decode(start, place)
        except (ValueError, RecursionError):
            return found or dict.fromkeys(KEY.findall(start.partition("\n{")[0]))
        found = {**one, **{name: value for name, value in found.items() if value is not None}}
        while start[place : place + 1] in (",", " ", "\t", "\r", "\n") and place < len(start):
            place += 1
    return found
