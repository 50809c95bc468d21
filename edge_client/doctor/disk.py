"""Room on the disk where the client keeps its state."""

import os
import shutil
from pathlib import Path

from edge_client.doctor.finding import ERROR, OK, UNKNOWN, WARNING, Finding
from edge_client.tables import size

NEEDED_BYTES, COMFORTABLE_BYTES = 100 << 20, 1 << 30  # identity and steps; with caches and packs
ELSEWHERE = "name another place with --state"
FREE_SOME = "free some, or name a larger disk with --state"


def read_disk(state: Path) -> Finding:
    """Free bytes where the state folder is, or would be made.

    Args:
        state: The client's state folder.
    """
    place = state.absolute()
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError as error:
        told = f"{place}: {error.strerror}"
        return Finding("disk", UNKNOWN, told, "run it as the client's user")
    shown = f"{size(free)} free at {place}"
    if not place.is_dir():
        return Finding("disk", ERROR, f"{place} is not a folder", ELSEWHERE)
    if is_read_only:
        return Finding("disk", ERROR, f"{place} is read-only", ELSEWHERE)
    if free < NEEDED_BYTES:
        return Finding("disk", ERROR, f"{shown}, {size(NEEDED_BYTES)} is the least", FREE_SOME)
    if free < COMFORTABLE_BYTES:
        return Finding("disk", WARNING, shown, FREE_SOME)
    return Finding("disk", OK, shown)
