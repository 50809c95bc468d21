"""Crash-safe file writes, hashes, locks and permissions."""

import errno
import hashlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from smidgen.edge_client.errors import WrongInput

NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
PRIVATE = 0o600
OTHERS = 0o077  # the bits of a mode that are not the owner's
TAKEN = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)  # of a lock that another process holds

log = logging.getLogger(__name__)
Kind = TypeVar("Kind")


def write_atomically(
    path: Path,
    body: bytes | bytearray | Iterable[bytes | memoryview],
    mode: int = 0o644,
    *,
    is_latest: bool = False,
) -> None:
    """Write a file so that after a crash either the old or the new content is there.

    An error leaves nothing beside it; only a process that is killed leaves `.NAME.part`.

    Args:
        path: Where to.
        body: Its content, whole or in parts.
        mode: Its mode.
        is_latest: Whether it gets a time as by `make_latest`.
    """
    part = path.with_name(f".{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([body] if isinstance(body, bytes | bytearray) else body)
            file.flush()
            os.fsync(file.fileno())
        if is_latest:
            make_latest(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_latest(path: Path, clock_ns: Callable[[], int] = time.time_ns) -> None:
    """Give a file or folder a later time than any other has that lies beside it.

    A board without a battery wakes up in 1970. Whatever its clock says, files that were all made
    the latest in turn lie in that order by `oldest_first`.

    Args:
        path: There already.
        clock_ns: What the clock says.

    Raises:
        OSError: It is not there. What is somebody else's keeps its time.
    """
    latest_ns = clock_ns()
    for other in path.parent.iterdir():
        if other != path:
            with suppress(FileNotFoundError):
                # FAT keeps times no finer
                latest_ns = max(latest_ns, other.lstat().st_mtime_ns + 2 * 10**9)
    with suppress(PermissionError):  # a disk without owners
        os.utime(path, ns=(latest_ns, latest_ns), follow_symlinks=False)


def oldest_first(paths: Iterable[Path]) -> list[Path]:
    """Files in the order in which they were made the latest of their folder."""
    return sorted(paths, key=lambda path: path.lstat().st_mtime_ns)


def from_json(body: bytes, kind: type[Kind]) -> Kind:
    """What a file of ours holds.

    Args:
        body: Its content.
        kind: Of value.

    Raises:
        msgspec.DecodeError: It holds no such value, is nested deeper than Python goes, or has a
            text that is not UTF-8. (A ValueError.)
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError("nested too deeply, or not UTF-8") from error


def discard(path: Path) -> None:
    """Delete a file that is of no more use, if it is there.

    A disk that has become read-only keeps it, as flash does that fails: a line in the log.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s is not deleted: %s", path.name, error.strerror)


def write_synced(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Write a folder's list of names through to the disk, where a system lets folders be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def private(path: str, flags: int) -> int:
    """What `open` takes as its opener for a file that nobody else may read; links are refused."""
    return os.open(path, flags | NOFOLLOW, PRIVATE)


def reserve(descriptor: int, size: int) -> None:
    """Let an empty file have so many bytes, which a full disk refuses at once where it can.

    Raises:
        OSError: There is no room for them.
    """
    getattr(os, "posix_fallocate", lambda file, _, length: os.ftruncate(file, length))(
        descriptor, 0, size
    )


def lock(file: IO[Any]) -> None:
    """Hold a file alone until it is closed; a system that has no such locks lets everybody.

    Raises:
        OSError: Another process holds it, or its file system has no locks.
    """
    name = next((one for one in ("fcntl", "msvcrt") if find_spec(one)), "")
    locks: Any = import_module(name) if name else None
    if name == "fcntl":
        locks.flock(file, locks.LOCK_EX | locks.LOCK_NB)
    elif name == "msvcrt":
        locks.locking(file.fileno(), locks.LK_NBLCK, 1)


@contextmanager
def held_alone(
    path: Path, busy: str, todo: str, kind: type[WrongInput] = WrongInput
) -> Iterator[None]:
    """Hold a lock file; a process that ends, however it does, lets go of it.

    Args:
        path: The lock file, made if it is not there.
        busy: What to say where another process holds it.
        todo: What to do where it cannot be locked at all.
        kind: Of the error.

    Raises:
        WrongInput: Another process holds it, or its file system has no locks.
    """
    with open(path, "w", opener=private) as file:
        try:
            lock(file)
        except OSError as error:
            no_lock = f"{path} cannot be locked: {error.strerror}; {todo}"
            raise kind(busy if error.errno in TAKEN else no_lock) from error
        yield


def open_to_others(
    folder: Path, is_meant: Callable[[str], bool] = lambda _name: True
) -> Iterator[Path]:
    """A folder and what lies in it, as far as others than its owner may read or change it.

    Links are not followed; what goes away meanwhile is left out.

    Args:
        folder: Itself always looked at.
        is_meant: Whether what lies in it by this name is, too, with all below.
    """
    found = [folder]
    for place, folders, files in os.walk(folder):
        if place == str(folder):
            folders[:], files = filter(is_meant, folders), list(filter(is_meant, files))
        found += [Path(place, name) for name in (*folders, *files)]
    for path in found:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & OTHERS:
                yield path


def close_to_others(
    folder: Path, is_meant: Callable[[str], bool] = lambda _name: True
) -> tuple[list[Path], list[Path]]:
    """Take a folder and what lies in it from all but its owner.

    Args:
        folder, is_meant: As `open_to_others` takes them.

    Returns:
        Files and folders that were open, and those that are still: somebody else's.
    """
    closed, left = list[Path](), list[Path]()
    for path in open_to_others(folder, is_meant):
        try:
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~OTHERS)
            closed.append(path)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(path)
    return closed, left


def close_aloud(
    folder: Path, log: logging.Logger, is_meant: Callable[[str], bool] = lambda _name: True
) -> None:
    """`close_to_others`, and log what was open and what still is."""
    closed, left = close_to_others(folder, is_meant)
    if closed:
        more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        log.info("%s%s %s open to others; closed now", closed[0], more, "were" if more else "was")
    if left:
        log.warning("others may read %s, which is not ours to close; its owner can chmod", left[0])
