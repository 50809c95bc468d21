"""Blobs: bytes named by their SHA-256, stored durably before anything refers to them."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

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
        ...

    def keep(self, part: Path, name: str) -> None:
        """Make a file that is whole a blob; the file itself is gone then.

        Args:
            part: The file, on the disk of the store's folder.
            name: SHA-256 of its bytes.
        """
        ...

    def read(self, name: str) -> bytes:
        """The bytes of a blob.

        Raises:
            BlobDamaged: There is no such blob, or its bytes no longer match its name.
        """
        ...

    def check(self, name: str) -> None:
        """Make sure that a blob is whole; its bytes are read where that is not known.

        Raises:
            BlobDamaged: It is missing or damaged.
        """
        ...

    def path(self, name: str) -> Path:
        """A file of this machine with the bytes of a blob, if the blob is there."""
        ...

    def size(self, name: str) -> int:
        """How many bytes a blob has.

        Raises:
            BlobDamaged: There is no such blob.
        """
        ...

    def present(self) -> dict[str, int]:
        """Blobs with their bytes, and what a cut left half written."""
        ...

    def remove(self, names: Collection[str]) -> None:
        """Remove blobs, those that are gone already too."""
        ...

    def forget(self, names: Collection[str]) -> None:
        """Take no blob of these for whole that this process has not read since."""
        ...

    def sweep(self) -> None:
        """Remove what a killed process left half written; only while nobody else writes."""
        ...

    def is_writable(self) -> bool:
        """Whether a blob could be written now."""
        ...

    def check_rights(self) -> None:
        """Make sure that blobs can be written, listed and removed.

        Raises:
            BlobsAway: Something of that is refused.
        """
        ...

    def fleet(self) -> str:
        """The id of the fleet that the blobs belong to; empty where nobody said so."""
        ...

    def claim(self, fleet_id: str) -> None:
        """Say which fleet the blobs belong to."""
        ...


def is_blob(name: str) -> bool:
    """Whether a name is a blob's, or of one half written."""
    return re.fullmatch(r"[0-9a-f]{64}(\.[0-9a-f]+\.tmp)?", name) is not None
