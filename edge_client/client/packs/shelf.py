"""The folder of downloaded packs, with a size limit.

    PACKS/BASE_ID/             a complete pack, checked byte by byte before it got this name
          .BASE_ID.fetching/   an unfinished download, resumed at the client's next start
          lock                 held while a client runs

The folder itself may be a link, for example to a data partition: it is followed once, at start, and
its target must belong to the owner alone. Inside, links are refused. To make room for a needed
pack, unneeded ones are removed: first unfinished downloads, then the least recently used pack,
independently of the clock.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from smidgen.edge_client.bases.base import Base, BaseError, open_base
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.files import OTHERS, held_alone, make_latest, oldest_first, sync_folder
from smidgen.edge_client.tables import size
from smidgen.edge_client.wire.fleet import SHA_256

RESERVE_BYTES = 64 << 20  # of the disk, left to everybody else
DAMAGED = (FileNotFoundError, IsADirectoryError, NotADirectoryError)  # whenever it is looked at


class NoRoom(Failed):
    """A pack that does not fit, on the disk or into what its owner allows."""


class Shelf:
    """Packs by base id.

    Args:
        folder: Made if it is not there; its owner's alone, or a link to such a folder.
        most_bytes: What all packs may take together.
        free_bytes: Free space of the disk that a folder lies on.

    Raises:
        WrongInput: The folder cannot be made, or somebody else may write to it.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self.most_bytes, self._free_bytes = most_bytes, free_bytes
        self._bases: dict[str, Base] = {}  # that were checked in this life
        demand(
            folder.exists() or not folder.is_symlink(),
            f"--packs {folder} is a link to what is not there; mount it, or make that folder",
        )
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder = folder.resolve(strict=True)
            told = self.folder.lstat()
        except OSError as error:
            raise WrongInput(f"--packs {folder} cannot be made: {error.strerror}") from error
        is_own = os.geteuid() in (0, told.st_uid) and not told.st_mode & OTHERS & 0o022
        where = f" (a link to {self.folder})" if folder.is_symlink() else ""
        demand(
            stat.S_ISDIR(told.st_mode) and is_own,
            f"--packs {folder}{where}: a folder that its owner alone may write to is expected",
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone: what one client needs another one would remove.

        Raises:
            WrongInput: Another process holds it, or its file system has no locks.
        """
        busy = f"another client keeps its packs in {self.folder}; give another --packs"
        todo = "give --packs on a file system that has locks"
        with held_alone(self.folder / "lock", busy, todo):
            yield

    def base(self, base_id: str) -> Base | None:
        """A pack that is here, checked once in each life; one that is damaged is removed.

        Raises:
            OSError: It cannot be read now; it stays.
        """
        if base_id in self._bases:
            return self._bases[base_id]
        if not SHA_256.fullmatch(base_id) or not _is_folder(self.folder / base_id):
            return None
        try:
            _check_plain(self.folder / base_id)
            found = open_base(str(self.folder / base_id))
        except BaseError as error:
            if (unread := _unread(error)) is not None:
                raise unread from None
            self._remove(self.folder / base_id)
            return None
        if found.base_id != base_id:
            self._remove(self.folder / base_id)
            return None
        self._bases[base_id] = found
        self.used(base_id)
        return found

    def used(self, base_id: str) -> None:
        """Note that a pack is in use now."""
        with suppress(OSError):
            make_latest(self.folder / base_id)

    def partial(self, base_id: str) -> Path:
        """The folder in which a pack arrives, made; what is not a folder there is removed.

        Raises:
            OSError: It cannot be made.
        """
        path = self._arriving(base_id)
        if not _is_folder(path):
            path.unlink(missing_ok=True)  # a link: itself, not what it leads to
            path.mkdir(mode=0o700)
        path.chmod(0o700)
        return path

    def install(self, base_id: str) -> Base:
        """Check a pack that has arrived whole, and put it into its place.

        Raises:
            BaseError: It is not a pack, or not this one.
            OSError: It cannot be put there.
        """
        partial, place = self.partial(base_id), self.folder / base_id
        found = open_base(str(partial))
        if found.base_id != base_id:
            raise BaseError(f"the pack that came is {found.base_id[:12]}, not {base_id[:12]}")
        sync_folder(partial)
        self._remove(place)
        partial.rename(place)
        self.used(base_id)
        sync_folder(self.folder)
        self._bases[base_id] = replace(found, name=str(place), folder=place)
        return self._bases[base_id]

    def _arriving(self, base_id: str) -> Path:
        assert SHA_256.fullmatch(base_id), "a base id leads nowhere else"
        return self.folder / f".{base_id}.fetching"

    def discard(self, base_id: str) -> None:
        self._remove(self._arriving(base_id))

    def make_room(self, base_id: str, total_bytes: int, needed: Collection[str]) -> list[str]:
        """Remove what nobody needs until a pack fits; nothing is removed where that is no use.

        Args:
            base_id: The pack that is to come.
            total_bytes: Its size.
            needed: Ids of packs that stay.

        Returns:
            Ids of those that were removed.

        Raises:
            NoRoom: It would not fit; says how much lacks and where.
        """
        if total_bytes > self.most_bytes:
            raise NoRoom(
                f"the pack has {size(total_bytes)}, --packs-size allows {size(self.most_bytes)}; "
                "raise it, or give the pack with --base"
            )
        sizes = {path: _bytes_in(path) for path in self.folder.iterdir() if _id_of(path)}
        arrived = sum(taken for path, taken in sizes.items() if _id_of(path) == base_id)
        old = oldest_first(path for path in sizes if _id_of(path) not in {base_id, *needed})
        old.sort(key=lambda path: path.name == _id_of(path))  # whole packs last
        taken = sum(sizes.values()) - arrived + total_bytes
        lacks = total_bytes - arrived + RESERVE_BYTES - self._free_bytes(self.folder)
        spare = sum(sizes[path] for path in old)
        if taken - spare > self.most_bytes:
            raise NoRoom(
                f"the pack has {size(total_bytes)}; with those that open runs need it is more "
                f"than --packs-size {size(self.most_bytes)}; raise that"
            )
        if lacks > spare:
            raise NoRoom(
                f"the pack has {size(total_bytes)}; {size(lacks - spare)} lack on the disk of "
                f"{self.folder}: free some space, or give another --packs"
            )
        removed = []
        for path in old:
            if taken <= self.most_bytes and lacks <= 0:
                break
            self._remove(path)
            removed.append(_id_of(path))
            taken, lacks = taken - sizes[path], lacks - sizes[path]
        return removed

    def _remove(self, path: Path) -> None:
        self._bases.pop(_id_of(path), None)
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
        else:  # the manifest goes first: what is cut short here is no pack
            (path / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)


def _is_folder(path: Path) -> bool:
    """Whether a folder is there itself, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _id_of(path: Path) -> str:
    """The base id of a whole pack's folder or of a partial one's; empty for anything else."""
    if SHA_256.fullmatch(path.name):
        return path.name
    found = re.fullmatch(r"\.([0-9a-f]{64})\.fetching", path.name)
    return found[1] if found else ""


def _unread(error: BaseException | None) -> OSError | None:
    """Why the system did not let a pack be read this time; None: it is damaged."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return None if isinstance(error, DAMAGED) else error


def _check_plain(folder: Path) -> None:
    """Refuse a pack with a link in it.

    Raises:
        BaseError: Names it.
        OSError: The folder cannot be read.
    """
    for path in folder.iterdir():
        demand(not path.is_symlink(), f"{path} is a link", BaseError)


def _bytes_in(path: Path) -> int:
    """What the files of a folder take; nothing of a link."""
    if not _is_folder(path):
        return 0
    return sum(file.lstat().st_size for file in path.iterdir())
