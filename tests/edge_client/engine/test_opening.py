"""Which engine is meant, whether it is here, and what its libraries take."""

import subprocess
import sys

import pytest

from smidgen.edge_client.engine.engine import EngineError
from smidgen.edge_client.engine.opening import ENGINES, engine_name, installed_engine

MIB = 1 << 20
MEASURED = """
import sys
from dataclasses import replace
from smidgen.edge_client.engine import opening

engine, python, fallback = sys.argv[1:]
opening.ENGINES[engine] = replace(opening.ENGINES[engine], runtime_bytes=int(fallback))
print(opening.runtime_bytes(engine, python))
assert "torch" not in sys.modules and "onnxruntime" not in sys.modules
"""


def measured(engine: str, python: str, fallback: int) -> int:
    """`runtime_bytes` in a process that has loaded no engine."""
    command = [sys.executable, "-c", MEASURED, engine, python, str(fallback)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_is_not_installed_has_a_usual_size(engine: str) -> None:
    assert measured(engine, "/nowhere/python", 7) == 7


@pytest.mark.parametrize(
    ("engine", "least", "most"),
    [
        ("onnx", 32 * MIB, 200 * MIB),
        pytest.param("torch", 100 * MIB, 800 * MIB, marks=pytest.mark.slow),
    ],
)
def test_an_engines_runtime_is_measured_in_a_fresh_process(
    engine: str, least: int, most: int
) -> None:
    pytest.importorskip(ENGINES[engine].library)
    size = measured(engine, sys.executable, 0)
    assert least < size < most and size % MIB == 0


def test_an_engine_that_nobody_knows_is_told() -> None:
    with pytest.raises(EngineError, match="--engine tensorflow is not known; auto, torch or onnx"):
        engine_name("tensorflow")
    with pytest.raises(EngineError, match="is not known"):
        installed_engine("")
