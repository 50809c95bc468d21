"""Notes on disk: what is there after restarts, kills and damage; and how far adapters are apart."""

import errno
import json
import logging
import resource
import tracemalloc
from io import FileIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.labelling.label_journal import (
    GROWTH,
    MOST_BYTES,
    Event,
    FileNotes,
    LabelJournal,
    MemoryNotes,
    OpenedJournal,
    Read,
    Revoked,
    TrainingDone,
    moved,
    sketch_of,
)
from smidgen.edge_client.labelling.pseudo_labels import Reading
from smidgen.edge_client.wire.tensors import AdapterState

names = st.text("abc", min_size=1, max_size=3)
adapters = st.sampled_from(("old", "new"))
sketches = st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(-1.0, 1.0, width=32))
readings = st.builds(
    Reading,
    label=st.sampled_from(("mail", "Société & \u2028")),
    confidence=st.floats(0.0, 1.0),
    round_index=st.integers(0, 99),
    adapter_sha256=adapters,
    layers=st.integers(1, 12),
)
events = st.one_of(
    st.builds(
        OpenedJournal,
        names,
        adapters,
        st.lists(names, max_size=3).map(tuple),
        st.lists(names, max_size=3).map(tuple),
        sketches,
    ),
    st.builds(Read, st.dictionaries(names, readings, max_size=4), st.integers(0, 10**9)),
    st.builds(TrainingDone, names, st.integers(0, 10**9)),
    st.builds(Revoked, names),
)
READING = Reading("mail", 0.75, 3, "new", 2)


def folded(told: list[Event]) -> LabelJournal:
    notes = MemoryNotes()
    for event in told:
        notes.add(event)
    return notes.book


def written(path: Path, told: list[Event]) -> LabelJournal:
    notes = FileNotes(path)
    for event in told:
        notes.add(event)
    return notes.book


TOLD: list[Event] = [
    OpenedJournal("work", "new", ("a", "b"), ("b", "a"), (0.5, -1.0)),
    Read({"a": READING}, 16),
    TrainingDone("first", 40),
]


@given(st.lists(events, max_size=12), st.integers(0, 12))
def test_a_file_gives_the_book_of_its_events(told: list[Event], restart: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl"
        written(path, told[:restart])
        assert written(path, told[restart:]) == folded(told)
        assert FileNotes(path).book == folded(told)


@given(st.lists(events, max_size=8), st.lists(events, max_size=4))
@settings(max_examples=25)
def test_a_file_that_is_written_anew_has_the_same_book(
    told: list[Event], later: list[Event]
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl"
        written(path, told)
        with path.open("ab") as file:
            file.write(b"{")  # cut short: nothing may be appended to it
        assert FileNotes(path).book == folded(told)
        assert path.read_bytes().count(b"\n") == 1
        assert written(path, later) == folded([*told, *later])


def test_a_file_that_has_grown_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    written(path, TOLD)
    times = 2 * MOST_BYTES // path.stat().st_size
    path.write_bytes(path.read_bytes() * times)
    assert FileNotes(path).book == folded(TOLD * times)
    assert path.read_bytes().count(b"\n") == 1 and path.stat().st_size < 1000
    assert FileNotes(path).book == folded(TOLD * times)


@pytest.mark.parametrize("most", [600, 3000])
def test_a_file_that_grows_while_it_is_held_is_written_anew_and_not_at_every_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """By fewer bytes than the book alone takes, too: then each time it has doubled."""
    monkeypatch.setattr("smidgen.edge_client.labelling.label_journal.MOST_BYTES", most)
    path, told, inodes = tmp_path / "labels.jsonl", list[Event](), list[int]()
    notes = FileNotes(path)
    for number in range(60):
        told += [Read(dict.fromkeys("abcdef", READING), number)]
        notes.add(told[-1])
        inodes.append(path.stat().st_ino)
        assert path.stat().st_size <= max(most, GROWTH * 1300)
    assert 2 <= sum(one != next_ for one, next_ in pairwise(inodes)) <= 40
    assert FileNotes(path).book == notes.book == folded(told)


def test_a_file_that_cannot_be_written_anew_grows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("smidgen.edge_client.labelling.label_journal.MOST_BYTES", 600)
    path, told = tmp_path / "labels.jsonl", TOLD * 9
    (tmp_path / f".{path.name}.part").mkdir()  # a file cannot be written where a folder is
    with caplog.at_level(logging.WARNING):
        assert written(path, told) == folded(told)
    assert 1 <= len(caplog.records) < 5 and "grows on" in caplog.text
    (tmp_path / f".{path.name}.part").rmdir()
    assert FileNotes(path).book == folded(told)


def test_a_line_that_was_cut_short_is_left_out_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    written(path, TOLD)
    whole = path.read_bytes()
    before = whole[:-1].rindex(b"\n") + 1
    for end in range(before, len(whole)):
        path.write_bytes(whole[:end])
        assert FileNotes(path).book == folded(TOLD[:-1])
        assert written(path, [TrainingDone("second", 1)]) == folded(
            [*TOLD[:-1], TrainingDone("second", 1)]
        )
        assert FileNotes(path).book == folded([*TOLD[:-1], TrainingDone("second", 1)])


def test_an_event_for_which_there_is_no_room_leaves_no_half_line(tmp_path: Path) -> None:
    path, limits = tmp_path / "labels.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    written(path, TOLD)
    whole, notes = path.read_bytes(), FileNotes(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            notes.add(TrainingDone("second", 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == whole and notes.book == folded(TOLD)
    notes.add(TrainingDone("third", 1))
    assert FileNotes(path).book == folded([*TOLD, TrainingDone("third", 1)])


class FailingDisk(FileIO):
    """A file that takes a part of a line, and then neither the rest nor a cut."""

    def write(self, body: Any) -> int:
        super().write(bytes(body)[:10])
        raise OSError(errno.EIO, "a failing disk")

    def truncate(self, size: int | None = None) -> int:
        raise OSError(errno.EIO, "a failing disk")


def test_no_event_goes_on_in_a_line_that_a_failing_disk_has_left_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "labels.jsonl", [*TOLD, Revoked("a")]
    written(path, told)
    notes, part = FileNotes(path), tmp_path / f".{path.name}.part"
    with monkeypatch.context() as patch:
        disk = "smidgen.edge_client.labelling.label_journal.open"
        patch.setattr(disk, lambda path, *_, **__: FailingDisk(path, "a"), raising=False)
        with pytest.raises(OSError, match="a failing disk"):
            notes.add(TrainingDone("second", 1))
    part.mkdir()  # a file cannot be written where a folder is
    with pytest.raises(IsADirectoryError):
        notes.add(TrainingDone("third", 1))
    part.rmdir()
    for work in ("fourth", "fifth"):
        notes.add(TrainingDone(work, 1))
    expected = folded([*told, TrainingDone("fourth", 1), TrainingDone("fifth", 1)])
    assert notes.book == FileNotes(path).book == expected and expected.revoked == {"a"}


def test_a_file_is_written_anew_without_a_copy_of_the_book(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "labels.jsonl"
    texts = [f"{number:016x}" for number in range(4000)]
    written(path, [Read(dict.fromkeys(texts, READING), 1)])
    before = path.stat()
    monkeypatch.setattr("smidgen.edge_client.labelling.label_journal.MOST_BYTES", before.st_size)
    notes = FileNotes(path)
    tracemalloc.start()
    notes.add(Revoked("a"))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_ino != before.st_ino
    assert peak_bytes < 1.8 * path.stat().st_size
    assert FileNotes(path).book == notes.book


DAMAGE = [
    b"\x00\x00\x00",
    b"null",
    b"7",
    b"[]",
    b"{}",
    b"",
    b'{"event": "Gone"}',
    b'{"event": ["Read"]}',
    b'{"event": "Trained", "work_id": "", "layer_forwards": "many"}',
    b'{"event": "Trained"}',
    b'{"event": "Book", "readings": 3}',
    b'{"event": "Revoked", "text_id": "\xff"}',
]


@pytest.mark.parametrize("line", DAMAGE)
def test_a_damaged_file_is_put_aside_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    path = tmp_path / "labels.jsonl"
    written(path, TOLD)
    damaged = line + b"\n" + path.read_bytes()
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        notes = FileNotes(path)
    assert notes.book == LabelJournal() and "damaged and put aside" in caplog.text
    assert path.with_name("labels.jsonl.bad").read_bytes() == damaged
    notes.add(TOLD[0])
    assert FileNotes(path).book == folded(TOLD[:1])


def test_nothing_is_written_before_there_is_something_to_note(tmp_path: Path) -> None:
    assert FileNotes(tmp_path / "labels.jsonl").book == LabelJournal()
    assert not list(tmp_path.iterdir())


def test_an_event_is_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    written(path, TOLD)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["OpenedJournal", "Read", "Trained"]
    assert rows[1]["readings"]["a"]["confidence"] == 0.75


def test_a_revoked_label_is_gone_and_stays_known_as_revoked() -> None:
    book = folded([*TOLD, Revoked("a")])
    assert not book.readings and book.revoked == {"a"}


def test_training_done_again_after_a_kill_counts_once() -> None:
    book = folded([*TOLD, TrainingDone("first", 40), TrainingDone("second", 5)])
    assert book.training_forwards == 45


def test_work_that_is_opened_starts_to_count_and_drops_what_no_reading_needs() -> None:
    book = folded(TOLD)
    assert (book.done, book.labelling_forwards, book.training_forwards) == (1, 16, 40)
    book.fold(OpenedJournal("second", "third", (), (), (2.0,)))
    assert book.done == 0 and set(book.sketches) == {"new", "third"}
    book.fold(Read({"a": Reading("mail", 0.9, 4, "third", 2)}, 2))
    book.fold(OpenedJournal("fourth", "fifth", (), (), (3.0,)))
    assert set(book.sketches) == {"third", "fifth"} and book.labelling_forwards == 18


# How far adapters are apart


def adapter(seed: int, size: float = 1.0) -> AdapterState:
    generator = np.random.Generator(np.random.PCG64(seed))
    shapes = {"a": (8, 192), "b": (192, 8), "c": (192,)}
    return {
        name: (size * generator.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def added(first: AdapterState, second: AdapterState) -> AdapterState:
    return {name: first[name] + second[name] for name in first}


def norm(state: AdapterState) -> float:
    return float(
        np.sqrt(sum(np.square(tensor, dtype=np.float64).sum() for tensor in state.values()))
    )


@pytest.mark.parametrize("size", [0.01, 0.1, 1.0])
def test_sketches_are_as_far_apart_as_adapters(size: float) -> None:
    """Their distance squared has a spread of sqrt(2 / 256), so a distance one of 4 %."""
    ratios = []
    for seed in range(40):
        before, change = adapter(seed), adapter(seed + 1000, size)
        after = added(before, change)
        found = moved(sketch_of(before), sketch_of(after))
        ratios.append(found / (norm(change) / norm(after)))
    assert np.abs(np.array(ratios) - 1.0).max() < 0.25
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_an_adapter_has_not_moved_from_itself(seed: int) -> None:
    state = adapter(seed)
    sketch = sketch_of(state)
    assert moved(sketch, sketch_of(dict(reversed(state.items())))) == 0.0
    assert sketch == tuple(json.loads(json.dumps(sketch)))


def test_from_and_to_nothing_is_told() -> None:
    zero, some = sketch_of({"a": np.zeros(4, np.float32)}), sketch_of(adapter(1))
    assert moved(zero, zero) == 0.0 and moved(some, zero) == np.inf
    assert moved(zero, some) == 1.0
