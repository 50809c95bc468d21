"""Numbers of training that wait in a file: layers' inputs, and an optimizer's moments.

ONNX Runtime is not imported here, for an optimizer serves other backends too.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from tempfile import TemporaryFile
from typing import IO
from weakref import finalize

import numpy as np

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.files import reserve
from smidgen.edge_client.texts.vocabulary import disk_folder
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters, shapes_of


class Spill:
    """Arrays by their place, in an unnamed file that goes with the process.

    The file lies in `TMPDIR` or, where that is not set, where temporary files outlast a restart: a
    folder in memory would save none. It is closed with the spill, or when the spill goes.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._closing: finalize[[], Spill] | None = None

    def reserve(self, size: int) -> None:
        """Have room for so many bytes, which read as zeros.

        Raises:
            EngineError: There is no room for them, or no folder.
        """
        with self._putting_aside() as descriptor:
            reserve(descriptor, max(size, 1))

    def write(self, at: int, x: np.ndarray) -> None:
        """Put an array aside, from byte `at` of the file on.

        Raises:
            EngineError: There is no room for it, or no folder.
        """
        left = x.reshape(-1).view(np.uint8).data
        with self._putting_aside() as descriptor:
            while left:
                written = os.pwrite(descriptor, left, at)
                at, left = at + written, left[written:]

    @contextmanager
    def _putting_aside(self) -> Iterator[int]:
        folder = disk_folder()
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=folder)  # noqa: SIM115
                self._closing = finalize(self, self._file.close)
                with suppress(OSError, AttributeError):  # who takes no advice
                    os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            yield self._file.fileno()
        except OSError as error:
            raise EngineError(
                f"numbers of training cannot be put aside in {folder}: {error.strerror}; free "
                "some, set TMPDIR to another folder, or raise --memory-budget"
            ) from error

    def read(self, at: int, x: np.ndarray) -> np.ndarray:
        """An array that was put aside, into `x`, which is given back.

        Raises:
            EngineError: It cannot be read, or not all of it.
        """
        assert self._file is not None
        left, count = x.reshape(-1).view(np.uint8).data, 0
        try:
            while count < x.nbytes:
                if not (more := os.preadv(self._file.fileno(), [left[count:]], at + count)):
                    break
                count += more
        except OSError as error:
            raise EngineError(
                f"numbers of training that were put aside cannot be read: {error.strerror}; set "
                "TMPDIR to a folder on another disk, or raise --memory-budget"
            ) from error
        if count != x.nbytes:
            raise EngineError(
                f"of numbers of training that were put aside {count} of {x.nbytes} bytes are "
                "there; set TMPDIR to a folder on another disk, or raise --memory-budget"
            )
        return x

    def close(self) -> None:
        if self._closing is not None:
            self._closing()
        self._file = self._closing = None


def spare_room(tensors: AdapterState) -> np.ndarray:
    """Room for the largest of some tensors."""
    return np.empty(max((tensor.size for tensor in tensors.values()), default=0), np.float32)


class Kept(Mapping[str, np.ndarray]):
    """One number of an optimizer for each trained one, float32, by tensor: zeros at first.

    Args:
        tensors: What is trained.
        is_spilled: Whether they lie in a file, from which one tensor's are read at a time. It is
            made, with room for all, when the first is taken.
    """

    def __init__(self, tensors: AdapterState, is_spilled: bool) -> None:
        self._shapes = shapes_of(tensors)
        self._spill = Spill() if is_spilled else None
        self._arrays: AdapterState = {}
        if not is_spilled:
            self._arrays = {name: np.zeros(one.shape, np.float32) for name, one in tensors.items()}
        sizes = (4 * math.prod(shape) for shape in self._shapes.values())
        self._places = dict(zip(self._shapes, accumulate(sizes, initial=0), strict=False))
        self._bytes = 4 * sum(tensor.size for tensor in tensors.values())
        self._room = np.empty(0, np.float32)

    def __getitem__(self, name: str) -> np.ndarray:
        """Those of a tensor: the array itself, or a copy of what lies in the file."""
        if self._spill is None:
            return self._arrays[name]
        found = np.zeros(self._shapes[name], np.float32)
        return self._spill.read(self._places[name], found) if self._room.size else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def take(self, name: str) -> np.ndarray:
        """As by name, to be changed and put back before the next is taken.

        Raises:
            EngineError: The file cannot be had whole, or be read.
        """
        if self._spill is None:
            return self._arrays[name]
        self._open(self._spill)
        shape = self._shapes[name]
        room = self._room[: math.prod(shape)].reshape(shape)
        return self._spill.read(self._places[name], room)

    def put(self, name: str, numbers: np.ndarray) -> None:
        """Let these be a tensor's from now on.

        Raises:
            EngineError: The file cannot be had whole, or be written.
        """
        if self._spill is None:
            if (own := self._arrays[name]) is not numbers:
                np.copyto(own, numbers)
            return
        self._open(self._spill)
        self._spill.write(self._places[name], np.ascontiguousarray(numbers, np.float32))

    def _open(self, spill: Spill) -> None:
        if not self._room.size:
            spill.reserve(self._bytes)
            self._room = np.empty(max(map(math.prod, self._shapes.values())), np.float32)

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take all from there.

        Raises:
            WireError: Names or shapes are others.
            EngineError: As of `put`.
        """
        check_same_parameters(state, self._shapes)
        for name in self:
            self.put(name, state[name])
