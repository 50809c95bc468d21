"""Disk cache of frozen layers' outputs: computed once per text, read by every later pass.

    cache = ActivationCache(state_folder / "activations", 256 << 20, base.base_id)
    key = cache.key(4, ids, "float32 states")
    if (states := cache.get(key)) is None: cache.put(key, computed.astype(np.float16))

One file per entry, written beside its name and renamed, with a checksum over key, shape and
numbers; a kill or power cut leaves a complete entry or none, so nothing is synced. An entry's age
is its file's time. Not for several threads or processes at once: whoever opens the cache locks its
folder.
"""

import hashlib
import logging
import os
import re
import shutil
import struct
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np

from smidgen.edge_client.files import private

log = logging.getLogger(__name__)

HEADER = struct.Struct("<II16s")  # rows, columns, checksum
BLOCK_BYTES = 4096  # a file takes whole blocks of the disk, and of most disks such ones
FOLDER = re.compile(r"[0-9a-f]{32}")  # of one base's entries
ENTRY = re.compile(r"[0-9a-f]{64}")


class ActivationCache:
    """Arrays of float16 by key, bounded in bytes; the least recently used leave first.

    Laws: what `get` gives is what `put` got, bit by bit, or nothing; files never take more than
    the limit, each one counted in whole blocks of the disk; nothing that happens to the disk
    raises.

    Args:
        folder: Made if it is not there; entries of other bases in it are deleted.
        limit_bytes: Most bytes of all entries' blocks together; 0 keeps nothing.
        base_id: SHA-256 of the base.
    """

    def __init__(self, folder: Path, limit_bytes: int, base_id: str) -> None:
        self._base_id, self._limit_bytes = base_id, limit_bytes
        name = hashlib.sha256(base_id.encode()).hexdigest()[:32]
        self._folder, self._is_on = folder / name, limit_bytes > 0
        self._sizes: OrderedDict[str, int] = OrderedDict()  # of files' blocks, the oldest first
        self._held = 0
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # as private as the texts
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._sweep(folder)
            self._find()
        except OSError as error:
            self._turn_off(error)
        self._make_room(0)

    @property
    def held_bytes(self) -> int:
        return self._held

    def key(
        self, layers: int, ids: np.ndarray, what: str, segments: np.ndarray | None = None
    ) -> str:
        """The name of what some of the lowest layers give for one text.

        Args:
            layers: How many.
            ids: The text's token ids, without padding.
            what: Which part of it, computed in what.
            segments: Of each id; None: all 0.
        """
        told = hashlib.sha256(f"{self._base_id}\n{layers}\n{what}\n{len(ids)}\n".encode())
        for numbers in (ids, segments):
            if numbers is not None:
                told.update(np.ascontiguousarray(numbers, np.dtype("<i8")).tobytes())
        return told.hexdigest()

    def get(self, key: str) -> np.ndarray | None:
        """The array under a key, float16, (rows, columns); None if it is missing or damaged.

        An entry that is not whole is deleted.
        """
        if key not in self._sizes:
            return None
        try:
            array = _decoded(key, (self._folder / key).read_bytes())
            if array is not None:
                os.utime(self._folder / key)
        except OSError:
            array = None
        if array is None:
            self._drop(key)
        else:
            self._sizes.move_to_end(key)
        return array

    def put(self, key: str, array: np.ndarray) -> None:
        """Keep an array, float16, (rows, columns), if it fits at all; older entries make room.

        A disk that is full or read-only is told once, and nothing is kept from then on.
        """
        size = _in_blocks(HEADER.size + array.nbytes)
        if not self._is_on or size > self._limit_bytes:
            return
        self._drop(key)
        self._make_room(size)
        part = self._folder / f"{key}.part"
        try:
            with open(part, "wb", opener=private) as file:
                file.write(_encoded(key, array))
            part.replace(self._folder / key)
        except OSError as error:
            self._turn_off(error)
            with suppress(OSError):
                part.unlink(missing_ok=True)
            return
        self._sizes[key] = size
        self._held += size

    def _sweep(self, folder: Path) -> None:
        for other in folder.iterdir():
            if FOLDER.fullmatch(other.name) and other.name != self._folder.name:
                shutil.rmtree(other, ignore_errors=True)

    def _find(self) -> None:
        """Find the entries; delete what a killed process left half written."""
        found = []
        for entry in self._folder.iterdir():
            if ENTRY.fullmatch(entry.name):
                told = entry.stat()
                found.append((told.st_mtime_ns, entry.name, _in_blocks(told.st_size)))
            elif entry.name.endswith(".part"):
                entry.unlink()
        for _, key, size in sorted(found):
            self._sizes[key] = size
            self._held += size

    def _make_room(self, size: int) -> None:
        """Delete the least recently used until an entry of `size` fits."""
        while self._sizes and self._held + size > self._limit_bytes:
            self._drop(next(iter(self._sizes)))

    def _drop(self, key: str) -> None:
        size = self._sizes.pop(key, None)
        if size is not None:
            self._held -= size
            with suppress(OSError):
                (self._folder / key).unlink()

    def _turn_off(self, error: OSError) -> None:
        if self._is_on:
            log.warning("no more activations are kept in %s: %s", self._folder.parent, error)
        self._is_on = False


def _in_blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _checksum(key: str, rows: int, columns: int, body: bytes | memoryview) -> bytes:
    told = hashlib.blake2b(f"{key} {rows} {columns}\n".encode(), digest_size=16)
    told.update(body)
    return told.digest()


def _encoded(key: str, array: np.ndarray) -> bytes:
    rows, columns = array.shape
    body = np.ascontiguousarray(array, np.dtype("<f2")).tobytes()
    return HEADER.pack(rows, columns, _checksum(key, rows, columns, body)) + body


def _decoded(key: str, content: bytes) -> np.ndarray | None:
    if len(content) < HEADER.size:
        return None
    rows, columns, checksum = HEADER.unpack_from(content)
    body = memoryview(content)[HEADER.size :]
    if len(body) != 2 * rows * columns or _checksum(key, rows, columns, body) != checksum:
        return None
    return np.frombuffer(body, np.dtype("<f2")).reshape(rows, columns)
