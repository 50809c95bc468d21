"""Tables against what wrote them: read back row by row, or left out and named."""

import csv
import io
import re
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.registry import read
from smidgen.edge_client.formats.source import LeftOut, Row, Source
from smidgen.edge_client.texts.parts import ANY
from tests.edge_client.formats.written.table_files import (
    ENDS,
    LABELS,
    Labelled,
    ReadBack,
    csv_writer,
    naive,
    read_back,
    rows,
    spreadsheet,
    texts,
)

QUOTINGS = (csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)
COLUMNS = st.permutations(["text", "label", "id", "more"])
ANYWHERE = texts(*ENDS, without="\0")
IN_A_LINE = texts(without="\0\t")
LINES = re.compile("[^\r\n]+")


def tabled(found: list[Labelled], columns: list[str]) -> list[list[str]]:
    """A header and rows; the columns that nobody asks for hold what a text may hold."""
    whole = [one._asdict() | {"id": str(at), "more": "x"} for at, one in enumerate(found)]
    return [columns, *([row[name] for name in columns] for row in whole)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@given(
    rows(ANYWHERE),
    COLUMNS,
    st.sampled_from([*product(QUOTINGS, ",;\t", ENDS)]),
    st.booleans(),
    st.sampled_from(["", "\ufeff"]),
)
def test_csv_is_read_as_it_was_written(
    folder: Path,
    found: list[Labelled],
    columns: list[str],
    way: tuple[int, str, str],
    ends: bool,
    mark: str,
) -> None:
    """With labels known nothing is left out: none of them stands at the end of a text's lines."""
    quoting, delimiter, end = way
    body = csv_writer(quoting, delimiter, end)(tabled(found, columns))
    body = mark + (body if ends else body.removesuffix(end))
    check_read(read_back(folder / "a.csv", body, LABELS), found, delimiter)
    blind = read_back(folder / "a.csv", body)
    assert is_within(blind.found, found)
    if delimiter != "\t":
        assert len(blind.lines) == len(found)


@given(rows(ANYWHERE), COLUMNS, st.sampled_from(ENDS))
def test_a_spreadsheets_tsv_is_read_as_it_was_written(
    folder: Path, found: list[Labelled], columns: list[str], end: str
) -> None:
    body = spreadsheet(end)(tabled(found, columns))
    check_read(read_back(folder / "a.tsv", body, LABELS), found, "\t")


@given(rows(IN_A_LINE), COLUMNS, st.sampled_from(ENDS), st.booleans())
def test_tsv_without_quotes_is_read_as_it_was_written(
    folder: Path, found: list[Labelled], columns: list[str], end: str, is_known: bool
) -> None:
    """But for quotes around a whole text, which are taken off."""
    found = [Labelled(unquoted(one.text), one.label) for one in found if unquoted(one.text).strip()]
    back = read_back(
        folder / "a.tsv", naive(end)(tabled(found, columns)), LABELS if is_known else ANY
    )
    assert back.found == found and not back.left_out


def check_read(back: ReadBack, found: list[Labelled], delimiter: str) -> None:
    """All rows, but for those of TSV whose text holds tabs and line ends: these may be left out."""
    assert is_within(back.found, found) and len(back.lines) == len(found)
    mixed = [one for one in found if "\t" in one.text and set(one.text) & {"\r", "\n"}]
    assert back.left_out <= (len(mixed) if delimiter == "\t" else 0)


def unquoted(text: str) -> str:
    """A text that no quotes enclose, however often they do."""
    return text.strip('"') if text.startswith('"') and text.endswith('"') else text


def is_within(some: list[Labelled], every: list[Labelled]) -> bool:
    """Whether they are these, in order, some left out."""
    left = iter(every)
    return all(one in left for one in some)


@given(rows(ANYWHERE), st.sampled_from(",;|\t"), st.sampled_from(ENDS))
def test_excels_first_line_tells_the_delimiter(
    folder: Path, found: list[Labelled], delimiter: str, end: str
) -> None:
    body = csv_writer(csv.QUOTE_MINIMAL, delimiter, end)(tabled(found, ["label", "text"]))
    body = f"sep={delimiter}{end}{body}"
    check_read(read_back(folder / "a.csv", body, LABELS), found, delimiter)


BYTES = st.lists(
    st.sampled_from(
        [
            *(b'"', b'""', b",", b"\t", b"\n", b"\r", b"\r\n", b" ", b"\0", b"\xff", b"a", b"good"),
            b"text,label\n",
            b"text\tlabel\n",
            b"\xef\xbb\xbf",
            b"\xe2\x80\xa8",
            b'"a\nb",bad\n',
        ]
    ),
    max_size=30,
).map(b"".join)


@given(st.sampled_from([b"text,label\n", b"label;text\n", b"text\n"]), BYTES)
def test_of_any_csv_each_line_is_of_one_row(folder: Path, head: bytes, body: bytes) -> None:
    (folder / "any.csv").write_bytes(head + body)
    found = list(read(Source(folder / "any.csv", "label", labels=LABELS.labels)))
    check_lines(head + body, found, is_each_a_row=False)


@given(BYTES)
def test_of_any_tsv_each_line_is_of_one_row(folder: Path, body: bytes) -> None:
    whole = b"text\tlabel\n" + body
    (folder / "any.tsv").write_bytes(whole)
    found = list(read(Source(folder / "any.tsv", "label")))
    check_lines(whole, found, is_each_a_row=b'"' not in body)


def check_lines(body: bytes, found: list[Row | LeftOut], is_each_a_row: bool) -> None:
    """Rows end in lines that are not empty, ascending; the last ends with the file."""
    lines = io.StringIO(body.decode(errors="replace"), newline="").readlines()
    full = [at for at, line in enumerate(lines, start=1) if line.strip("\r\n")]
    ends = [one.line for one in found]
    assert ends == sorted(set(ends)) and set(ends) <= set(range(1, len(lines) + 1))
    if len(full) > 1 and found:
        assert ends[-1] >= full[-1]
    if is_each_a_row and full:
        assert ends == full[1:]


@given(
    rows(texts(without="\0\t").filter(lambda text: text[0] != ",")),
    st.data(),
    st.sampled_from(QUOTINGS),
)
def test_a_lone_quote_costs_at_most_its_row(
    folder: Path, found: list[Labelled], data: st.DataObject, quoting: int
) -> None:
    found = [Labelled(f"{at} {one.text}", one.label) for at, one in enumerate(found)]
    lines = csv_writer(quoting, ",", "\n")(tabled(found, ["text", "label"])).splitlines(True)
    lines = re.findall("[^\n]*\n", "".join(lines))
    place = data.draw(st.integers(1, len(found)))
    at = data.draw(st.integers(0, len(lines[place]) - 1))
    lines[place] = lines[place][:at] + '"' + lines[place][at:]
    back = read_back(folder / "a.csv", "".join(lines), LABELS)
    others = [one for number, one in enumerate(found, start=1) if number != place]
    assert [one for one in back.found if one in others] == others
    assert len(back.lines) == len(found)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("x,good\n" * 20_000 + '"x,bad\n', 20_001),
        ('"x,bad\n' + "x,good\n" * 20_000, 20_001),
        ('"x,bad\n' * 20_000, 20_000),
        ('"x,bad\n' + '"",good\n' * 20_000, 20_001),
        ('"\n' * 20_001, 10_001),
        ('"' * 20_001, 1),
        ('a"b,good\nx"",bad\n' * 10_000, 20_000),
        (",\n" + '"x,bad\n"",good\n' * 10_000, 20_001),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_quotes_cost_time_as_long_as_the_file_is(
    tmp_path: Path, body: str, count: int, ending: str
) -> None:
    if ending == "tsv":
        body = body.replace(",", "\t")
    head = "text\tlabel\n" if ending == "tsv" else "text,label\n"
    began_s = time.process_time()
    back = read_back(tmp_path / f"a.{ending}", head + body, LABELS)
    assert len(back.lines) == count or '"\n"' in body
    assert time.process_time() - began_s < 5


def test_ten_thousand_columns_are_no_more_work_than_others(tmp_path: Path) -> None:
    names = ["text", *(f"c{number}" for number in range(10_000)), "label"]
    body = csv_writer(csv.QUOTE_ALL, ",", "\n")([names, *[["x", *names[1:-1], "good"]] * 20])
    assert read_back(tmp_path / "a.csv", body, LABELS).found == [Labelled("x", "good")] * 20
