"""A store with many devices that have enrolled and joined one run, filled in bulk."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.credentials import hash_secret
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.schema import DEVICES, MEMBERSHIPS
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.wire.fleet import DeviceFacts, device_id_of
from smidgen.simulation.demo.messages import TASK


def fill(folder: Path, devices: int, cohort: int, now_s: float) -> None:
    """Make a store whose rows are those that enrolling and joining leave.

    Args:
        folder: Where.
        devices: How many have joined the run.
        cohort: Most of them that a step asks.
        now_s: Unix time at which all were heard of last.
    """
    config = RunConfig(
        "many",
        TASK,
        EMBEDDED,
        adapter="lora:8",
        rounds=1_000_000,
        max_cohort=cohort,
        evaluate_cohort=cohort,
    )
    with closing(Store(folder)) as store:
        run_id = create_run(store, config, now_s).run_id
        base_id = store.runs()[0].base_id
        facts = asdict(DeviceFacts("aarch64", 4, 4 << 30, "3.11.9", "0.2.0", "onnx", base_id))
        rows = list(_device_rows(devices, facts, now_s))
        with store.database.transaction() as connection:
            connection.execute(DEVICES.insert(), rows)
            connection.execute(MEMBERSHIPS.insert(), [_member_row(run_id, row) for row in rows])


def _device_rows(devices: int, facts: dict[str, Any], now_s: float) -> Iterator[dict[str, Any]]:
    """What enrolling leaves of each device: `pi`, `pi-2`, `pi-3` and so on."""
    for number in range(1, devices + 1):
        key = f"k{number:042d}"
        yield {
            "device_id": device_id_of(key),
            "key_sha256": hash_secret(key),
            "name": "pi" if number == 1 else f"pi-{number}",
            "stem": "pi",
            "number": number,
            "own_tags": {},
            "tags": {},
            "facts": facts,
            "token_id": None,
            "enrolled_at_s": now_s,
            "started_at_s": now_s,
            "last_seen_s": now_s,
            "revoked_at_s": None,
            "revision": number,
            "cloned_at_s": None,
            "life": f"{number:016x}",
        }


def _member_row(run_id: str, device: dict[str, Any]) -> dict[str, Any]:
    """What joining leaves of a device."""
    return {
        "run_id": run_id,
        "device_id": device["device_id"],
        "state": "joined",
        "failure": None,
        "peak_bytes": None,
        "at_s": device["started_at_s"],
        "most_rank": 0,
        "revision": device["revision"],
    }
