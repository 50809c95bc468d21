"""Journal of a device's unlabelled texts, kept over restarts: one line of JSON per event.

    STATE/labels-RUN.jsonl   Opened, Read ..., Trained, Revoked; compacted into one line as it grows

A reading is on disk before the next texts are read, so interrupted work resumes where it was, with
the same labels. An incomplete last line is ignored.
"""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from smidgen.edge_client.files import PRIVATE, from_json, private, write_atomically
from smidgen.edge_client.labelling.pseudo_labels import Reading
from smidgen.edge_client.wire.tensors import AdapterState

log = logging.getLogger(__name__)

SKETCH = 256  # numbers an adapter is remembered by
MOST_BYTES = 4 << 20  # of the file, above which it is written anew
GROWTH = 2  # times what the book alone took: a long one is not written anew at every event


@dataclass(frozen=True)
class OpenedJournal:
    """Label work that was begun.

    Attributes:
        work_id: The work.
        adapter_sha256: The adapter to label with.
        queue: Ids of the texts to read, in order.
        order: Ids of all texts in the order of `smidgen.edge_client.labelling.label_work`.
        sketch: The adapter's sketch, see `sketch_of`.
    """

    work_id: str
    adapter_sha256: str
    queue: tuple[str, ...]
    order: tuple[str, ...]
    sketch: tuple[float, ...]


@dataclass(frozen=True)
class Read:
    """Texts that were read.

    Attributes:
        readings: The readings, by text id.
        layer_forwards: What they took.
    """

    readings: dict[str, Reading]
    layer_forwards: int


@dataclass(frozen=True)
class TrainingDone:
    """A training that is done; the same work, repeated, counts once.

    Attributes:
        work_id: The work.
        layer_forwards: What it took.
    """

    work_id: str
    layer_forwards: int


@dataclass(frozen=True)
class Revoked:
    """A pseudo-label taken back by hand; its text is never labelled again."""

    text_id: str


Event = OpenedJournal | Read | TrainingDone | Revoked
# By the names they have in the file, which devices in the field hold.
KINDS: dict[str, type[Event]] = {
    "OpenedJournal": OpenedJournal,
    "Read": Read,
    "Trained": TrainingDone,
    "Revoked": Revoked,
}
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass
class LabelJournal:
    """All events so far, folded.

    Attributes:
        readings: The newest of each text, by id.
        opened: The last label work that was begun.
        reads: How many texts of its queue were read at once, one number per `Read`.
        sketches: Sketches of the adapters that readings are by, by SHA-256.
        revoked: Texts that get no pseudo-label.
        labelling_forwards: Layer-forwards of labelling so far.
        training_forwards: Layer-forwards of training so far.
        trained: The last work that was training.
    """

    readings: dict[str, Reading] = field(default_factory=dict)
    opened: OpenedJournal | None = None
    reads: list[int] = field(default_factory=list)
    sketches: dict[str, tuple[float, ...]] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    labelling_forwards: int = 0
    training_forwards: int = 0
    trained: str = ""

    @property
    def done(self) -> int:
        """The texts of the last work's queue that have been read."""
        return sum(self.reads)

    def fold(self, event: Event) -> None:
        """Take an event in."""
        if isinstance(event, OpenedJournal):
            self.opened, self.reads = event, []
            used = {reading.adapter_sha256 for reading in self.readings.values()}
            self.sketches = {key: row for key, row in self.sketches.items() if key in used}
            self.sketches[event.adapter_sha256] = event.sketch
        elif isinstance(event, Read):
            self.readings.update(event.readings)
            self.reads.append(len(event.readings))
            self.labelling_forwards += event.layer_forwards
        elif isinstance(event, TrainingDone):
            if event.work_id != self.trained:
                self.training_forwards += event.layer_forwards
            self.trained = event.work_id
        else:
            self.revoked.add(event.text_id)
            self.readings.pop(event.text_id, None)


class Notes(Protocol):
    """A book and a way to write in it."""

    @property
    def book(self) -> LabelJournal:
        """All events so far."""

    def add(self, event: Event) -> None:
        """Write an event down, then take it into the book."""


class MemoryNotes:
    """Notes that are kept in memory, not on disk."""

    def __init__(self, book: LabelJournal | None = None) -> None:
        self.book = book or LabelJournal()

    def add(self, event: Event) -> None:
        self.book.fold(event)


class FileNotes:
    """Notes in a file; see `Notes`. One process at a time.

    Args:
        path: The file; made with the first event. One that cannot be read is put aside as `.bad`.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._most_bytes = path, MOST_BYTES
        self._is_cut = False  # whether it may end in a part of a line
        self.book = LabelJournal()
        lines = path.read_bytes().split(b"\n") if path.is_file() else [b""]
        try:
            for line in lines[:-1]:
                self._take(line)
        except (ValueError, KeyError, TypeError) as error:  # msgspec's are ValueErrors
            log.warning("%s is damaged and put aside as .bad; texts are read anew: %s", path, error)
            path.replace(path.with_name(f"{path.name}.bad"))
            self.book, lines = LabelJournal(), [b""]
        if lines[-1] or sum(map(len, lines)) > MOST_BYTES:
            self._compact()

    def _take(self, line: bytes) -> None:
        fields = from_json(line, dict[str, Any])
        kind = fields.pop("event")
        if kind == "LabelJournal":
            self.book = msgspec.convert(fields, LabelJournal)
        else:
            self.book.fold(msgspec.convert(fields, KINDS[kind]))

    def _compact(self) -> None:
        whole = {"event": "LabelJournal", **vars(self.book)}  # no copy: there may be many texts
        known = self._path.stat().st_size if self._path.is_file() else 0
        body = bytearray(known)  # as long as it gets, about: one that grows is there twice
        msgspec.json.Encoder().encode_into(whole, body)
        body += b"\n"
        self._most_bytes = max(MOST_BYTES, GROWTH * len(body))
        write_atomically(self._path, body, PRIVATE)
        self._is_cut = False

    def _compact_if_possible(self, size: int) -> None:
        try:
            self._compact()
        except OSError as error:  # every event is in the file as it is
            self._most_bytes = GROWTH * size
            log.warning("%s cannot be written anew and grows on: %s", self._path, error)

    def add(self, event: Event) -> None:
        """Write an event down, then take it into the book; a file that has grown is written anew.

        Raises:
            OSError: It cannot be written; the file is as before, or written anew before the next.
        """
        if self._is_cut:
            self._compact()
        line = json.dumps({"event": NAMES[type(event)], **asdict(event)})
        left = memoryview(f"{line}\n".encode())
        with open(self._path, "ab", buffering=0, opener=private) as file:
            before = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                self._is_cut = True  # the next line would go on where this one was cut
                with suppress(OSError):
                    file.truncate(before)
                    self._is_cut = False
                raise
            size = file.tell()
        self.book.fold(event)
        if size > self._most_bytes:
            self._compact_if_possible(size)


def sketch_of(state: AdapterState) -> tuple[float, ...]:
    """A count sketch of an adapter: a few numbers that tell how far two adapters are apart.

    Charikar et al. 2002. The distance of two sketches is, up to about a tenth, that of the
    adapters; equal adapters have equal sketches.
    """
    sketch, generator = np.zeros(SKETCH), np.random.Generator(np.random.PCG64(0))
    for name in sorted(state):
        values = state[name].ravel().astype(np.float64)
        places = generator.integers(0, SKETCH, len(values))
        signs = 2.0 * generator.integers(0, 2, len(values)) - 1.0
        sketch += np.bincount(places, values * signs, SKETCH)
    return tuple(float(np.float32(value)) for value in sketch)


def moved(before: Sequence[float], after: Sequence[float]) -> float:
    """How far an adapter has moved, relative to its size; computed from sketches."""
    now = np.asarray(after)
    size = float(np.linalg.norm(now))
    distance = float(np.linalg.norm(now - np.asarray(before)))
    return distance / size if size else (0.0 if not distance else np.inf)
