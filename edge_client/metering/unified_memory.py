"""A Jetson's memory that its processor and its GPU share: what the GPU's side has taken."""

from pathlib import Path

from edge_client.metering.sysfs import text


def nvmap_bytes(root: Path = Path("/")) -> int | None:
    """What all processes hold for the GPU (NvMapMemUsed of /proc/meminfo); None off a Jetson.

    It counts in no process's resident set and in no memory group. Thor does not tell it.

    Args:
        root: Where `proc` lies; another folder in tests.
    """
    for row in text(root / "proc/meminfo").splitlines():
        name, _, value = row.partition(":")
        if name == "NvMapMemUsed" and value.split()[:1]:
            return int(value.split()[0]) << 10
    return None
