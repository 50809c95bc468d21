"""Files that survive a power cut, their hashes, and who may read them."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

PRIVATE = 0o600
OTHERS = 0o077  # the bits of a mode that are not the owner's


def write_atomically(path: Path, body: bytes, mode: int = 0o644) -> None:
    """Write a file so that after a crash either the old or the new content is there.

    An error leaves nothing beside it; only a process that is killed leaves `.NAME.part`.
    """
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, body: bytes) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write a folder's list of names through to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def private(path: str, flags: int) -> int:
    """What `open` takes as its opener for a file that nobody else may read; links are refused."""
    return os.open(path, flags | os.O_NOFOLLOW, PRIVATE)


def open_to_others(folder: Path) -> Iterator[Path]:
    """A folder and what lies in it, as far as others than its owner may read or change it.

    Links are not followed; what goes away meanwhile is left out.
    """
    found = [folder]
    for place, folders, files in os.walk(folder):
        found += [Path(place, name) for name in (*folders, *files)]
    for path in found:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & OTHERS:
                yield path


def told_of(closed: Sequence[Path]) -> str:
    """What was open, in words: the first by its name, and how many more."""
    more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    return f"{closed[0]}{more} {'were' if more else 'was'} open to others; closed now"


def close_to_others(folder: Path) -> tuple[list[Path], list[Path]]:
    """Take a folder and what lies in it from all but its owner.

    Returns:
        Files and folders that were open, and those that are still: somebody else's.
    """
    closed, left = list[Path](), list[Path]()
    for path in open_to_others(folder):
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~OTHERS)
            closed.append(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return closed, left
