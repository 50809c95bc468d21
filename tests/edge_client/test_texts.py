import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.texts import DataError, Example, read_file, read_folder, write_csv

LABELS = ("good", "bad")


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


def test_an_unknown_label_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\nx,good\ny,ugly\n")
    with pytest.raises(DataError, match=r"labelled.csv, line 3: label 'ugly' is not one of"):
        read_folder(tmp_path, LABELS)


@pytest.mark.parametrize("labels", [LABELS, ()])
def test_a_row_without_its_label_names_the_line(tmp_path: Path, labels: tuple[str, ...]) -> None:
    path = write(tmp_path / "labelled.csv", "text,label\nx,good\ny\n")
    with pytest.raises(DataError, match=r"line 3: label '' is not one of"):
        read_file(path, labels, labelled=True)


def test_labels_in_the_unlabelled_file_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\nx,good\n")
    write(tmp_path / "unlabelled.csv", "text,label\ny,secret\n")
    assert read_folder(tmp_path, LABELS).unlabelled == (Example("y"),)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "labelled.csv").write_bytes(b"text,label\n\xff\xfe\x00,good\n")
    with pytest.raises(DataError, match="cannot be read as UTF-8 csv"):
        read_folder(tmp_path, LABELS)


def test_a_broken_json_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x", "label": "good"}\n{"text": \n')
    with pytest.raises(DataError, match="line 2: no JSON"):
        read_file(path, LABELS, labelled=True)


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
    assert read_file(path, (), labelled=True) == labelled
    write_csv(path, bare)
    assert read_file(path, (), labelled=False) == bare


def test_line_ends_quotes_and_marks_survive_a_file(tmp_path: Path) -> None:
    hard = (' "quoted", \n two\r\n', "tab\there", "ሰላም", "'", "\ufeffmark", "a,b\r", "x\x85\u2028")
    texts = [Example(text, text, "a", "amh") for text in hard]
    write_csv(tmp_path / "a.csv", texts)
    assert read_file(tmp_path / "a.csv", (), labelled=True) == texts


def test_half_a_character_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv: a text cannot be written as UTF-8: surrogates"):
        write_csv(tmp_path / "a.csv", [Example("\ud83d")])


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "a.parquet", "no parquet")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet"):
        read_file(path, (), labelled=True)
