"""JSON objects: one per line (JSON lines), or all in one array.

    {"text": "lovely room", "label": "good"}      [{"text": ...}, {"text": ...}]
    {"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}

The file's beginning decides, not its ending .json or .jsonl. An array is held in memory, so it is
bounded; JSON lines are read line by line.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from smidgen.edge_client.errors import demand
from smidgen.edge_client.formats.lines import each_line
from smidgen.edge_client.formats.source import (
    MARK,
    DataError,
    Dialect,
    Head,
    LeftOut,
    Reason,
    Row,
    Rows,
    Source,
    Wants,
    ending_of,
    named,
)
from smidgen.edge_client.formats.table import used_columns

SPACE = re.compile(rf"[{MARK} \t\r\n]*")
ARRAY = re.compile(SPACE.pattern + r"\[\s*[{\]]")  # the beginning of one with objects, or empty
SURE = 0.55  # that a file is of the form that its ending does not promise
TOKENS, TAGS, NUMBERS = "tokens", "tags", "ner_tags"
MESSAGES = "messages"  # of conversations
NAMES = (
    f"{NUMBERS}: numbers are names here; write `{TAGS}` with B-TYPE, I-TYPE and O in their place"
)


class Object(dict[str, Any]):
    """An object of JSON that knows which names stand in it twice; the last value counts."""

    twice: tuple[str, ...] = ()


class Item(NamedTuple):
    """One object of a file, or why there is none: its line, or its number in an array."""

    number: int
    found: Object
    fault: str = ""


@dataclass(frozen=True)
class Json:
    """See `Reader`: one object in each line, or one array of objects.

    Attributes:
        is_array: Which of the two; `.json` promises an array, the other endings lines.
    """

    name: str
    is_array: bool
    endings = (".jsonl", ".ndjson", ".json")

    def sniff(self, head: Head) -> float:
        if self.is_array == (head.ending == ".json"):
            return 0.5
        first, _, _ = head.text[_next(head.text, 0) :].partition("\n")
        is_so = ARRAY.match(head.text) if self.is_array else isinstance(_decoded(first), Object)
        return SURE if is_so else 0.0

    def gives(self, head: Head) -> frozenset[Wants]:
        return gives(next(objects_in(head), Object()), head.dialect)

    def read(self, source: Source) -> Rows:
        if self.is_array != (ending_of(source.path).lower() == ".json"):
            source.note(self.name)
        return rows_of((array_items if self.is_array else line_items)(source), source)


JSON_LINES, JSON_ARRAY = Json("JSON lines", is_array=False), Json("a JSON array", is_array=True)


def gives(first: Mapping[str, Any], dialect: Dialect) -> frozenset[Wants]:
    """What rows hold, by the first of them."""
    has_tags = TOKENS in first and bool({TAGS, NUMBERS} & first.keys())
    has_text = dialect.columns(list(first)).text is not None
    if not first or has_tags == has_text:  # it is both, or nothing is known
        return frozenset(("text", "label", "tags"))
    return frozenset(("text", "tags" if has_tags else "label"))


def objects_in(head: Head) -> Iterator[Object]:
    """The objects that the beginning of a file holds whole, whether in lines or in an array."""
    text, place = head.text, 0
    while (place := text.find("{", place)) >= 0:
        try:
            found, place = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        if isinstance(found, Object):
            yield found


def _object(pairs: Sequence[tuple[str, Any]]) -> Object:
    found = Object(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        found.twice = tuple(name for name in found if names.count(name) > 1)
    return found


DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _decoded(text: str) -> Any:
    """What a text says as JSON; None where it is none."""
    try:
        return DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return None


def line_items(source: Source) -> Iterator[Item]:
    """The objects of JSON lines; blank lines are none."""
    with source.lines() as lines:
        for number, line, fault in each_line(lines):
            text = line.lstrip(MARK) if number > 1 else line
            if len(text) < len(line):
                source.note("a byte-order mark inside the file, as joined files have it")
            if fault:
                yield Item(number, Object(), fault)
            elif text.strip():
                yield _item(number, text)


def _item(number: int, text: str) -> Item:
    try:
        found = DECODER.decode(text.strip())
    except (ValueError, RecursionError) as error:
        return Item(number, Object(), f"not JSON: {_reason(error)}")
    if not isinstance(found, Object):
        return Item(number, Object(), "an object with `text` expected")
    return Item(number, found)


def array_items(source: Source) -> Iterator[Item]:
    """The objects of a file that is one array of JSON, one decoded at a time.

    Raises:
        DataError: It is not JSON, not an array, or too large to be held; maybe behind good objects.
    """
    text, number = source.whole(), 0
    place = _next(text, 0)
    if text[place : place + 1] != "[":
        if place < len(text):
            raise DataError(f"{source.path}: an array of objects is expected, {_came(text, place)}")
        return
    place = _next(text, place + 1)
    is_open = text[place : place + 1] != "]"
    while is_open:
        number += 1
        try:
            found, place = DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{source.path}, object {number}: not JSON: {_reason(error)}"
            ) from error
        if isinstance(found, Object):
            yield Item(number, found)
        else:
            yield Item(number, Object(), f"{type_name(found)}; an object with `text` expected")
        place = _next(text, place)
        is_open = text[place : place + 1] == ","
        place = _next(text, place + 1) if is_open else place
    ends = text[place : place + 1] == "]" and _next(text, place + 1) == len(text)
    demand(
        ends,
        f"{source.path}: not JSON: a comma, or the array's end, is expected behind object {number}",
        DataError,
    )


def _next(text: str, place: int) -> int:
    """The place of the next character that is no space."""
    match = SPACE.match(text, place)
    return match.end() if match else place


def _came(text: str, place: int) -> str:
    try:
        found, _ = DECODER.raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        return f"came what is not JSON: {_reason(error)}"
    names = f" with {named(list(found))}" if isinstance(found, Object) else ""
    return f"came {type_name(found)}{names}"


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]


def rows_of(items: Iterator[Item], source: Source) -> Rows:
    """Rows of objects, whose own names are the columns; see `Reader.read`."""
    for number, found, fault in items:
        if fault:
            reason: Reason = "too long" if fault.startswith("longer") else "unreadable"
            yield LeftOut(number, reason, fault)
            continue
        used = used_columns(source.dialect, list(found), source.wants)
        used += [] if source.wants == "label" else [TOKENS, TAGS, NUMBERS]
        values = [found[name] for name in used if name in found]
        if source.wants != "text" and found.get("answer") in ("reject", "ignore"):
            said = f"its answer is {found['answer']}, as Prodigy writes of what is no label"
            yield LeftOut(number, "rejected", said)
        elif twice := next((name for name in found.twice if name in used), ""):
            yield LeftOut(number, "ambiguous", f"two values of `{named([twice])}`; one is expected")
        elif unread := source.unread("".join(strings_in(values))):
            yield LeftOut(number, "unreadable", unread)
        else:
            yield worded(Row(number, found), source.wants, source.dialect)


def strings_in(value: Any) -> Iterator[str]:
    """Every string of a value, names included, however deeply it is nested."""
    open_values = [value]
    while open_values:
        one = open_values.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            open_values += [*one, *one.values()]
        elif isinstance(one, list):
            open_values += one


def worded(row: Row, wants: Wants, dialect: Dialect) -> Row | LeftOut:
    """A row with its words, where it tells them apart; see `Row`."""
    found = dict(row.columns)
    has_text = dialect.columns(list(found)).text is not None
    if wants == "label" or TOKENS not in found or (wants == "text" and has_text):
        if wants == "tags":
            return LeftOut(row.line, "columns", f"an object with `{TOKENS}` and `{TAGS}` expected")
        return row
    words, tags = found.pop(TOKENS), found.pop(TAGS, None)
    if wants == "text":
        tags = []
    elif tags is None and NUMBERS in found:
        if not are_strings(tags := found.pop(NUMBERS)):
            return LeftOut(row.line, "tags", NAMES)
    elif tags is None:
        return LeftOut(row.line, "columns", f"an object with `{TOKENS}` and `{TAGS}` expected")
    if not (are_strings(words) and are_strings(tags)):
        lists = f"`{TOKENS}`: a list of strings is" if wants == "text" else LISTS
        return LeftOut(row.line, "not text", f"{lists} expected")
    if wants == "tags" and len(words) != len(tags):
        return LeftOut(
            row.line,
            "tags",
            f"{len(words)} tokens and {len(tags)} tags; a tag of each token is expected",
        )
    if any(not word.strip() for word in words):
        return LeftOut(row.line, "not text", "an empty token; leave it out, and its tag")
    return Row(row.line, found, tuple(words), tuple(tags), file=row.file)


LISTS = f"`{TOKENS}` and `{TAGS}`: two lists of strings are"


def are_strings(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def type_name(value: object) -> str:
    if isinstance(value, float) and value != value:
        return "NaN"
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a whole number"}
    names |= {float: "a fraction", str: "a string", bytes: "bytes", type(None): "null"}
    return next((said for kind, said in names.items() if type(value) is kind), "") or (
        "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
    )
