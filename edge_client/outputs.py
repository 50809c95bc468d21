"""Where a command writes to: looked at before any work, written beside, put in place by a rename.

    check_out_folder("--out", folder, MINE)  # before hours of work
    with new_folder("--out", folder, MINE) as part:  # after them
        (part / "weights").write_bytes(body)

A cut leaves what was there before or the whole of the new; only a process that is killed outright
leaves `.NAME.part-PID` beside it.
"""

import ctypes
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from edge_client.errors import Failed, WrongInput, demand
from edge_client.files import sync_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2


class OutputError(WrongInput):
    """A place that cannot be written to; says what is expected there."""


def check_out_folder(option: str, folder: Path, mark: str, mine: Collection[str] = ()) -> None:
    """Refuse a folder that `new_folder` would refuse.

    Args:
        option: What the user typed, such as `--out`.
        folder: Where something is to be written. It may be absent, empty, or ours.
        mark: The file that tells a folder of ours.
        mine: What else a folder of ours holds.

    Raises:
        OutputError: A file, other things, or a parent that cannot be made.
    """
    try:
        if not os.path.lexists(folder):
            _check_parent(option, folder)
            return
        demand(folder.is_dir(), f"{option} {folder} is a file; a folder is expected", OutputError)
        found = {path.name for path in folder.iterdir()}
        _check_writable(option, folder, folder.resolve().parent)
    except OSError as error:
        raise _unwritable(option, folder, error) from error
    others = sorted(found - {mark, *mine})
    if found and (mark not in found or others):
        held = (others or sorted(found))[0]
        raise OutputError(
            f"{option} {folder} holds other things, such as {held}; give a new or an empty folder, "
            "or one that smidgen wrote before"
        )


def check_out_file(option: str, path: Path, endings: Collection[str] = ()) -> None:
    """Refuse a file that `new_file` could not write.

    Args:
        option: What the user typed, such as `--out`.
        path: The file; one that is there is replaced in the end.
        endings: What its name may end in; empty: anything.

    Raises:
        OutputError: A folder, another ending, or a parent that cannot be made.
    """
    expected = " or ".join(endings)
    is_known = not endings or path.suffix in endings
    demand(is_known, f"{option} {path}: a name that ends in {expected} is expected", OutputError)
    try:
        demand(not path.is_dir(), f"{option} {path} is a folder; a file is expected", OutputError)
        _check_parent(option, path)
    except OSError as error:
        raise _unwritable(option, path, error) from error


def check_out_parent(option: str, path: Path) -> None:
    """Refuse a path whose folder is not there and cannot be made, whatever is to stand there.

    Raises:
        OutputError: See above.
    """
    try:
        _check_parent(option, path)
    except OSError as error:
        raise _unwritable(option, path, error) from error


@contextmanager
def new_folder(option: str, folder: Path, mark: str, mine: Collection[str] = ()) -> Iterator[Path]:
    """A folder beside `folder`, to be filled; afterwards it stands in `folder`'s place.

    Args:
        option: What the user typed, such as `--out`.
        folder: See `check_out_folder`.
        mark: The file that tells a folder of ours.
        mine: What else a folder of ours holds.

    Raises:
        OutputError: See `check_out_folder`.
        Failed: It cannot be written after all, on a full disk, say.
    """
    check_out_folder(option, folder, mark, mine)
    place = folder.resolve()
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)  # of a process that had this number before
        part.mkdir()
        yield part
        for path in part.iterdir():
            _sync_file(path)
        sync_folder(part)
        _put_in_place(part, place)
        sync_folder(place.parent)
    except OSError as error:
        raise Failed(f"{option} {folder} cannot be written: {_why(error)}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)  # what stood there before, or the half-written


@contextmanager
def new_file(option: str, path: Path) -> Iterator[TextIO]:
    """A text file beside `path`, to be written; afterwards it stands in `path`'s place.

    Raises:
        OutputError: See `check_out_file`.
        Failed: It cannot be written after all, on a full disk, say.
    """
    check_out_file(option, path)
    part = path.with_name(f".{path.name}.part-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Failed(f"{option} {path} cannot be written: {_why(error)}") from error
    finally:
        part.unlink(missing_ok=True)


def _check_parent(option: str, path: Path) -> None:
    """Refuse a path whose folder is not there and cannot be made.

    Raises:
        OSError: A name that is too long.
    """
    part = path.with_name(f".{path.name}.part-{os.getpid()}").resolve()
    above = part.parent
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    demand(above.is_dir(), f"{option} {path}: {above} is a file; a folder is expected", OutputError)
    for name in part.relative_to(above).parts:
        _ask_for(above / name)  # the system says here which name is too long
    _check_writable(option, path, above)


def _ask_for(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        path.lstat()


def _check_writable(option: str, path: Path, above: Path) -> None:
    is_writable = os.access(above, os.W_OK | os.X_OK)
    demand(is_writable, f"{option} {path}: {above} cannot be written to", OutputError)


def _unwritable(option: str, path: Path, error: OSError) -> OutputError:
    return OutputError(f"{option} {path} cannot be written: {_why(error)}")


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _put_in_place(part: Path, place: Path) -> None:
    """Rename a folder into its place; what stood there, if anything, is `part` afterwards."""
    if not place.is_dir() or not any(place.iterdir()) or not _exchange(part, place):
        _replace(part, place)


def _replace(part: Path, place: Path) -> None:
    """For where two folders cannot be exchanged in one step: what is there steps aside."""
    if not place.is_dir() or not any(place.iterdir()):
        part.replace(place)
        return
    aside = place.with_name(f".{place.name}.old-{os.getpid()}")
    place.rename(aside)
    try:
        part.rename(place)
    except OSError:
        aside.rename(place)
        raise
    aside.rename(part)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0)
