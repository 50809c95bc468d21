"""What the coordinator knows, on disk: runs, their journals, reports and blobs.

SQLite in WAL mode with every commit synced; another database by URL. Nothing here decides
anything. Secrets are stored as hashes; the journal only grows. Devices, tokens and memberships
have modules of their own over the same database.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from coordinator.rounds.events import Event, decode_event, encode_event
from coordinator.storage.blobs import put_blob, read_blob
from coordinator.storage.database import Database
from coordinator.storage.schema import EVENTS, METADATA, REPORTS, RUNS
from edge_client.errors import WrongInput

DATABASE = "coordinator.db"


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
        secret: What its work ids are derived from.
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

    Raises:
        StoreError: The folder or database cannot be opened, or has another schema version.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.blobs = folder / "blobs"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # tokens' hashes, work's secrets
            self.blobs.mkdir(exist_ok=True)
            self.database = Database(url or f"sqlite:///{folder / DATABASE}")
            METADATA.create_all(self.database.engine)
        except (OSError, SQLAlchemyError) as error:
            raise StoreError(f"cannot open the store {folder}: {_first_line(error)}") from error

    def close(self) -> None:
        self.database.close()

    def put(self, body: bytes, name: str = "") -> str:
        """Write a blob; durable when this returns. See `blobs.put_blob`."""
        return put_blob(self.blobs, body, name)

    def read(self, name: str) -> bytes:
        return read_blob(self.blobs, name)

    def blob_path(self, name: str) -> Path:
        return self.blobs / name

    def add_run(self, run: Run, *statements: sql.Executable) -> None:
        """Add a run, and in the same transaction what goes with it."""
        self.database.write(sql.insert(RUNS).values(**asdict(run)), *statements)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        order = (RUNS.c.created_at_s, RUNS.c.run_id)
        return [Run(**row) for row in self.database.rows(sql.select(RUNS).order_by(*order))]

    def append(self, run_id: str, seq: int, event: Event, *statements: sql.Executable) -> None:
        """Append an event to a run's journal, and in the same transaction what goes with it.

        Durable when this returns.

        Raises:
            StoreError: Somebody else wrote this place of the journal.
        """
        row = {"run_id": run_id, "seq": seq, "payload": encode_event(event)}
        try:
            self.database.write(sql.insert(EVENTS).values(**row), *statements)
        except IntegrityError as error:
            raise StoreError(f"another process writes the journal of run {run_id}") from error

    def events(self, run_id: str) -> list[Event]:
        journal = sql.select(EVENTS).where(EVENTS.c.run_id == run_id).order_by(EVENTS.c.seq)
        return [decode_event(row["payload"]) for row in self.database.rows(journal)]

    def add_report(self, row: Mapping[str, Any]) -> bool:
        """Add a report's row; False if its work has one, which is left as it is."""
        with suppress(IntegrityError):
            self.database.write(sql.insert(REPORTS).values(**row))
            return True
        return False

    def reports(
        self, run_id: str, since: int = 0, until: int | None = None
    ) -> list[Mapping[str, Any]]:
        """A run's report rows by round, step and device, as they come, from a round to a round."""
        kinds = {"label": 0, "train": 1, "evaluate": 2}
        place = sql.case(kinds, value=REPORTS.c.kind, else_=len(kinds))
        order = (REPORTS.c.round_index, place, REPORTS.c.attempt)
        here = (REPORTS.c.run_id == run_id) & (REPORTS.c.round_index >= since)
        if until is not None:
            here &= REPORTS.c.round_index <= until
        chosen = sql.select(REPORTS).where(here)
        return self.database.rows(chosen.order_by(*order, REPORTS.c.device_id))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
