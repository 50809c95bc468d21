"""Label work that is cut short: by power, by kill -9, by texts that go."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.activation_cache import ActivationCache
from edge_client.base import Base
from edge_client.label_book import Book, Event, FileNotes, MemoryNotes, Revoked
from edge_client.labeller import CHUNK, label
from edge_client.pseudo_labels import text_id
from tests.edge_client.engines import KINDS
from tests.edge_client.two_topics import (
    ALL,
    DATA,
    TRAINING,
    straight,
    trained,
    work_of,
)

each_kind = pytest.mark.parametrize("kind", KINDS)


class Cut(Exception):
    """Power is gone."""


class CutNotes(MemoryNotes):
    """Notes of a device whose power goes with every event, before or after it is on disk."""

    def __init__(self, book: Book, is_kept: bool) -> None:
        super().__init__(book)
        self._is_kept = is_kept

    def add(self, event: Event) -> None:
        if self._is_kept:
            super().add(event)
        raise Cut


@each_kind
@pytest.mark.parametrize("name", ["lora:4", "lora:4/top1"])
@pytest.mark.parametrize("early_exit", [False, True])
def test_work_cut_after_every_chunk_gives_the_same_and_reads_nothing_twice(
    tiny_base: Base, kind: str, name: str, early_exit: bool
) -> None:
    engine = trained(kind, tiny_base, name)
    work = work_of(replace(ALL, early_exit=early_exit), adapter_spec=name)
    expected, cost = straight(engine, work)
    notes, before, learnt = CutNotes(Book(), is_kept=True), engine.layer_forwards, 0
    for _ in range(1 + len(DATA.unlabelled) // CHUNK):
        learnt += min(notes.book.done, 32) if early_exit else 0
        with pytest.raises(Cut):
            label(engine, DATA, work, notes)
    assert label(engine, DATA, work, notes).layer_forwards == 0
    assert notes.book == expected
    assert engine.layer_forwards - before == cost + learnt * engine.layers
    layers = [reading.layers for reading in expected.readings.values()]
    assert (min(layers) < engine.layers) == early_exit and len(layers) == 72


@each_kind
def test_what_was_not_noted_is_read_again(tiny_base: Base, kind: str) -> None:
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    for _ in range(2 + len(DATA.unlabelled) // CHUNK):
        with pytest.raises(Cut):
            label(engine, DATA, work_of(), CutNotes(notes.book, is_kept=False))
        with pytest.raises(Cut):
            label(engine, DATA, work_of(), CutNotes(notes.book, is_kept=True))
        if notes.book.done == len(DATA.unlabelled):
            break
    assert notes.book == straight(engine, work_of())[0]


@each_kind
def test_exits_are_learnt_again_from_chunks_that_were_small(
    tiny_base: Base, tmp_path: Path, kind: str
) -> None:
    """Where a cache makes texts cheap, the last of a budget is spent on a few texts at a time."""
    said, books = replace(ALL, compute_share=0.145), []
    for name in ("straight", "cut"):
        engine = trained(kind, tiny_base, "lora:4/top1")
        engine.remember(ActivationCache(tmp_path / name, 1 << 20, "base"))
        engine.predict(DATA.unlabelled)
        work = work_of(said, adapter_spec="lora:4/top1", training=replace(TRAINING, epochs=1))
        notes = MemoryNotes() if name == "straight" else CutNotes(Book(), is_kept=True)
        for _ in range(200):
            try:
                label(engine, DATA, work, notes)
                break
            except Cut:
                continue
        books.append(notes.book)
    assert set(books[0].reads) > {CHUNK} and books[0].done > 32
    assert books[0] == books[1]


CHILD = """
import sys, time
from pathlib import Path
from edge_client.base import open_base
from edge_client.label_book import FileNotes
from edge_client.labeller import label
from tests.edge_client import two_topics as here

class Slow(FileNotes):
    def add(self, event):
        super().add(event)
        time.sleep(0.1)

engine = here.trained("onnx", open_base(sys.argv[1]))
label(engine, here.DATA, here.work_of(), Slow(Path(sys.argv[2])))
"""


def test_a_device_killed_while_it_labels_goes_on_where_it_was(
    tiny_base: Base, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    arguments = [sys.executable, "-c", CHILD, str(tiny_base.folder), str(path)]
    child = subprocess.Popen(arguments, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 60
    while not path.is_file() or path.read_bytes().count(b"\n") < 6:  # opened, and 40 texts
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    engine, notes = trained("onnx", tiny_base), FileNotes(path)
    assert 40 <= notes.book.done < len(DATA.unlabelled)
    label(engine, DATA, work_of(), notes)
    expected, _ = straight(engine, work_of())
    assert notes.book == expected and FileNotes(path).book == expected


def test_work_goes_on_when_texts_are_gone(tiny_base: Base) -> None:
    engine, notes = trained("onnx", tiny_base), CutNotes(Book(), is_kept=True)
    for _ in range(3):
        with pytest.raises(Cut):
            label(engine, DATA, work_of(), notes)
    left = replace(DATA, unlabelled=DATA.unlabelled[::2])
    rest = MemoryNotes(notes.book)
    rest.add(Revoked(text_id(left.unlabelled[0])))
    label(engine, left, work_of(), rest)
    names = {text_id(text) for text in left.unlabelled[1:]}
    assert names <= set(rest.book.readings) and rest.book.done < len(names)
