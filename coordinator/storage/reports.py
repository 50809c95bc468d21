"""Rows of devices' reports, and of `rounds.jsonl`: what rounds cost and gave, one per work.

A row is the report's own fields (measured by the device) with run, round, kind and device (id and
name).
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from smidgen.coordinator.rounds.bounds import next_most_examples
from smidgen.coordinator.rounds.scoring import Score, entity_scores, mean_loss
from smidgen.coordinator.storage.database import Database, Statement
from smidgen.coordinator.storage.devices import of_known
from smidgen.coordinator.storage.schema import DEVICES, REPORTS, RUNS
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.outputs import new_file
from smidgen.edge_client.tasks.counts import EntityScores
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.figures import Row, by_round, counted, entities_of, weighted
from smidgen.edge_client.wire.messages import DOING

PLACE = sql.case(
    {"label": 0, "train": 1, "unmask": 2, "evaluate": 3}, value=REPORTS.c.kind, else_=4
)
# Later in a run comes first; runs that were created later come first.
LATER = (REPORTS.c.round_index, PLACE, REPORTS.c.attempt, REPORTS.c.work_id)


def inserted(row: Mapping[str, Any]) -> Statement:
    """What adds a report's row beside an event of its run; it fails where its work has one."""
    return of_known(REPORTS, row)


def add_report(database: Database, row: Mapping[str, Any]) -> bool:
    """Add a report's row; False if its work has one, which is left, or its device was forgotten."""
    with suppress(IntegrityError):
        return database.share(lambda open_: bool(open_.execute(inserted(row)).rowcount))
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
    return database.rows(
        chosen.order_by(
            REPORTS.c.round_index, PLACE, REPORTS.c.attempt, DEVICES.c.stem, DEVICES.c.number
        )
    )


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


def newest_of_each(
    database: Database,
    run_id: str,
    device_ids: Collection[str],
    kinds: Collection[str] = tuple(DOING),
) -> dict[str, Row]:
    """The newest answer of each of these devices in a run, of those that have answered.

    Args:
        database: The store's.
        run_id: The run.
        device_ids: The devices.
        kinds: Kinds of work whose answers count.
    """
    place = sql.func.row_number().over(
        partition_by=REPORTS.c.device_id, order_by=[part.desc() for part in LATER]
    )
    numbered = (
        sql.select(REPORTS.c.work_id, place.label("place"))
        .where(REPORTS.c.run_id == run_id, REPORTS.c.device_id.in_(list(device_ids)))
        .where(REPORTS.c.kind.in_(list(kinds)))
        .subquery()
    )
    newest = sql.select(numbered.c.work_id).where(numbered.c.place == 1)
    found = database.rows(sql.select(REPORTS).where(REPORTS.c.work_id.in_(newest)))
    return {row["device_id"]: _report_row(row) for row in found}


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


def deleted_after(
    run_id: str, round_index: int, evaluated: int, device_ids: Collection[str]
) -> Statement:
    """What deletes a run's reports of later rounds and evaluations, and all of some devices."""
    last = sql.case((REPORTS.c.kind == "evaluate", evaluated), else_=round_index)
    here = (REPORTS.c.round_index > last) | REPORTS.c.device_id.in_(device_ids)
    return sql.delete(REPORTS).where((REPORTS.c.run_id == run_id) & here)


def _each(database: Database, chosen: "sql.Select[Any]") -> "Sequence[sql.Row[Any]]":
    with database.reading() as connection:
        return connection.execute(chosen).all()


def _rows(database: Database, here: "sql.ColumnElement[bool]", limit: int) -> list[Row]:
    joined = sql.select(REPORTS).join(RUNS, RUNS.c.run_id == REPORTS.c.run_id)
    chosen = (
        joined.where(here)
        .order_by(*[part.desc() for part in (RUNS.c.created_at_s, *LATER)])
        .limit(limit)
    )
    return [_report_row(row) for row in database.rows(chosen)]


def _report_row(stored: Mapping[str, Any]) -> Row:
    names = ("work_id", "run_id", "round_index", "kind", "attempt", "device_id", "is_late")
    return {name: stored[name] for name in names} | dict(stored["report"])


def rows(store: Store, run_id: str, since: int = 0) -> list[Row]:
    """A run's rows by round, step and device, from a round on; those late or failed too."""
    return [_row(report) for report in reports(store.database, run_id, since)]


def rows_of_round(store: Store, run_id: str, round_index: int) -> list[Row]:
    return [_row(report) for report in reports(store.database, run_id, round_index, round_index)]


def _row(stored: Mapping[str, Any]) -> Row:
    names = ("run_id", "round_index", "kind", "attempt", "device_id", "device", "is_late")
    return {name: stored[name] for name in names} | dict(stored["report"])


def write_jsonl(table: Sequence[Row], path: Path) -> None:
    """Write rows as a command's `--out`, one line each; a cut leaves the old file or the new."""
    with new_file("--out", path) as file:
        file.writelines(json.dumps(row, sort_keys=True) + "\n" for row in table)


def means(table: Iterable[Row], kind: str, name: str) -> dict[int, float]:
    """A figure's mean by round, over the rows that count; rounds without it are left out.

    What one device says weighs no more than a few times what the median one's does.

    So are those whose sum overflowed: older coordinators let in a loss of any size.
    """
    by_index = by_round(counted(table, kind))
    found = {index: weighted(within_bounds(rows), name) for index, rows in by_index.items()}
    return {index: mean for index, mean in found.items() if mean is not None and isfinite(mean)}


def within_bounds(found: Sequence[Row]) -> list[Row]:
    """Rows of a round whose weights are bounded as those of updates and evaluations are."""
    most = next_most_examples([row["num_examples"] for row in found if row["num_examples"] > 0])
    return [row | {"num_examples": min(row["num_examples"], most)} for row in found]


def accuracies(table: Iterable[Row]) -> dict[int, float]:
    """Share of right answers by round, over all devices' texts; 0 is before any training.

    Of tagging those of words, most of which are outside of any entity: no run goes by them.
    """
    return means(table, "evaluate", "accuracy")


def entities_by_round(table: Iterable[Row]) -> dict[int, EntityScores]:
    """F1 of entities by round, of tagging; bounded as accuracies are."""
    rounds = by_round(counted(table, "evaluate"))
    told = {
        index: entity_scores([one for one in map(entities_of, rows) if one is not None])
        for index, rows in rounds.items()
    }
    return {index: scores for index, scores in told.items() if scores is not None}


def losses_by_round(table: Iterable[Row]) -> dict[int, float]:
    """Mean loss of evaluations by round, clipped as scores of the journal are (`mean_loss`)."""
    rounds = by_round(counted(table, "evaluate"))
    found = {
        index: mean_loss(
            [(row["loss"], row["num_examples"]) for row in rows if row["loss"] is not None]
        )
        for index, rows in rounds.items()
    }
    return {index: loss for index, loss in found.items() if loss is not None}


def perplexities(table: Iterable[Row], task: Task) -> dict[int, float]:
    """Perplexity of masked words by round; empty of tasks that mask none."""
    if not kind_of(task).measure.has_perplexity:
        return {}
    told = {index: perplexity(loss) for index, loss in losses_by_round(table).items()}
    return {index: found for index, found in told.items() if found is not None}


def entities_told(scores: EntityScores, labels: Sequence[str]) -> dict[str, Any]:
    """F1 of entities as plain JSON: each way to be right, and strict by type."""
    ways = ("strict", "typed", "partial", "macro", "weighted")
    told: dict[str, Any] = {name: getattr(scores, name) for name in ways}
    return told | {"by_type": dict(zip(labels, scores.by_type, strict=True))}


def scores_by_round(
    task: Task, table: Sequence[Row], scores: Mapping[int, Score]
) -> dict[str, dict[int, Any]]:
    """What evaluations of a run gave, by round, as plain JSON.

    Its measure's figures are there, those of the other measure are empty; see `rounds.metrics`.

    Args:
        task: The run's.
        table: Its answers.
        scores: Those of its journal, which know errors and medians.
    """
    measure = kind_of(task).measure
    entities = entities_by_round(table) if measure.is_counted else {}
    f1 = {index: one.strict for index, one in entities.items() if one.strict is not None}
    found = {"accuracy": {} if measure.is_counted else accuracies(table), "f1": f1}
    told: dict[str, dict[int, Any]] = {}
    for key, shares in found.items():
        is_ours = measure.key == key
        told[f"{key}_by_round"] = shares
        told[f"{key}_error_by_round"] = errors(scores) if is_ours else {}
        told[f"{key}_median_by_round"] = medians(scores) if is_ours else {}
    told["entities_by_round"] = {
        index: entities_told(one, task.labels) for index, one in entities.items()
    }
    return told | {"perplexity_by_round": perplexities(table, task)}


def errors(scores: Mapping[int, Score]) -> dict[int, float | None]:
    """Standard error of the score by round, where a part of devices or texts stood for all.

    Rounds in which everybody was asked for all texts have none; None: one device answered, which
    tells none.
    """
    return {index: one.error for index, one in sorted(scores.items()) if one.error != 0.0}


def medians(scores: Mapping[int, Score]) -> dict[int, float | None]:
    return {index: one.median for index, one in sorted(scores.items())}


def pseudo_labels(table: Iterable[Row]) -> dict[int, int]:
    """Pseudo-labels held after the labelling before a round, by those that labelled then."""
    labelled = by_round(counted(table, "label"))
    return {index: sum(row["pseudo_labels"] for row in rows) for index, rows in labelled.items()}
