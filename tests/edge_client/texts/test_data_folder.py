"""A folder that changes while it is in use: what is taken, when, and that nothing is lost."""

import gzip
import logging
import os
import threading
import time
from pathlib import Path

import pytest

from smidgen.edge_client.formats.source import DataError, Dialect
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.texts.data_folder import DataFolder
from smidgen.edge_client.texts.parts import Labels

LABELS = Labels(("mail", "weather"))
NOTES = Labels(files=kind_named("mlm").files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "labelled.csv").write_text("text,label\nrain,weather\nparcel,mail\n")
    (tmp_path / "unlabelled.csv").write_text("text\nstorm\ngate\n")
    return tmp_path


def settle(*paths: Path) -> None:
    """Make the last change some time ago."""
    for path in paths:
        os.utime(path, (time.time() - 60, time.time() - 60))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_files_that_have_not_changed_are_not_read_again(folder: Path) -> None:
    texts = DataFolder(folder, LABELS)
    assert texts.read() is texts.read()
    data = texts.read()
    assert [len(data.labelled), len(data.unlabelled), len(data.test)] == [2, 2, 0]


def test_what_was_added_is_there(folder: Path) -> None:
    texts = DataFolder(folder, LABELS)
    texts.read()
    with (folder / "unlabelled.csv").open("a") as file:
        file.write("hail\n")
    (folder / "test.csv").write_text("text,label\nsun,weather\n")
    data = texts.read()
    assert [text.text for text in data.unlabelled] == ["storm", "gate", "hail"]
    assert len(data.test) == 1 and texts.read() is data


def test_as_many_other_letters_are_noticed(folder: Path) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "unlabelled.csv"
    settle(file)
    texts.read()
    file.write_text("text\nsleet\nhail\n")
    assert [text.text for text in texts.read().unlabelled] == ["sleet", "hail"]


def test_an_emptied_file_loses_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "labelled.csv"
    before = texts.read()
    file.write_text("")
    settle(file)
    assert texts.read() is before and texts.read() is before
    (line,) = said(caplog)
    assert "labelled.csv" in line and line.endswith("the texts read last stay in use")
    file.write_text("text,label\nhail,weather\n")
    settle(file)
    assert [text.text for text in texts.read().labelled] == ["hail"]


def test_a_file_half_rewritten_is_waited_for(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "labelled.csv"
    before = texts.read()
    file.write_text("text,label\nhail,weather\n")
    assert texts.read() is before
    assert "holds labelled.csv, which is being written" in said(caplog)[0]
    settle(file)
    assert len(texts.read().labelled) == 1


def test_half_a_line_is_no_text_yet(folder: Path) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "unlabelled.csv"
    before = texts.read()
    with file.open("a") as writing:
        writing.write("somebody is at the fr")
    assert texts.read() is before
    settle(file)  # a file may well end without a line's end
    assert texts.read().unlabelled[-1].text == "somebody is at the fr"


def test_a_missing_file_may_come_back(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "unlabelled.csv"
    before, content = texts.read(), file.read_bytes()
    file.unlink()
    assert texts.read() is before and "no longer holds unlabelled.csv" in said(caplog)[0]
    file.write_bytes(content)
    assert texts.read().unlabelled == before.unlabelled
    file.unlink()
    settle(folder)
    assert texts.read().unlabelled == () and texts.read().labelled == before.labelled


def test_a_folder_that_is_gone_with_its_disk_is_waited_for(folder: Path, tmp_path: Path) -> None:
    texts = DataFolder(folder / "mine", LABELS)
    with pytest.raises(DataError, match="no data at"):
        texts.read()
    (folder / "mine").mkdir()
    (folder / "labelled.csv").rename(folder / "mine" / "labelled.csv")
    before = texts.read()
    (folder / "mine").rename(folder / "away")
    assert texts.read() is before
    (folder / "away").rename(folder / "mine")
    assert texts.read() is before


def test_a_link_whose_disk_is_gone_loses_nothing(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder itself has long been as it is; what it leads to has another mount."""
    mount, linked = tmp_path / "mount", folder / "labelled.csv"
    mount.mkdir()
    linked.rename(mount / "texts.csv")
    linked.symlink_to(mount / "texts.csv")
    settle(folder)
    texts = DataFolder(folder, LABELS)
    before = texts.read()
    mount.rename(tmp_path / "unplugged")
    settle(folder)
    assert texts.read() is before and texts.read() is before
    (line,) = said(caplog)
    assert "no longer reaches what labelled.csv leads to" in line and "stay in use" in line
    (tmp_path / "unplugged").rename(mount)
    assert texts.read() is before
    linked.unlink()
    settle(folder)
    assert texts.read().labelled == () and texts.read().unlabelled == before.unlabelled


def test_a_first_reading_that_the_system_refuses_is_an_error_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        DataFolder(tmp_path / ("long" * 99), LABELS).read()


def test_a_damaged_archive_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "labelled.csv.gz"
    whole = gzip.compress(b"text,label\n" + b"rain,weather\n" * 99, mtime=0)
    file.write_bytes(whole)
    texts = DataFolder(tmp_path, LABELS)
    before = texts.read()
    file.write_bytes(whole[:-9])
    settle(file)
    assert texts.read() is before and "labelled.csv.gz cannot be read" in said(caplog)[0]


def test_a_file_that_has_lost_the_mark_of_its_encoding_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, lines = tmp_path / "labelled.csv", "text,label\nrain,weather\n"
    file.write_text(lines, "utf-16")
    texts = DataFolder(tmp_path, LABELS, Dialect(encoding="utf-16"))
    before = texts.read()
    file.write_text(lines, "utf-16-le")
    settle(file)
    assert texts.read() is before
    [told] = said(caplog)
    assert "labelled.csv is not utf-16" in told and "the texts read last stay in use" in told


def test_a_clock_that_was_set_back_holds_nothing_up(folder: Path) -> None:
    texts, file = DataFolder(folder, LABELS), folder / "labelled.csv"
    texts.read()
    file.write_text("text,label\nhail,weather\n")
    os.utime(file, (time.time() + 9e6, time.time() + 9e6))
    assert len(texts.read().labelled) == 1


def test_whatever_a_writer_is_at_only_whole_texts_are_seen_and_all_in_the_end(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts, file, is_done = DataFolder(folder, LABELS), folder / "unlabelled.csv", threading.Event()
    caplog.set_level(logging.ERROR)

    def write() -> None:
        for number in range(200):
            with file.open("a") as writing:
                writing.write(f"text {number} ")
                writing.flush()
                time.sleep(0.001)
                writing.write("whole\n")
        is_done.set()

    texts.read()
    writer, seen = threading.Thread(target=write), [2]
    writer.start()
    while not is_done.is_set():
        found = texts.read().unlabelled
        assert all(text.text.endswith(" whole") for text in found[2:])
        seen.append(len(found))
    writer.join()
    assert seen == sorted(seen) and len(texts.read().unlabelled) == 202


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "unlabelled").mkdir()
    for name in "ab":
        (tmp_path / "unlabelled" / f"{name}.txt").write_text(f"{name} one\n\n{name} two\n")
        settle(tmp_path / "unlabelled" / f"{name}.txt")
    settle(tmp_path / "unlabelled")
    return tmp_path / "unlabelled"


def test_files_added_changed_and_removed_in_a_folder_are_noticed(notes: Path) -> None:
    texts = DataFolder(notes.parent, NOTES)
    assert texts.read() is texts.read() and len(texts.read().labelled) == 4
    (notes / "c.txt").write_text("c one\n")
    assert [one.text for one in texts.read().labelled][4:] == ["c one"]
    (notes / "a.txt").write_text("a other\n")
    settle(notes / "a.txt")
    assert [one.text for one in texts.read().labelled][:1] == ["a other"]
    (notes / "b.txt").unlink()
    assert len(texts.read().labelled) == 4  # it may come back
    settle(notes)
    assert [one.text for one in texts.read().labelled] == ["a other", "c one"]


def test_a_file_of_a_folder_that_is_being_written_is_waited_for(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = DataFolder(notes.parent, NOTES)
    before = texts.read()
    with (notes / "a.txt").open("a") as file:
        file.write("\nhalf a li")
    assert texts.read() is before and "holds a.txt, which is being written" in said(caplog)[0]
    settle(notes / "a.txt")
    assert texts.read().labelled[2].text == "half a li"


def test_a_folder_that_is_emptied_or_led_away_loses_nothing(
    notes: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "labelled.txt").write_text("x\n")
    away = notes.rename(tmp_path / "away")
    notes.symlink_to(away)
    texts = DataFolder(tmp_path, NOTES)
    before = texts.read()
    gone = away.rename(tmp_path / "gone")
    assert texts.read() is before and "no longer reaches what a.txt leads to" in said(caplog)[0]
    gone.rename(away)
    for file in away.iterdir():
        file.unlink()
    settle(away)
    assert texts.read() is before
    assert "holds unlabelled, which has no texts any more; delete it if so" in said(caplog)[-1]
    notes.unlink()
    settle(tmp_path)
    assert [one.text for one in texts.read().labelled] == ["x"]


def test_tagged_words_that_are_added_are_there(tmp_path: Path) -> None:
    file = tmp_path / "labelled.conll"
    file.write_text("rain O\n")
    texts = DataFolder(tmp_path, Labels(("Place",), kind_named("tagging").files))
    texts.read()
    with file.open("a") as writing:
        writing.write("\nOslo B-Place\n")
    assert [one.tags for one in texts.read().labelled] == [("O",), ("B-Place",)]
