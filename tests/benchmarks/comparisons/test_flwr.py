"""The peer `flwr`: how it is found, and two rounds of it where its environment is."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.comparisons.flwr import simulate
from smidgen.edge_client.metering.memory import PROC
from smidgen.profiling.instruments.environment import MARK, BenchmarkError
from smidgen.profiling.peers.flwr import VARIABLE, environment, missing

SCRIPT = "scripts/flwr_env"
ADAPTER = {"layer.lora_A": np.ones((2, 16), np.float32), "layer.lora_B": np.zeros((16, 2), "f4")}


@pytest.fixture
def no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    return tmp_path / "absent"


@pytest.mark.usefixtures("no_environment")
def test_the_peer_without_its_environment_is_one_line() -> None:
    with pytest.raises(BenchmarkError, match=SCRIPT) as raised:
        simulate(clients=2, rounds=1, adapter=ADAPTER)
    assert "\n" not in str(raised.value) and "--peer flwr" in str(raised.value)


def test_half_an_environment_is_none(no_environment: Path) -> None:
    (no_environment / "bin").mkdir(parents=True)
    (no_environment / "bin" / "python").touch()
    assert SCRIPT in str(missing())


def test_a_peer_that_dies_is_one_line_with_its_last_words(no_environment: Path) -> None:
    python = no_environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho first >&2; echo 'no module named flwr' >&2; exit 3\n")
    python.chmod(0o755)
    (no_environment / MARK).touch()
    with pytest.raises(BenchmarkError, match=r"exit code 3: no module named flwr$"):
        simulate(clients=2, rounds=1, adapter=ADAPTER)


@pytest.mark.slow
def test_every_virtual_client_answers_and_no_process_stays() -> None:
    if reason := missing():
        pytest.skip(f"flwr: {reason}")
    run = simulate(clients=5, rounds=2, adapter=ADAPTER)
    assert run.clients == 5 and len(run.rounds_s) == 2 and run.versions["flwr"] == "1.42.0"
    assert run.cpu_s > 0 and 0 < run.round_s < run.startup_s and run.peak_pss_bytes > 100 << 20
    lines = [file.read_bytes() for file in PROC.glob("[0-9]*/cmdline") if file.exists()]
    assert not [line for line in lines if str(environment()).encode() in line]
