"""File names that smidgen owns in a state folder; only these files are chmodded or cleaned up.

foreign_in(folder)    # "photos": not ours, so nothing in this folder is touched
sweep_halves(folder)  # remove files that were not completely written
close_own(folder)     # take from others the right to read ours
"""

import logging
import re
import shutil
from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from edge_client.adapters.peft_folder import ORIGIN
from edge_client.files import close_to_others, from_json, told_of

FIRST = ("adapters", "outbox")  # folders that each version has made before anything else
WRITTEN = (*FIRST, "finished", "personal", "runs", "steps")  # folders that hold files by name
LOCK, IDENTITY = "lock", "device.json"
EARLY = {LOCK, IDENTITY, "device.new.json", "ca.pem", "corrections.json", "link.json"}
NAMES = {*WRITTEN, *EARLY, "activations", "adapter", "updates", "controls", "residuals"}
LABELS = re.compile(r"labels-.+\.jsonl(\.bad)?")
# What `write_atomically`, `new_file` and `new_folder` make beside a name until it is in its place.
HALF = re.compile(r"\.(?P<name>.+)\.(part|part-[0-9]+|(?P<old>old-[0-9]+))")
PROBE = re.compile(r"room(\.\w+)?")  # a file by which it is seen whether there is room
NOBODYS = {  # what systems put into any folder, and what keeps an empty one in an archive
    *("lost+found", "System Volume Information", ".snapshot", ".nfs*", ".Trash-*", ".DS_Store"),
    *(".gitignore", ".gitkeep", ".keep"),
}
TODO = "give --state a new or an empty folder, or one that a client has used before"

log = logging.getLogger(__name__)


def is_own(name: str) -> bool:
    """Whether smidgen gives this name to something in a state folder, or to the half of it."""
    half = HALF.fullmatch(name)
    whole = half["name"] if half else name
    is_probe = half is not None and PROBE.fullmatch(whole) is not None
    return whole in NAMES or LABELS.fullmatch(whole) is not None or is_probe


def foreign_in(folder: Path, given: Iterable[Path] = ()) -> str | None:
    """What tells that a folder is somebody's own, by its name.

    None: it is not there, is empty or a state folder, be it of an older version, of a start that
    was killed, out of a backup without empty folders, or one into which somebody has put more.

    Args:
        folder: The state folder.
        given: What the user names besides, such as the texts: in there it tells nothing.

    Raises:
        OSError: It cannot be read.
    """
    is_made = all((folder / name).is_dir() for name in FIRST)
    if not folder.is_dir() or is_made or _is_identity(folder / IDENTITY):
        return None
    paths, known = sorted(folder.iterdir()), _names_below(folder, given)
    is_held = folder / LOCK in paths
    return next((path.name for path in paths if not _is_left(path, known, is_held)), None)


def in_words(folder: Path, held: str) -> str:
    """That a folder is somebody's own, and by what that is seen."""
    return f"state folder {folder} holds other things, such as {held}"


def _is_identity(path: Path) -> bool:
    """Whether it says who a device is, as any version has it."""
    try:
        said = from_json(path.read_bytes(), dict[str, Any]) if path.is_file() else {}
    except ValueError:
        return False
    is_known = isinstance(said.get("key"), str) or isinstance(said.get("enrolled"), dict)
    return is_known and isinstance(said.get("url"), str)


def _names_below(folder: Path, given: Iterable[Path]) -> set[str]:
    """The names in a folder by which one comes to some paths; none that is smidgen's own."""
    ways = ((path.absolute(), *path.absolute().parents) for path in given)
    steps = (step for way in ways for step in pairwise(way))
    found = {lower.name for lower, above in steps if _is_same(above, folder)}
    return {name for name in found if not is_own(name)}


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # not there, or no path at all, such as a hub name with NUL
        return False


def _is_left(path: Path, known: Iterable[str], is_held: bool) -> bool:
    """Whether what lies in a folder that no client has finished making may be left of one.

    Anybody may have a folder of adapters, or labels: by their names they are ours only where a
    client has held the folder.
    """
    name = path.name
    if name in known or any(fnmatchcase(name, pattern) for pattern in NOBODYS):
        return True
    if name in FIRST:
        return is_held or (path.is_dir() and not any(path.iterdir()))
    is_half = HALF.fullmatch(name) is not None and is_own(name)
    return name in EARLY or is_half or (is_held and LABELS.fullmatch(name) is not None)


def sweep_halves(folder: Path) -> None:
    """Delete what killed processes left half-written; whoever writes there holds the folder.

    A folder that was set aside stays where nothing stands in its place: who writes there next
    puts it back. So does one that is whole, until something newer stands there: who wrote it was
    told that it is kept.
    """
    for place in (folder, *(folder / name for name in WRITTEN)):
        for path in place.glob(".*"):
            half = HALF.fullmatch(path.name)
            if half is None or (place == folder and not is_own(path.name)):
                continue
            whole = place / half["name"]
            if whole.exists() if half["old"] else _is_sweepable(path, whole):
                _remove(path)


def close_own(folder: Path) -> None:
    """Take what an older smidgen let others read from all but its owner."""
    closed, left = close_to_others(folder, is_own)
    if closed:
        log.info("%s", told_of(closed))
    if left:
        told = "others may read %s, which is not ours to close; its owner can chmod"
        log.warning(told, left[0])


def _is_sweepable(part: Path, whole: Path) -> bool:
    """Whether a half is one, or as old as what stands in its place."""
    mark, other = part / ORIGIN, whole / ORIGIN
    if part.is_symlink() or not mark.is_file():
        return True
    return other.is_file() and other.stat().st_mtime_ns >= mark.stat().st_mtime_ns


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
