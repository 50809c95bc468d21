"""Routes of the operator's API on devices: who there is, how they stand; tags, and revoking."""

import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from coordinator.operator.asking import After, Limit, page
from coordinator.operator.fleet_schemas import Device, DeviceDetail, Devices, Tags
from coordinator.operator.run_routes import with_contact
from coordinator.operator.told import (
    Told,
    answer_told,
    by_name,
    device_told,
    membership_told,
    misses_of,
)
from coordinator.rounds.admission import Refusal
from coordinator.serving.http.polls import Bells
from coordinator.serving.service import Service
from coordinator.storage.rows import devices as device_rows
from coordinator.storage.rows.devices import memberships_of
from coordinator.storage.rows.reports import newest_of_device
from edge_client.errors import WrongInput
from edge_client.wire.fleet import check_tags

MOST_ANSWERS = 50  # of a device's detail
LONGEST_FILTER = 2 * 64 + 1


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
        if device is None:
            raise Refusal(404, f"no device {device_id[:64]!r}")
        return device

    @viewer.get("/devices", response_model=Devices, tags=["devices"])
    def devices(
        tag: Annotated[
            list[Annotated[str, Query(max_length=LONGEST_FILTER)]] | None,
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
