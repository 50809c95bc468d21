"""Rows of reports: adding them, by round, and the newest of a run or a device."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from coordinator.storage.database import Database, Statement
from coordinator.storage.schema import DEVICES, REPORTS, RUNS
from edge_client.wire.figures import Row

PLACE = sql.case({"label": 0, "train": 1, "evaluate": 2}, value=REPORTS.c.kind, else_=3)
# Later in a run comes first; runs that were created later come first.
LATER = (REPORTS.c.round_index, PLACE, REPORTS.c.attempt, REPORTS.c.work_id)
NEWEST = [part.desc() for part in (RUNS.c.created_at_s, *LATER)]


def inserted(row: Mapping[str, Any]) -> Statement:
    """What adds a report's row beside an event of its run; it fails where its work has one."""
    return sql.insert(REPORTS).values(**row)


def add_report(database: Database, row: Mapping[str, Any]) -> bool:
    """Add a report's row; False if its work has one, which is left as it is."""
    with suppress(IntegrityError):
        database.share(lambda connection: connection.execute(sql.insert(REPORTS), [row]))
        return True
    return False


def reports(
    database: Database, run_id: str, since: int = 0, until: int | None = None
) -> list[Mapping[str, Any]]:
    """A run's report rows from a round to a round, with `device`, a name.

    By round, step and name, as people read them.
    """
    here = (REPORTS.c.run_id == run_id) & (REPORTS.c.round_index >= since)
    if until is not None:
        here &= REPORTS.c.round_index <= until
    sent = REPORTS.outerjoin(DEVICES, REPORTS.c.device_id == DEVICES.c.device_id)
    chosen = sql.select(REPORTS, DEVICES.c.name.label("device")).select_from(sent).where(here)
    order = (REPORTS.c.round_index, PLACE, REPORTS.c.attempt, DEVICES.c.stem, DEVICES.c.number)
    return database.rows(chosen.order_by(*order))


def counts_by_round(database: Database, run_id: str, since: int) -> dict[int, int]:
    """How many reports each round has, of a run's rounds from one on that have any.

    By index alone; a report is added once and never changed, so an equal number is the same ones.
    """
    index = REPORTS.c.round_index
    chosen = sql.select(index, sql.func.count()).group_by(index)
    here = (REPORTS.c.run_id == run_id) & (index >= since)
    return dict(map(tuple, _each(database, chosen.where(here))))


def newest_of_run(
    database: Database, run_id: str, limit: int, after: str | None = None, outcome: str = ""
) -> list[Row]:
    """A run's newest answers.

    Args:
        database: The store's.
        run_id: The run.
        limit: At most so many.
        after: Work id of the answer after which to go on; of the run.
        outcome: `done` or `failed`; empty for both.
    """
    here = REPORTS.c.run_id == run_id
    if outcome:
        # As text: PostgreSQL unpacks no object that holds the character 0, as a device's words may.
        here &= sql.cast(REPORTS.c.report, sql.Text).contains(f'"outcome": "{outcome}"')
    if after is not None:
        last = sql.select(*LATER).where(REPORTS.c.work_id == after, REPORTS.c.run_id == run_id)
        with database.reading() as connection:
            found = connection.execute(last).one_or_none()
        if found is None:
            raise KeyError(after)
        here &= sql.tuple_(*LATER) < sql.tuple_(*found)
    return _rows(database, here, limit)


def newest_of_device(database: Database, device_id: str, limit: int) -> list[Row]:
    return _rows(database, REPORTS.c.device_id == device_id, limit)


def newest_of_each(database: Database, run_id: str, device_ids: Collection[str]) -> dict[str, Row]:
    """The newest answer of each of these devices in a run, of those that have answered."""
    place = sql.func.row_number().over(
        partition_by=REPORTS.c.device_id, order_by=[part.desc() for part in LATER]
    )
    here = (REPORTS.c.run_id == run_id) & REPORTS.c.device_id.in_(list(device_ids))
    numbered = sql.select(REPORTS.c.work_id, place.label("place")).where(here).subquery()
    newest = sql.select(numbered.c.work_id).where(numbered.c.place == 1)
    found = database.rows(sql.select(REPORTS).where(REPORTS.c.work_id.in_(newest)))
    return {row["device_id"]: _row(row) for row in found}


def forget_old(database: Database, keep_rounds: int, at_least: int = 1) -> int:
    """Forget the reports of rounds before the newest ones of each run; how many went.

    Args:
        database: The store's.
        keep_rounds: How many of a run's newest rounds keep theirs.
        at_least: Rounds that have to be too many before any goes: a commit is not made for one.
    """
    index = REPORTS.c.round_index
    ends = sql.select(REPORTS.c.run_id, sql.func.min(index), sql.func.max(index))
    gone = 0
    for run_id, first, last in map(tuple, _each(database, ends.group_by(REPORTS.c.run_id))):
        before = last - keep_rounds + 1
        if before - first >= at_least:
            here = (REPORTS.c.run_id == run_id) & (index < before)
            gone += database.write(sql.delete(REPORTS).where(here))
    return gone


def _each(database: Database, chosen: "sql.Select[Any]") -> "Sequence[sql.Row[Any]]":
    with database.reading() as connection:
        return connection.execute(chosen).all()


def _rows(database: Database, here: "sql.ColumnElement[bool]", limit: int) -> list[Row]:
    joined = sql.select(REPORTS).join(RUNS, RUNS.c.run_id == REPORTS.c.run_id)
    chosen = joined.where(here).order_by(*NEWEST).limit(limit)
    return [_row(row) for row in database.rows(chosen)]


def _row(stored: Mapping[str, Any]) -> Row:
    names = ("work_id", "run_id", "round_index", "kind", "attempt", "device_id", "is_late")
    return {name: stored[name] for name in names} | dict(stored["report"])
