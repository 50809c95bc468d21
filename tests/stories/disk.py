"""The disks of a story: every operation with a file is counted, may fail, and may not be durable.

A file that was written and not flushed is torn by a power cut; a name that was changed while its
folder was not flushed goes back: what was renamed has its old name again, as no file system loses
both names. SQLite writes past these hooks: its files are as it left them at the last statement,
since a commit is flushed; its statements fail where the disk is full or read-only.
"""

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import sqlalchemy as sql

from tests.stories.clock import chance, now, of_greenlet, put, unseen

Lack = Literal["", "full", "read-only"]
NUMBERS = {"full": errno.ENOSPC, "read-only": errno.EROFS}
SAYS = {"full": "database or disk is full", "read-only": "attempt to write a readonly database"}
IDENTITY = ("device.json", "lock")  # without which a device is another one, or nobody


class Machine(Protocol):
    """Whose disk it is."""

    folder: Path
    disk: "Disk"

    def op(self, what: str) -> None:
        """The process does something, and may die of it."""


class Disk:
    """What lies on a disk for good, and what not yet.

    Args:
        folder: All of it.
        is_watched: Whether it will meet a power cut.

    Attributes:
        lack: Why nothing can be written now.
    """

    def __init__(self, folder: Path, is_watched: bool) -> None:
        self._folder, self._is_watched = folder, is_watched
        self.lack: Lack = ""
        self._torn: dict[str, bytes] = {}  # what files held when they were flushed last
        # Oldest first: the old name of what was renamed (empty: it was removed), the name that has
        # changed, and what lay there before
        self._names: list[tuple[str, str, bytes | None]] = []

    def check(self, path: str, *, grows: bool) -> None:
        """Somebody is about to change something.

        Raises:
            OSError: The disk takes it not.
        """
        is_read_only = self.lack == "read-only"
        if is_read_only or (grows and self.lack):
            raise OSError(NUMBERS[self.lack], os.strerror(NUMBERS[self.lack]), path)

    def writes(self, path: str) -> None:
        if self._is_watched and path not in self._torn:
            self._torn[path] = _content(path) or b""

    def renames(self, source: str, target: str) -> None:
        if self._is_watched:
            self._names.append((source, target, _content(target)))
            for path in [one for one in self._torn if f"{one}/".startswith(f"{source}/")]:
                self._torn[target + path[len(source) :]] = self._torn.pop(path)

    def removes(self, path: str) -> None:
        if self._is_watched:
            self._names.append(("", path, _content(path)))
            self._torn.pop(path, None)

    def flushes(self, path: str) -> None:
        if self.lack:
            self.check(path, grows=Path(path).is_file())
        self._torn.pop(path, None)
        self._names = [one for one in self._names if str(Path(one[1]).parent) != path]

    def lose(self, copy: Path) -> None:
        """A power cut, on a copy of the folder."""
        there = str(self._folder), str(copy)
        for path, before in self._torn.items():
            place = Path(path.replace(*there, 1))
            if place.is_file():
                place.write_bytes(_torn(before, place.read_bytes()))
        kept = chance.randint(0, len(self._names))
        for source, path, content in reversed(self._names[kept:]):
            place = Path(path.replace(*there, 1))
            if source and place.exists():
                place.rename(source.replace(*there, 1))
            if content is not None and place.parent.is_dir():
                place.write_bytes(content)
        self._torn.clear()
        self._names.clear()

    @staticmethod
    def flip(copy: Path) -> None:
        """Flip a bit of a file that is neither an identity nor SQLite's."""
        files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path.stat().st_size]
        files = [path for path in files if path.name not in IDENTITY and ".db" not in path.name]
        if files:
            place = chance.choice(files)
            body = bytearray(place.read_bytes())
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            place.write_bytes(body)


def _torn(before: bytes, after: bytes) -> bytes:
    """What a power cut leaves of a file that was written and not flushed: of each sector either."""
    whole = max(len(before), len(after))
    old, new = before.ljust(whole, b"\0"), after.ljust(whole, b"\0")
    sectors = [(old, new)[chance.random() < 0.5][at : at + 512] for at in range(0, whole, 512)]
    return b"".join(sectors)[: chance.choice([len(before), len(after)])]


def _content(path: str) -> bytes | None:
    with unseen():
        place = Path(path)
        return place.read_bytes() if place.is_file() else None


_host: list[Machine | None] = [None]


def hooked(host: Machine | None) -> None:
    """Say whose the code on the event loop is."""
    _host[0] = host


def _owner(path: str) -> Machine | None:
    machine: Machine | None = of_greenlet("process") or _host[0]
    return machine if machine is not None and f"{path}/".startswith(f"{machine.folder}/") else None


def _hook(called: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of `os` that takes a path, or the number of an open file."""

    def hook(place: Any, *args: Any, **given: Any) -> Any:
        if not now.is_virtual:
            return called(place, *args, **given)
        path = os.fspath(place) if not isinstance(place, int) else _path_of(place)
        machine = _owner(str(path))
        if machine is not None:
            machine.op(name)
            _note(machine.disk, name, str(path), args)
        return called(place, *args, **given)

    return hook


def _path_of(number: int) -> str:
    with unseen():
        return str(Path(f"/proc/self/fd/{number}").readlink())


def _note(disk: Disk, name: str, path: str, args: tuple[Any, ...]) -> None:
    if name == "fsync":
        disk.flushes(path)
        return
    is_read = name == "open" and (
        not set(args[0]) & set("wax+") if args and isinstance(args[0], str) else not _writes(args)
    )
    if is_read:
        return
    with unseen():
        is_new = name == "pwrite" or not (name == "unlink" or os.path.lexists(path))
    disk.check(path, grows=is_new)
    if name in ("open", "pwrite"):
        disk.writes(path)
    elif name in ("replace", "rename"):
        disk.renames(path, os.fspath(args[0]))
    elif name in ("unlink", "remove"):
        disk.removes(path)


def _writes(args: tuple[Any, ...]) -> bool:
    return bool(args and isinstance(args[0], int) and args[0] & (os.O_WRONLY | os.O_RDWR))


def _on_statement(connection: sql.Connection, *said: Any) -> None:
    """Before a statement, and before a commit, which names none."""
    machine = _host[0]
    if not now.is_virtual or of_greenlet("process") is not None or machine is None:
        return
    machine.op("statement")
    words = str(said[1]) if len(said) > 1 else ""
    if (lack := machine.disk.lack) and words.startswith(("INSERT", "UPDATE", "DELETE")):
        raise sql.exc.OperationalError(words, None, sqlite3.OperationalError(SAYS[lack]))


def installed() -> None:
    """Let every file operation of this interpreter be one of a story's."""
    for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "utime", "open"):
        put(os, **{name: _hook(getattr(os, name), name)})
    for name in ("fsync", "pwrite"):
        put(os, **{name: _hook(getattr(os, name), name)})
    opened = _hook(io.open, "open")
    for place in (io, builtins):
        put(place, open=opened)
    sql.event.listen(sql.Engine, "before_cursor_execute", _on_statement)
    sql.event.listen(sql.Engine, "commit", _on_statement)
