"""ONNX Runtime as this engine uses it: small graphs, one pool of threads, no memory of its own.

Arrays are handed over by address, inputs and outputs alike: nothing is copied, and what a graph
gives out lies where the caller wants it.

    runtime = Runtime(threads=2)
    runtime.run(("norm", 1e-5), lambda: norm(1e-5), {"x": x, "weight": w, "bias": b}, {"y": out})
"""

import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnxruntime

from edge_client.engine import EngineError
from edge_client.onnx_model import Graph

OLDEST = (1, 23)  # the last that runs on Python 3.10
FATAL = 4  # logged; what is less comes as an exception


class Runtime:
    """Sessions of small graphs, made when they are first needed.

    Args:
        threads: That compute together; the first runtime of a process decides for all.

    Raises:
        EngineError: ONNX Runtime is older than 1.23.
    """

    def __init__(self, threads: int) -> None:
        check_version(onnxruntime.__version__)
        if not _pool:
            # All sessions share it; for 1.23 this is not yet among the public names.
            onnxruntime.capi._pybind_state.set_global_thread_pool_sizes(threads, 1)
            _pool.append(threads)
        self.threads = threads
        self._sessions: dict[Hashable, Any] = {}

    def run(
        self,
        key: Hashable,
        build: Callable[[], Graph],
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Run a graph from arrays into arrays, all of them contiguous.

        Args:
            key: Under which the graph's session is kept.
            build: Makes the graph where there is no session yet.
            inputs: By the graph's names.
            outputs: By the graph's names; overwritten.
        """
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = open_session(build().model())
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding)

    def close(self) -> None:
        """Drop all sessions."""
        self._sessions.clear()


_pool: list[int] = []  # the process's threads, once there are some


def open_session(model: bytes) -> Any:
    """A session of a model, on the processor, with the process's pool of threads."""
    return onnxruntime.InferenceSession(model, _options(), providers=["CPUExecutionProvider"])


@cache
def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    options.enable_cpu_mem_arena = False  # it grows and gives nothing back
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
