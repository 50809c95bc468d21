"""One folder, tasks of three kinds: which files each reads, and what is said where it cannot."""

from pathlib import Path

import pytest

from smidgen.edge_client.formats.source import DataError
from smidgen.edge_client.tasks.kind import every_files, kind_named
from smidgen.edge_client.texts.data_folder import check_folder
from smidgen.edge_client.texts.examples import ClientData, Example, read_folder
from smidgen.edge_client.texts.parts import Labels, files_of

MAIL = Labels(("mail", "news"))
DRUGS, NOTES = Labels(("Drug",), kind_named("tagging").files), Labels(files=kind_named("mlm").files)
ASPIRIN = Example("Aspirin", words=("Aspirin",), tags=("B-Drug",))


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_folder_serves_each_kind_by_the_files_that_are_its(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", "text,label\nx,mail\n")
    write(tmp_path / "labelled.conll", "Aspirin B-Drug\n")
    write(tmp_path / "test.conll", "Aspirin B-Drug\n")
    write(tmp_path / "unlabelled" / "a.txt", "y\nz\n")
    check_folder(tmp_path, every_files())
    assert read_folder(tmp_path, MAIL) == ClientData((Example("x", label="mail"),), (), ())
    assert read_folder(tmp_path, DRUGS) == ClientData((ASPIRIN,), (), (ASPIRIN,))
    assert read_folder(tmp_path, NOTES) == ClientData((Example("x"), Example("y z")), (), ())


PANX = "en:Aspirin\tB-Drug\nen:helped\tO\n"
TAGS_IN_JSON = '{"tokens": ["Aspirin"], "tags": ["B-Drug"]}\n'


@pytest.mark.parametrize(("name", "body"), [("tsv", PANX), ("jsonl", TAGS_IN_JSON)])
def test_tagged_words_and_tables_lie_in_one_folder_whatever_they_end_in(
    tmp_path: Path, name: str, body: str
) -> None:
    words = write(tmp_path / f"labelled.{name}", body)
    with pytest.raises(DataError, match=rf"labelled\.{name} is not for a task of kind mlm"):
        read_folder(tmp_path, NOTES)
    table = write(tmp_path / "labelled.csv", "text,label\nx,mail\n")
    check_folder(tmp_path, every_files())
    assert (
        files_of(tmp_path, kind_named("labels").files)
        == files_of(tmp_path, kind_named("mlm").files)
        == {"labelled": table}
    )
    assert files_of(tmp_path, kind_named("tagging").files) == {"labelled": words}
    with pytest.raises(DataError, match="is not for a task of kind mlm"):
        read_folder(words, NOTES)


@pytest.mark.parametrize(
    ("name", "body"), [("tsv", "text\tlabel\nx\tmail\n"), ("jsonl", '{"text": "x"}\n')]
)
def test_a_table_is_left_out_where_words_are_tagged(tmp_path: Path, name: str, body: str) -> None:
    table = write(tmp_path / f"labelled.{name}", body)
    words = write(tmp_path / "labelled.conll", "Aspirin B-Drug\n")
    assert files_of(tmp_path, kind_named("tagging").files) == {"labelled": words}
    assert files_of(tmp_path, kind_named("mlm").files) == {"labelled": table}


@pytest.mark.parametrize(
    "body", ["", "Aspirin\n", "x\tword\n", "\n# id\n", "\0\n", "x" * (1 << 21)]
)
def test_a_file_that_may_be_either_is_each_kinds(tmp_path: Path, body: str) -> None:
    file = write(tmp_path / "labelled.tsv", body)
    assert (
        files_of(tmp_path, kind_named("tagging").files)
        == files_of(tmp_path, kind_named("mlm").files)
        == {"labelled": file}
    )


def test_a_text_knows_its_file_and_line_in_every_format(tmp_path: Path) -> None:
    write(tmp_path / "labelled.csv", 'text\n"two\nlines"\nx\n')
    write(tmp_path / "unlabelled.txt", "y\n\nz\n")
    found = read_folder(tmp_path, NOTES).labelled
    told = [("labelled.csv", 3), ("labelled.csv", 4), ("unlabelled.txt", 1), ("unlabelled.txt", 3)]
    assert [(one.file, one.line) for one in found] == told


def test_a_file_and_a_folder_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "unlabelled.txt", "x\n")
    write(tmp_path / "unlabelled" / "a.txt", "y\n")
    with pytest.raises(DataError, match=r"holds both unlabelled\.txt and unlabelled; keep one"):
        read_folder(tmp_path, NOTES)
    assert files_of(write(tmp_path / "labelled.csv", "x").parent) == {
        "labelled": tmp_path / "labelled.csv"
    }


def test_test_texts_stand_alone_and_need_no_labels_where_words_are_masked(tmp_path: Path) -> None:
    write(tmp_path / "test" / "a.txt", "y\n")
    check_folder(tmp_path, every_files())
    assert read_folder(tmp_path, NOTES) == ClientData((), (), (Example("y"),))


def test_unlabelled_texts_beside_tagged_ones_are_any_texts(tmp_path: Path) -> None:
    write(tmp_path / "labelled.conll", "Aspirin B-Drug\n")
    write(tmp_path / "unlabelled.csv", "text\nx y\n")
    assert read_folder(tmp_path, DRUGS) == ClientData((ASPIRIN,), (Example("x y"),), ())


def test_one_file_stands_for_a_folder(tmp_path: Path) -> None:
    words, notes = (
        write(tmp_path / "a.bio", "Aspirin B-Drug\n"),
        write(tmp_path / "a.txt", "x\ny\n"),
    )
    for file in (words, notes):
        check_folder(file, every_files())
    assert read_folder(words, DRUGS).labelled == (ASPIRIN,)
    assert [one.text for one in read_folder(notes, NOTES).labelled] == ["x", "y"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (MAIL, r"or feather, .gz or not\); put a labelled.csv with columns text,label there"),
        (DRUGS, r"or bio, .gz or not\), and unlabelled.txt is not for .* put a labelled.conll"),
        (NOTES, r"and labelled.conll is not for a task of kind mlm; put an unlabelled.txt"),
    ],
)
def test_a_folder_without_files_of_a_kind_says_what_belongs_there(
    tmp_path: Path, wanted: Labels, said: str
) -> None:
    if wanted is DRUGS:
        write(tmp_path / "unlabelled.txt", "x\n")
    if wanted is NOTES:
        write(tmp_path / "labelled.conll", "Aspirin B-Drug\n")
    with pytest.raises(DataError, match=said):
        read_folder(tmp_path, wanted)


@pytest.mark.parametrize(
    ("name", "wanted", "said"),
    [
        ("labelled.conll", DRUGS, "labelled.conll holds no texts; a word and its tag on each line"),
        ("unlabelled.txt", NOTES, "unlabelled.txt holds no texts; a text on each line"),
        ("unlabelled/a.txt", NOTES, "unlabelled holds no texts; .* paragraphs in a folder's files"),
        ("unlabelled/a.md", NOTES, "unlabelled holds no texts; .* paragraphs in a folder's files"),
    ],
)
def test_files_without_texts_say_what_is_expected(
    tmp_path: Path, name: str, wanted: Labels, said: str
) -> None:
    write(tmp_path / name, "")
    for look in (
        lambda: read_folder(tmp_path, wanted),
        lambda: check_folder(tmp_path, every_files()),
    ):
        with pytest.raises(DataError, match=said):
            look()


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("labelled.conll", "Aspirin E-Drug\n", "labelled.conll, line 1: its tag goes on with a ty"),
        ("labelled.csv", "text,stars\nx,1\n", "no column `label`; found text, stars"),
        ("labelled.bio", "Aspirin\n", "labelled.bio, line 1: a word without a tag"),
        ("unlabelled/a.txt", "\0\n", "a.txt, line 1: a NUL byte; .* no other line of the folder"),
    ],
)
def test_what_no_kind_of_task_can_use_is_refused_before_any_is_known(
    tmp_path: Path, name: str, body: str, said: str
) -> None:
    write(tmp_path / name, body)
    with pytest.raises(DataError, match=said):
        check_folder(tmp_path, every_files())
