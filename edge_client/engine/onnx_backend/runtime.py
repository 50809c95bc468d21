"""ONNX Runtime sessions for many small graphs, with one thread pool and one memory arena.

Inputs and outputs are bound by address: nothing is copied, and outputs lie where the caller wants
them.

    runtime = Runtime(threads=2)
    runtime.run(("norm", 1e-5), lambda: norm(1e-5), {"x": x, "weight": w, "bias": b}, {"y": out})
"""

import os
import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

# From 1.29 on it looks for its maker's server as soon as it is loaded, unless told before.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.onnx_backend.model import Graph
from smidgen.edge_client.planning.allocator import let_go_of_code

OLDEST = (1, 23)  # the last that runs on Python 3.10
FATAL = 4  # logged; what is less comes as an exception


class Runtime:
    """Sessions of small graphs, made when they are first needed.

    Args:
        threads: How many compute together; the first runtime of a process decides for all.

    Raises:
        EngineError: ONNX Runtime is older than 1.23.
    """

    def __init__(self, threads: int) -> None:
        check_version(onnxruntime.__version__)
        _share(threads)
        self.threads = threads
        self._sessions: dict[Hashable, Any] = {}
        self._has_opened = False  # since code was let go of
        self._largest = 0, 0  # tokens together and of a text, since the arena was emptied

    def run(
        self,
        key: Hashable,
        build: Callable[[], Graph],
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        options: Any = None,
    ) -> None:
        """Run a graph from arrays into arrays, all of them contiguous.

        Args:
            key: The name under which the graph's session is kept.
            build: Makes the graph where there is no session yet.
            inputs: Arrays by the graph's names.
            outputs: Arrays by the graph's names; overwritten.
            options: The runtime's own, for this run.
        """
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = self.open(build().model())
            self._has_opened = True
        elif self._has_opened:  # all of a layer are there, or of a step
            let_go_of_code()  # half of it has made sessions, or read the base, and runs no more
            self._has_opened = False
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding, options)

    def open(self, model: bytes) -> Any:
        """A session of a model, on the processor, with the process's pool of threads.

        The only place that opens one: a session that came before the pool would be refused.

        Raises:
            EngineError: The library lacks an operator, or a kernel for it.
            MemoryError: There is none left for it.
        """
        state = onnxruntime.capi._pybind_state
        providers = ["CPUExecutionProvider"]
        try:
            return onnxruntime.InferenceSession(model, _options(), providers=providers)
        except (state.Fail, state.NotImplemented, state.InvalidGraph) as error:
            raise EngineError(
                f"onnxruntime {onnxruntime.__version__} cannot run a graph of this engine "
                f"({error}); pip install --upgrade onnxruntime"
            ) from error
        except state.RuntimeException as error:  # which is no RuntimeError of Python's
            if "bad_alloc" not in str(error):
                raise
            raise MemoryError(f"no memory for a graph: {error}") from error

    def begin(self, tokens: int, longest: int) -> None:
        """Before texts are computed together: empty the arena if none before were as large.

        Of each size that grows it keeps a block, into which no larger one goes.

        Args:
            tokens: Of all the texts.
            longest: Of the longest.
        """
        largest = max(tokens, self._largest[0]), max(longest, self._largest[1])
        if largest != self._largest:
            self.rest()
            self._largest = largest

    def rest(self) -> None:
        """Give back what the arena holds beside what is in use."""
        self._largest = 0, 0
        if self._sessions:
            options = onnxruntime.RunOptions()
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
            number = np.zeros(1, np.float32)
            self.run("rest", _little, {"x": number}, {"y": number.copy()}, options)

    def close(self) -> None:
        self._sessions.clear()


_sharing = Lock()
_shared: list[int] = []  # the threads of the process's pool, once there is one


def _share(threads: int) -> None:
    """Give the process's sessions one pool of threads and one arena; only the first call counts.

    What a graph holds in passing lies in the arena. In the C library's heap, blocks that are
    aligned leave holes which the next ones do not fit into: a step's peak was a fifth higher.
    """
    with _sharing:
        if _shared:
            return
        # For 1.23 this is not yet among the public names.
        onnxruntime.capi._pybind_state.set_global_thread_pool_sizes(threads, 1)
        kind, use = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType
        memory = onnxruntime.OrtMemoryInfo("Cpu", kind.ORT_ARENA_ALLOCATOR, 0, use.DEFAULT)
        as_requested = onnxruntime.OrtArenaCfg(0, 1, -1, -1)  # grows by what is asked, no more
        onnxruntime.create_and_register_allocator(memory, as_requested)
        _shared.append(threads)


def _little() -> Graph:
    graph = Graph("little")
    x = graph.input("x", "float32", (1,))
    graph.output(graph.node("Neg", x), "y", "float32", (1,))
    return graph


@cache
def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    options.log_severity_level = FATAL
    return options


def check_version(version: str) -> None:
    """Refuse a runtime older than any this engine was tried with.

    Raises:
        EngineError: It is; the message says what to install.
    """
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EngineError(
            f"onnxruntime {version} is too old for the onnx engine's graphs; "
            f"pip install 'onnxruntime>={oldest}'"
        )
