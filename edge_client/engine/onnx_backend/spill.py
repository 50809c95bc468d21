"""Numbers of training that wait in a file: layers' inputs, and an optimizer's moments.

ONNX Runtime is not imported here, for an optimizer serves other backends too.
"""

import math
from collections.abc import Iterator, Mapping
from tempfile import TemporaryFile
from typing import IO
from weakref import finalize

import numpy as np

from edge_client.engine.engine import EngineError
from edge_client.texts.vocabulary import disk_folder
from edge_client.wire.tensors import AdapterState, check_same_parameters, shapes_of


class Spill:
    """Arrays by their place, in an unnamed file that goes with the process.

    The file lies in `TMPDIR` or, where that is not set, where temporary files outlast a restart: a
    folder in memory would save none. It is closed with the spill, or when the spill goes.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._closing: finalize[[], Spill] | None = None

    def write(self, at: int, x: np.ndarray) -> None:
        """Put an array aside, from byte `at` of the file on.

        Raises:
            EngineError: There is no room for it, or no folder.
        """
        folder = disk_folder()
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=folder)  # noqa: SIM115
                self._closing = finalize(self, self._file.close)
            self._file.seek(at)
            self._file.write(x.data)
            self._file.flush()
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
        try:
            self._file.seek(at)
            count = self._file.readinto(x.data)  # type: ignore[attr-defined]
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
        is_spilled: Whether they lie in a file, from which one tensor's are read at a time.

    Raises:
        EngineError: The file cannot be had whole.
    """

    def __init__(self, tensors: AdapterState, is_spilled: bool) -> None:
        self._shapes = shapes_of(tensors)
        self._arrays: AdapterState = {}
        if not is_spilled:
            self._arrays = {name: np.zeros(one.shape, np.float32) for name, one in tensors.items()}
            return
        self._spill, self._room, self._places, place = Spill(), spare_room(tensors), {}, 0
        for name, tensor in tensors.items():  # now, for a step that was begun is done whole
            self._spill.write(place, np.zeros_like(tensor))
            self._places[name] = place
            place += tensor.nbytes

    def __getitem__(self, name: str) -> np.ndarray:
        """Those of a tensor: the array itself, or a copy of what lies in the file."""
        found = self._arrays.get(name)
        if found is None:
            place, shape = self._places[name], self._shapes[name]
            found = self._spill.read(place, np.empty(shape, np.float32))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def take(self, name: str) -> np.ndarray:
        """As by name, to be changed and put back before the next is taken."""
        if self._arrays:
            return self._arrays[name]
        shape = self._shapes[name]
        room = self._room[: math.prod(shape)].reshape(shape)
        return self._spill.read(self._places[name], room)

    def put(self, name: str, numbers: np.ndarray) -> None:
        """Let these be a tensor's from now on."""
        if not self._arrays:
            self._spill.write(self._places[name], numbers)
        elif (own := self._arrays[name]) is not numbers:
            np.copyto(own, numbers)

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take all from there.

        Raises:
            WireError: Names or shapes are others.
        """
        check_same_parameters(state, self._shapes)
        for name in self:
            self.put(name, state[name])
