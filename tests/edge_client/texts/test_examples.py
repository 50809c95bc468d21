import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats.registry import read_rows
from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import every_files
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import (
    ClientData,
    Example,
    read_file,
    read_folder,
)
from smidgen.edge_client.texts.parts import ANY, Labels
from smidgen.edge_client.texts.written import write_csv

LABELS = Labels(("good", "bad"))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_tsv_jsonl_and_gz_read_alike(tmp_path: Path) -> None:
    csv = write(tmp_path / "a.csv", 'text,label,language\n"one, two",good,en\n')
    tsv = write(tmp_path / "a.tsv", "text\tlabel\tlanguage\none, two\tgood\ten\n")
    jsonl = write(tmp_path / "a.jsonl", '{"text": "one, two", "label": "good", "language": "en"}\n')
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    read = [read_file(path, LABELS, labelled=True) for path in (csv, tsv, jsonl, packed)]
    assert all(examples == [Example("one, two", "", "good", "en")] for examples in read)


def test_a_pair_has_two_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text_a,text_b,label\nx,y,bad\n")
    assert read_file(path, LABELS, labelled=True) == [Example("x", "y", "bad")]


def test_an_empty_folder_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put a labelled\.csv with columns text,label there"):
        read_folder(tmp_path, LABELS)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data at"):
        read_folder(tmp_path / "nothing", LABELS)


def test_a_missing_label_column_names_the_columns_found(tmp_path: Path) -> None:
    path = write(tmp_path / "labelled.csv", "text,stars\nx,1\n")
    with pytest.raises(DataError, match=f"{path}: no column `label`; found text, stars"):
        read_folder(tmp_path, LABELS)


# One bad line among good ones, its number, and what is said of it.
BAD = [
    (
        "csv",
        b"text,label\nx,good\ny,ugly\n",
        3,
        "label 'ugly' is not one of good, bad",
    ),
    ("csv", b"text,label\nx,good\ny\n", 3, "no label; one of good, bad is expected"),
    ("csv", b"text,label\nx,good\ny, all day,bad\n", 3, "1 column more than the first line names"),
    ("tsv", b"text\tlabel\nx\tgood\t\ny\tbad\t\tz\n", 3, "2 columns more than the first line"),
    ("csv", b"text,label\ny,\xff\xfe\nx,good\n", 2, "not UTF-8; save it as UTF-8"),
    ("csv", b'text,label\n"y\n\xe9",bad\nx,good\n', 3, "not UTF-8; save it as UTF-8"),
    ("csv", b"text,label\nx,good\ny\0,bad\n", 3, "a NUL byte; text is expected"),
    ("csv", b"text,label\n" + b"y" * 2**24 + b"y,bad\nx,good\n", 2, "longer than 1,048,576"),
    ("jsonl", b"y" * 2**21 + b'\n{"text": "x", "label": "good"}\n', 1, "longer than 1,048,576"),
    (
        "tsv",
        b"text\tlabel\ny\tBad\nx\tgood\n",
        2,
        "label 'Bad' is not one of good, bad; it differs from bad in case",
    ),
    ("jsonl", b'{"text": "x", "label": "good"}\n{"text": \n', 2, "not JSON: Expecting value"),
    ("jsonl", b'[1]\n{"text": "x", "label": "good"}\n', 1, "an object with `text` expected"),
    ("jsonl", b'{"label": "bad"}\n{"text": "x", "label": "good"}\n', 1, "no column `text`"),
    (
        "jsonl",
        b'{"text": "y"}\n{"text": "x", "label": "good"}\n',
        1,
        "no column `label`; found text",
    ),
    ("jsonl", b"[" * 10**5 + b'\n{"text": "x", "label": "good"}\n', 1, "not JSON: "),
    ("jsonl", b'{"text": "\\ud83d"}\n{"text": "x", "label": "good"}\n', 1, "not UTF-8"),
    ("jsonl", b'{"text": "\\u0000", "label": "bad"}\n{"text": "x", "label": "good"}\n', 1, "a NUL"),
    ("jsonl", b'\xfd\xfe\0\n{"text": "x", "label": "good"}\n', 1, "not JSON: "),
]


@pytest.mark.parametrize(("ending", "body", "line", "reason"), BAD)
def test_one_bad_line_is_left_out_and_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ending: str,
    body: bytes,
    line: int,
    reason: str,
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(body)
    assert read_file(path, LABELS, labelled=True) == [Example("x", label="good")]
    (said,) = caplog.messages
    assert said.startswith(f"{path}: 1 of 2 rows left out (1 ")
    assert f"): line {line}: {reason}" in said
    said.encode()  # and nothing of its bytes gets into the log


@pytest.mark.parametrize(("ending", "body", "line", "reason"), BAD)
def test_a_file_of_bad_lines_alone_names_the_first(
    tmp_path: Path, ending: str, body: bytes, line: int, reason: str
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(body.replace(b"x,good", b"x,odd").replace(b"x\tgood", b"x\todd"))
    path.write_bytes(path.read_bytes().replace(b'"x", "label": "good"', b'"x", "label": "odd"'))
    with pytest.raises(DataError, match=r"a\.\w+, line \d: .*; no other line of the file can be"):
        read_file(path, LABELS, labelled=True)


def test_the_log_tells_how_many_lines_and_shows_ten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.csv", "text,label\n" + "x,ugly\n" * 11 + ",good\n" * 2 + "x,bad\n")
    assert read_file(path, LABELS, labelled=True) == [Example("x", label="bad")]
    (said,) = caplog.messages
    assert said.startswith(f"{path}: 13 of 14 rows left out (11 label, 2 empty): line 2: ")
    assert said.endswith("; ...") and said.count("line ") == 10


def test_a_row_without_a_text_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.csv", "text,label\n,ugly\n  ,\nx,good\n")
    assert read_file(path, LABELS, labelled=True) == [Example("x", label="good")]
    assert not caplog.messages


def test_any_label_will_do_where_none_is_asked_for_but_none_at_all(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,ugly\ny,\n")
    assert read_file(path, ANY, labelled=True) == [Example("x", label="ugly")]


GOOD = Example("x, \n y", label="good")


@given(st.lists(st.binary(max_size=12), max_size=6), st.sampled_from(["csv", "tsv", "jsonl"]))
def test_whatever_bytes_there_are_good_lines_before_them_are_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ending: str
) -> None:
    path = tmp_path_factory.mktemp("texts") / f"a.{ending}"
    good = {
        "csv": b'text,label\n"x, \n y",good\n',
        "tsv": b'text\tlabel\n"x, \n y"\tgood\n',
        "jsonl": b'{"text": "x, \\n y", "label": "good"}\n',
    }
    path.write_bytes(good[ending] + b"\n".join(lines))
    read = read_file(path, LABELS, labelled=True)
    assert read[0] == GOOD and all(example.label in LABELS.labels for example in read)
    "".join(example.text for example in read).encode()


def test_a_folder_is_checked_no_further_than_its_first_good_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "labelled.csv", "text,label\ny\nx,any\n")
    write(tmp_path / "unlabelled.jsonl", "{\n")
    with pytest.raises(DataError, match=r"unlabelled\.jsonl, line 1: not JSON"):
        check_folder(tmp_path, every_files())
    write(tmp_path / "unlabelled.jsonl", '{"text": "x"}\n{\n')
    check_folder(tmp_path, every_files())
    assert not caplog.records


def test_labels_in_the_unlabelled_file_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\nx,good\n")
    write(tmp_path / "unlabelled.csv", "text,label\ny,secret\n")
    assert read_folder(tmp_path, LABELS).unlabelled == (Example("y"),)


def test_a_file_of_nul_bytes_is_named(tmp_path: Path) -> None:
    (tmp_path / "labelled.csv").write_bytes("text,label\nx,good\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"labelled\.csv, line 2: a NUL byte"):
        read_folder(tmp_path, LABELS)


@pytest.mark.parametrize("body", [b"", b"text,label\n", b"\n"])
def test_a_part_without_rows_is_as_if_it_were_not_there(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "labelled.csv").write_bytes(body)
    with pytest.raises(DataError, match=r"labelled\.csv holds no texts; columns text,label are"):
        check_folder(tmp_path, every_files())
    with pytest.raises(DataError, match=r"labelled\.csv holds no texts; columns text,label are"):
        read_folder(tmp_path, LABELS)
    write(tmp_path / "unlabelled.csv", "text\nx\n")
    check_folder(tmp_path, every_files())
    assert read_folder(tmp_path, LABELS) == ClientData((), (Example("x"),), ())


def test_a_part_of_rows_without_texts_is_useless(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\n,good\n")
    write(tmp_path / "unlabelled.csv", "text\nx\n")
    with pytest.raises(
        DataError, match=r"labelled\.csv holds no texts: 1 of 1 row left out \(1 empty\)"
    ):
        check_folder(tmp_path, every_files())
    with pytest.raises(
        DataError, match=r"labelled\.csv holds no texts: 1 of 1 row left out \(1 empty\)"
    ):
        read_folder(tmp_path, LABELS)


@pytest.mark.parametrize("damage", [slice(None, -9), slice(0, 0)])
def test_a_broken_gz_is_named(tmp_path: Path, damage: slice) -> None:
    packed = bytearray(gzip.compress(b"text,label\n" + bytes(range(32, 99)) * 9 + b",good\n"))
    packed = packed[damage] if damage.stop else packed[:12] + b"\xff" * 9 + packed[21:]
    (tmp_path / "labelled.csv.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"labelled\.csv\.gz cannot be read as UTF-8 csv"):
        read_folder(tmp_path, LABELS)


def test_rows_are_read_all_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\nx,y\nx,\xff\n")
    with pytest.raises(DataError, match=r"a\.csv, line 3: not UTF-8"):
        list(read_rows(path))


def test_two_files_for_one_part_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\nx,good\n")
    write(tmp_path / "labelled.jsonl", '{"text": "x", "label": "good"}\n')
    with pytest.raises(DataError, match="keep one"):
        read_folder(tmp_path, LABELS)


def test_one_labelled_file_stands_for_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", "text,label\nx,good\n")
    assert read_folder(path, LABELS).labelled == (Example("x", "", "good"),)


# Python 3.10 reads no NUL in CSV.
UNICODE = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
TEXTS = st.builds(Example, UNICODE.filter(str.strip), UNICODE, UNICODE.filter(bool), UNICODE)
BARE = st.builds(Example, UNICODE.filter(str.strip), UNICODE, language=UNICODE)


@given(st.lists(TEXTS, min_size=1), st.lists(BARE, min_size=1))
def test_texts_that_were_written_read_back(
    tmp_path_factory: pytest.TempPathFactory, labelled: list[Example], bare: list[Example]
) -> None:
    path = tmp_path_factory.mktemp("texts") / "a.csv"
    write_csv(path, labelled)
    assert read_file(path, ANY, labelled=True) == labelled
    write_csv(path, bare)
    assert read_file(path, ANY, labelled=False) == bare


def test_line_ends_quotes_and_marks_survive_a_file(tmp_path: Path) -> None:
    hard = (' "quoted", \n two\r\n', "tab\there", "ሰላም", "'", "\ufeffmark", "a,b\r", "x\x85\u2028")
    texts = [Example(text, text, "a", "amh") for text in hard]
    write_csv(tmp_path / "a.csv", texts)
    assert read_file(tmp_path / "a.csv", ANY, labelled=True) == texts


def test_half_a_character_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv: a text cannot be written as UTF-8: surrogates"):
        write_csv(tmp_path / "a.csv", [Example("\ud83d")])


def test_a_parquet_row_without_text_or_label_is_left_out(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {"text": ["x", None, "y"], "label": ["good", "bad", None]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    read = read_file(tmp_path / "a.parquet", LABELS, labelled=True)
    assert read == [Example("x", label="good")]


@pytest.mark.parametrize("where", ["text", "storm"])
def test_a_parquet_file_that_is_not_utf_8_is_named(tmp_path: Path, where: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["storm"] * 3, "label": ["weather"] * 3})
    parquet.write_table(table, path, compression="none", use_dictionary=False)
    raw = where.encode()
    path.write_bytes(path.read_bytes().replace(raw, b"\x80" + raw[1:]))
    with pytest.raises(DataError, match=r"a\.parquet(, line 1: not UTF-8| cannot be read as)"):
        read_file(path, LABELS, labelled=True)


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "a.parquet", "no parquet")
    with pytest.raises(DataError, match=r"a\.parquet(, line 1: not UTF-8| cannot be read as)"):
        read_file(path, ANY, labelled=True)
