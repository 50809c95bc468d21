from hypothesis import given

from smidgen.edge_client.formats.annotation.answers import Span
from smidgen.edge_client.formats.annotation.brat import entities_of, rows_of
from smidgen.edge_client.formats.source import LeftOut, Row
from tests.edge_client.formats.annotation.annotated import Spanned, spanned

TEXT = "Ann Lee left Rome.\r\n\r\nNew York 📉 fell.\nBob\n"


def line(number: int, start: int, end: int, label: str, text: str = TEXT) -> str:
    kept = " ".join(text[start:end].split())
    return f"T{number}\t{label} {start} {end}\t{kept}\n"


def found(annotations: str, labelled: bool = True) -> list[Row | LeftOut]:
    entities, _ = entities_of(annotations, TEXT)
    return list(rows_of(TEXT, entities, labelled))


def test_each_line_is_a_row_with_the_spans_in_it() -> None:
    start = TEXT.index("New")
    rows = found(line(1, 0, 7, "Person") + line(2, start, start + 8, "Place"))
    assert [(one.line, one.columns["text"], one.spans) for one in rows if isinstance(one, Row)] == [
        (1, "Ann Lee left Rome.", ((0, 7, "Person"),)),
        (3, "New York 📉 fell.", ((0, 8, "Place"),)),
        (4, "Bob", ()),
    ]
    assert [one.spans for one in found("", labelled=False) if isinstance(one, Row)] == [None] * 3


def test_parts_and_spans_over_several_lines_leave_out_the_rows_that_they_touch() -> None:
    parts = "T1\tPerson 0 3;13 17\tAnn Rome\n"
    over = line(2, TEXT.index("fell"), TEXT.index("Bob") + 3, "Odd")
    rows = found(parts + over)
    assert [(one.line, one.reason) for one in rows if isinstance(one, LeftOut)] == [
        (1, "ambiguous"),
        (3, "ambiguous"),
        (4, "ambiguous"),
    ]


def test_a_span_whose_text_is_not_at_its_place_is_not_read() -> None:
    (first, *_) = found("T1\tPerson 1 8\tAnn Lee\n")
    assert isinstance(first, LeftOut) and first.reason == "ambiguous"


def test_what_is_no_span_is_named() -> None:
    others = "R1\tIn Arg1:T1 Arg2:T2\nE1\tBirth:T1\nA1\tNegated T1\n#1\tNotes T1\tx\n"
    assert entities_of(others, TEXT) == ([], ["relations", "events", "attributes"])


@given(spanned())
def test_spans_within_lines_are_found_again(one: Spanned) -> None:
    text = one.text.replace("\n", " ").replace("\u00a0", " ")
    spans: list[Span] = [(start, end, label.replace(" ", "_")) for start, end, label in one.spans]
    body = "first line\r\n" + text + "\nlast"
    annotations = "".join(
        line(number, start + 12, end + 12, label, body)
        for number, (start, end, label) in enumerate(spans)
    )
    entities, others = entities_of(annotations, body)
    rows = {row.line: row for row in rows_of(body, entities, labelled=True)}
    if text.strip():
        second = rows[2]
        assert isinstance(second, Row) and second.spans == tuple(spans) and not others
