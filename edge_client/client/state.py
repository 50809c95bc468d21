"""Everything a device knows between two starts, in one folder; deleting it is a clean re-enrolment.

device.json            who this device is to its coordinator, with the key it drew (mode 0600)
device.new.json        a key drawn for another coordinator, until that one has answered
runs/RUN.json, .home   the terms of a run that it joined; whether the run's adapter is at home
runs/RUN.said          what it answered to the run's secure aggregations
adapters/SHA.st        adapters last received, one per run, so that none is fetched twice
adapter/               the adapter of the run finished last, for `smidgen client predict`
finished/RUN/          the same for each finished run by its name, the last sixteen
personal/              an adapter of its own, see `smidgen.edge_client.client.runs.own`
outbox/WORK.json, .st  a finished report and update until the coordinator has acknowledged them
updates/RUN/N.st       what its update steps go on from, see `smidgen.edge_client.client.folder`
steps/WORK.st          where unfinished training stands, see `smidgen.edge_client.guest.steps`
labels-RUN.jsonl       its pseudo-labels, see `smidgen.edge_client.labelling.label_journal`
link.json              how fast its updates got through, see `smidgen.edge_client.metering.work`
noise.key              what noise and masks are drawn by; no coordinator gets it
corrections.json       measured peaks of memory, which correct predictions
activations/           what frozen layers gave, see `smidgen.edge_client.engine.activation_cache`
lock                   held while a client runs

Files are written beside their name, flushed to the disk and renamed, so a power cut leaves the old
file or the new one. The newest is what came last, whatever the board's clock said meanwhile
(`smidgen.edge_client.files.make_latest`).
"""

import hmac
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from smidgen.edge_client.client.folder import (
    KEPT_TERMS,
    TODO,
    Joined,
    StepStates,
    file_name,
    foreign_in,
    in_words,
    is_own,
    sealed,
    sweep_halves,
    unsealed,
)
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.files import (
    PRIVATE,
    close_aloud,
    close_to_others,
    discard,
    from_json,
    held_alone,
    make_latest,
    oldest_first,
    write_atomically,
)
from smidgen.edge_client.metering.work import Link
from smidgen.edge_client.wire.messages import Report, WireError, encode
from smidgen.edge_client.wire.tensors import sha256

ROOM_BYTES = 64 << 10
DRAWN = "device.new.json"
KEPT_LABELS = 16  # of runs, the newest
SECRET_BYTES = 32  # of `noise.key`
KEPT_STEPS = 4  # pieces of unfinished training, the newest: of as many runs at a time

log = logging.getLogger(__name__)


class StateError(WrongInput):
    """A state folder that cannot be used."""


@dataclass(frozen=True)
class Identity:
    """Who this device is to its coordinator.

    Attributes:
        url: The coordinator; empty: whichever it is started with first.
        key: What it drew, and proves itself with.
        device_id: Its id there, which seeds hang on; empty until the coordinator has answered.
        name: What people call it there.
    """

    url: str
    key: str
    device_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class FinishedWork:
    """Work that is done but not yet acknowledged.

    Attributes:
        report: Its figures.
        update: The update's bytes, or None for work without one.
        reason: Why it failed, for people at this device; never sent, and not kept.
        states: What the device's update steps go on from after it, by step; never sent.
    """

    report: Report
    update: bytes | None
    reason: str = ""
    states: Mapping[str, bytes] = field(default_factory=dict)


class ClientState:
    """The state folder of one device.

    Args:
        folder: Made if it is not there.
        given: What the user names besides; what of it lies in there makes it nobody else's.

    Raises:
        StateError: The folder is somebody's own, or cannot be made or written.
    """

    def __init__(self, folder: Path, given: Iterable[Path] = ()) -> None:
        self.folder = folder
        self._adapters, self._outbox = folder / "adapters", folder / "outbox"
        self.joined, self._steps = Joined(folder / "runs"), folder / "steps"
        self.updates = StepStates(folder / "updates")
        self.link = Link(folder / "link.json")
        self._is_new = False  # whether it was nobody when it became who it is
        try:
            if (held := foreign_in(folder, given)) is not None:
                raise StateError(f"{in_words(folder, held)}; {TODO}")
            self._before = {path.name for path in folder.iterdir()} if folder.is_dir() else None
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the texts
            for part in (self._adapters, self._outbox, self.joined.folder):
                part.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"state folder {folder} cannot be made: {error.strerror}; give another --state"
            ) from error

    def secret(self, run: str) -> bytes:
        """256 bits that no coordinator knows, to draw a run's noise and masks by.

        Made when first asked for.

        Args:
            run: The run's id.

        Raises:
            OSError: It cannot be kept.
        """
        path = self.folder / "noise.key"
        found, _, mark = (path.read_bytes() if path.exists() else b"").partition(b" ")
        if not found or sha256(found).encode() != mark:
            if found:
                log.warning("%s is damaged; another one is drawn", path.name)
            found = secrets.token_hex(SECRET_BYTES).encode()
            write_atomically(path, found + b" " + sha256(found).encode(), PRIVATE)
        return hmac.digest(bytes.fromhex(found.decode()), run.encode(), "sha256")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder alone; two clients on one state would answer for each other.

        Raises:
            StateError: Another process holds it, or its file system has no locks.
        """
        busy = (
            f"another client runs on state folder {self.folder}; stop it, or give another --name "
            "or --state"
        )
        todo = "give a --state on a file system that has locks"
        with held_alone(self.folder / "lock", busy, todo, StateError):
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold it for a client that starts, and put it in order.

        What a killed client left half-written is deleted then, and what nobody needs any more.

        Raises:
            StateError: See `held`.
        """
        with self.held():
            sweep_halves(self.folder)
            self._sweep()
            close_aloud(self.folder, log, is_own)  # what an older smidgen let others read
            yield

    def undo(self) -> None:
        """Remove what this start has made, where it came to no identity; who calls it holds it."""
        if (self.folder / "device.json").exists():
            return
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.name not in (self._before or ()):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            if self._before is None:
                self.folder.rmdir()

    def _sweep(self) -> None:
        """Delete what belongs to runs of long ago, and updates whose report is not there.

        A run that goes on hears its terms anew in each life, so they are among the newest. Labels
        are kept for the runs whose terms are the newest, and then as they were written last.
        """
        for update in self._outbox.glob("*.st"):
            if not update.with_suffix(".json").is_file():
                update.unlink(missing_ok=True)
        joined = self.joined.sweep()
        labels = oldest_first(self.folder.glob("labels-*.jsonl"))
        places = {f"labels-{name}.jsonl": place for place, name in enumerate(joined)}
        labels.sort(key=lambda path: places.get(path.name, -1))  # in equal places as before
        for old in labels[:-KEPT_LABELS]:
            old.unlink()
        self.updates.forget_all_but(set(joined[-KEPT_TERMS:]))

    def identity(self) -> Identity | None:
        """Who this device is, or None where it never enrolled.

        Raises:
            StateError: The file is damaged.
        """
        return self._identity_in(self.folder / "device.json")

    def drawn(self) -> Identity | None:
        """Who this device would be to another coordinator, which has not answered yet."""
        return self._identity_in(self.folder / DRAWN)

    def keep_drawn(self, identity: Identity) -> None:
        """Keep a key beside the one in use, until `keep_identity` puts it into its place.

        Raises:
            StateError: It cannot be written.
        """
        try:
            self._write_identity(identity, DRAWN)
        except OSError as error:
            raise self._not_written(error) from error

    def _identity_in(self, path: Path) -> Identity | None:
        if not path.is_file():
            return None
        try:
            return from_json(path.read_bytes(), Identity)
        except ValueError as error:  # msgspec's are ValueErrors
            raise StateError(
                f"{path} is damaged or of another smidgen; delete it to enrol again"
            ) from error

    def check_room(self) -> None:
        """Refuse a folder in which an identity could not be kept, before one is asked for.

        Raises:
            StateError: Its disk is full or read-only.
        """
        try:
            # Without a name, or soon without where the file system has no such files.
            with TemporaryFile(dir=self.folder, prefix=".room.", suffix=".part") as file:
                file.write(bytes(ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StateError:
        return StateError(
            f"state folder {self.folder} cannot be written: {error.strerror}; free some room "
            "or give another --state"
        )

    def keep_identity(self, identity: Identity) -> None:
        """Be this device from now on; what was done as another one is nobody's.

        Raises:
            StateError: It cannot be written.
        """
        try:
            before = self.identity()
            self._is_new = before is None
            if before is not None and before.key != identity.key:
                for finished in self.finished():
                    self.forget_finished(finished.report.work_id)
                self.joined.forget_all()
                for path in self._steps.glob("*.st"):
                    path.unlink()
                self.updates.forget_all_but(())
            if before != identity:
                self._write_identity(identity)
            (self.folder / DRAWN).unlink(missing_ok=True)
        except OSError as error:
            raise self._not_written(error) from error

    def _write_identity(self, identity: Identity, name: str = "device.json") -> None:
        body = json.dumps(asdict(identity), sort_keys=True).encode()
        write_atomically(self.folder / name, body, PRIVATE)

    def forget_new_identity(self) -> None:
        """Be nobody again if this start has drawn the key, of which no coordinator has heard."""
        if self._is_new:
            (self.folder / "device.json").unlink()

    def base_ids(self) -> set[str]:
        return {terms.base_id for terms in self.joined.all().values() if terms is not None}

    def forget_terms(self, run_id: str) -> None:
        self.updates.forget(file_name(run_id))  # first: by its terms the next life knows of its end
        self.joined.forget(run_id)

    def labels(self, run_id: str) -> Path:
        """The file of what this device has read of its texts in a run."""
        return self.folder / f"labels-{file_name(run_id)}.jsonl"

    def finished_run(self, name: str) -> Path:
        """The folder of a finished run's adapter, by the run's name."""
        return self.folder / "finished" / file_name(name)

    def close_finished(self) -> None:
        """Let nobody but its owner read finished adapters, which are made as any folder is."""
        for folder in (self.folder / "adapter", self.folder / "finished"):
            close_to_others(folder)

    def drop_finished_runs(self, newest: str, most: int) -> None:
        """Delete the adapters of finished runs but for the newest.

        Args:
            newest: Name of the run that was written last.
            most: How many stay.
        """
        make_latest(self.finished_run(newest))
        for path in oldest_first((self.folder / "finished").iterdir())[:-most]:
            shutil.rmtree(path)

    def steps(self, work_id: str) -> Path:
        """The file of where a piece of training stands; of others the newest are kept.

        Where no folder can be made for it, the file cannot be written either.
        """
        with suppress(OSError):
            self._steps.mkdir(mode=0o700, exist_ok=True)
        own = self._steps / f"{sha256(work_id.encode())}.st"
        others = [path for path in self._steps.glob("*.st") if path != own]
        for path in oldest_first(others)[: 1 - KEPT_STEPS]:
            discard(path)
        return own

    def forget_steps(self, work_id: str) -> None:
        """Drop where a piece of training stood, for it is finished."""
        discard(self._steps / f"{sha256(work_id.encode())}.st")

    def adapter(self, digest: str) -> bytes | None:
        """The adapter of this hash, if it was kept whole."""
        path = self._adapters / f"{digest}.st"
        body = path.read_bytes() if path.is_file() else None
        return body if body is not None and sha256(body) == digest else None

    def keep_adapter(self, digest: str, body: bytes, most: int = 1) -> None:
        """Keep an adapter; all but the newest are dropped.

        Args:
            digest: Its SHA-256.
            body: A safetensors file.
            most: Adapters that may be kept, this one among them.
        """
        write_atomically(self._adapters / f"{digest}.st", body, PRIVATE, is_latest=True)
        for path in oldest_first(self._adapters.glob("*.st"))[: -max(1, most)]:
            path.unlink()

    def keep_finished(self, finished: FinishedWork) -> None:
        """Put finished work in the outbox; the report is written last and makes it whole.

        Behind it stands the SHA-256 of both, for a bit that flips would be sent as trained.
        """
        stem = self._outbox / sha256(finished.report.work_id.encode())
        if finished.update is not None:
            write_atomically(stem.with_suffix(".st"), finished.update, PRIVATE)
        body = sealed(encode(finished.report), finished.update or b"")
        write_atomically(stem.with_suffix(".json"), body, PRIVATE, is_latest=True)

    def finished(self) -> list[FinishedWork]:
        """Work in the outbox, oldest first; what cannot be read is dropped, to be done again."""
        found = []
        for path in oldest_first(self._outbox.glob("*.json")):
            update = path.with_suffix(".st")
            body = update.read_bytes() if update.is_file() else None
            try:
                report = unsealed(path.read_bytes(), Report, body or b"")
            except WireError as error:
                log.warning("outbox/%s is done again: %s", path.name, error)
                path.unlink()
                update.unlink(missing_ok=True)
                continue
            found.append(FinishedWork(report, body))
        return found

    def forget_finished(self, work_id: str) -> None:
        """Drop acknowledged work from the outbox; what a disk keeps is sent again in vain."""
        stem = self._outbox / sha256(work_id.encode())
        for ending in (".json", ".st"):
            discard(stem.with_suffix(ending))
