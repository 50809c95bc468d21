"""Operators' orders, stored until the serving process has carried them out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.orders import OrderError, OrderKind, event_of
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.coordinator.storage.database import Statement
from smidgen.coordinator.storage.errors import StoreError
from smidgen.coordinator.storage.runs import config_of
from smidgen.coordinator.storage.schema import ORDERS
from smidgen.coordinator.storage.store import Run, Store


@dataclass(frozen=True)
class Order:
    """One order.

    Attributes:
        order_id: Later orders have higher ones.
        run_id: The run.
        kind: What is asked.
        rounds: Of `extend`: rounds until the run is finished, all in all; of `rollback`: the round
            to go back to.
        asked_at_s: Unix time.
        done_at_s: When it was taken up; None until then.
        refused: Why it could not be followed; None where it was.
    """

    order_id: int
    run_id: str
    kind: OrderKind
    rounds: int | None
    asked_at_s: float
    done_at_s: float | None = None
    refused: str | None = None


def add_order(store: Store, run: Run, kind: OrderKind, rounds: int | None, now_s: float) -> Order:
    """Ask something of a run; the process that serves the store carries it out.

    Raises:
        StoreError: The run, as it will stand after the orders before, cannot follow it.
    """
    config = config_of(run)
    try:
        state, adapters = _after_open_orders(store, run, now_s), adapters_there(store, run)
        event_of(kind, rounds, config, state, now_s, adapters)
    except OrderError as error:
        raise StoreError(f"cannot {kind} run {config.name} ({run.run_id}): {error}") from error
    values = {"run_id": run.run_id, "kind": kind, "rounds": rounds, "asked_at_s": now_s}
    with store.database.transaction() as connection:
        added = connection.execute(sql.insert(ORDERS).values(**values)).inserted_primary_key
        assert added is not None
    return Order(order_id=added[0], run_id=run.run_id, kind=kind, rounds=rounds, asked_at_s=now_s)


def _after_open_orders(store: Store, run: Run, now_s: float) -> State:
    waiting = open_orders(store, run.run_id)  # first: one that is carried out now counts once
    state, config = replay(run.adapter_sha256, store.events(run.run_id)), config_of(run)
    adapters = adapters_there(store, run)
    for order in waiting:
        try:
            state = evolve(
                state, event_of(order.kind, order.rounds, config, state, now_s, adapters)
            )
        except OrderError:
            continue  # it will be refused
    return state


def adapters_there(store: Store, run: Run) -> dict[int, str]:
    """A run's adapters by round, of those that have not been pruned; see `Past.adapter_of`."""
    _, past = history_of(run.adapter_sha256, store.journal(run.run_id))
    found = {index: past.adapter_of(index) for index in past.adapters}
    present = store.blobs.present()
    return {index: name for index, name in found.items() if name in present}


def open_orders(store: Store, run_id: str | None = None) -> list[Order]:
    """Orders that are still to be carried out, oldest first; of one run or of all."""
    here: sql.ColumnElement[bool] = ORDERS.c.done_at_s.is_(None)
    here = here if run_id is None else here & (ORDERS.c.run_id == run_id)
    chosen = sql.select(ORDERS).where(here).order_by(ORDERS.c.order_id)
    return [_order(row) for row in store.database.rows(chosen)]


def orders_of(store: Store, run_id: str, before: int | None, limit: int) -> list[Order]:
    """A run's orders, the newest first; with `before`, those asked before that one."""
    here: sql.ColumnElement[bool] = ORDERS.c.run_id == run_id
    here = here if before is None else here & (ORDERS.c.order_id < before)
    chosen = sql.select(ORDERS).where(here).order_by(ORDERS.c.order_id.desc()).limit(limit)
    return [_order(row) for row in store.database.rows(chosen)]


def order_of(store: Store, order_id: int) -> Order | None:
    found = store.database.rows(sql.select(ORDERS).where(ORDERS.c.order_id == order_id))
    return _order(found[0]) if found else None


def taken_up(order_id: int, now_s: float, refused: str | None = None) -> Statement:
    """The statement that notes an order as carried out; in the transaction of its event."""
    here = (ORDERS.c.order_id == order_id) & ORDERS.c.done_at_s.is_(None)
    return sql.update(ORDERS).where(here).values(done_at_s=now_s, refused=refused)


def _order(row: Mapping[str, Any]) -> Order:
    return Order(**{name: row[name] for name in Order.__dataclass_fields__})
