"""Blobs: bytes named by their SHA-256, as durable files before anything refers to them."""

import hashlib
import os
import re
import secrets
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from smidgen.edge_client.files import file_sha256, private, sync_folder, write_atomically
from smidgen.edge_client.wire.tensors import sha256

RESTORE = "restore it from a backup of the store"
FLEET = "fleet"  # beside the blobs of a shared store: the id of the fleet that they belong to


class BlobDamaged(OSError):
    """A blob that is missing, or whose bytes no longer match its name."""


class BlobsAway(OSError):
    """A place of blobs that does not answer, or refuses."""


class Blobs(Protocol):
    """Where the blobs of one store lie; safe to use from several threads."""

    def put(self, body: bytes, name: str = "") -> str:
        """Write bytes under their SHA-256; the same bytes twice are one.

        Args:
            body: The bytes.
            name: Their SHA-256, where it is known.
        """

    def keep(self, part: Path, name: str) -> None:
        """Make a file that is whole a blob; the file itself is gone then.

        Args:
            part: The file, on the disk of the store's folder.
            name: SHA-256 of its bytes.
        """

    def read(self, name: str) -> bytes:
        """The bytes of a blob.

        Raises:
            BlobDamaged: There is no such blob, or its bytes no longer match its name.
        """

    def check(self, name: str) -> None:
        """Make sure that a blob is whole; its bytes are read where that is not known.

        Raises:
            BlobDamaged: It is missing or damaged.
        """

    def path(self, name: str) -> Path:
        """A file of this machine with the bytes of a blob, if the blob is there."""

    def size(self, name: str) -> int:
        """How many bytes a blob has.

        Raises:
            BlobDamaged: There is no such blob.
        """

    def present(self) -> dict[str, int]:
        """Blobs with their bytes, and what a cut left half written."""

    def remove(self, names: Collection[str]) -> None:
        """Remove blobs, those that are gone already too."""

    def forget(self, names: Collection[str]) -> None:
        """Take no blob of these for whole that this process has not read since."""

    def sweep(self) -> None:
        """Remove what a killed process left half written; only while nobody else writes."""

    def is_writable(self) -> bool:
        """Whether a blob could be written now."""

    def check_rights(self) -> None:
        """Make sure that blobs can be written, listed and removed.

        Raises:
            BlobsAway: Something of that is refused.
        """

    def fleet(self) -> str:
        """The id of the fleet that the blobs belong to; empty where nobody said so."""

    def claim(self, fleet_id: str) -> None:
        """Say which fleet the blobs belong to."""


def is_blob(name: str) -> bool:
    """Whether a name is a blob's, or of one half written."""
    return re.fullmatch(r"[0-9a-f]{64}(\.[0-9a-f]+\.tmp)?", name) is not None


class FolderBlobs:
    """Blobs in a folder; several processes may use it.

    A blob that was found whole is not read again while its file stays the same: size, time and
    place of its file tell.

    Args:
        folder: Where they lie; made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._seen: dict[str, tuple[int, int, int]] = {}

    def __str__(self) -> str:
        return str(self.folder)

    def put(self, body: bytes, name: str = "") -> str:
        """Write bytes under their SHA-256, durable when this returns; the same bytes twice are one.

        Temporary file, fsync, rename, fsync of the folder: after a power cut the name is either
        missing or whole. One that is there but damaged is written anew.
        """
        name = name or sha256(body)
        path = self.folder / name
        if not is_whole(path):
            temporary = self.folder / f"{name}.{secrets.token_hex(4)}.tmp"
            try:
                with open(temporary, "xb", opener=private) as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:  # on a full disk each try would leave its own
                temporary.unlink(missing_ok=True)
        sync_folder(self.folder)  # also when it was there: its rename may be young
        return name

    def keep(self, part: Path, name: str) -> None:
        """Make a file that is whole a blob, durable when this returns."""
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(self.folder / name)
        sync_folder(self.folder)

    def read(self, name: str) -> bytes:
        try:
            body = self.path(name).read_bytes()
        except FileNotFoundError as error:
            raise BlobDamaged(f"blob {self.path(name)} is missing; {RESTORE}") from error
        if sha256(body) != name:
            raise BlobDamaged(f"blob {self.path(name)} is damaged; {RESTORE}")
        return body

    def check(self, name: str) -> None:
        """Make sure that a blob is whole; its file is read where it has changed since."""
        path = self.path(name)
        try:
            told = path.stat()
            mark = told.st_size, told.st_mtime_ns, told.st_ino
            if self._seen.get(name) == mark:
                return
            is_sound = is_whole(path)
        except FileNotFoundError as error:
            self._seen.pop(name, None)
            raise BlobDamaged(f"blob {path} is missing; {RESTORE}") from error
        if not is_sound:
            raise BlobDamaged(f"blob {path} is damaged; {RESTORE}")
        if len(self._seen) >= 256:  # blobs that are known to be whole
            self._seen.pop(next(iter(self._seen)))
        self._seen[name] = mark

    def path(self, name: str) -> Path:
        return self.folder / name

    def size(self, name: str) -> int:
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError as error:
            raise BlobDamaged(f"blob {self.path(name)} is missing; {RESTORE}") from error

    def present(self) -> dict[str, int]:
        """Blobs with their bytes, and what a cut left half written."""
        found = {}
        for entry in self.folder.iterdir():
            if is_blob(entry.name):
                with suppress(FileNotFoundError):  # somebody else removes too
                    found[entry.name] = entry.stat().st_size
        return found

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def forget(self, names: Collection[str]) -> None:
        """Take no blob of these for whole that this process has not read since."""
        for name in names:
            self._seen.pop(name, None)

    def sweep(self) -> None:
        """Remove what a killed process left half written; only while nobody else writes."""
        for path in self.folder.glob("*.tmp"):
            path.unlink(missing_ok=True)

    def check_rights(self) -> None:
        """Nothing: whoever cannot write into the folder could not open the store."""

    def is_writable(self) -> bool:
        """Whether a file can be written here, and is on disk."""
        # `.tmp` as all that a killed process may leave behind; of a name of its own, for several.
        path = self.folder / f"ready.{secrets.token_hex(4)}.tmp"
        try:
            with path.open("wb") as file:
                file.write(b"ready")
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
        except OSError:
            return False
        return True

    def fleet(self) -> str:
        """The id of the fleet that the blobs belong to; empty where nobody said so."""
        with suppress(FileNotFoundError):
            return (self.folder / FLEET).read_text()
        return ""

    def claim(self, fleet_id: str) -> None:
        write_atomically(self.folder / FLEET, fleet_id.encode(), mode=0o600)


def is_whole(path: Path) -> bool:
    """Whether a blob is there and its bytes match its name."""
    try:
        return file_sha256(path) == path.name
    except FileNotFoundError:
        return False


READ_BYTES = 1 << 18


class Partial:
    """A file that arrives piece by piece and is hashed on the way; it outlives the process.

    Its bytes are not durable: after a power cut they may be others, which the hash of the whole
    tells. Not safe to use from several threads at once.

    Args:
        path: Where it lies.
        name: SHA-256 of what it is to become.

    Attributes:
        path: As given.
        name: As given.
        size: Bytes that have arrived.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.size = path, name, 0
        self._hash = hashlib.sha256()

    def resume(self) -> None:
        """Go on after what lies there from an earlier life of the process."""
        with self.path.open("rb") as file:
            while block := file.read(READ_BYTES):
                self._hash.update(block)
                self.size += len(block)

    def restart(self) -> None:
        self.path.unlink(missing_ok=True)
        open(self.path, "xb", opener=private).close()
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, piece: bytes | bytearray) -> None:
        """Add bytes to the end.

        Raises:
            OSError: The disk is full; `size` tells how much of it is there.
        """
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            left = memoryview(piece)
            while left:
                written = os.pwrite(descriptor, left, self.size)
                self._hash.update(left[:written])
                self.size, left = self.size + written, left[written:]
        finally:
            os.close(descriptor)

    def is_whole(self) -> bool:
        """Whether what has arrived is what it is to become."""
        return self._hash.hexdigest() == self.name

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
