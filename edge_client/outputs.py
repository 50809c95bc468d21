"""Output files and folders: checked before any work, written beside the target, then renamed.

    check_out_folder("--out", folder, MINE)  # before hours of work
    with new_folder("--out", folder, MINE) as part:  # after them
        (part / "weights").write_bytes(body)

An interruption leaves either the old output or the whole new one. Only a process killed outright
leaves more: `.NAME.part-PID` beside it, or the old one as `.NAME.old-PID`, which the next check
puts back if its place is empty. A folder that cannot be replaced by a rename (a mount point, the
shell's current folder, one below a folder that is not ours) is filled file by file from
`.smidgen.part-PID` inside it, its marker last. Complete output is never deleted because it could
not be put in place.
"""

import ctypes
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.files import private, sync_folder

INSIDE = ".smidgen.part-"  # what a folder is filled from that no rename may replace
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2

SIGNED = 4096  # bytes at the beginning of a file that say whose it is


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
        _recover(_real(folder), mark)
        if not os.path.lexists(folder):
            _check_parent(option, folder)
            return
        demand(folder.is_dir(), f"{option} {folder} is a file; a folder is expected", OutputError)
        found = {path.name for path in folder.iterdir()}
        place = _real(folder)
        _check_writable(option, folder, place if _is_filled(place) else place.parent)
    except OSError as error:
        raise _unwritable(option, folder, error) from error
    parts = {name for name in found if name.startswith(INSIDE)}  # of a process that was killed
    others = sorted(found - parts - {mark, *mine})
    if found and (others or not (parts or mark in found)):
        held = (others or sorted(found))[0]
        raise OutputError(
            f"{option} {folder} holds other things, such as {held}; give a new or an empty folder, "
            "or one that smidgen wrote before"
        )


def check_out_file(option: str, path: Path, endings: Collection[str] = (), sign: str = "") -> None:
    """Refuse a file that `new_file` could not write.

    Args:
        option: What the user typed, such as `--out`.
        path: The file; one that is there, or that a link leads to, is replaced in the end.
        endings: What its name may end in; empty: anything.
        sign: What the beginning of such a file of ours holds; a file without is somebody's own, and
            is not replaced. Empty: any file is.

    Raises:
        OutputError: A folder, somebody's own file, another ending, or a parent that cannot be made.
    """
    expected = " or ".join(endings)
    is_known = not endings or path.suffix in endings
    demand(is_known, f"{option} {path}: a name that ends in {expected} is expected", OutputError)
    try:
        demand(not path.is_dir(), f"{option} {path} is a folder; a file is expected", OutputError)
        if _is_stream(path):
            demand(os.access(path, os.W_OK), f"{option} {path} cannot be written to", OutputError)
            return
        _check_parent(option, _real(path))
        if sign and path.exists():
            with path.open("rb") as file:
                beginning = file.read(SIGNED)
            demand(
                not beginning or sign.encode() in beginning,
                f"{option} {path} is there and was not written by this command; give another name",
                OutputError,
            )
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
        Failed: It cannot be written after all, on a full disk, say; names where it is kept if it
            was whole.
    """
    check_out_folder(option, folder, mark, mine)
    place = _real(folder)
    beside = place.with_name(f".{place.name}.part-{os.getpid()}")
    part = place / f"{INSIDE}{os.getpid()}" if _is_filled(place) else beside
    is_kept = False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)  # of a process that had this number before
        part.mkdir()
        yield part
        for path in part.iterdir():
            _sync(path)
        sync_folder(part)
        is_kept = True
        _put_in_place(part, place, mark, mine)
        is_kept = False
        sync_folder(place.parent)
    except OSError as error:
        kept = f"; what was written is kept in {part}" if is_kept else ""
        raise Failed(f"{option} {folder} cannot be written: {_why(error)}{kept}") from error
    finally:
        if not is_kept:
            shutil.rmtree(part, ignore_errors=True)  # what stood there before, or the half-written


@contextmanager
def new_file(option: str, path: Path, is_private: bool = False) -> Iterator[TextIO]:
    """A text file beside `path`, to be written; afterwards it stands in `path`'s place.

    A device or a pipe, such as /dev/stdout, is written to as it is.

    Args:
        option: What the user typed, such as `--out`.
        path: See `check_out_file`.
        is_private: Whether nobody but its owner may read it, as somebody's texts.

    Raises:
        OutputError: See `check_out_file`.
        Failed: It cannot be written after all, on a full disk, say.
    """
    check_out_file(option, path)
    place = _real(path)
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    try:
        if _is_stream(path):
            with path.open("a", encoding="utf-8", newline="") as file:
                yield file
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # of a process that had this number, or a link to elsewhere
        opener = private if is_private else None
        with open(part, "x", encoding="utf-8", newline="", opener=opener) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(place)
        sync_folder(place.parent)
    except OSError as error:
        raise Failed(f"{option} {path} cannot be written: {_why(error)}") from error
    finally:
        part.unlink(missing_ok=True)


def home_folder(todo: str) -> Path:
    """The user's home.

    Args:
        todo: What to do where there is none, such as to give an option.

    Raises:
        OutputError: HOME is not set, and the system does not know this user.
    """
    try:
        return Path.home()
    except RuntimeError as error:
        raise OutputError(f"this user has no home folder; {todo}") from error


def _is_stream(path: Path) -> bool:
    """Whether there is a device or a pipe, which is written to and never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_parent(option: str, path: Path) -> None:
    """Refuse a path whose folder is not there and cannot be made.

    Raises:
        OSError: A name that is too long.
    """
    place = _real(path)
    demand(
        place.name != "", f"{option} {path} is the root folder; give a place below it", OutputError
    )
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    above = part.parent
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    demand(above.is_dir(), f"{option} {path}: {above} is a file; a folder is expected", OutputError)
    for name in part.relative_to(above).parts:
        with suppress(FileNotFoundError, NotADirectoryError):
            (above / name).lstat()  # the system says here which name is too long
    _check_writable(option, path, above)


def _check_writable(option: str, path: Path, above: Path) -> None:
    demand(_is_writable(above), f"{option} {path}: {above} cannot be written to", OutputError)


def _unwritable(option: str, path: Path, error: OSError) -> OutputError:
    return OutputError(f"{option} {path} cannot be written: {_why(error)}")


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _sync(path: Path) -> None:
    """Write a file, or a folder of files, through to the disk."""
    if path.is_dir():
        for inner in path.iterdir():
            _sync(inner)
        sync_folder(path)
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _real(path: Path) -> Path:
    """Where a path leads to, links followed; unlike `resolve`, it takes a loop as it is."""
    return Path(os.path.realpath(path))


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _is_filled(place: Path) -> bool:
    """Whether files are moved into a folder, as a rename over it cannot be or would hurt."""
    if not place.is_dir():
        return False
    return os.path.ismount(place) or place.samefile(".") or not _is_writable(place.parent)


def _recover(place: Path, mark: str) -> None:
    """Put back what a killed process had set aside, where nothing stands in its place."""
    if os.path.lexists(place) or not place.parent.is_dir():
        return
    aside = [
        path
        for path in place.parent.iterdir()
        if path.name.startswith(f".{place.name}.old-") and (path / mark).is_file()
    ]
    if aside:
        max(aside, key=lambda path: path.stat().st_mtime_ns).rename(place)


def _put_in_place(part: Path, place: Path, mark: str, mine: Collection[str]) -> None:
    """Rename a folder into its place; what stood there, if anything, is `part` afterwards."""
    if part.parent == place:
        _fill(place, part, mark, mine)
        return
    try:
        if not place.is_dir() or not any(place.iterdir()) or not _exchange(part, place):
            _replace(part, place)
    except OSError:
        if not place.is_dir():
            raise
        _fill(place, part, mark, mine)  # a mount of the same disk, say


def _fill(place: Path, part: Path, mark: str, mine: Collection[str]) -> None:
    """Move files into a folder; without its mark while they are old and new."""
    names = sorted({path.name for path in part.iterdir()} - {mark})
    (place / mark).unlink(missing_ok=True)
    for name in {*mine} - {*names}:
        _remove(place / name)
    for name in [*names, mark]:
        if (part / name).is_dir():
            _remove(place / name)
        shutil.move(part / name, place / name)  # a rename, or a copy from another disk
        _sync(place / name)
    sync_folder(place)


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
        with suppress(OSError):
            aside.rename(place)
        raise
    with suppress(OSError):
        aside.rename(part)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change names in one step; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return bool(rename(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0)


def check_other(out: Path | None, source: Path | None) -> None:
    """Refuse a file of answers that would replace what is read."""
    if out is not None and source is not None and source.exists() and out.exists():
        is_same = out.samefile(source)
        demand(not is_same, f"--out {out} is the file that is read; give another name")
