"""The peer `ort-training`: how it is found, and two steps of it where its environment is."""

import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.profiling.benchmarks.training import PEERS, Benchmark, Settings, peers_here
from smidgen.profiling.instruments.child import DONE
from smidgen.profiling.instruments.environment import MARK, BenchmarkError
from smidgen.profiling.peers import ort as ort_training
from tests.command_line import smidgen
from tests.families import write_family

SCRIPT = "scripts/ort_training_env"


@pytest.fixture
def no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(ort_training.VARIABLE, str(tmp_path / "absent"))
    return tmp_path / "absent"


@pytest.mark.usefixtures("no_environment")
def test_the_peer_without_its_environment_is_one_line(tiny_base: Base) -> None:
    arguments = ["train", "--base", str(tiny_base.folder), "--tokens", "32"]
    result = smidgen("profile", *arguments, "--peer", "ort-training")
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and "--peer ort-training" in lines[0] and SCRIPT in lines[0]


@pytest.mark.usefixtures("no_environment")
def test_all_peers_are_all_but_this_one_and_a_note() -> None:
    names, notes = peers_here()
    assert [*names, "ort-training"] == list(PEERS)
    assert len(notes) == 1 and SCRIPT in notes[0]


@pytest.mark.usefixtures("no_environment")
def test_peers_without_their_libraries_are_left_out_each_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tiny_base: Base
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    names, notes = peers_here()
    assert not names and [note.split()[1] for note in notes] == list(PEERS)
    assert "peer torch-float32 is left out: it needs torch; pip install '.[peers]'" in notes[4]
    arguments = ["train", "--base", str(tiny_base.folder), "--engine", "onnx", "--peer", "peft"]
    result = smidgen("profile", *arguments)
    assert result.exit_code == 2 and "--peer peft: it needs torch" in result.stderr


def test_with_its_environment_it_is_one_of_all_peers(no_environment: Path) -> None:
    no_environment.mkdir()
    (no_environment / MARK).touch()
    assert peers_here() == (list(PEERS), [])


def test_half_an_environment_is_none(no_environment: Path) -> None:
    (no_environment / "bin").mkdir(parents=True)
    (no_environment / "bin" / "python").touch()
    with pytest.raises(BenchmarkError, match=SCRIPT):
        ort_training.command("smidgen.profiling.peers.ort_child")


@pytest.mark.parametrize("family", ["llama", "modernbert", "mpnet"])
def test_a_block_that_is_not_berts_is_refused(tiny_base: Base, tmp_path: Path, family: str) -> None:
    pytest.importorskip("transformers")
    base, spec = write_family(family, tiny_base, tmp_path / "base"), parse_adapter("lora:2")
    state = initial_adapter(spec, base, 4, 0)
    with pytest.raises(BenchmarkError, match=f"is a {family}"):
        ort_training.write_artifacts(base, spec, state, [5, 6, 7, 8], tmp_path / "made")


def test_what_its_environment_runs_takes_numpy_and_nothing_else() -> None:
    script = (
        "import sys; before = set(sys.modules); "
        "import smidgen.edge_client.bases.families, smidgen.edge_client.bases.weights; "
        "import smidgen.profiling.instruments.stepping; "
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    known = {*sys.stdlib_module_names, "smidgen", "numpy"}
    assert set(done.stdout.split()) <= known


def test_it_trains_as_our_engine_does(
    ort_training_environment: Path,
    tiny_base: Base,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(ort_training.VARIABLE, str(ort_training_environment))
    folder = str(tiny_base.folder)
    benchmark = Benchmark(
        Settings(folder, tokens=32, steps=2, threads=1, memory_budget="1G", adapter="lora:4")
    )
    benchmark.prepare("ort-training")
    ours, peer = benchmark.ours(), benchmark.peer("ort-training")
    assert peer.outcome == DONE and peer.untrained == []
    assert peer.trained_tensors == ours.trained_tensors
    assert peer.versions["onnxruntime-training-cpu"] == "1.19.2"
    # The first loss is the base's; the others have two optimizers' rounding in them.
    assert peer.losses[0] == pytest.approx(ours.losses[0], rel=1e-5)
    assert peer.losses == pytest.approx(ours.losses, rel=1e-4)
