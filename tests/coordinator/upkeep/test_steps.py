"""Coded steps among a store's blobs: told to devices, handed to members alone, removed in time."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.learning.memory import MOST_STEPS
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import copy_store, look
from smidgen.coordinator.upkeep.retention import DiskLimits
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import add_step, sha256
from tests.coordinator.conftest import Live, serving
from tests.coordinator.devices import Device, wait_for
from tests.coordinator.upkeep.stores import names
from tests.tiny import write_tiny_base

ROUNDS = MOST_STEPS + 2


def large(config: RunConfig, folder: Path) -> RunConfig:
    """With an adapter of 32 KiB."""
    return replace(config, adapter="lora:16", base=str(write_tiny_base(folder / "wide", hidden=64)))


def fetched(device: Device, name: str) -> bytes:
    response = device.http.get(f"/v1/adapters/{name}", headers=device.headers)
    assert response.status_code == 200, response.text
    return response.content


def check_led(device: Device, work: Work, known: dict[str, bytes]) -> None:
    """Every step that a device is told of leads on, from the adapters that it has seen."""
    for place, step in enumerate(work.steps):
        body = known[step.start_sha256]
        for one in work.steps[place:]:
            found = fetched(device, one.step_sha256)
            assert len(found) == one.step_bytes
            body = add_step(body, found)
        assert sha256(body) == work.adapter_sha256


def told(live: Live, devices: list[Device], rounds: int) -> list[list[str]]:
    """Serve so many rounds; steps that each work of the first device tells of, by name."""
    known, found = dict[str, bytes](), list[list[str]]()
    for _ in range(2 * rounds):
        works = [(device, device.work()) for device in devices]
        device, work = works[0]
        check_led(device, work, known)
        known[work.adapter_sha256] = fetched(device, work.adapter_sha256)
        found.append([one.step_sha256 for one in work.steps])
        for device, work in works:
            device.do(work)
    return found


def test_steps_lead_to_each_rounds_adapter_and_go_when_they_are_old(
    tmp_path: Path, config: RunConfig
) -> None:
    asked = replace(large(config, tmp_path), rounds=ROUNDS, updates=Updates(down="topk:0.01"))
    limits, blobs = DiskLimits(keep_rounds=1), tmp_path / "store"
    with closing(Store(blobs)) as store, serving(store, asked, limits=limits) as live:
        devices, [stranger] = live.join("a", "b"), live.enrol("c")
        found = told(live, devices, ROUNDS - 1)
        counts = [min(index // 2, MOST_STEPS) for index in range(len(found))]
        assert [len(one) for one in found] == counts  # the same to evaluate and to train
        wait_for(lambda: live.service.run(live.run_id).state.round_index == ROUNDS - 1)
        steps = [one.step_sha256 for one in live.service.run(live.run_id).state.kept.steps]
        path = f"/v1/adapters/{steps[-1]}"
        assert stranger.http.get(path, headers=stranger.headers).status_code == 404
        old = {name for one in found for name in one} - set(steps)
        assert old
        wait_for(lambda: not old & names(blobs))
        assert set(steps) <= names(blobs) and not look(store).wrong
        place = tmp_path / "copy"
        with closing(Store(place)) as copy:
            assert not copy_store(store, copy).wrong and set(steps) <= names(place)
        store.blobs.path(steps[0]).unlink()
        assert [one for one in look(store).wrong if steps[0][:12] in one]


@pytest.mark.few(1)
@pytest.mark.parametrize("down", ["float32", "int8"])
def test_steps_are_told_while_they_are_smaller_than_the_adapter(
    tmp_path: Path, config: RunConfig, down: str
) -> None:
    asked = replace(large(config, tmp_path), rounds=6, updates=Updates(down=down))
    with closing(Store(tmp_path / "store")) as store, serving(store, asked) as live:
        found = [len(one) for one in told(live, live.join("a", "b"), 5)]
        assert found == ([0, 0, 1, 1, 2, 2, 3, 3, 3, 3] if down == "int8" else [0] * 10)
