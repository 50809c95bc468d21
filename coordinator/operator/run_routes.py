"""Routes of the operator's API on runs: where they stand, what they gave, and orders to them."""

import time
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from coordinator.operator.asking import After, Limit, page
from coordinator.operator.creation import config_from
from coordinator.operator.examples import EXAMPLES
from coordinator.operator.order_schemas import (
    CreatedRun,
    Extend,
    NewRun,
    Orders,
    Rollback,
)
from coordinator.operator.run_schemas import Answers, Members, RunDetail, Runs
from coordinator.operator.schemas import Rounds
from coordinator.operator.views import (
    History,
    Standing,
    Told,
    answer_told,
    by_name,
    detail_told,
    members_told,
    run_told,
)
from coordinator.rounds.admission import Refusal
from coordinator.rounds.extensions import calling_by
from coordinator.rounds.orders import OrderKind
from coordinator.serving.http.polls import Bells
from coordinator.serving.ledger import Live
from coordinator.serving.service import Service
from coordinator.storage import orders as stored
from coordinator.storage.database import DatabaseBusy, DatabaseDamaged
from coordinator.storage.dialects.postgres import DatabaseAway
from coordinator.storage.errors import StoreError
from coordinator.storage.figures import rows
from coordinator.storage.orders import Order
from coordinator.storage.rows.devices import Device, members
from coordinator.storage.rows.reports import newest_of_each, newest_of_run
from coordinator.storage.runs import create_run
from coordinator.storage.status import failing_of
from edge_client.errors import Failed, WrongInput

ORDERED: dict[str, Any] = {
    "status_code": 202,
    "response_model": Order,
    "responses": {202: {"content": {"application/json": {"example": EXAMPLES["Order"]}}}},
}


def add_run_routes(viewer: APIRouter, operator: APIRouter, service: Service, bells: Bells) -> None:
    """Add the routes.

    Args:
        viewer: Takes those that anybody with a role may ask.
        operator: Takes those that change something.
        service: What serves.
        bells: Rung where rounds may proceed.
    """
    history = History(service.store)
    _add_lists(viewer, service, history)
    _add_parts(viewer, service, history)
    _add_orders(viewer, operator, service, bells)

    @operator.post("/runs", status_code=201, response_model=CreatedRun, tags=["runs"])
    async def create(asked: NewRun) -> Told:
        """Create a run; the token for its devices is not shown again."""
        told = await run_in_threadpool(_created, service, asked)
        bells.changed.set()
        return told


def _created(service: Service, asked: NewRun) -> Told:
    try:
        with calling_by(service.limit.call):
            config = config_from(asked, service.store)
        created = create_run(service.store, config, time.time())
    except StoreError as error:
        raise Refusal(409, str(error)) from error
    except (DatabaseAway, DatabaseBusy, DatabaseDamaged):
        raise  # no fault of what was asked: told as on every route
    except (WrongInput, Failed) as error:
        raise Refusal(422, str(error)) from error
    return {"run_id": created.run_id, "name": config.name, "token": created.token}


def standing_of(service: Service, live: Live, now_s: float) -> Standing:
    """A run as it stands in the memory of what serves."""
    run_id = live.run.run_id
    here = service.alive(run_id, now_s) - live.state.left.keys()
    told = members(service.store.database, run_id)
    joined = [key for key, one in told.items() if one.membership.state != "declined"]
    return Standing(live.run, live.config, live.state, joined, here)


def _add_lists(viewer: APIRouter, service: Service, history: History) -> None:
    @viewer.get("/runs", response_model=Runs, tags=["runs"])
    def runs(limit: Limit = 50, after: After = None) -> Told:
        """Where runs stand, the newest first."""
        lives, now_s = service.runs()[::-1], service.now_s()
        chosen, following = page(lives, lambda live: live.run.run_id, after, limit)
        told = [
            run_told(standing_of(service, live, now_s), _loss(history.of(live))) for live in chosen
        ]
        return {"runs": told, "next": following}

    @viewer.get("/runs/{run_id}", response_model=RunDetail, tags=["runs"])
    def run(run_id: str) -> Told:
        """A run: where it stands, what it is, what it gave and cost so far."""
        live = service.run(run_id)
        newest = rows(service.store, run_id, max(0, live.state.round_index - 1))
        standing = standing_of(service, live, service.now_s())
        return detail_told(standing, history.of(live), failing_of(live.state, newest))


def _loss(rounds: list[Told]) -> float | None:
    return next((one["loss"] for one in reversed(rounds) if one["loss"] is not None), None)


def _add_parts(viewer: APIRouter, service: Service, history: History) -> None:
    @viewer.get("/runs/{run_id}/rounds", response_model=Rounds, tags=["runs"])
    def rounds(run_id: str, limit: Limit = 50, after: After = None) -> Told:
        """What each round gave and cost, the newest first."""
        told = history.of(service.run(run_id))[::-1]
        chosen, following = page(told, lambda one: str(one["round_index"]), after, limit)
        return {"rounds": chosen, "next": following}

    @viewer.get("/runs/{run_id}/devices", response_model=Members, tags=["runs"])
    def devices(run_id: str, limit: Limit = 50, after: After = None) -> Told:
        """Devices that answered the run's invitation, by name: who is in the round, who is late."""
        live, now_s, store = service.run(run_id), service.now_s(), service.store
        told = members(store.database, run_id)
        fleet = {device_id: service.fleet.get(device_id) for device_id in told}
        known = {device_id: device for device_id, device in fleet.items() if device is not None}
        names = sorted(known, key=lambda device_id: by_name(known[device_id].name))
        chosen, following = page(names, lambda device_id: known[device_id].name, after, limit)
        name, found = live.config.name, newest_of_each(store.database, run_id, chosen)
        newest = {key: answer_told(row, name, known[key].name) for key, row in found.items()}
        part = {device_id: told[device_id] for device_id in chosen}
        standing = Standing(live.run, live.config, live.state, (), ())

        def is_here(device: Device) -> bool:
            return service.presence.is_here(device.device_id, now_s)

        fresh = {key: with_contact(service, known[key]) for key in chosen}
        return {"devices": members_told(standing, fresh, part, newest, is_here), "next": following}

    @viewer.get("/runs/{run_id}/answers", response_model=Answers, tags=["runs"])
    def answers(
        run_id: str,
        outcome: Annotated[
            Literal["", "done", "failed"], Query(description="Such answers alone; empty: all.")
        ] = "",
        limit: Limit = 50,
        after: After = None,
    ) -> Told:
        """Answers of devices, the newest first; of `outcome=failed` each with its reason."""
        live, database = service.run(run_id), service.store.database
        try:
            found = newest_of_run(database, run_id, limit + 1, after, outcome)
        except KeyError as error:
            raise Refusal(422, "after: not a `next` of this list") from error
        chosen, name_of = found[:limit], service.fleet.name_of
        told = [answer_told(row, live.config.name, name_of(row["device_id"])) for row in chosen]
        return {"answers": told, "next": chosen[-1]["work_id"] if len(found) > limit else None}


def with_contact(service: Service, device: Device) -> Device:
    """A device with its last contact as memory knows it, which is newer than its row."""
    return replace(device, last_seen_s=service.presence.last_seen_s(device.device_id))


def _add_orders(viewer: APIRouter, operator: APIRouter, service: Service, bells: Bells) -> None:
    @viewer.get("/runs/{run_id}/orders", response_model=Orders, tags=["orders"])
    def orders(run_id: str, limit: Limit = 50, after: After = None) -> Told:
        """What operators asked of the run, the newest first."""
        service.run(run_id)
        if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 19):
            raise Refusal(422, "after: not a `next` of this list")
        before = None if after is None else int(after)
        found = stored.orders_of(service.store, run_id, before, limit + 1)
        chosen = found[:limit]
        following = str(chosen[-1].order_id) if len(found) > limit else None
        return {"orders": [asdict(one) for one in chosen], "next": following}

    async def ordered(run_id: str, kind: OrderKind, rounds: int | None = None) -> dict[str, Any]:
        live = service.run(run_id)
        try:
            order = await run_in_threadpool(
                stored.add_order, service.store, live.run, kind, rounds, time.time()
            )
        except StoreError as error:
            raise Refusal(409, str(error)) from error
        bells.changed.set()
        return asdict(order)

    @operator.post("/runs/{run_id}/pause", tags=["orders"], **ORDERED)
    async def pause(run_id: str) -> dict[str, Any]:
        """Let a run stand still; answers to work that is open still count."""
        return await ordered(run_id, "pause")

    @operator.post("/runs/{run_id}/resume", tags=["orders"], **ORDERED)
    async def resume(run_id: str) -> dict[str, Any]:
        """Let a paused run go on."""
        return await ordered(run_id, "resume")

    @operator.post("/runs/{run_id}/stop", tags=["orders"], **ORDERED)
    async def stop(run_id: str) -> dict[str, Any]:
        """End a run with the adapter of its last closed round."""
        return await ordered(run_id, "stop")

    @operator.post("/runs/{run_id}/extend", tags=["orders"], **ORDERED)
    async def extend(run_id: str, asked: Extend) -> dict[str, Any]:
        """Give a run more rounds; one that was finished or stopped goes on."""
        return await ordered(run_id, "extend", asked.rounds)

    @operator.post("/runs/{run_id}/rollback", tags=["orders"], **ORDERED)
    async def rollback(run_id: str, asked: Rollback) -> dict[str, Any]:
        """Let a run go on from an earlier round's adapter; its rounds are counted on."""
        return await ordered(run_id, "rollback", asked.round_index)
