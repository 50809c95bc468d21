"""What a store says of itself: the one row of a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sql

from coordinator.storage.database import Connection, Database
from coordinator.storage.schema import STORE

UNSURE = "~"  # before the id of a fleet whose blobs do not have it yet


class Marks:
    """The marks of one store; read anew each time, for other processes set them too.

    Args:
        database: Its database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def fleet_id(self) -> str:
        """The id of its fleet, where its blobs could be another's."""
        return str(self._row("fleet_id") or "")

    def pair(self, fleet_id: str, is_moving: bool) -> str:
        """Take an id, of which is not sure yet whether the blobs have it; the one it has then.

        Args:
            fleet_id: What is proposed.
            is_moving: Whether it takes the place of another.
        """
        mine = STORE.c.fleet_id
        with self._database.transaction() as connection:
            unpaired = sql.update(STORE).where(sql.or_(mine == "", sql.literal(is_moving)))
            connection.execute(unpaired.values(fleet_id=f"{UNSURE}{fleet_id}"))
            return str(connection.execute(sql.select(mine)).scalar_one()).removeprefix(UNSURE)

    def paired(self, fleet_id: str) -> None:
        """Note that the blobs have its id too."""
        self._set(fleet_id=fleet_id)

    def watch(self) -> None:
        """Note that heads lie beside the database from now on."""
        self._set(is_watched=True)

    def is_watched(self) -> bool:
        """Whether heads have to lie beside the database."""
        return bool(self._row("is_watched"))

    def secure(self, is_secured: bool) -> None:
        """Note whether certificates lie beside the database from now on."""
        if self.is_secured() != is_secured:
            self._set(is_secured=is_secured)

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
            self._set(keep_rounds=keep_rounds)

    @contextmanager
    def leaving(self, place: str) -> Iterator[Connection]:
        """Reads of a store that nobody writes to meanwhile; it is in another place when this ends.

        Args:
            place: Where it is then.
        """
        with self._database.transaction(is_last=True) as connection:
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
            self._set(arriving="")

    def stay(self) -> None:
        """Be the store again that was moved elsewhere."""
        if self.moved_to():
            self._set(moved_to="")

    def _row(self, name: str) -> Any:
        """What the store says of itself."""
        return next((row[name] for row in self._database.rows(sql.select(STORE))), None)

    def _set(self, **values: Any) -> None:
        self._database.write(sql.update(STORE).values(**values))
