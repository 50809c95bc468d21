"""Files by other columns, delimiters and encodings: told, found out, or refused without a quote."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.formats.registry import read_stream
from smidgen.edge_client.formats.source import DELIMITERS, PLAIN, DataError, Dialect, Source, find
from smidgen.edge_client.tasks.kind import every_files
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import Example, read_file, read_folder
from smidgen.edge_client.texts.parts import ANY, Labels

LABELS = Labels(("good", "bad"))
SECRET = "grandma is ill"
READ = [Example("très bien", label="good")]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


# What a file holds, its encoding, what the user tells, and what the log tells.
KINDS = {
    "case": ("Text,LABEL\ntrès bien,good\n", "utf-8", Dialect(), "'Text' as `text`"),
    "spaces": ("text, label \ntrès bien,good\n", "utf-8", Dialect(), "' label ' as `label`"),
    "semicolon": ("text;label\ntrès bien;good\n", "utf-8", Dialect(), "a semicolon between"),
    "tab": ("text\tlabel\ntrès bien\tgood\n", "utf-8", Dialect(), "a tab between columns"),
    "mark": ("text,label\ntrès bien,good\n", "utf-16", Dialect(), "UTF-16"),
    "all": ("Label;Text\ngood;très bien\n", "utf-16", Dialect(), "a semicolon between columns"),
    "told columns": (
        "texte,étiquette\ntrès bien,good\n",
        "utf-8",
        Dialect(text_column="texte", label_column="étiquette"),
        "",
    ),
    "told delimiter": ("text|label\ntrès bien|good\n", "utf-8", Dialect(delimiter="|"), ""),
    "told tab": ("text\tlabel\ntrès bien\tgood\n", "utf-8", Dialect(delimiter="tab"), ""),
    "told encoding": ("text,label\ntrès bien,good\n", "latin-1", Dialect(encoding="latin-1"), ""),
    **{
        f"{mark or 'no '}mark {encoding}": (
            f"{mark}text,label\ntrès bien,good\n",
            encoding,
            Dialect(encoding=encoding),
            "",
        )
        for encoding in ("utf-16-le", "UTF-16BE", "utf_32_le", "utf-32-be")
        for mark in ("", "\ufeff")
    },
}


@pytest.mark.parametrize(("text", "encoding", "dialect", "said"), KINDS.values(), ids=KINDS)
def test_a_file_is_read_as_it_is_and_what_was_found_out_is_told_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    text: str,
    encoding: str,
    dialect: Dialect,
    said: str,
) -> None:
    path = write(tmp_path / "labelled.csv", text, encoding)
    check_folder(tmp_path, every_files(), dialect)
    assert not caplog.messages
    assert list(read_folder(tmp_path, LABELS, dialect).labelled) == READ
    told = caplog.messages
    assert len(told) == (1 if said else 0) and all(said in line for line in told)
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_file(packed, LABELS, labelled=True, dialect=dialect) == READ


@pytest.mark.parametrize("second", ["text_b", "Text_B"])
def test_beside_a_named_text_no_other_is_taken_for_its_second(second: str) -> None:
    names = ["body", "text", "text_a", second]
    assert Dialect("body").columns(names).text_b is None
    assert Dialect(f"body,{second}").columns(names).text_b == second
    for first in ("", "text", "text_a"):
        assert Dialect(first).columns(names).text_b == second


def test_objects_have_columns_of_other_names_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"Text": "x", "label": "good"}\n{"body": "y"}\n')
    assert read_file(path, ANY, labelled=False) == [Example("x")]
    assert read_file(path, ANY, labelled=False, dialect=Dialect("body")) == [Example("y")]


def test_the_two_texts_of_a_pair_may_be_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "premise,hypothesis,label\nx,y,good\n")
    found = read_file(path, LABELS, labelled=True, dialect=Dialect("premise,hypothesis"))
    assert found == [Example("x", "y", "good")]


def test_two_columns_alike_are_not_chosen_between(tmp_path: Path) -> None:
    assert find(["Text", "TEXT"], "text") is None and find(["Text", "text"], "text") == "text"


def test_a_delimiter_of_no_header_or_two_is_not_found_out(tmp_path: Path) -> None:
    assert Dialect().delimiter_of("a;b", ",", True) == ","
    assert Dialect().delimiter_of("text", "\t", False) == "\t"
    assert Dialect().delimiter_of("text;a\ttext", ",", False) == ","
    assert Dialect().delimiter_of("text,a;label", ",", True) == ","


@given(st.permutations(["text", "label", "id"]), st.sampled_from(sorted(DELIMITERS)))
def test_a_header_of_wanted_columns_tells_its_delimiter(names: list[str], delimiter: str) -> None:
    for usual in (",", "\t"):
        assert Dialect().delimiter_of(delimiter.join(names), usual, True) == delimiter


def refused(path: Path, dialect: Dialect = PLAIN) -> str:
    with pytest.raises(DataError) as caught:
        read_file(path, LABELS, labelled=True, dialect=dialect)
    said = str(caught.value)
    assert SECRET not in said and len(said.splitlines()) == 1
    return said


def test_a_file_without_a_header_is_told_without_a_word_of_it(tmp_path: Path) -> None:
    said = refused(write(tmp_path / "a.csv", f"{SECRET},good\nx,bad\n"))
    assert "line 1 is not a header: columns text,label are expected, 2 found" in said
    said = refused(write(tmp_path / "a.csv", f"{SECRET},good\n"), Dialect("body", "stars"))
    assert "columns body,stars are expected" in said
    said = refused(write(tmp_path / "a.jsonl", f'{{"{SECRET}": "good"}}\n'))
    assert "a.jsonl, line 1: columns text,label are expected, 1 found; say by" in said


def test_swapped_columns_are_told_without_a_word_of_them(tmp_path: Path) -> None:
    said = refused(write(tmp_path / "a.csv", f"label,text\n{SECRET},good\n"))
    assert (
        "line 2: label is not one of good, bad, but the text is; are the columns swapped?" in said
    )
    said = refused(write(tmp_path / "a.csv", f"label,text\n{SECRET},x\n"))
    assert "line 2: label is not one of good, bad" in said


def test_a_message_names_a_dozen_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,y\n")
    with pytest.raises(DataError, match=r"not one of 0, 1, .*, 11 \.\.\. \(99\)"):
        read_file(path, Labels(tuple(map(str, range(99)))), labelled=True)


def test_latin_1_is_not_found_out_but_its_option_is_named(tmp_path: Path) -> None:
    said = refused(write(tmp_path / "a.csv", "text,label\ntrès bien,good\n", "latin-1"))
    assert "line 2: not UTF-8; save it as UTF-8, or give --encoding such as latin-1" in said


def test_a_byte_that_the_told_encoding_does_not_know_names_that_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\nx \x81,good\n")
    said = refused(path, Dialect(encoding="cp1252"))
    assert "line 2: not cp1252; give its own --encoding" in said and "UTF-8" not in said


def test_a_file_of_another_encoding_than_told_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nx,good\n", "utf-16")
    path.write_bytes(path.read_bytes()[:-1])
    assert "is not UTF-16: truncated data; give its own --encoding" in refused(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_file_without_the_mark_that_its_encoding_needs_is_refused(
    tmp_path: Path, encoding: str
) -> None:
    path = write(tmp_path / "a.csv", f"text,label\n{SECRET},good\n", "utf-32-be")
    said = refused(path, Dialect(encoding=encoding))
    assert f"a.csv is not {encoding}: " in said and said.endswith("; give its own --encoding")
    assert encoding == "utf-32" or "does not start with BOM" in said
    with pytest.raises(DataError, match=f"^stdin is not {encoding}: "), path.open("rb") as stream:
        list(read_stream(Source(Path("stdin"), dialect=Dialect(encoding=encoding), stream=stream)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"encoding": "klingon"}, "--encoding 'klingon' is not known"),
        ({"encoding": "hex"}, "--encoding 'hex' is not known"),
        ({"encoding": "a\0b"}, "is not known"),
        ({"encoding": "undefined"}, "is not known"),
        ({"encoding": "idna"}, "--encoding 'idna' is not known as one of files"),
        ({"encoding": "punycode"}, "is not known as one of files"),
        ({"delimiter": ";;"}, "--delimiter ';;': one character"),
        ({"delimiter": '"'}, "one character such as ; or tab"),
        ({"delimiter": "\udcff"}, "one character such as ; or tab"),
    ],
)
def test_what_no_file_has_is_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(WrongInput, match=named):
        Dialect(**options)
