"""Ten steps on a tiny base, by each engine that is installed, against the stored numbers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from smidgen.edge_client.doctor.engines import (
    LOSS,
    TOLERANCE,
    Numbers,
    difference,
    read_steps,
    stored,
)
from smidgen.edge_client.doctor.machine import ERROR, OK
from smidgen.edge_client.doctor.self_test import STEPS, compute
from tests.edge_client.engine.engines import KINDS


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_gives_the_stored_numbers(kind: str, tmp_path: Path) -> None:
    assert difference(compute(kind, tmp_path), stored()) < TOLERANCE / 5


def test_every_step_of_every_tensor_is_stored() -> None:
    numbers = stored()
    assert {len(row) for row in numbers.values()} == {STEPS} and len(numbers) == 25
    assert numbers[LOSS][-1] < numbers[LOSS][0]
    assert all(min(row) > 0 for row in numbers.values())


def changed(name: str, change: Mapping[int, float]) -> Numbers:
    row = list(stored()[name])
    for step, value in change.items():
        row[step] = value
    return {**stored(), name: row}


def test_one_number_that_is_off_is_noticed() -> None:
    assert difference(changed(LOSS, {9: stored()[LOSS][9] + 2e-5}), stored()) > TOLERANCE
    gradient = next(name for name in stored() if name != LOSS)
    longest = max(stored()[name][3] for name in stored() if name != LOSS)
    off = changed(gradient, {3: stored()[gradient][3] + 2e-5 * longest})
    assert difference(off, stored()) > TOLERANCE


def test_what_is_missing_or_not_a_number_is_infinitely_far() -> None:
    assert difference({LOSS: [1.0]}, stored()) == float("inf")
    assert difference({**stored(), LOSS: [1.0]}, stored()) == float("inf")
    assert difference(changed(LOSS, {0: float("nan")}), stored()) == float("inf")


@pytest.mark.skipif("onnx" not in KINDS, reason="no onnxruntime here")
def test_the_self_test_runs_in_a_process_of_its_own() -> None:
    found = read_steps("onnx")
    assert found.state == OK and found.found.startswith("10 steps, gradients ")


def other_self_test(folder: Path, body: str) -> None:
    """What `sitecustomize` puts in the way of the self-test, in the child alone."""
    (folder / "sitecustomize.py").write_text(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it died by SIGSEGV"),
        ("import os; print('{}', flush=True); os._exit(0)", "gradients are inf from the stored"),
        ("import os; os._exit(0)", "it printed no numbers"),
        ("import os; print('[1]', flush=True); os._exit(0)", "it printed no numbers"),
    ],
)
def test_a_self_test_that_goes_wrong_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    other_self_test(tmp_path, body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = read_steps("onnx")
    assert found.state == ERROR and found.found.startswith(said), found
    assert "--engine" in found.todo


def test_a_processor_that_multiplies_wrongly_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real child, whose numpy is off by a thousandth in one function."""
    pytest.importorskip("onnxruntime")
    body = (
        "import numpy as n; sqrt = n.sqrt; n.sqrt = lambda x, **k: sqrt(x * n.float32(1.001), **k)"
    )
    other_self_test(tmp_path, body)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    found = read_steps("onnx")
    assert found.state == ERROR and "is allowed" in found.found
