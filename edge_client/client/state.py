"""Everything a device knows between two starts, in one folder; deleting it is a clean re-enrolment.

device.json            who the coordinator knows this device as, with its key (mode 0600)
adapters/SHA.st        the adapter last received, so that the same hash is not fetched twice
adapter/               the finished run's adapter as a PEFT folder, for `smidgen client predict`
outbox/WORK.json, .st  a finished report and update until the coordinator has acknowledged them
labels-RUN.jsonl       what it has read of its unlabelled texts, see `edge_client.labelling.book`
corrections.json       measured peaks of memory, which correct predictions
activations/           what frozen layers gave, see `edge_client.engine.activation_cache`
lock                   held while a client runs

Files are written beside their name, flushed to the disk and renamed, so a power cut leaves the old
file or the new one.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from edge_client.errors import WrongInput
from edge_client.files import write_atomically
from edge_client.wire.fleet import Enrolled
from edge_client.wire.messages import Report, WireError, decode, encode
from edge_client.wire.tensors import sha256

ROOM_BYTES = 64 << 10


class StateError(WrongInput):
    """A state folder that cannot be used."""


@dataclass(frozen=True)
class Identity:
    """Who this device is to one coordinator.

    Attributes:
        url: The coordinator it enrolled with.
        enrolled: What the coordinator answered.
        token_sha256: Hash of the token that the device enrolled with.
    """

    url: str
    enrolled: Enrolled
    token_sha256: str


@dataclass(frozen=True)
class Answer:
    """Work that is done but not yet acknowledged.

    Attributes:
        report: Its figures.
        update: The update's bytes, or None for work without one.
        reason: Why it failed, for people at this device; never sent, and not kept.
    """

    report: Report
    update: bytes | None
    reason: str = ""


class ClientState:
    """The state folder of one device.

    Args:
        folder: Made if it is not there.

    Raises:
        StateError: The folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._adapters, self._outbox = folder / "adapters", folder / "outbox"
        self._whole = ""  # the adapter that was last seen to be whole
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the texts
            for part in (self._adapters, self._outbox):
                part.mkdir(exist_ok=True)
        except OSError as error:
            raise StateError(f"state folder {folder} cannot be made: {error.strerror}") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; two clients on one state would answer for each other.

        What a killed client left half-written is deleted then.

        Raises:
            StateError: Another process holds it.
        """
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StateError(
                    f"another client runs on state folder {self.folder}; stop it, or give "
                    "another --name or --state"
                ) from error
            for folder in (self.folder, self._adapters, self._outbox):
                for part in folder.glob(".*.part"):
                    part.unlink(missing_ok=True)
            yield

    def identity(self, url: str) -> Identity | None:
        """Who this device is to `url`, or None if it never enrolled there."""
        path = self.folder / "device.json"
        if not path.is_file():
            return None
        try:
            identity = msgspec.json.decode(path.read_bytes(), type=Identity)
        except (ValueError, msgspec.DecodeError) as error:
            raise StateError(
                f"{path} is damaged or of another smidgen; delete it to enrol again"
            ) from error
        return identity if identity.url == url else None

    def check_room(self) -> None:
        """Refuse a folder in which an identity could not be kept, before one is asked for.

        Raises:
            StateError: Its disk is full or read-only.
        """
        path = self.folder / "room"
        try:
            write_atomically(path, b" " * ROOM_BYTES)
            path.unlink()
        except OSError as error:
            raise StateError(
                f"state folder {self.folder} cannot be written: {error.strerror}; free some room "
                "or give another --state"
            ) from error

    def keep_identity(self, identity: Identity) -> None:
        """Be this device from now on; work that was done as another one is nobody's."""
        for finished in self.finished():
            self.forget_finished(finished.report.work_id)
        body = json.dumps(asdict(identity), sort_keys=True).encode()
        write_atomically(self.folder / "device.json", body, mode=0o600)

    def labels(self, run_id: str) -> Path:
        """The file of what this device has read of its texts in a run."""
        return self.folder / f"labels-{run_id}.jsonl"

    def adapter(self, digest: str) -> bytes | None:
        """The adapter of this hash, if it was kept whole."""
        path = self._adapters / f"{digest}.st"
        body = path.read_bytes() if path.is_file() else None
        if body is None or sha256(body) != digest:
            self._whole = "" if self._whole == digest else self._whole
            return None
        self._whole = digest
        return body

    def newest(self) -> str:
        """SHA-256 of the adapter that is kept whole, empty for none."""
        names = (path.stem for path in self._adapters.glob("*.st"))
        is_whole = (name for name in names if name == self._whole or self.adapter(name) is not None)
        return next(is_whole, "")

    def keep_adapter(self, digest: str, body: bytes) -> None:
        """Keep the newest adapter; older ones are dropped."""
        write_atomically(self._adapters / f"{digest}.st", body)
        self._whole = digest
        for path in self._adapters.glob("*.st"):
            if path.stem != digest:
                path.unlink()

    def keep_finished(self, finished: Answer) -> None:
        """Put finished work in the outbox; the report is written last and makes it whole."""
        stem = self._outbox / sha256(finished.report.work_id.encode())
        if finished.update is not None:
            write_atomically(stem.with_suffix(".st"), finished.update)
        write_atomically(stem.with_suffix(".json"), encode(finished.report))

    def finished(self) -> list[Answer]:
        """Work in the outbox, oldest first; what cannot be read is dropped, to be done again."""
        found = []
        for path in sorted(self._outbox.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            update = path.with_suffix(".st")
            try:
                body = path.read_bytes()
                if b'"cost":' not in body:
                    raise WireError("a report of an older protocol")
                report = decode(body, Report)
            except WireError:
                path.unlink()
                continue
            found.append(Answer(report, update.read_bytes() if update.is_file() else None))
        return found

    def forget_finished(self, work_id: str) -> None:
        """Drop acknowledged work from the outbox."""
        stem = self._outbox / sha256(work_id.encode())
        for ending in (".json", ".st"):
            stem.with_suffix(ending).unlink(missing_ok=True)
