"""Label work that is cut short: by power, by kill -9, by texts that go."""

import signal
import subprocess
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.labelling.early_exit import FEWEST
from smidgen.edge_client.labelling.label_journal import (
    Event,
    FileNotes,
    LabelJournal,
    MemoryNotes,
    Revoked,
)
from smidgen.edge_client.labelling.label_work import CHUNK
from smidgen.edge_client.labelling.pseudo_labels import text_id
from tests.breadth import covering
from tests.edge_client.engine.engines import KINDS
from tests.edge_client.labelling.two_topics import (
    ALL,
    DATA,
    MANY,
    TRAINING,
    label,
    straight,
    trained,
    work_of,
)

each_kind = pytest.mark.parametrize("kind", KINDS)


class Cut(Exception):
    """Power is gone."""


class CutNotes(MemoryNotes):
    """Notes of a device whose power goes with every event, before or after it is on disk."""

    def __init__(self, book: LabelJournal, is_kept: bool) -> None:
        super().__init__(book)
        self._is_kept = is_kept

    def add(self, event: Event) -> None:
        if self._is_kept:
            super().add(event)
        raise Cut


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "way"),
    covering(KINDS, [("lora:4", False), ("lora:4/top1", False), ("lora:4/top1", True)]),
)
def test_work_cut_after_every_chunk_gives_the_same_and_reads_nothing_twice(
    tiny_base: Base, kind: str, way: tuple[str, bool]
) -> None:
    name, early_exit = way
    engine = trained(kind, tiny_base, name)
    work = work_of(replace(ALL, early_exit=early_exit), adapter_spec=name)
    data = MANY if early_exit else DATA
    expected, cost = straight(engine, work, data)
    notes, before, learnt = CutNotes(LabelJournal(), is_kept=True), engine.layer_forwards, 0
    for _ in range(1 + len(data.unlabelled) // CHUNK):
        learnt += min(notes.book.done, FEWEST) if early_exit else 0
        with pytest.raises(Cut):
            label(engine, data, work, notes)
    spent = engine.layer_forwards
    label(engine, data, work, notes)
    assert engine.layer_forwards == spent
    assert notes.book == expected
    assert engine.layer_forwards - before == cost + learnt * engine.layers
    layers = [reading.layers for reading in expected.readings.values()]
    assert (min(layers) < engine.layers) == early_exit and len(layers) == len(data.unlabelled)


@pytest.mark.few(1)
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


@pytest.mark.few(1)
@each_kind
def test_readings_agree_as_often_when_a_second_work_was_cut(tiny_base: Base, kind: str) -> None:
    engine = trained(kind, tiny_base)
    said = replace(ALL, confidence=0.5, class_floor=0.5, settled_after=2, hardly_moved=0.0)
    first, _ = straight(engine, work_of(said))
    second = work_of(said, work_id="work-2", adapter_sha256="b" * 64)
    engine.load_adapter({name: 1.1 * tensor for name, tensor in engine.adapter().items()})
    whole, notes = MemoryNotes(deepcopy(first)), CutNotes(deepcopy(first), is_kept=True)
    label(engine, DATA, second, whole)
    while notes.book.done < len(DATA.unlabelled) or notes.book.opened != whole.book.opened:
        with pytest.raises(Cut):
            label(engine, DATA, second, notes)
    assert notes.book == whole.book
    assert 2 in {one.agreeing for one in whole.book.readings.values()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exits_are_learnt_again_from_chunks_that_were_small(tiny_base: Base, kind: str) -> None:
    """Texts read before are cheaper, so the last of a budget is spent on a few at a time."""
    engine = trained(kind, tiny_base, "lora:4/top1")
    training = replace(TRAINING, epochs=1)
    first, _ = straight(engine, work_of(adapter_spec="lora:4/top1"), MANY)
    ratio = (first.labelling_forwards + 136.5) / (3 * len(MANY.unlabelled))
    said = replace(ALL, compute_share=ratio / (1.0 + ratio))
    again = {"work_id": "work-2", "adapter_sha256": "b" * 64, "training": training}
    work = work_of(said, adapter_spec="lora:4/top1", **again)
    expected, notes = MemoryNotes(deepcopy(first)), CutNotes(deepcopy(first), is_kept=True)
    label(engine, MANY, work, expected)
    assert set(expected.book.reads) > {CHUNK} and expected.book.done > FEWEST
    for _ in range(1 + len(expected.book.reads)):
        with pytest.raises(Cut):
            label(engine, MANY, work, notes)
    label(engine, MANY, work, notes)
    assert notes.book == expected.book


CHILD = """
import sys, time
from pathlib import Path
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.labelling.label_journal import FileNotes
from tests.edge_client.labelling import two_topics as here

class Slow(FileNotes):
    def add(self, event):
        super().add(event)
        time.sleep(0.1)

engine = here.trained("onnx", open_base(sys.argv[1]))
here.label(engine, here.DATA, here.work_of(), Slow(Path(sys.argv[2])))
"""


def test_a_device_killed_while_it_labels_goes_on_where_it_was(
    tiny_base: Base, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    arguments = [sys.executable, "-c", CHILD, str(tiny_base.folder), str(path)]
    child = subprocess.Popen(arguments, cwd=Path(__file__).parents[3])
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
    engine, notes = trained("onnx", tiny_base), CutNotes(LabelJournal(), is_kept=True)
    for _ in range(3):
        with pytest.raises(Cut):
            label(engine, DATA, work_of(), notes)
    left = replace(DATA, unlabelled=DATA.unlabelled[::2])
    rest = MemoryNotes(notes.book)
    rest.add(Revoked(text_id(left.unlabelled[0])))
    label(engine, left, work_of(), rest)
    names = {text_id(text) for text in left.unlabelled[1:]}
    assert names <= set(rest.book.readings) and rest.book.done < len(names)
