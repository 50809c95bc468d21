import pytest

from smidgen.profiling.instruments.child import DONE, KILLED_BY_CAP, STOOD_STILL, Child
from smidgen.profiling.instruments.memory_cap import CapReport
from smidgen.profiling.instruments.sampler import Peaks
from smidgen.profiling.models.cell import GIB, Cell, Proof
from smidgen.profiling.models.measure import patience_s, proof_of

CRASH = "failed with exit code 1: no luck"


def ended(outcome: str, limit_bytes: int | None = GIB, peak_bytes: int | None = None) -> Proof:
    """What a run on a board of 1 GiB says that ended like this."""
    cap = CapReport("cgroup v2", limit_bytes, peak_bytes, None, "capped")
    return proof_of(Child(outcome, [], Peaks(), Peaks(), cap), GIB, "dropped")


def test_a_limit_is_a_proof_without_a_peak() -> None:
    proof = ended(DONE)  # memory.peak came with Linux 5.19
    assert proof.is_done and proof.is_hard and not proof.is_broken
    assert Cell("bert-base", "onnx", board_bytes=GIB, proofs=(proof,)).is_proved


@pytest.mark.parametrize("outcome", [CRASH, "killed from outside (SIGKILL)"])
def test_a_crash_says_nothing_about_a_board(outcome: str) -> None:
    assert ended(outcome).is_broken and not ended(KILLED_BY_CAP).is_broken


def test_a_run_that_stands_still_on_a_board_does_not_fit_it() -> None:
    proof = ended(STOOD_STILL)
    assert not proof.is_done and not proof.is_broken
    slow, fast = Cell("b", "full", steps_s=(5.0, 9.0)), Cell("b", "full", steps_s=(0.1,))
    assert patience_s(fast) >= 120 and patience_s(slow) == patience_s(fast) + 20 * 8.9


@pytest.mark.parametrize("limit_bytes", [None, 2 * GIB])
def test_a_run_without_the_board_s_limit_is_no_proof(limit_bytes: int | None) -> None:
    proof = ended(DONE, limit_bytes)
    assert proof.is_broken and not proof.is_done and "without a hard limit" in proof.outcome


def test_a_cell_whose_board_is_left_open_is_not_final() -> None:
    cell = Cell("bert-base", "onnx", steps_s=(1.0,), proofs=(ended(CRASH),))
    assert not cell.is_final and not cell.fits_none
