"""A store with many devices that have enrolled and joined one run, filled in bulk.

The rows are those that enrolling and joining leave; only their hashes are drawn from numbers, so
that two stores of a size are equal but for the run's secret.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from coordinator.config import RunConfig
from coordinator.storage.keys import hash_secret
from coordinator.storage.runs import create_run
from coordinator.storage.schema import DEVICES, MEMBERSHIPS
from coordinator.storage.store import Store
from edge_client.bases.base import EMBEDDED
from edge_client.wire.fleet import DeviceFacts, device_id_of
from simulation.demo.messages import TASK

AT_ONCE = 10_000  # rows
CACHE = "PRAGMA cache_size=-262144"  # KiB
SITES = 100  # by which devices are tagged


def fill(folder: Path, devices: int, cohort: int, now_s: float) -> None:
    """Make a store.

    Args:
        folder: Where.
        devices: How many have joined the run.
        cohort: Most of them that a step asks.
        now_s: Unix time at which all were heard of last.
    """
    store = Store(folder)
    try:
        config = RunConfig(
            "reach",
            TASK,
            EMBEDDED,
            "lora:8",
            rounds=1_000_000,
            max_cohort=cohort,
            evaluate_cohort=cohort,
        )
        run_id = create_run(store, config, now_s).run_id
        base_id = store.runs()[0].base_id
        told = asdict(DeviceFacts("aarch64", 4, 4 << 30, "3.11.9", "0.2.0", "onnx", base_id))
        rows = ((row, member_row(run_id, row)) for row in device_rows(devices, told, now_s))
        while some := list(islice(rows, AT_ONCE)):
            enrolled, joined = (list(part) for part in zip(*some, strict=True))
            with store.database.transaction() as connection:
                connection.exec_driver_sql(CACHE)  # hashes come in no order
                connection.execute(DEVICES.insert(), enrolled)
                connection.execute(MEMBERSHIPS.insert(), joined)
    finally:
        store.close()


def key_of(number: int) -> str:
    """The key of a device by its number, from 1."""
    return f"k{number:042d}"


def device_rows(devices: int, facts: dict[str, Any], now_s: float) -> Iterator[dict[str, Any]]:
    """What enrolling leaves of each device: `pi`, `pi-2`, `pi-3` and so on."""
    for number in range(1, devices + 1):
        key = key_of(number)
        yield {
            "device_id": device_id_of(key),
            "key_sha256": hash_secret(key),
            "name": "pi" if number == 1 else f"pi-{number}",
            "stem": "pi",
            "number": number,
            "own_tags": {"site": f"site-{number % SITES}"},
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


def member_row(run_id: str, device: dict[str, Any]) -> dict[str, Any]:
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
