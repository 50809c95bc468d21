"""What the coordinator knows, on disk: runs, their journals, reports and blobs.

SQLite in WAL mode with every commit synced; another database by URL. Nothing here decides
anything. Secrets are stored as hashes. Devices, tokens and memberships
have modules of their own over the same database.
"""

import fcntl
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from coordinator.rounds.events import Event, Folded
from coordinator.storage.blobs import Checked, keep_blob, put_blob, read_blob
from coordinator.storage.database import Database, Statement
from coordinator.storage.heads import Head, Heads
from coordinator.storage.journal import JournalError, chained, forget_before, link_of, read
from coordinator.storage.migrations.upgrade import (
    HEAD,
    KNOWN,
    create,
    keep_copy,
    revision_of,
    upgrade,
)
from coordinator.storage.schema import DEVICES, EVENTS, REPORTS, RUNS, STORE
from edge_client.errors import WrongInput
from edge_client.files import private

DATABASE = "coordinator.db"
LOCK = "serve.lock"  # held by the process that serves
LOCK_S = 2.0  # commands hold it for an instant, to see whether somebody serves
CLAIMS = "blobs.lock"  # shared by who writes blobs
LOG = logging.getLogger(__name__)


class StoreError(WrongInput):
    """A store that cannot be opened or does not hold what was asked for."""


@dataclass(frozen=True)
class Run:
    """A run's row; it never changes.

    Attributes:
        run_id: Names it on the wire.
        created_at_s: Unix time.
        config: `RunConfig` as JSON.
        base_id: SHA-256 of the frozen base.
        base_reference: What `from_pretrained` takes for it: an absolute folder or a hub name.
        architecture: The base's `model_type`.
        adapter_sha256: The adapter it starts from.
        secret: What its work ids and its draws are derived from.
    """

    run_id: str
    created_at_s: float
    config: str
    base_id: str
    base_reference: str
    architecture: str
    adapter_sha256: str
    secret: str


class Store:
    """One coordinator's store; safe to use from several threads.

    Args:
        folder: Where the blobs lie, and the database unless a URL is given.
        url: SQLAlchemy's URL of another database.
        is_upgrading: Whether an older store is brought up to date, after a copy of its database.

    Raises:
        StoreError: The folder or database cannot be opened, or another smidgen wrote it.
    """

    def __init__(self, folder: Path, url: str | None = None, is_upgrading: bool = False) -> None:
        self.folder, self.blobs, self.uploads = folder, folder / "blobs", folder / "uploads"
        self._checked = Checked()
        self._heads: Heads | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # tokens' hashes, work's secrets
            self.blobs.mkdir(mode=0o700, exist_ok=True)
            if url is None:  # what SQLite writes beside it gets the mode of the database
                (folder / DATABASE).touch(mode=0o600)
        except OSError as error:
            told = f"a store at {folder} cannot be made: {error.strerror or error}"
            raise StoreError(f"{told}; name another --store") from error
        try:
            self.database = Database(url or f"sqlite:///{folder / DATABASE}")
            revision = revision_of(self.database.engine)
            if revision is None:
                self._create(folder)
            elif revision != HEAD:
                self._check_older(folder, revision, is_upgrading)
                self._upgrade(folder)
        except (OSError, SQLAlchemyError) as error:
            raise StoreError(f"cannot open the store {folder}: {_first_line(error)}") from error

    @property
    def _url(self) -> str:
        return self.database.engine.url.render_as_string(hide_password=False)

    def _create(self, folder: Path) -> None:
        is_used = any(self.blobs.iterdir())
        if is_used and revision_of(self.database.engine) is None:  # nobody was quicker
            raise StoreError(
                f"store {folder} holds adapters, but its database is empty; restore "
                f"{DATABASE} from a backup, or name another --store"
            )
        create(self._url)

    def _check_older(self, folder: Path, revision: str, is_upgrading: bool) -> None:
        if revision not in KNOWN:
            raise StoreError(
                f"store {folder} has schema {revision}, newer than the {HEAD} that this smidgen "
                "knows; install the smidgen that wrote it, or a newer one"
            )
        if not is_upgrading:
            raise StoreError(
                f"store {folder} was written by an older smidgen (schema {revision}, now {HEAD}); "
                f"start `smidgen coordinator serve --store {folder}` once: it copies the database "
                "and brings it up to date"
            )

    def _upgrade(self, folder: Path) -> None:
        """Nobody else may serve it meanwhile: an older smidgen would not understand it."""
        url, file = self.database.engine.url, self.database.engine.url.database
        with serving_alone(folder):
            revision = revision_of(self.database.engine)
            if revision is None or revision == HEAD:  # another process was quicker
                return
            if url.get_backend_name() == "sqlite" and file:
                copy = keep_copy(Path(file))
                LOG.info("an older smidgen wrote this store: its database is copied to %s", copy)
            upgrade(self._url, revision)
            LOG.info("the store has been brought from schema %s to %s", revision, HEAD)

    def close(self) -> None:
        self.database.close()

    def put(self, body: bytes, name: str = "") -> str:
        """Write a blob; durable when this returns. See `blobs.put_blob`."""
        return put_blob(self.blobs, body, name)

    def keep(self, path: Path, name: str) -> None:
        """Make a whole file a blob; durable when this returns. See `blobs.keep_blob`."""
        keep_blob(self.blobs, path, name)

    def read(self, name: str) -> bytes:
        return read_blob(self.blobs, name)

    def check(self, name: str) -> None:
        """Make sure that a blob is whole; its file is read where it has changed since.

        Raises:
            BlobDamaged: It is missing or damaged.
        """
        self._checked.check(self.blobs / name)

    def blob_path(self, name: str) -> Path:
        return self.blobs / name

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Write a blob and then what refers to it: until this ends nobody removes any.

        Many may do so at once, in several processes.
        """
        with open(self.blobs.with_name(CLAIMS), "a", opener=private) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextmanager
    def removing(self) -> Iterator[bool]:
        """Remove blobs while nobody claims any; whether that is so now. Does not wait."""
        with open(self.blobs.with_name(CLAIMS), "a", opener=private) as file:
            is_held = False
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_held = True
            yield is_held

    def add_run(
        self,
        run: Run,
        *statements: sql.Executable,
        look: Callable[[list[Run]], None] = lambda _: None,
    ) -> None:
        """Add a run, and in the same transaction what goes with it.

        Args:
            run: The run.
            statements: What goes with it.
            look: Called with the other runs while nobody else writes; nothing is added if it
                raises.
        """
        others = sql.select(RUNS).where(RUNS.c.run_id != run.run_id)
        with self.database.transaction() as connection:
            # The insert comes first: SQLite lets nobody else write from then on.
            connection.execute(sql.insert(RUNS).values(**asdict(run)))
            look([Run(**row) for row in connection.execute(others).mappings()])
            for statement in statements:
                connection.execute(statement)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        order = (RUNS.c.created_at_s, RUNS.c.run_id)
        return [Run(**row) for row in self.database.rows(sql.select(RUNS).order_by(*order))]

    def append(self, run_id: str, seq: int, event: Event, *statements: Statement) -> None:
        """Append an event to a run's journal; see `append_all`."""
        self.append_all([(run_id, seq, event)], *statements)

    def append_all(self, events: Sequence[tuple[str, int, Event]], *statements: Statement) -> None:
        """Append events to runs' journals, and in the same transaction what goes with them.

        Durable when this returns; then their links are noted beside the database.

        Args:
            events: Run, place in its journal, and what happened.
            statements: What goes with them.

        Raises:
            StoreError: Somebody else wrote such a place.
        """
        try:
            with self.database.transaction() as connection:
                rows = chained(connection, events)
                connection.execute(sql.insert(EVENTS), rows)
                for statement in statements:
                    connection.execute(statement)
        except IntegrityError as error:
            runs = ", ".join(sorted({run_id for run_id, _, _ in events}))
            raise StoreError(f"another process writes the journal of run {runs}") from error
        except JournalError as error:
            raise StoreError(str(error)) from error
        if self._heads is not None:
            ends = {row["run_id"]: Head(row["seq"], row["chain"]) for row in rows}
            with suppress(OSError):  # it lags behind then, which is no harm
                for run_id, head in ends.items():
                    self._heads.note(run_id, head)

    def fold(self, run_id: str, event: Folded) -> None:
        """Put an event in the place of all before it; durable when this returns.

        The end that is noted beside the database is on disk before those events are gone, so it
        can be compared whatever comes.

        Raises:
            StoreError: Somebody else wrote its place.
            OSError: The end could not be noted; nothing has changed.
        """
        end = self.ends()[run_id]
        if self._heads is not None:
            self._heads.note(run_id, end, is_safe=True)
        self.append_all([(run_id, event.events, event)], forget_before(run_id, event.events))

    @contextmanager
    def noting(self, heads: Heads) -> Iterator[None]:
        """Note the end of each journal beside the database, until this ends."""
        self._heads = heads
        try:
            yield
        finally:
            self._heads = None
            heads.close()

    def ends(self) -> dict[str, Head]:
        """The end of each journal that has an event."""
        last = sql.select(EVENTS.c.run_id, sql.func.max(EVENTS.c.seq).label("seq"))
        newest = last.group_by(EVENTS.c.run_id).subquery()
        here = (EVENTS.c.run_id == newest.c.run_id) & (EVENTS.c.seq == newest.c.seq)
        chosen = sql.select(EVENTS.c.run_id, EVENTS.c.seq, EVENTS.c.chain).join(newest, here)
        found = self.database.rows(chosen)
        return {row["run_id"]: Head(row["seq"], row["chain"]) for row in found}

    def link(self, run_id: str, seq: int) -> str | None:
        """The link of an event, as `journal.link_of` finds it."""
        with self.database.reading() as connection:
            return link_of(connection, run_id, seq)

    def events(self, run_id: str) -> list[Event]:
        """A run's whole journal."""
        return list(self.journal(run_id))

    def journal(self, run_id: str, first: int = 0) -> Iterator[Event]:
        """A run's journal from an event on, of which few are held at once; see `journal.read`.

        Raises:
            StoreError: An event is not the one that was appended.
        """
        try:
            yield from read(self.database, run_id, first)
        except JournalError as error:
            raise StoreError(str(error)) from error

    def watch(self) -> None:
        """Note that heads lie beside the database from now on."""
        self.database.write(sql.update(STORE).values(is_watched=True))

    def is_watched(self) -> bool:
        """Whether heads have to lie beside the database."""
        return any(row["is_watched"] for row in self.database.rows(sql.select(STORE)))

    def secure(self, is_secured: bool) -> None:
        """Note whether certificates lie beside the database from now on."""
        if self.is_secured() != is_secured:
            self.database.write(sql.update(STORE).values(is_secured=is_secured))

    def is_secured(self) -> bool:
        """Whether certificates have to lie beside the database."""
        return any(row["is_secured"] for row in self.database.rows(sql.select(STORE)))

    def add_report(self, row: Mapping[str, Any]) -> bool:
        """Add a report's row; False if its work has one, which is left as it is."""
        with suppress(IntegrityError):
            self.database.share(lambda connection: connection.execute(sql.insert(REPORTS), [row]))
            return True
        return False

    def reports(
        self, run_id: str, since: int = 0, until: int | None = None
    ) -> list[Mapping[str, Any]]:
        """A run's report rows from a round to a round, with `device`, a name.

        By round, step and name, as people read them.
        """
        kinds = {"label": 0, "train": 1, "evaluate": 2}
        place = sql.case(kinds, value=REPORTS.c.kind, else_=len(kinds))
        order = (REPORTS.c.round_index, place, REPORTS.c.attempt)
        here = (REPORTS.c.run_id == run_id) & (REPORTS.c.round_index >= since)
        if until is not None:
            here &= REPORTS.c.round_index <= until
        sent = REPORTS.outerjoin(DEVICES, REPORTS.c.device_id == DEVICES.c.device_id)
        chosen = sql.select(REPORTS, DEVICES.c.name.label("device")).select_from(sent).where(here)
        return self.database.rows(chosen.order_by(*order, DEVICES.c.stem, DEVICES.c.number))


@contextmanager
def serving_alone(folder: Path) -> Iterator[None]:
    """Hold a store for this process alone; a killed process holds nothing.

    Raises:
        StoreError: Another process serves it.
    """
    end = time.monotonic() + LOCK_S
    with open(folder / LOCK, "a", opener=private) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise StoreError(f"another coordinator serves the store {folder}") from error
            time.sleep(0.05)
        yield


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
