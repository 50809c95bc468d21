"""The coordinator's store: runs, their journals and blobs.

Every commit is synced to disk; `storage.database` says where database and blobs are. Nothing here
decides anything. Secrets are stored as hashes. Devices, tokens, memberships and reports have
modules of their own over the same database.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from smidgen.coordinator.rounds.events import Event, Folded
from smidgen.coordinator.storage.database import (
    Conflict,
    Connection,
    Database,
    Statement,
    StoreError,
    StorePlace,
    place_of,
)
from smidgen.coordinator.storage.dialects import postgres
from smidgen.coordinator.storage.dialects.sqlite import CLAIMS, SERVE, FileLocks
from smidgen.coordinator.storage.journals import (
    Heads,
    JournalError,
    JournalHead,
    chained,
    forget_before,
    link_of,
    read,
)
from smidgen.coordinator.storage.opening import Marks, check_fleet, open_schema
from smidgen.coordinator.storage.schema import EVENTS, REVISION, RUNS, STORE, VERSION

LOOK_S = 0.2  # for which they wait for each other


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
        store: Its folder or place.
        may_pair: Whether database and blobs are paired where neither is with another.
        is_new: Whether it is made where there is none.
        is_left: Whether it may be one that was moved elsewhere.
        moves_in: Id of the fleet that a move brings into it; empty: none. Only then it may be one
            that a move has half filled.

    Attributes:
        place: Where it lies.
        folder: What of it lies on this machine.
        uploads: Folder of what arrives.
        blobs: Updates and adapters.
        database: All else.
        marks: What it says of itself.
        locks: Who uses it.

    Raises:
        StoreError: It cannot be opened, or another smidgen wrote it.
    """

    def __init__(
        self,
        store: str | Path | StorePlace,
        may_pair: bool = False,
        is_new: bool = True,
        is_left: bool = False,
        moves_in: str = "",
    ) -> None:
        self.place = place = place_of(store)
        self.folder, self.uploads = place.folder, place.folder / "uploads"
        self._heads: Heads | None = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # hashes of tokens, secrets
            self.blobs = place.open_blobs()
            # What SQLite writes beside it gets the mode of the database.
            if not place.is_shared and not place.file.exists():
                place.file.touch(mode=0o600)
        except OSError as error:
            raise StoreError(
                f"a store at {self.folder} cannot be made: {error.strerror or error}"
                f"; name another --store"
            ) from error
        self.database = Database(place.url)
        self.marks = Marks(self.database)
        self.locks = self.database.locks(self.folder)
        self._is_left = is_left
        opened = False
        try:
            self._open(is_new, is_new or may_pair, is_left, moves_in)
            opened = True
        except SQLAlchemyError as error:
            why = postgres.told(error) if place.is_shared else _first_line(error)
            raise StoreError(f"cannot open the store {place}: {why}") from error
        except OSError as error:
            raise StoreError(f"cannot open the store {place}: {_first_line(error)}") from error
        finally:
            if not opened:
                self.database.close()

    def _open(self, is_new: bool, may_pair: bool, is_left: bool, moves_in: str) -> None:
        open_schema(self.place, self.database, self.blobs, is_new)
        if not is_left:
            self.check_not_moved()
        if (source := self.marks.arriving()) and not moves_in:
            raise StoreError(
                f"the move of {source} to {self.place} was cut; ask for it again with `smidgen "
                "coordinator move`, or go on with the old one"
            )
        check_fleet(
            self.place, self.blobs, self.marks, lambda: bool(self.runs()), may_pair, moves_in
        )
        self.database.look = self._look

    def _look(self, connection: Connection) -> None:
        """Refuse what another process has moved or written anew since this one opened it.

        A lock tells nothing here: a server that was started again has forgotten who holds it.
        """
        version = sql.select(VERSION.c.version_num).scalar_subquery()
        row = connection.execute(sql.select(STORE.c.moved_to, version)).one_or_none()
        moved_to, revision = ("", REVISION) if row is None else row
        if moved_to and not self._is_left:
            raise postgres.StoreMoved(
                f"the store {self.place} was moved to {moved_to}; start anew with that"
            )
        if revision != REVISION:
            raise postgres.StoreMoved(
                f"another smidgen has made {self.place} of schema {revision}; start that one"
            )

    def check_here(self) -> None:
        """Make sure that nobody has moved it since it was opened.

        Raises:
            StoreMoved: Somebody has.
        """
        with self.database.reading() as connection:
            self._look(connection)

    def check_not_moved(self) -> None:
        """Refuse a store that was moved elsewhere.

        Raises:
            StoreError: It was.
        """
        if to := self.marks.moved_to():
            raise StoreError(
                f"the store {self.place} was moved to {to}; name that one, or take this one as it "
                "was left with `smidgen coordinator verify --accept`"
            )

    def close(self) -> None:
        self.database.close()

    def put(self, body: bytes, name: str = "") -> str:
        """Write a blob; safe when this returns. See `Blobs.put`."""
        return self.blobs.put(body, name)

    def keep(self, path: Path, name: str) -> None:
        """Make a whole file a blob; safe when this returns. See `Blobs.keep`."""
        self.blobs.keep(path, name)

    def read(self, name: str) -> bytes:
        return self.blobs.read(name)

    def check(self, name: str) -> None:
        """Make sure that a blob is whole.

        Raises:
            BlobDamaged: It is missing or damaged.
        """
        self.blobs.check(name)

    def claiming(self) -> AbstractContextManager[None]:
        """Write a blob and then what refers to it: until this ends nobody removes any.

        Many may do so at once, in several processes.
        """
        return self.locks.shared(CLAIMS)

    @contextmanager
    def removing(self) -> Iterator[bool]:
        """Remove blobs while nobody claims any; whether that is so now. Does not wait."""
        with self.locks.alone(CLAIMS) as is_held:
            if is_held:
                self.check_here()  # else what its journals do not speak of may be needed
            yield is_held

    @contextmanager
    # Commands hold the lock of who serves for an instant, to see whether somebody does
    def serving_alone(self, patience_s: float = 2.0) -> Iterator[None]:
        """Hold the store for this process alone; a killed process holds nothing.

        Args:
            patience_s: How long it is waited for.

        Raises:
            StoreError: Another process serves it.
        """
        with self.locks.alone(SERVE, patience_s) as is_held:
            if not is_held:
                raise StoreError(f"another coordinator serves the store {self.place}")
            yield

    @contextmanager
    def serving_together(self) -> Iterator[None]:
        """Serve a shared store beside others, with a folder for uploads that none of them has.

        Raises:
            StoreError: Somebody moves it, or brings it up to date.
        """
        beside = FileLocks(self.folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(self.locks.shared(SERVE))
            except postgres.DatabaseAway as error:
                raise StoreError(f"somebody works on the store {self.place}; try again") from error
            self.check_here()
            number = 1
            while not stack.enter_context(beside.alone(f"uploads-{number}.lock")):
                number += 1
            self.uploads = self.folder / f"uploads-{number}"
            yield

    def is_served(self) -> bool:
        try:
            with self.locks.alone(SERVE, LOOK_S) as is_held:
                return not is_held
        except OSError:  # nobody can serve what cannot be written to
            return False

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
            self.locks.keep(connection, CLAIMS)
            # The insert comes first: SQLite lets nobody else write from then on.
            connection.execute(sql.insert(RUNS).values(**asdict(run)))
            look([Run(**row) for row in connection.execute(others).mappings()])
            for statement in statements:
                connection.execute(statement)

    def runs(self) -> list[Run]:
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
            statements: What goes with them. Where one touches no row nothing is written at all.

        Raises:
            Conflict: Somebody else wrote such a place, or what goes with it.
            DatabaseAway: Blobs that they refer to may be gone: the lock on them was lost.
        """
        try:
            with self.database.transaction() as connection:
                self.locks.keep(connection, CLAIMS)
                rows = chained(connection, events)
                connection.execute(sql.insert(EVENTS), rows)
                for statement in statements:
                    touched = connection.execute(statement).rowcount
                    if isinstance(statement, sql.Update | sql.Insert) and not touched:
                        raise Conflict("another process has done so")
        except IntegrityError as error:
            runs = ", ".join(sorted({run_id for run_id, _, _ in events}))
            raise Conflict(f"another process writes the journal of run {runs}") from error
        except JournalError as error:
            raise Conflict(str(error)) from error
        if self._heads is not None:
            ends = {row["run_id"]: JournalHead(row["seq"], row["chain"]) for row in rows}
            with suppress(OSError):  # it lags behind then, which is no harm
                for run_id, head in ends.items():
                    self._heads.note(run_id, head)

    def fold(self, run_id: str, event: Folded, *statements: Statement) -> None:
        """Put an event in the place of all before it; durable when this returns.

        What goes with it happens too, or neither does.

        The end that is noted beside the database is on disk before those events are gone, so it
        can be compared whatever comes.

        Raises:
            Conflict: Somebody else wrote its place.
            OSError: The end could not be noted; nothing has changed.
        """
        end = self.ends()[run_id]
        if self._heads is not None:
            self._heads.note(run_id, end, is_safe=True)
        gone = forget_before(run_id, event.events)
        self.append_all([(run_id, event.events, event)], gone, *statements)

    @contextmanager
    def noting(self, heads: Heads) -> Iterator[None]:
        """Note the end of each journal beside the database, until this ends."""
        self._heads = heads
        try:
            yield
        finally:
            self._heads = None
            heads.close()

    def ends(self) -> dict[str, JournalHead]:
        last = sql.select(EVENTS.c.run_id, sql.func.max(EVENTS.c.seq).label("seq"))
        newest = last.group_by(EVENTS.c.run_id).subquery()
        here = (EVENTS.c.run_id == newest.c.run_id) & (EVENTS.c.seq == newest.c.seq)
        chosen = sql.select(EVENTS.c.run_id, EVENTS.c.seq, EVENTS.c.chain).join(newest, here)
        found = self.database.rows(chosen)
        return {row["run_id"]: JournalHead(row["seq"], row["chain"]) for row in found}

    def link(self, run_id: str, seq: int) -> str | None:
        with self.database.reading() as connection:
            return link_of(connection, run_id, seq)

    def events(self, run_id: str) -> list[Event]:
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

    def longer(self, known: Mapping[str, int]) -> list[str]:
        if not known:
            return []
        news = [(EVENTS.c.run_id == key) & (EVENTS.c.seq >= seq) for key, seq in known.items()]
        chosen = sql.select(EVENTS.c.run_id).where(sql.or_(*news)).distinct()
        return sorted(row["run_id"] for row in self.database.rows(chosen))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
