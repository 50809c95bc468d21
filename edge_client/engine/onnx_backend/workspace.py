"""Resources of an onnx engine: ONNX Runtime sessions, reusable buffers, worker threads."""

import ctypes
import mmap
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from smidgen.edge_client.bases.quantization import Stored
from smidgen.edge_client.bases.weights import Spans, Weights
from smidgen.edge_client.engine.onnx_backend.runtime import Runtime
from smidgen.edge_client.engine.onnx_backend.spill import Spill

# Of numpy's own wheels, of Debian's and conda-forge's.
BLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
)
AHEAD = 4 << 20  # bytes of a base's file that are read before they are used
HUGE = 4 << 20  # bytes of a room from which on large pages are asked for, as numpy does


class BufferPool:
    """Arrays by name, reused from step to step.

    Memory that is new to a process is zeroed page by page when it is touched; what lies here is
    touched once. A room is as large as the largest array that was asked of it, and a mapping of its
    own: in the heap, what graphs free would lie scattered between rooms.
    """

    def __init__(self) -> None:
        self._rooms: dict[str, np.ndarray] = {}

    def take(
        self, name: str, shape: Sequence[int], dtype: type[np.generic] = np.float32
    ) -> np.ndarray:
        """An array of a name; what was taken under the name before is overwritten."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        room = self._rooms.pop(name, None)
        if room is None or len(room) < size:
            del room  # before the larger one is had
            room = _mapped(size)
        self._rooms[name] = room
        return room[:size].view(dtype).reshape(shape)

    @property
    def bytes(self) -> int:
        return sum(len(room) for room in self._rooms.values())

    def clear(self) -> None:
        self._rooms.clear()


def _mapped(size: int) -> np.ndarray:
    """A mapping of anonymous memory, unmapped when its last view goes."""
    try:
        room = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # as numpy says it, so that the step is repeated by a smaller plan
        raise MemoryError(f"unable to map {size} bytes: {error.strerror}") from error
    if size >= HUGE:
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, np.uint8)


class ReadAhead:
    """Has a base's file read before its matrices are used, in the order of the pass before.

    A page that is missing is read when it is touched, while nothing is computed. The kernel's own
    reading ahead ends with a matrix, and one that is large enough to help reads what nobody wants.

    Args:
        weights: Of the base.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._before: list[Spans] = []
        self._now: list[Spans] = []
        self._asked = 0  # of those before

    def restart(self) -> None:
        """A new pass begins."""
        self._before, self._now, self._asked = self._now, [], 0

    def use(self, stored: Stored) -> None:
        """A matrix is about to be used: ask for those behind it, AHEAD bytes or one."""
        self._now.append(self._weights.spans(stored))
        at = len(self._now)
        if self._before[at - 1 : at] != self._now[-1:]:
            return  # another pass, or one that goes on
        self._asked = max(self._asked, at)
        ahead = sum(end - start for spans in self._before[at : self._asked] for start, end in spans)
        while self._asked < len(self._before) and ahead < AHEAD:
            spans = self._before[self._asked]
            self._weights.read_ahead(spans)
            ahead += sum(end - start for start, end in spans)
            self._asked += 1


@dataclass
class Bench:
    """Where work is done.

    Attributes:
        runtime: Runs graphs.
        rooms: Arrays for what they make.
        helpers: Threads beside this one, for what numpy does in parts; None with one thread.
        is_sliced: Whether large matrices are made dense a slice at a time.
        spill: Keeps arrays in a file.
        ahead: Reads the base's file ahead; None: nothing does.
    """

    runtime: Runtime
    rooms: BufferPool
    helpers: ThreadPoolExecutor | None
    is_sliced: bool = False
    spill: Spill = field(default_factory=Spill)
    ahead: ReadAhead | None = None

    @property
    def threads(self) -> int:
        """How many threads compute, this one included."""
        return self.runtime.threads

    def on_threads(self, work: Callable[[int], None]) -> None:
        """Let each thread do its part of some work, by number; this one is 0.

        Raises:
            MemoryError: There is none for a thread, which is started when it is first needed.
        """
        others = range(1, self.threads if self.helpers else 1)
        try:
            waiting = [self.helpers.submit(work, thread) for thread in others if self.helpers]
        except RuntimeError as error:
            raise MemoryError(f"no memory for a thread: {error}") from error
        work(0)
        for done in waiting:
            done.result()

    def rest(self) -> None:
        """Give back all room, the runtime's own too; the next work takes it again."""
        self.rooms.clear()
        self.spill.close()
        self.runtime.rest()

    def close(self) -> None:
        self.rest()
        self.runtime.close()
        if self.helpers is not None:
            self.helpers.shutdown()


@cache
def blas_on_one_thread() -> bool:
    """Let numpy's products be made on the calling thread alone, in this process.

    Threads of its library's own would meet at each product, on as many processors again.

    Returns:
        Whether the library is one that is known here; another goes on as it did.
    """
    loaded = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    setter = next((name for name in BLAS_SETTERS if hasattr(loaded, name)), None)
    if setter is not None:
        loaded[setter](1)
    return setter is not None


def open_bench(threads: int) -> Bench:
    """A new bench; a process's first one decides how many threads ONNX Runtime has."""
    helpers = ThreadPoolExecutor(threads - 1, "smidgen-dense") if threads > 1 else None
    return Bench(Runtime(threads), BufferPool(), helpers)
