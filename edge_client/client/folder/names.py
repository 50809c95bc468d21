"""The names that smidgen writes into a state folder: by them alone it is known, closed and swept.

    foreign_in(folder)    # "photos": somebody's own folder; nothing in it is touched
    sweep_halves(folder)
    close_own(folder)

What lies there by another name is somebody else's, and stays as it is.
"""

import logging
import re
import shutil
from pathlib import Path

from edge_client.files import close_to_others, told_of

FIRST = ("adapters", "outbox")  # folders that each version has made before anything else
WRITTEN = (*FIRST, "finished", "personal", "runs", "steps")  # folders that hold files by name
NAMES = {
    *(*WRITTEN, "activations", "adapter", "controls", "residuals"),
    *("ca.pem", "corrections.json", "device.json", "device.new.json", "link.json", "lock"),
}
LABELS = re.compile(r"labels-.+\.jsonl(\.bad)?")
# What `write_atomically`, `new_file` and `new_folder` make beside a name until it is in its place.
HALF = re.compile(r"\.(?P<name>.+)\.(part|part-[0-9]+|(?P<old>old-[0-9]+))")
PROBE = "room"  # a file by which older versions saw whether there is room
NOBODYS = "lost+found"  # in the root of a file system

log = logging.getLogger(__name__)


def is_own(name: str) -> bool:
    """Whether smidgen gives this name to something in a state folder, or to the half of it."""
    half = HALF.fullmatch(name)
    whole = half["name"] if half else name
    is_labels = LABELS.fullmatch(whole) is not None
    return whole in NAMES or is_labels or (half is not None and whole == PROBE)


def foreign_in(folder: Path) -> str | None:
    """What tells that a folder is somebody's own, by its name.

    None: it is not there, is empty or a state folder, be it of an older version, of a start that
    was killed, or one into which somebody has put more.

    Raises:
        OSError: It cannot be read.
    """
    if not folder.is_dir() or all((folder / name).is_dir() for name in FIRST):
        return None
    names = sorted(path.name for path in folder.iterdir())
    return next((name for name in names if not is_own(name) and name != NOBODYS), None)


def sweep_halves(folder: Path) -> None:
    """Delete what killed processes left half-written; whoever writes there holds the folder.

    A folder that was set aside stays where nothing stands in its place: who writes there next
    puts it back.
    """
    for place in (folder, *(folder / name for name in WRITTEN)):
        for path in place.glob(".*"):
            half = HALF.fullmatch(path.name)
            if half is None or (place == folder and not is_own(path.name)):
                continue
            if half["old"] and not (place / half["name"]).exists():
                continue
            _remove(path)


def close_own(folder: Path) -> None:
    """Take what an older smidgen let others read from all but its owner."""
    closed, left = close_to_others(folder, is_own)
    if closed:
        log.info("%s", told_of(closed))
    if left:
        told = "others may read %s, which is not ours to close; its owner can chmod"
        log.warning(told, left[0])


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
