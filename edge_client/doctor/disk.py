"""Where the client keeps its state: whose folder that is, and room on its disk."""

import os
import shutil
from pathlib import Path

from edge_client.client.folder.names import TODO, foreign_in, in_words
from edge_client.doctor.finding import ERROR, OK, UNKNOWN, WARNING, Finding
from edge_client.tables import size

NEEDED_BYTES, COMFORTABLE_BYTES = 100 << 20, 1 << 30  # identity and steps; with caches and packs
ELSEWHERE = "name another place with --state"
FREE_SOME = "free some, or name a larger disk with --state"


def read_state_folder(state: Path) -> Finding:
    """Whether a client would take the folder for its own, if nothing else in there is named to it.

    Args:
        state: The client's state folder.
    """
    try:
        held = foreign_in(state)
    except OSError as error:
        told = f"{state} cannot be read: {error.strerror}"
        return Finding("state folder", UNKNOWN, told, "run it as the client's user")
    if held is not None:
        return Finding("state folder", ERROR, in_words(state, held), TODO)
    there = "a client's, or free for one" if state.is_dir() else "no folder yet"
    return Finding("state folder", OK, f"{state}: {there}")


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
