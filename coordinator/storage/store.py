"""What the coordinator knows, on disk: runs, their journals, reports and blobs.

A database whose every commit is synced, and blobs; `storage.place` says where either lies. Nothing
here decides anything. Secrets are stored as hashes. Devices, tokens and memberships have modules of
their own over the same database.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from coordinator.rounds.events import Event, Folded
from coordinator.storage.database import Connection, Database, Statement
from coordinator.storage.dialects import postgres
from coordinator.storage.dialects.locks import CLAIMS, SERVE, FileLocks
from coordinator.storage.heads import Head, Heads
from coordinator.storage.journal import JournalError, chained, forget_before, link_of, read
from coordinator.storage.migrations.upgrade import (
    FOREIGN,
    HEAD,
    KNOWN,
    create,
    keep_copy,
    revision_of,
    upgrade,
)
from coordinator.storage.place import DATABASE, StorePlace, place_of
from coordinator.storage.schema import DEVICES, EVENTS, REPORTS, RUNS, STORE, VERSION
from edge_client.errors import WrongInput

UNSURE = "~"  # before the id of a fleet whose blobs do not have it yet
UPGRADE_S = 20.0  # another process may be bringing it up to date
LOCK_S = 2.0  # commands hold the lock of who serves for an instant, to see whether somebody does
LOOK_S = 0.2  # for which they wait for each other
LOG = logging.getLogger(__name__)


class StoreError(WrongInput):
    """A store that cannot be opened or does not hold what was asked for."""


class Conflict(StoreError):
    """A place of a journal that another process has written, or folded away."""


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
        is_upgrading: Whether an older store is brought up to date, after a copy of its database.
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
        locks: Who uses it.

    Raises:
        StoreError: It cannot be opened, or another smidgen wrote it.
    """

    def __init__(
        self,
        store: str | Path | StorePlace,
        is_upgrading: bool = False,
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
            if not place.is_shared:  # what SQLite writes beside it gets the mode of the database
                place.file.touch(mode=0o600)
        except OSError as error:
            told = f"a store at {self.folder} cannot be made: {error.strerror or error}"
            raise StoreError(f"{told}; name another --store") from error
        self.database = Database(place.url)
        self.locks = self.database.locks(self.folder)
        self._is_left = is_left
        opened = False
        try:
            self._open(is_upgrading, is_new, is_left, moves_in)
            opened = True
        except SQLAlchemyError as error:
            why = postgres.told(error) if place.is_shared else _first_line(error)
            raise StoreError(f"cannot open the store {place}: {why}") from error
        except OSError as error:
            raise StoreError(f"cannot open the store {place}: {_first_line(error)}") from error
        finally:
            if not opened:
                self.database.close()

    def _open(self, is_upgrading: bool, is_new: bool, is_left: bool, moves_in: str) -> None:
        revision = revision_of(self.database.engine)
        if revision is None and not is_new:
            raise StoreError(f"no store at {self.place}; make one with `create`")
        if revision is None:
            self._create()
        elif revision != HEAD:
            self._check_older(revision, is_upgrading)
            self._upgrade()
        if not is_left:
            self.check_not_moved()
        if (source := self.arriving()) and not moves_in:
            raise StoreError(
                f"the move of {source} to {self.place} was cut; ask for it again with `smidgen "
                "coordinator move`, or go on with the old one"
            )
        self._check_fleet(is_new or is_upgrading, moves_in)
        self.database.look = self._look

    def _look(self, connection: Connection) -> None:
        """Refuse what another process has moved or brought up to date since this one opened it.

        A lock tells nothing here: a server that was started again has forgotten who holds it.
        """
        version = sql.select(VERSION.c.version_num).scalar_subquery()
        row = connection.execute(sql.select(STORE.c.moved_to, version)).one_or_none()
        moved_to, revision = ("", HEAD) if row is None else row
        if moved_to and not self._is_left:
            raise postgres.StoreMoved(
                f"the store {self.place} was moved to {moved_to}; start anew with that"
            )
        if revision != HEAD:
            raise postgres.StoreMoved(
                f"another smidgen brought {self.place} to schema {revision}; start it"
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
        if to := self.moved_to():
            raise StoreError(
                f"the store {self.place} was moved to {to}; name that one, or take this one as it "
                "was left with `smidgen coordinator verify --accept`"
            )

    def _create(self) -> None:
        is_used = self.place.is_embedded and bool(self.blobs.present())
        if is_used and revision_of(self.database.engine) is None:  # nobody was quicker
            raise StoreError(
                f"store {self.place} holds adapters, but its database is empty; restore "
                f"{DATABASE} from a backup, or name another --store"
            )
        create(self.database.engine.url)

    def _check_older(self, revision: str, is_upgrading: bool) -> None:
        if self.place.is_shared and revision == FOREIGN:
            raise StoreError(
                f"{self.place} holds tables of something else; a fleet takes a database of its own"
            )
        if revision not in KNOWN:
            raise StoreError(
                f"store {self.place} has schema {revision}, newer than the {HEAD} that this "
                "smidgen knows; install the smidgen that wrote it, or a newer one"
            )
        if not is_upgrading:
            named = " ".join(self.place.options)
            copies = "" if self.place.is_shared else "copies the database and "
            raise StoreError(
                f"store {self.place} was written by an older smidgen (schema {revision}, now "
                f"{HEAD}); start `smidgen coordinator serve {named}` once: it "
                f"{copies}brings it up to date"
            )

    def _upgrade(self) -> None:
        """Nobody else may serve it meanwhile: an older smidgen would not understand it."""
        with self.serving_alone(UPGRADE_S):
            revision = revision_of(self.database.engine)
            if revision is None or revision == HEAD:  # another process was quicker
                return
            if not self.place.is_shared:
                copy = keep_copy(self.place.file)
                LOG.info("an older smidgen wrote this store: its database is copied to %s", copy)
            upgrade(self.database.engine.url, revision)
            LOG.info("the store has been brought from schema %s to %s", revision, HEAD)

    def fleet_id(self) -> str:
        """The id of its fleet, where its blobs could be another's."""
        return str(self._row("fleet_id") or "")

    def _check_fleet(self, may_pair: bool, moves_in: str) -> None:
        """Refuse blobs of another fleet than the database's; a store without runs may be paired.

        The bucket is asked while nobody waits for this process. A pairing that was cut is known by
        the mark before its id, and gone on with.

        Args:
            may_pair: Whether the two are paired where neither is with another.
            moves_in: Id of a fleet whose blobs a move may have brought before.

        Raises:
            StoreError: They belong to two fleets, or to none.
        """
        if self.place.is_embedded and not self.fleet_id():
            return
        theirs, mine = self.blobs.fleet(), self.fleet_id()
        if mine and not theirs:
            theirs = self.blobs.fleet()  # another process may just have paired them
        if mine and mine == theirs:
            if may_pair:  # who may write a fleet
                self.blobs.check_rights()
            return
        is_free = bool(self.arriving()) or not self.runs()
        if is_free and (theirs in ("", mine.removeprefix(UNSURE)) or theirs == moves_in):
            if may_pair and (not mine or mine.startswith(UNSURE) or moves_in):
                self._pair(theirs or moves_in or secrets.token_hex(16), bool(moves_in))
                return
            if not theirs and (not mine or mine.startswith(UNSURE)):
                return  # there is nothing yet to take for another's
        whose = "are another fleet's" if theirs else "are not those that its fleet began with"
        whose = whose if mine or theirs else "are not those of its runs"
        raise StoreError(
            f"{self.place}: the blobs {whose} (a database holds one fleet, and its blobs lie in "
            "one place); name the --blobs that belong to this --database, or new ones of both; "
            "`smidgen coordinator move` takes blobs elsewhere"
        )

    def _pair(self, fleet_id: str, is_moving: bool) -> None:
        """Give database and blobs the same id; of several that do so at once one says which."""
        self.blobs.check_rights()
        mine = STORE.c.fleet_id
        with self.database.transaction() as connection:
            unpaired = sql.update(STORE).where(sql.or_(mine == "", sql.literal(is_moving)))
            connection.execute(unpaired.values(fleet_id=f"{UNSURE}{fleet_id}"))
            fleet_id = connection.execute(sql.select(mine)).scalar_one().removeprefix(UNSURE)
        self.blobs.claim(fleet_id)
        self.database.write(sql.update(STORE).values(fleet_id=fleet_id))

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

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Write a blob and then what refers to it: until this ends nobody removes any.

        Many may do so at once, in several processes.
        """
        with self.locks.shared(CLAIMS):
            yield

    @contextmanager
    def removing(self) -> Iterator[bool]:
        """Remove blobs while nobody claims any; whether that is so now. Does not wait."""
        with self.locks.alone(CLAIMS) as is_held:
            if is_held:
                self.check_here()  # else what its journals do not speak of may be needed
            yield is_held

    @contextmanager
    def serving_alone(self, patience_s: float = LOCK_S) -> Iterator[None]:
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
        """Whether a coordinator holds the store."""
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
            Conflict: Somebody else wrote such a place.
        """
        try:
            with self.database.transaction() as connection:
                rows = chained(connection, events)
                connection.execute(sql.insert(EVENTS), rows)
                for statement in statements:
                    connection.execute(statement)
        except IntegrityError as error:
            runs = ", ".join(sorted({run_id for run_id, _, _ in events}))
            raise Conflict(f"another process writes the journal of run {runs}") from error
        except JournalError as error:
            raise Conflict(str(error)) from error
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
            Conflict: Somebody else wrote its place.
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

    def longer(self, known: Mapping[str, int]) -> list[str]:
        """Runs whose journal is longer than known, by id."""
        if not known:
            return []
        news = [(EVENTS.c.run_id == key) & (EVENTS.c.seq >= seq) for key, seq in known.items()]
        chosen = sql.select(EVENTS.c.run_id).where(sql.or_(*news)).distinct()
        return sorted(row["run_id"] for row in self.database.rows(chosen))

    def watch(self) -> None:
        """Note that heads lie beside the database from now on."""
        self.database.write(sql.update(STORE).values(is_watched=True))

    def is_watched(self) -> bool:
        """Whether heads have to lie beside the database."""
        return bool(self._row("is_watched"))

    def secure(self, is_secured: bool) -> None:
        """Note whether certificates lie beside the database from now on."""
        if self.is_secured() != is_secured:
            self.database.write(sql.update(STORE).values(is_secured=is_secured))

    def is_secured(self) -> bool:
        """Whether certificates have to lie beside the database."""
        return bool(self._row("is_secured"))

    def keep_rounds(self) -> int | None:
        """How many of a run's newest rounds keep their adapter; None where nobody said so."""
        found = self._row("keep_rounds")
        return None if found is None else int(found)

    def note_keep_rounds(self, keep_rounds: int | None) -> None:
        """Note how many rounds keep their adapter, for all who remove any."""
        if self.keep_rounds() != keep_rounds:
            self.database.write(sql.update(STORE).values(keep_rounds=keep_rounds))

    @contextmanager
    def leaving(self, place: str) -> Iterator[Connection]:
        """Reads of a store that nobody writes to meanwhile; it is in another place when this ends.

        Args:
            place: Where it is then.
        """
        with self.database.transaction(is_last=True) as connection:
            connection.execute(sql.update(STORE).values(moved_to=place))
            yield connection

    def moved_to(self) -> str:
        """Where it was moved; empty: nowhere."""
        return str(self._row("moved_to") or "")

    def arriving(self) -> str:
        """Where a move brings it from, until all of it is here; empty: from nowhere."""
        return str(self._row("arriving") or "")

    def arrive(self) -> None:
        """Be whole: the store that a move has brought here goes on in this place alone."""
        if self.arriving():
            self.database.write(sql.update(STORE).values(arriving=""))

    def stay(self) -> None:
        """Be the store again that was moved elsewhere."""
        if self.moved_to():
            self.database.write(sql.update(STORE).values(moved_to=""))

    def _row(self, name: str) -> Any:
        """What the store says of itself."""
        return next((row[name] for row in self.database.rows(sql.select(STORE))), None)

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


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
