"""Devices that take less rank than the run has, over real HTTP."""

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.learning.exact import handed
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.storage.runs import status_of
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.retention import DiskLimits
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Receipt, decode
from smidgen.edge_client.wire.tensors import Update, encode_update
from tests.command_line import smidgen
from tests.coordinator.conftest import serving
from tests.coordinator.devices import Device, wait_for
from tests.coordinator.upkeep.stores import names

PRODUCT = Learning(lora_mean="product")


def told(device: Device, most_rank: int) -> Receipt:
    """A device answers its invitation with the rank that it takes."""
    terms = device.next().terms
    assert terms is not None
    said = device.tell(terms.run_id, Membership("joined", most_rank=most_rank))
    return decode(said.content, Receipt)


def train(devices: list[Device], rounds: int) -> None:
    for _ in range(2 * rounds + 1):
        works = [(device, device.work()) for device in devices]
        for device, work in works:
            device.do(work)


def test_a_device_of_a_lower_rank_is_handed_the_first_components(
    tmp_path: Path, config: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked = replace(config, adapter="lora:8", learning=PRODUCT, rounds=3, min_clients=3)
    limits = DiskLimits(keep_rounds=1)
    with closing(Store(tmp_path)) as store, serving(store, asked, limits=limits) as live:
        devices = live.enrol("a", "b", "c")
        assert [told(one, rank).accepted for one, rank in zip(devices, (2, 4, 0), strict=True)]
        for command in (["list"], ["show", "a"]):
            done = smidgen("coordinator", "devices", *command, "--store", str(tmp_path))
            assert "rank 2" in done.stdout and "rank 0" not in done.stdout
        first: set[str] = set()
        for _ in range(2):  # evaluation before round 1, round 1
            works = [device.work() for device in devices]
            assert [work.adapter_spec for work in works] == ["lora:2@q,v", "lora:4@q,v", "lora:8"]
            assert len({work.adapter_sha256 for work in works}) == 3
            first = first or {work.adapter_sha256 for work in works[:2]}
            given = [one.adapter(work) for one, work in zip(devices, works, strict=True)]
            for adapter, work in zip(given, works, strict=True):
                expected = handed(given[2], work.adapter_spec)
                assert all(np.array_equal(adapter[name], expected[name]) for name in expected)
                assert work.adapter_bytes > sum(tensor.nbytes for tensor in adapter.values())
            if works[0].kind == "train":
                delta = {name: np.zeros_like(tensor) for name, tensor in given[2].items()}
                wrong = encode_update(Update(works[0].work_id, 1, delta))
                refused = devices[0].put(works[0].work_id, wrong)
                assert refused.status_code == 422 and "has shape" in refused.text
            for device, work in zip(devices, works, strict=True):
                device.do(work)
        train(devices, 2)
        wait_for(lambda: live.service.run(live.run_id).state.is_finished)
        lost = status_of(store, live.service.run(live.run_id).run)["lost_by_round"]
        assert set(lost) == {1, 2, 3} and all(0.0 <= one < 0.9 for one in lost.values())
        assert "the run's rank leaves out" in caplog.text
        # What was handed out in lower ranks is kept for the newest steps alone.
        wait_for(lambda: not first & names(tmp_path))


def test_a_run_of_factors_asks_nobody_of_a_lower_rank_and_says_so(
    tmp_path: Path, config: RunConfig
) -> None:
    asked = replace(config, adapter="lora:8")
    with closing(Store(tmp_path)) as store, serving(store, asked) as live:
        device, other = live.enrol("a", "b")
        receipt = told(device, 4)
        assert not receipt.accepted
        assert receipt.reason == (
            f"run {asked.name} needs rank 8 of every device, this one takes 4 at most; "
            "lora_mean = product takes any"
        )
        assert device.next().work is None
        member = live.service.members.get(live.run_id, device.device_id)
        assert member is not None and member.membership == Membership("declined", "budget")
        assert told(other, 8).accepted
