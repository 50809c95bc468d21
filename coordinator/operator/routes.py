"""The operator's API, added to the coordinator's application: everything under /v1/operator.

Tokens of devices, operators and viewers; devices, their tags, revoking and forgetting them; runs
are in `run_routes`.
"""

import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from smidgen.coordinator.operator.asking import REFUSALS, After, Limit, operators, page, viewers
from smidgen.coordinator.operator.run_routes import add_run_routes, with_contact
from smidgen.coordinator.operator.run_schemas import Orders
from smidgen.coordinator.operator.schemas import (
    CreatedOperator,
    CreatedToken,
    Device,
    DeviceDetail,
    Devices,
    NewOperator,
    NewToken,
    Operator,
    Operators,
    Tags,
    Token,
    Tokens,
)
from smidgen.coordinator.operator.views import (
    MOST_ANSWERS,
    Told,
    answer_told,
    by_name,
    device_told,
    membership_told,
    misses_of,
    token_told,
)
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.handlers import read_body
from smidgen.coordinator.serving.http.polls import Bells
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage import credentials
from smidgen.coordinator.storage import devices as device_rows
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.devices import memberships_of
from smidgen.coordinator.storage.reports import newest_of_device
from smidgen.coordinator.upkeep.forgetting import ask_to_forget, heirs_of
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import check_tags
from smidgen.edge_client.wire.messages import MAX_JSON_BYTES

log = logging.getLogger(__name__)


def add_token_routes(viewer: APIRouter, operator: APIRouter, service: Service) -> None:
    """Add the routes on what lets devices enrol."""
    database = service.store.database

    @viewer.get("/tokens", response_model=Tokens, tags=["access"])
    def tokens(limit: Limit = 50, after: After = None) -> Told:
        """Enrolment tokens, the newest first; the secrets are nowhere."""
        now_s, all_of_them = time.time(), credentials.tokens(database)[::-1]
        found, following = page(all_of_them, lambda one: one.token_id, after, limit)
        return {"tokens": [token_told(one, now_s) for one in found], "next": following}

    @operator.post("/tokens", status_code=201, response_model=CreatedToken, tags=["access"])
    def new(asked: NewToken) -> Told:
        """Make an enrolment token; its secret is not shown again."""
        try:
            check_tags(asked.tags)
        except WrongInput as error:
            raise Refusal(422, str(error)) from error
        secret, now_s = credentials.draw_secret(), time.time()
        ends_at_s = None if asked.expires_in_s is None else now_s + asked.expires_in_s
        token_id, added = credentials.insert_token(secret, now_s, asked.uses, ends_at_s, asked.tags)
        database.write(added)
        return token_told(find(token_id), now_s) | {"token": secret}

    @operator.post("/tokens/{token_id}/revoke", response_model=Token, tags=["access"])
    def revoke(token_id: str) -> Told:
        """Let nobody enrol with a token any more; devices that came with it stay."""
        credentials.revoke(database, token_id, time.time())
        return token_told(find(token_id), time.time())

    def find(token_id: str) -> credentials.Token:
        for token in credentials.tokens(database):
            if token.token_id == token_id:
                return token
        raise Refusal(404, f"no token {token_id[:64]!r}")


def add_people_routes(operator: APIRouter, service: Service) -> None:
    """Add the routes on operators and viewers; a viewer may ask none of them."""
    store = service.store

    @operator.get("/operators", response_model=Operators, tags=["access"])
    def operators(limit: Limit = 50, after: After = None) -> Told:
        """Who may look or change, the newest first; those that were revoked too."""
        found, following = page(
            credentials.operators(store), lambda one: one.operator_id, after, limit
        )
        return {"operators": [asdict(one) for one in found], "next": following}

    @operator.post("/operators", status_code=201, response_model=CreatedOperator, tags=["access"])
    def new(asked: NewOperator) -> Told:
        """Let somebody in; their token is not shown again."""
        token = credentials.add_operator(store, asked.role, time.time())
        found = credentials.operator_of_token(store, token)
        assert found is not None  # it was added a moment ago
        return asdict(found) | {"token": token}

    @operator.post("/operators/{operator_id}/revoke", response_model=Operator, tags=["access"])
    def revoke(operator_id: str) -> Told:
        """Let an operator's or a viewer's token count no longer, and end their sessions."""
        try:
            return asdict(credentials.revoke_operator(store, operator_id, time.time()))
        except StoreError as error:
            raise Refusal(404, f"no operator {operator_id[:64]!r}") from error


def add_device_routes(
    viewer: APIRouter, operator: APIRouter, service: Service, bells: Bells
) -> None:
    """Add the routes.

    Args:
        viewer: Takes those that anybody with a role may ask.
        operator: Takes those that change something.
        service: What serves.
        bells: Rung where devices may have something to hear.
    """

    def told_of(device: device_rows.Device) -> Told:
        now_s = service.now_s()
        here = service.presence.is_here(device.device_id, now_s)
        found = memberships_of(service.store.database, device.device_id)
        runs = [
            membership_told(
                *(live.run.run_id, live.config.name, found[live.run.run_id]),
                misses_of(live.state, device.device_id),
            )
            for live in service.runs()[::-1]
            if live.run.run_id in found
        ]
        return device_told(with_contact(service, device), here, runs, now_s)

    def find(device_id: str) -> device_rows.Device:
        device = service.fleet.get(device_id)
        if device is None or device.forgotten_at_s is not None:
            raise Refusal(404, f"no device {device_id[:64]!r}")
        return device

    @viewer.get("/devices", response_model=Devices, tags=["devices"])
    def devices(
        tag: Annotated[
            list[Annotated[str, Query(max_length=2 * 64 + 1)]] | None,
            Query(description="Devices with these tags alone, each as KEY=VALUE."),
        ] = None,
        limit: Limit = 50,
        after: After = None,
    ) -> Told:
        """Devices that enrolled with this coordinator, by name."""
        wanted = dict(_tag(one) for one in tag or ())
        chosen = [one for one in service.fleet.all() if wanted.items() <= one.all_tags.items()]
        chosen.sort(key=lambda one: by_name(one.name))
        found, following = page(chosen, lambda one: one.name, after, limit)
        return {"devices": [told_of(one) for one in found], "next": following}

    # A path: devices of old stores may have a `/` in their ids.
    @viewer.get("/devices/{device_id:path}", response_model=DeviceDetail, tags=["devices"])
    def device(device_id: str) -> Told:
        """A device, with its runs and its last answers."""
        found = find(device_id)
        names = {live.run.run_id: live.config.name for live in service.runs()}
        rows = newest_of_device(service.store.database, device_id, MOST_ANSWERS)
        answers = [answer_told(row, names.get(row["run_id"], ""), found.name) for row in rows]
        return told_of(found) | {"answers": answers}

    @operator.put("/devices/{device_id:path}/tags", response_model=Device, tags=["devices"])
    async def tags(device_id: str, asked: Tags) -> Told:
        """Set the operator's tags of a device, all of them; they go before its own."""
        find(device_id)
        try:
            check_tags(asked.tags)
        except WrongInput as error:
            raise Refusal(422, str(error)) from error
        database = service.store.database
        await run_in_threadpool(device_rows.tag, database, device_id, asked.tags)
        return await changed(device_id)

    @operator.post("/devices/{device_id:path}/revoke", response_model=Device, tags=["devices"])
    async def revoke(device_id: str) -> Told:
        """Let a device in no more: it hears 401 at once, and no run waits for it."""
        find(device_id)
        database = service.store.database
        await run_in_threadpool(device_rows.revoke, database, device_id, time.time())
        return await changed(device_id)

    @operator.post(
        "/devices/{device_id:path}/forget", status_code=202, response_model=Orders, tags=["devices"]
    )
    async def forget(device_id: str) -> Told:
        """Delete what is known of a device, and take its share out of all runs that it was in.

        One order for each of them, which goes back to its last adapter without that share. The log
        names runs that started from an adapter with it (`create --from`).
        """
        device = find(device_id)
        heirs = await run_in_threadpool(heirs_of, service.store, device_id)
        try:
            orders = await run_in_threadpool(ask_to_forget, service.store, device, time.time())
        except StoreError as error:
            raise Refusal(409, str(error)) from error
        for run in heirs:
            log.warning("run %s started from an adapter with a forgotten share", run.run_id)
        await run_in_threadpool(service.fleet.refresh)
        bells.ring([device_id])
        bells.changed.set()
        return {"orders": [asdict(one) for one in orders], "next": None}

    async def changed(device_id: str) -> Told:
        await run_in_threadpool(service.fleet.refresh)
        bells.ring([device_id])  # its poll looks again
        bells.changed.set()
        return await run_in_threadpool(told_of, find(device_id))


def _tag(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise Refusal(422, f"tag: KEY=VALUE is expected, {text[:80]!r} came")
    return key, value


PREFIX = "/v1/operator"


class Bounded(APIRoute):
    """A route that reads no more of a body than a message may have, whoever sends it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            # Starlette gives what is here to whoever asks for the body.
            request._body = await read_body(request, MAX_JSON_BYTES)
            return await handle(request)

        return bounded


def add_operator_routes(app: FastAPI, service: Service, bells: Bells) -> None:
    """Add the routes that `smidgen.coordinator.operator.schemas` lists."""
    viewer, operator = (
        APIRouter(
            prefix=PREFIX,
            dependencies=[Depends(check(service))],
            responses=REFUSALS,
            route_class=Bounded,
        )
        for check in (viewers, operators)
    )
    add_run_routes(viewer, operator, service, bells)
    add_device_routes(viewer, operator, service, bells)
    add_token_routes(viewer, operator, service)
    add_people_routes(operator, service)
    app.include_router(viewer)
    app.include_router(operator)
