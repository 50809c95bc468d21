"""Routes of the operator's API on runs: created, looked at, and given orders."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Lock
from typing import IO, Annotated, Any, Literal
from zipfile import ZipFile

import msgspec
from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from smidgen.coordinator.config import ConfigError, RunConfig, check_steps
from smidgen.coordinator.operator.asking import After, Limit, page
from smidgen.coordinator.operator.examples import EXAMPLES
from smidgen.coordinator.operator.run_schemas import (
    Answers,
    CreatedRun,
    Extend,
    Members,
    NewRun,
    Orders,
    Rollback,
    RunDetail,
    Runs,
)
from smidgen.coordinator.operator.schemas import Rounds
from smidgen.coordinator.operator.views import (
    History,
    Standing,
    Told,
    answer_told,
    by_name,
    detail_told,
    members_told,
    round_told,
    run_told,
)
from smidgen.coordinator.presets import laid_under
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.rounds.extensions import calling_by
from smidgen.coordinator.rounds.orders import OrderKind
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.selection import DeviceFilter
from smidgen.coordinator.serving.http.polls import Bells
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage import runs as stored
from smidgen.coordinator.storage.database import DatabaseBusy, DatabaseDamaged, StoreError
from smidgen.coordinator.storage.devices import Device, members
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.storage.reports import newest_of_each, newest_of_run, rows
from smidgen.coordinator.storage.runs import Order, config_of, create_run, failing_of
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.export import export_from
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.tasks.ready_tasks import READY
from smidgen.edge_client.tasks.task import task_from_mapping
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.training import Labelling, Training

TABLES = {
    "training": Training,
    "learning": Learning,
    "updates": Updates,
    "asynchronous": Asynchronous,
    "labelling": Labelling,
    "devices": DeviceFilter,
}


def config_from(asked: NewRun, store: Store) -> RunConfig:
    """The run that somebody asks for.

    A task comes whole or by a ready-made one's name, and a base by a name under which a run of
    this store has it: what a request names is looked for in no folder and on no hub.

    Raises:
        ConfigError: A value outside its range, an unknown key, a base that no run here has.
        PresetError: No preset has that name.
        TaskError: No ready-made task has that name, or the table makes no sense.
    """
    told = {key: value for key, value in asked.model_dump().items() if value is not None}
    _check_text(told)
    told = laid_under(told, None)
    told["task"] = asdict(_task(told["task"]))
    told.setdefault("name", told["task"]["name"])
    for name, kind in TABLES.items():
        _check_keys(name, told.get(name, {}), {item.name for item in fields(kind)})
    bases = {EMBEDDED, *(config_of(run).base for run in store.runs())}
    if told.get("base", EMBEDDED) not in bases:
        raise ConfigError(
            f"base {told['base'][:80]!r} is not on this coordinator; a run of it trains on one of "
            f"{', '.join(sorted(bases))}: `smidgen coordinator create` brings another"
        )
    try:
        config = msgspec.convert(told, RunConfig)
        config.learning.check_known()
        check_steps(config)
        return config
    except WrongInput as error:
        raise ConfigError(f"the run: learning: {error}") from error
    except (msgspec.ValidationError, OverflowError) as error:
        raise ConfigError(f"the run: {error}") from error


def _check_text(told: Mapping[str, Any]) -> None:
    """Refuse half characters, which JSON can say and no tokenizer or journal can read."""
    try:
        json.dumps(told, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigError("the run: a text in it is not Unicode") from error


def _task(given: str | dict[str, Any]) -> Any:
    if isinstance(given, dict):
        return task_from_mapping(given, "task")
    if given not in READY:
        names = ", ".join(READY)
        raise ConfigError(
            f"task: {given[:80]!r} is not ready-made; give a table, or one of {names}"
        )
    return READY[given]


def _check_keys(name: str, table: Mapping[str, Any], known: set[str]) -> None:
    for key in sorted(set(table) - known):
        names = ", ".join(sorted(known))
        raise ConfigError(f"{name}: unknown key {key[:80]!r}; known are {names}")


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
        return asdict(create_run(service.store, config, time.time()))
    except StoreError as error:
        raise Refusal(409, str(error)) from error
    except (DatabaseAway, DatabaseBusy, DatabaseDamaged):
        raise  # no fault of what was asked: told as on every route
    except (WrongInput, Failed) as error:
        raise Refusal(422, str(error)) from error


def standing_of(service: Service, live: Live, now_s: float) -> Standing:
    """A run as it stands in the memory of what serves."""
    run_id = live.run.run_id
    here = service.alive(run_id, now_s) - live.state.left.keys()
    told = members(service.store.database, run_id)
    joined = [key for key, one in told.items() if one.membership.state != "declined"]
    return Standing(live.run, live.config, live.state, len(joined), here)


def _add_lists(viewer: APIRouter, service: Service, history: History) -> None:
    @viewer.get("/runs", response_model=Runs, tags=["runs"])
    def runs(limit: Limit = 50, after: After = None) -> Told:
        """Where runs stand, the newest first."""
        lives, now_s = service.runs()[::-1], service.now_s()
        chosen, following = page(lives, lambda live: live.run.run_id, after, limit)
        told = [run_told(standing_of(service, live, now_s), history.of(live)) for live in chosen]
        return {"runs": told, "next": following}

    @viewer.get("/runs/{run_id}", response_model=RunDetail, tags=["runs"])
    def run(run_id: str) -> Told:
        """A run: where it stands, what it is, what it gave and cost so far."""
        live = service.run(run_id)
        newest = rows(service.store, run_id, max(0, live.state.round_index - 1))
        standing = standing_of(service, live, service.now_s())
        return detail_told(standing, history.of(live), failing_of(live.state, newest))


def _read(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        yield from iter(partial(file.read, 1 << 16), b"")


def _add_parts(viewer: APIRouter, service: Service, history: History) -> None:
    one_at_a_time = Lock()

    @viewer.get(
        "/runs/{run_id}/adapter",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/zip": {"schema": {"type": "string"}}}}},
        tags=["runs"],
    )
    def adapter(
        run_id: str,
        round_index: Annotated[
            Literal["best", "last"] | None,
            Query(alias="round", description="Whose adapter; without, the one the run keeps."),
        ] = None,
    ) -> StreamingResponse:
        """A run's adapter as a zip of the folder that `coordinator export` writes.

        A base that is on no disk of the server is not fetched for it: then the folder lacks
        `adapter.gguf` and its card the tokens of label words.
        """
        service.run(run_id)
        try:
            with TemporaryDirectory(prefix="smidgen-export-") as place, one_at_a_time:
                made = export_from(
                    service.store,
                    Path(place, run_id),
                    run=run_id,
                    round_index=round_index,
                    base=None,
                )
                file = TemporaryFile()  # noqa: SIM115 - has no name, and ends with whoever reads it
                with ZipFile(file, "w") as archive:
                    for path in sorted(made.folder.iterdir()):
                        archive.write(path, f"adapter/{path.name}")
        except WrongInput as error:
            raise Refusal(409, str(error)) from error
        except (Failed, OSError) as error:  # what they say names a folder of this machine
            raise Refusal(507, "the adapter cannot be written here: is the disk full?") from error
        return StreamingResponse(
            _read(file),
            media_type="application/zip",
            headers={
                "Content-Disposition": "attachment; "
                f'filename="{run_id}-round-{made.round_index}.zip"',
                "Content-Length": str(file.tell()),
            },
        )

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
        name, last = live.config.name, newest_of_each(store.database, run_id, chosen)
        newest = {key: answer_told(row, name, known[key].name) for key, row in last.items()}
        scores = {
            key: round_told(row["round_index"], [row], live.config.task)
            for key, row in newest_of_each(store.database, run_id, chosen, ["evaluate"]).items()
        }
        part = {device_id: told[device_id] for device_id in chosen}

        def is_here(device: Device) -> bool:
            return service.presence.is_here(device.device_id, now_s)

        fresh = {key: with_contact(service, known[key]) for key in chosen}
        return {
            "devices": members_told(live.state, fresh, part, newest, scores, is_here),
            "next": following,
        }

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
