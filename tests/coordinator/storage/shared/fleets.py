"""Rows of devices, for stores that need some."""

from smidgen.coordinator.storage.devices import Device
from smidgen.edge_client.wire.fleet import DeviceFacts


def device(name: str) -> Device:
    return Device(
        device_id=name,
        key_sha256=f"hash of {name}",
        name=name,
        own_tags={},
        tags={"site": name},
        facts=DeviceFacts("board", 4, 1 << 33, "3.11", "0.1.0"),
        token_id=None,
        enrolled_at_s=1.25,
        started_at_s=1.25,
        last_seen_s=None,
        revoked_at_s=None,
    )
