import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.onnx_backend.graphs import bias_gradient, norm
from smidgen.edge_client.engine.onnx_backend.model import Graph
from smidgen.edge_client.engine.onnx_backend.runtime import Runtime, check_version


@pytest.mark.parametrize("version", ["1.22.1", "1.9.0", "1.22", "0.5", "1.22.0+cu126"])
def test_a_runtime_that_is_too_old_is_told_in_one_line(version: str) -> None:
    with pytest.raises(EngineError) as told:
        check_version(version)
    assert str(told.value) == (
        f"onnxruntime {version} is too old for the onnx engine's graphs; "
        "pip install 'onnxruntime>=1.23'"
    )


@pytest.mark.parametrize("version", ["1.23.0", "1.23", "1.31.1", "1.100.0.dev20300101", "2.0.0"])
def test_a_runtime_that_is_new_enough_is_taken(version: str) -> None:
    check_version(version)


def test_what_a_runtime_cannot_run_is_told_in_one_line() -> None:
    graph = Graph("unknown")
    y = graph.node("NoSuchOperator", graph.input("x", "float32", ("n",)))
    graph.output(y, "y", "float32", ("n",))
    with pytest.raises(EngineError, match=r"cannot run a graph of this engine .*NoSuchOp") as told:
        Runtime(threads=2).open(graph.model())
    assert "\n" not in str(told.value)


def test_the_runtime_keeps_nothing_to_report_to_its_maker(tmp_path: Path) -> None:
    """Newer ones draw an id for the device in `.cache/Microsoft` and ask for their server."""
    line = [sys.executable, "-c", "import smidgen.edge_client.engine.onnx_backend.runtime"]
    subprocess.run(line, check=True, env=os.environ | {"HOME": str(tmp_path)})
    assert list(tmp_path.rglob("*")) == []


FIRST = """
from smidgen.edge_client.engine.onnx_backend.graphs import narrow
from smidgen.edge_client.engine.onnx_backend.runtime import Runtime

print(Runtime(threads=2).open(narrow().model()).get_outputs()[0].name)
"""


def test_the_first_session_of_a_process_finds_the_shared_threads() -> None:
    """Before there was one way to open a session, the library refused it without a pool."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout == "y\n"


def test_a_graph_is_run_between_the_callers_own_arrays() -> None:
    whole, sums = np.ones((6, 4), np.float32), np.full((3, 4), 7, np.float32)
    runtime = Runtime(threads=2)
    runtime.run("sum", bias_gradient, {"g": whole[2:5]}, {"bias_g": sums[1]})
    assert sums.tolist() == [[7] * 4, [3] * 4, [7] * 4]
    whole[2:5] = 2
    runtime.run("sum", bias_gradient, {"g": whole[2:5]}, {"bias_g": sums[1]})
    assert sums.tolist() == [[7] * 4, [6] * 4, [7] * 4]


def test_a_graph_is_built_once_for_all_sizes() -> None:
    built, runtime = [], Runtime(threads=2)

    def build() -> Graph:
        built.append(1)
        return bias_gradient()

    for rows, columns in ((1, 1), (9, 2), (3, 50)):
        out = np.empty(columns, np.float32)
        g = np.ones((rows, columns), np.float32)
        runtime.run("sum", build, {"g": g}, {"bias_g": out})
        assert (out == rows).all()
    assert len(built) == 1
    runtime.close()
    runtime.run("sum", build, {"g": g}, {"bias_g": out})
    assert len(built) == 2


def test_arrays_may_begin_anywhere() -> None:
    """A checkpoint's tensors need not lie at multiples of four."""
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    odd = np.zeros(x.nbytes + 4, np.uint8)
    for start in range(4):
        there = odd[start : start + x.nbytes].view(np.float32).reshape(x.shape)
        there[:] = x
        y = np.empty_like(x)
        ends = {"x": there, "weight": there[0], "bias": there[1]}
        Runtime(threads=2).run("norm", lambda: norm(1e-5), ends, {"y": y})
        centered = x - x.mean(axis=1, keepdims=True)
        wanted = centered / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * x[0] + x[1]
        np.testing.assert_allclose(y, wanted, rtol=1e-5)
