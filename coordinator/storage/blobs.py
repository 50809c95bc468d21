"""Files named by the SHA-256 of their bytes, on disk before anybody hears that they are."""

import os
import secrets
from pathlib import Path

from edge_client.wire.tensors import sha256


def put_blob(folder: Path, body: bytes, name: str = "") -> str:
    """Write bytes under their SHA-256, durable when this returns; the same bytes twice are one.

    Temporary file, fsync, rename, fsync of the folder: after a power cut the name is either
    missing or whole.

    Args:
        folder: Where blobs lie.
        body: The bytes.
        name: Their SHA-256, where it is known.
    """
    name = name or sha256(body)
    path = folder / name
    if not path.exists():
        temporary = folder / f"{name}.{secrets.token_hex(4)}.tmp"
        with temporary.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    descriptor = os.open(folder, os.O_RDONLY)  # also when it was there: its rename may be young
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return name


def read_blob(folder: Path, name: str) -> bytes:
    """The bytes of a blob.

    Raises:
        OSError: There is no such blob, or its bytes no longer match its name.
    """
    body = (folder / name).read_bytes()
    if sha256(body) != name:
        raise OSError(f"blob {folder / name} is damaged; restore it from a backup of the store")
    return body


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written; only while nobody else writes."""
    for path in folder.glob("*.tmp"):
        path.unlink()
