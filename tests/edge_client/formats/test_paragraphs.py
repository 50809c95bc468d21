import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.formats import paragraphs
from smidgen.edge_client.formats.lines import ReadBounds
from smidgen.edge_client.formats.paragraphs import PARAGRAPHS as FOLDER
from smidgen.edge_client.formats.paragraphs import files_in
from smidgen.edge_client.formats.source import DataError, Dialect, Row, Source
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.examples import Example, read_file
from smidgen.edge_client.texts.parts import Labels

NOTES = Labels(files=kind_named("mlm").files)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n\ufeff"), max_size=9)
PARAGRAPHS = st.lists(LINES.filter(str.strip).map(str.strip), min_size=1, max_size=3)


def read(folder: Path) -> list[str]:
    return [one.text for one in read_file(folder, NOTES, labelled=False)]


@given(st.lists(st.lists(PARAGRAPHS, max_size=3), min_size=1, max_size=3), st.integers(1, 3))
def test_paragraphs_are_read_in_the_order_of_files_however_many_lines_are_between(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[str]]], blank: int
) -> None:
    folder = tmp_path_factory.mktemp("unlabelled")
    for number, texts in enumerate(files):
        body = ("\n" * (blank + 1)).join("\n".join(lines) for lines in texts)
        (folder / f"{number}.txt").write_text(body, encoding="utf-8", newline="")
    found = [row for row in FOLDER.read(Source(folder)) if isinstance(row, Row)]
    assert [row.columns["text"] for row in found] == [" ".join(t) for texts in files for t in texts]
    assert all(row.line > 0 for row in found)


def test_other_files_and_deeper_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (tmp_path / ".c.txt").write_text("hidden")
    (tmp_path / "d.md").write_text("other")
    (tmp_path / "e.txt").mkdir()
    (tmp_path / "e.txt" / "f.txt").write_text("deeper")
    assert read(tmp_path) == ["first", "one", "two"]


def test_a_bad_paragraph_is_left_out_and_its_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\nbad\xff\nmore of it\n\nlast\n")
    (tmp_path / "b.txt").write_bytes(b"y" * 10_000_000 + b"\nmore\n\nnul\0\n\nend")
    assert read(tmp_path) == ["one", "last", "end"]
    (said,) = caplog.messages
    assert f"{tmp_path / 'a.txt'}, line 3: not UTF-8" in said
    assert f"{tmp_path / 'b.txt'}, line 1: longer than" in said and "line 4: a NUL byte" in said


def test_a_text_knows_its_file_and_where_it_ends(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("one\ntwo\n\nthree\n")
    found = read_file(tmp_path / "notes", NOTES, labelled=False)
    assert found == [Example("one two"), Example("three")]
    assert [(one.file, one.line) for one in found] == [("notes/a.txt", 2), ("notes/a.txt", 4)]


@pytest.mark.parametrize("bounds", [ReadBounds(lines=3), ReadBounds(characters=7)])
def test_bounds_hold_of_all_files_together(tmp_path: Path, bounds: ReadBounds) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("1\n\n")
    assert len(list(FOLDER.read(Source(tmp_path, bounds=ReadBounds(4, 8))))) == 2
    (tmp_path / "c.txt").write_text("1\n\n")
    with pytest.raises(DataError, match=f"{tmp_path} holds more than . (lines|characters)"):
        list(FOLDER.read(Source(tmp_path, bounds=bounds)))


def test_files_without_number_are_refused(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("")
    assert len(files_in(tmp_path, most=3)) == 3
    with pytest.raises(DataError, match="holds more than 2 files; join them into fewer"):
        files_in(tmp_path, most=2)
    assert paragraphs.MOST_FILES == 100_000


def test_an_encoding_is_every_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße".encode("latin-1"))
    found = read_file(tmp_path, NOTES, labelled=False, dialect=Dialect(encoding="latin-1"))
    assert found == [Example("Grüße")]


def test_a_cut_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n\ntwo\n" * 99)[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz cannot be read as UTF-8 txt"):
        read(tmp_path)
