"""Bodies made from kept ones: cut, doubled, mixed, with the values in them that break things."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

LONGEST = 64 << 10
TOKENS = (
    *(b"null", b"true", b"NaN", b"-1", b"0", b"1e999", b"-1e-999", b"1" + b"0" * 30, b"0.5"),
    *(b'""', b"[]", b"{}", b"[", b"{", b"}" * 3, b"[" * 2000, b'"', b"'", b",", b":", b"=", b"\\"),
    *(b"\0", b"\n", b"\r\n", b"\r\n\r\n", b"\t", b" ", b"\x1b[2J", b"\x7f", b"\xff" * 8),
    *(
        "é".encode(),
        "\u202e".encode(),
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\u0000",
        b"\xff\xfe",
        b"../",
    ),
    *(b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x00" * 8, b"99999999999999999999", b"%s", b"x" * 300),
)
NAMES = ("", "..", "a/b", "\x1b[2J", "\0", "two\nlines", "\u2028", "é", "\ud800", "x" * 5000)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 10**400),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), -1e999, 5e-324),
    *NAMES,
    *([], {}, [[]], [None], [0] * 3, {"": None}, [[[[[[[[1]]]]]]]]),
)


@st.composite
def bodies(draw: st.DrawFn, kept: Sequence[bytes]) -> bytes:
    """A kept body with one to six changes; now and then bytes of no kind."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=300))
    body = draw(st.sampled_from(kept))
    for _ in range(draw(st.integers(1, 6))):
        body = draw(st.sampled_from(CHANGES))(draw, body, kept)[:LONGEST]
    return body


def _place(draw: st.DrawFn, body: bytes) -> int:
    return draw(st.integers(0, len(body)))


def _span(draw: st.DrawFn, body: bytes) -> tuple[int, int]:
    first = _place(draw, body)
    return first, min(len(body), first + draw(st.sampled_from((1, 2, 4, 8, 20, 100))))


def replaced(draw: st.DrawFn, body: bytes, _: Sequence[bytes]) -> bytes:
    """Other bytes, as many: what counts lengths goes on to count right."""
    first, end = _span(draw, body)
    other = draw(st.binary(min_size=end - first, max_size=end - first))
    return body[:first] + other + body[end:]


def cut(draw: st.DrawFn, body: bytes, _: Sequence[bytes]) -> bytes:
    first, end = _span(draw, body)
    return body[:first] + draw(st.sampled_from((b"", body[end:])))


def doubled(draw: st.DrawFn, body: bytes, _: Sequence[bytes]) -> bytes:
    first, end = _span(draw, body)
    return body[:first] + body[first:end] * draw(st.sampled_from((2, 3, 50))) + body[end:]


def put_in(draw: st.DrawFn, body: bytes, _: Sequence[bytes]) -> bytes:
    first, end = _span(draw, body)
    end = draw(st.sampled_from((first, end)))
    return body[:first] + draw(st.sampled_from(TOKENS)) + body[end:]


def mixed(draw: st.DrawFn, body: bytes, kept: Sequence[bytes]) -> bytes:
    """The beginning of one and the end of another."""
    other = draw(st.sampled_from(kept))
    return body[: _place(draw, body)] + other[_place(draw, other) :]


def other_value(draw: st.DrawFn, body: bytes, _: Sequence[bytes]) -> bytes:
    """Another value, or another name, somewhere in a JSON document.

    It may be the header of a safetensors file, whose length then still counts right.
    """
    length = int.from_bytes(body[:8], "little")
    is_headed = 1 < length <= len(body) - 8
    try:
        document = json.loads(body[8 : 8 + length] if is_headed else body)
    except (ValueError, RecursionError):
        return body
    value = draw(st.sampled_from(VALUES))
    changed = json.dumps(_changed(draw, document, value)).encode()
    return (
        len(changed).to_bytes(8, "little") + changed + body[8 + length :] if is_headed else changed
    )


def _changed(draw: st.DrawFn, document: Any, value: Any) -> Any:
    """A document with one of its values changed, taken out or renamed."""
    if not isinstance(document, dict | list) or not document or draw(st.integers(0, 5)) == 0:
        return value
    if isinstance(document, list):
        place = draw(st.integers(0, len(document) - 1))
        inner = _changed(draw, document[place], value)
        return [*document[:place], inner, *document[place + 1 :]]
    name = draw(st.sampled_from(sorted(document)))
    rest = {other: document[other] for other in document if other != name}
    way = draw(st.sampled_from(("within", "within", "within", "renamed", "gone")))
    if way == "within":
        return document | {name: _changed(draw, document[name], value)}
    return rest | {draw(st.sampled_from(NAMES)): document[name]} if way == "renamed" else rest


CHANGES = (replaced, cut, doubled, put_in, put_in, mixed, other_value, other_value, other_value)
