"""Files named by the SHA-256 of their bytes, on disk before anybody hears that they are.

What arrives piece by piece lies in a `Partial` until it is whole; then `keep_blob` names it.
"""

import hashlib
import os
import secrets
from pathlib import Path

from edge_client.files import file_sha256, private, sync_folder
from edge_client.wire.tensors import sha256

READ_BYTES = 1 << 18
MOST_SEEN = 256  # blobs that are known to be whole
RESTORE = "restore it from a backup of the store"


class BlobDamaged(OSError):
    """A blob that is missing, or whose bytes no longer match its name."""


def put_blob(folder: Path, body: bytes, name: str = "") -> str:
    """Write bytes under their SHA-256, durable when this returns; the same bytes twice are one.

    Temporary file, fsync, rename, fsync of the folder: after a power cut the name is either
    missing or whole. One that is there but damaged is written anew.

    Args:
        folder: Where blobs lie.
        body: The bytes.
        name: Their SHA-256, where it is known.
    """
    name = name or sha256(body)
    path = folder / name
    if not is_whole(path):
        temporary = folder / f"{name}.{secrets.token_hex(4)}.tmp"
        with open(temporary, "xb", opener=private) as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    sync_folder(folder)  # also when it was there: its rename may be young
    return name


def keep_blob(folder: Path, part: Path, name: str) -> None:
    """Make a file that is whole a blob, durable when this returns; the file itself is gone then.

    Args:
        folder: Where blobs lie.
        part: The file, on the same disk.
        name: SHA-256 of its bytes.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(folder / name)
    sync_folder(folder)


def read_blob(folder: Path, name: str) -> bytes:
    """The bytes of a blob.

    Raises:
        BlobDamaged: There is no such blob, or its bytes no longer match its name.
    """
    try:
        body = (folder / name).read_bytes()
    except FileNotFoundError as error:
        raise BlobDamaged(f"blob {folder / name} is missing; {RESTORE}") from error
    if sha256(body) != name:
        raise BlobDamaged(f"blob {folder / name} is damaged; {RESTORE}")
    return body


def is_whole(path: Path) -> bool:
    """Whether a blob is there and its bytes match its name."""
    try:
        return file_sha256(path) == path.name
    except FileNotFoundError:
        return False


class Checked:
    """Blobs whose bytes were found to match their names, read once per state of their files.

    A file that was written to since is read again: size, time and place of its file tell. Safe to
    use from several threads.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, int]] = {}

    def check(self, path: Path) -> None:
        """Make sure of a blob.

        Raises:
            BlobDamaged: It is not there, or its bytes no longer match its name.
        """
        try:
            told = path.stat()
            mark = told.st_size, told.st_mtime_ns, told.st_ino
            if self._seen.get(path.name) == mark:
                return
            is_sound = is_whole(path)
        except FileNotFoundError as error:
            self._seen.pop(path.name, None)
            raise BlobDamaged(f"blob {path} is missing; {RESTORE}") from error
        if not is_sound:
            raise BlobDamaged(f"blob {path} is damaged; {RESTORE}")
        if len(self._seen) >= MOST_SEEN:
            self._seen.pop(next(iter(self._seen)))
        self._seen[path.name] = mark


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written; only while nobody else writes."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)


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
        """Begin again, with an empty file."""
        self.path.unlink(missing_ok=True)
        open(self.path, "xb", opener=private).close()
        self.size, self._hash = 0, hashlib.sha256()

    def write(self, piece: bytes | bytearray) -> None:
        """Add bytes to the end.

        Raises:
            OSError: The disk is full; what is there can no longer be gone on with.
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
        """Remove the file, if it is there."""
        self.path.unlink(missing_ok=True)
