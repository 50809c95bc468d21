"""What arrives piece by piece, until it is whole and becomes a blob."""

import hashlib
import os
from pathlib import Path

from edge_client.files import private

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
        """Begin again, with an empty file."""
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
        """Remove the file, if it is there."""
        self.path.unlink(missing_ok=True)
