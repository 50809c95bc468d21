"""`smidgen coordinator pause`, `resume`, `stop`, `extend` and `rollback`: orders to a run."""

import time
from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from coordinator.api.stores import open_store
from coordinator.commands.console import JsonOption, NewestOption, StoreOption, answer, at_store
from coordinator.rounds.orders import OrderKind
from coordinator.storage.errors import StoreError
from coordinator.storage.orders import Order, add_order, order_of
from coordinator.storage.place import StorePlace
from coordinator.storage.runs import config_of, find_run
from coordinator.storage.store import Store

PATIENCE_S = 10.0  # for the process that serves, which looks every second
SAID = {
    "pause": "is paused",
    "resume": "goes on",
    "stop": "is stopped",
    "extend": "is extended",
    "rollback": "went back",
}
RoundsOption = Annotated[
    int,
    typer.Option(
        help="Rounds of training until the run is finished, all in all; more than it has."
    ),
]


@at_store
def pause(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Let a run stand still: nobody is given work until `resume`.

    Answers to work that is open still count, and deadlines move by the pause.
    """
    _order(store, run, "pause", None, as_json)


@at_store
def resume(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """Let a paused run go on."""
    _order(store, run, "resume", None, as_json)


@at_store
def stop(store: StoreOption, run: NewestOption = None, as_json: JsonOption = False) -> None:
    """End a run now, with the adapter of its last closed round; `extend` lets it go on."""
    _order(store, run, "stop", None, as_json)


@at_store
def extend(
    store: StoreOption, rounds: RoundsOption, run: NewestOption = None, as_json: JsonOption = False
) -> None:
    """Give a run more rounds; one that was finished or stopped goes on."""
    _order(store, run, "extend", rounds, as_json)


@at_store
def rollback(
    store: StoreOption,
    round_index: Annotated[
        int, typer.Option("--round", help="Round whose adapter it goes on from; 0 is the first.")
    ],
    run: NewestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a run go on from the adapter that it had after an earlier round.

    Rounds are counted on, and an open step is given up. A run that is paused goes on; one that is
    finished has that adapter from now on, and `extend` gives it more rounds.
    """
    _order(store, run, "rollback", round_index, as_json)


def _order(
    store: StorePlace, named: str | None, kind: OrderKind, rounds: int | None, as_json: bool
) -> None:
    with closing(open_store(store)) as opened:
        run = find_run(opened, named)
        name = f"run {config_of(run).name} ({run.run_id})"
        order = add_order(opened, run, kind, rounds, time.time())
        order = _awaited(opened, order) if opened.is_served() else order
    if order.refused:
        raise StoreError(f"cannot {kind} {name}: {order.refused}")
    more = {"extend": f" to {rounds} rounds", "rollback": f" to round {rounds}"}.get(kind, "")
    done = f"{name} {SAID[kind]}{more}"
    later = f"{name}: {kind}{more} is ordered; `smidgen coordinator serve` carries it out"
    answer(done if order.done_at_s else later, asdict(order), as_json)


def _awaited(store: Store, order: Order) -> Order:
    """The order once it was taken up; as it stands, where that takes long."""
    end = time.monotonic() + PATIENCE_S
    while order.done_at_s is None and time.monotonic() < end:
        time.sleep(0.05)
        order = order_of(store, order.order_id) or order
    return order
