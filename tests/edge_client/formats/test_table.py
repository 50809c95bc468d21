"""CSV and TSV against an oracle: who writes the file knows its rows."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smidgen.edge_client.formats.source import DataError, Dialect, LeftOut, Row, Source
from smidgen.edge_client.formats.table import TABLE

LABELS = ("good", "bad")
HARD = st.text(st.sampled_from('ab"",;\t\n\r x'), min_size=1, max_size=12)
RAW = st.text(st.sampled_from('ab"",; '), min_size=1, max_size=8)
ROWS = st.lists(st.tuples(HARD, st.sampled_from(LABELS), HARD), min_size=1, max_size=6)
ORDERS = st.permutations([0, 1, 2])
NAMES = ("text", "label", "more")


def stream(written: str) -> Source:
    return Source(Path("a.csv"), "label", labels=LABELS, stream=io.BytesIO(written.encode()))


def read(written: str, ending: str = ".csv", **how: object) -> list[Row | LeftOut]:
    """What is read of a table, labels of the task wanted and known unless said otherwise."""
    settings = {"wants": "label", "labels": LABELS, **how}
    binary = io.BytesIO(written.encode())
    return list(TABLE.read(Source(Path(f"a{ending}"), stream=binary, **settings)))  # type: ignore[arg-type]


def pairs(rows: list[Row | LeftOut]) -> list[tuple[str, str]]:
    return [(row.columns["text"], row.columns["label"]) for row in rows if isinstance(row, Row)]


def reasons(rows: list[Row | LeftOut]) -> list[str]:
    return [row.reason if isinstance(row, LeftOut) else "" for row in rows]


def written(rows: list[tuple[str, str, str]], order: list[int], **form: object) -> str:
    file = io.StringIO()
    writer = csv.writer(file, **form)  # type: ignore[arg-type]
    writer.writerow([NAMES[at] for at in order])
    writer.writerows([row[at] for at in order] for row in rows)
    return file.getvalue()


def is_in_order(found: list[tuple[str, str]], all_: list[tuple[str, str]]) -> bool:
    """Whether all that was found is there, in the same order."""
    left = iter(all_)
    return all(one in left for one in found)


@given(
    rows=ROWS,
    order=ORDERS,
    quoting=st.sampled_from((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)),
    delimiter=st.sampled_from(",;"),
    end=st.sampled_from(("\n", "\r\n")),
)
def test_each_row_that_csv_writes_is_read_as_it_was_written(
    rows: list[tuple[str, str, str]], order: list[int], quoting: int, delimiter: str, end: str
) -> None:
    # Before Python 3.13 csv quotes no "\r" unless it ends lines with it.
    assume(end == "\r\n" or not any("\r" in cell for row in rows for cell in row))
    file = written(rows, order, quoting=quoting, delimiter=delimiter, lineterminator=end)
    assert pairs(read(file)) == [row[:2] for row in rows]


@given(rows=ROWS, order=ORDERS, quoting=st.sampled_from((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)))
def test_a_row_of_quoted_tsv_is_read_as_it_was_written_or_left_out(
    rows: list[tuple[str, str, str]], order: list[int], quoting: int
) -> None:
    file = written(rows, order, quoting=quoting, delimiter="\t", lineterminator="\r\n")
    found = [pair for pair in pairs(read(file, ".tsv")) if pair[1] in LABELS]
    assert is_in_order(found, [row[:2] for row in rows])


@given(rows=st.lists(st.tuples(RAW, st.sampled_from(LABELS), RAW), max_size=8), order=ORDERS)
@pytest.mark.parametrize("known", [LABELS, ()])
def test_quotes_of_tsv_without_quoting_are_characters(
    known: tuple[str, ...], rows: list[tuple[str, str, str]], order: list[int]
) -> None:
    lines = ["\t".join(row[at] for at in order) for row in [NAMES, *rows]]
    found = read("\n".join(lines), ".tsv", labels=known)
    whole = re.compile(r'"(?:[^"]|"")*"')
    plain = [text[1:-1].replace('""', '"') if whole.fullmatch(text) else text for text, *_ in rows]
    assert pairs(found) == [(text, row[1]) for text, row in zip(plain, rows, strict=True)]
    assert [row.line for row in found] == list(range(2, len(rows) + 2))


@given(rows=st.lists(st.tuples(RAW, st.sampled_from(LABELS)), max_size=8), ending=st.data())
def test_of_csv_without_quoting_each_line_is_a_row_or_left_out(
    rows: list[tuple[str, str]], ending: st.DataObject
) -> None:
    rows = [(text.replace(",", ";"), label) for text, label in rows]
    file = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    found = read(file + ending.draw(st.sampled_from(("", '"', "x"))))
    good = [row for row in found if isinstance(row, Row) and row.columns["label"] in LABELS]
    lines = [row.line for row in found]
    assert lines == sorted(set(lines)), "each line is of one row"
    for row in good:
        text, label = rows[row.line - 2]
        is_swallowed = "\n" in row.columns["text"]
        assert is_swallowed or row.columns["label"] == label
        assert is_swallowed or row.columns["text"] in (text, text[1:-1].replace('""', '"'))


@given(lines=st.lists(st.text(st.sampled_from('a"\t,;=\n'), max_size=9), max_size=9))
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_each_line_of_any_file_is_of_one_row(ending: str, lines: list[str]) -> None:
    every = "\n".join(lines).split("\n")
    try:
        found = read("text,label\ttext\n" + "\n".join(every), ending, wants="text")
    except DataError:
        return  # its header has a column twice
    numbers = [row.line for row in found]
    assert numbers == sorted(set(numbers)) and set(numbers) <= set(range(1, len(every) + 2))
    filled = {number for number, line in enumerate(every, start=2) if line.strip("\r\n")}
    is_swallowed = any(  # a row over several lines, good or with too many cells
        row.reason in ("ambiguous", "columns")
        if isinstance(row, LeftOut)
        else "\n" in "".join(row.columns.values())
        for row in found
    )
    assert is_swallowed or filled <= {*numbers}


SWALLOWED = '"never again,bad\nstaff,good\n{}awful smell",bad\nfine,good\n'


@pytest.mark.parametrize("between", ["", "\n", "room, view,good\n", "lunch,ugly\n"])
def test_of_rows_that_a_quote_swallows_the_first_is_left_out(between: str) -> None:
    found = read("text,label\n" + SWALLOWED.format(between))
    assert reasons(found)[0] == "unreadable" and found[0].line == 2
    read_good = [pair for pair in pairs(found) if pair[1] in LABELS]
    assert read_good == [("staff", "good"), ('awful smell"', "bad"), ("fine", "good")]


def test_where_nothing_tells_rows_from_a_text_all_its_lines_are_left_out() -> None:
    found = read("text,label\n" + SWALLOWED.format(""), wants="text", labels=())
    assert [(row.line, isinstance(row, Row)) for row in found] == [(4, False), (5, True)]
    assert isinstance(found[0], LeftOut) and found[0].said.startswith("lines 2 on: ")


@pytest.mark.parametrize("cell", ['a "b", c\nd', "a, b\nc", "a, b\rc"])
def test_doubled_quotes_and_other_line_ends_tell_a_text_from_rows(cell: str) -> None:
    quoted = '"' + cell.replace('"', '""') + '"'
    end = "\n" if '"' in cell else "\r\n"
    file = f"text,id{end}{quoted},1{end}fine,2{end}"
    found = read(file, wants="text", labels=())
    assert [row.columns["text"] for row in found if isinstance(row, Row)] == [cell, "fine"]


@pytest.mark.parametrize(
    "cell", ["one\ntwo", "one\n\ntwo", 'a "b"\nc', "Dear all, hi\nbye, see", "x\r\ny"]
)
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_spreadsheets_cell_over_several_lines_is_one_text(cell: str, ending: str) -> None:
    quoted = '"' + cell.replace('"', '""') + '"'
    sign = "," if ending == ".csv" else "\t"
    file = f"text{sign}label\r\n{quoted}{sign}good\r\nfine{sign}bad\r\n"
    assert pairs(read(file, ending)) == [(cell, "good"), ("fine", "bad")]


def test_backslashes_before_quotes_stay_as_they_are_written() -> None:
    found = read('text\tlabel\n"a \\"b\\" c"\tgood\n\\"d\\" e\tbad\n', ".tsv")
    assert pairs(found) == [('"a \\"b\\" c"', "good"), ('\\"d\\" e', "bad")]


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;", "sep=;;;", "\n\nsep=;"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_delimiter_that_excels_first_line_says_is_taken(first: str, end: str) -> None:
    source = stream(end.join([*first.split("\n"), "label;text", 'good;"a;b"', "bad;c,d"]))
    assert pairs(list(TABLE.read(source))) == [("a;b", "good"), ("c,d", "bad")]
    assert source.notes == ["a semicolon between columns, as its line sep= says"]


@pytest.mark.parametrize(
    "header",
    ["text,label,label", "label,text,text", "text,label,text_b,text_b", "id,id,text,label"],
)
def test_two_columns_of_one_name_are_refused_by_their_numbers(header: str) -> None:
    with pytest.raises(DataError, match=r"columns \d and \d are both called `\w+`; one is"):
        read(header + "\na,good,b,c\n")


def test_names_that_differ_in_case_or_spaces_alone_are_refused_unless_one_is_said() -> None:
    file = "text,label, Label\na,good,bad\n"
    with pytest.raises(DataError, match=r"columns 2 and 3 are called `label` and ` Label`; one is"):
        read(file)
    assert pairs(read(file, dialect=Dialect(label_column="label"))) == [("a", "good")]


def test_a_column_that_nobody_reads_may_be_there_twice() -> None:
    assert pairs(read("more,text,more,label\n1,a,2,good\n")) == [("a", "good")]


@pytest.mark.parametrize(
    "again", ["text,label", "\ufefftext,label", "Text, LABEL", '"text","label"']
)
def test_the_names_of_the_columns_once_more_are_no_text(again: str) -> None:
    found = read(f"text,label\na,good\n{again}\nb,bad\n", wants="text")
    assert reasons(found) == ["", "header", ""]


def test_the_name_of_the_only_column_may_be_a_text() -> None:
    assert reasons(read("text\nText\ntext\n", wants="text")) == ["", "header"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_quote_that_stays_open_over_a_long_file_takes_no_longer(ending: str) -> None:
    lines = 'a "" b\n' * 100_000
    found = read(f'text{"," if ending == ".csv" else chr(9)}label\n"' + lines, ending)
    assert len(found) == 100_000


def test_a_delimiter_that_is_told_goes_before_the_one_that_is_usual() -> None:
    found = read("text|label\na,b|good\n", dialect=Dialect(delimiter="|"))
    assert pairs(found) == [("a,b", "good")]
