import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.planning.budget import Guard, is_allocation_failure

MIB = 1 << 20
PROGRAM = """
from smidgen.edge_client.planning.budget import Guard
guard = Guard(150 << 20)
block = bytearray(b"x" * (200 << 20))
first = guard.peak_bytes(), guard.is_over()
del block
done = guard.reset()
print(*first, done, guard.peak_bytes(), guard.is_over())
"""


def test_a_peak_is_seen_and_forgotten() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    peak, over, was_reset, left, still_over = done.stdout.split()
    if was_reset != "True":
        pytest.skip("this kernel does not let a process reset its own peak")
    assert int(peak) > 200 * MIB and over == "True"
    assert int(left) < 100 * MIB and still_over == "False"


def test_the_peak_is_read_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n")
    assert Guard(2 * MIB, tmp_path).peak_bytes() == 2 * MIB
    assert not Guard(2 * MIB, tmp_path).is_over()
    assert Guard(2 * MIB - 1, tmp_path).is_over()


def test_a_reset_writes_what_the_kernel_asks_for(tmp_path: Path) -> None:
    assert Guard(1, tmp_path).reset()
    assert (tmp_path / "clear_refs").read_text() == "5"


def test_a_kernel_that_forgets_nothing_tells_only_what_rises_above(tmp_path: Path) -> None:
    status, guard = tmp_path / "status", Guard(2 * MIB, tmp_path)
    (tmp_path / "clear_refs").mkdir()  # cannot be written
    status.write_text("VmHWM:\t  3072 kB\n")
    assert guard.is_over() and not guard.reset()
    assert guard.peak_bytes() is None and not guard.is_over()
    status.write_text("VmHWM:\t  4096 kB\n")
    assert guard.peak_bytes() == 4 * MIB and guard.is_over()


def test_without_proc_no_peak_is_known(tmp_path: Path) -> None:
    guard = Guard(1, tmp_path / "absent")
    assert not guard.reset() and guard.peak_bytes() is None and not guard.is_over()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:128] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 40000000000 bytes."
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("could not create a primitive"),
        RuntimeError(
            "Error in execution: Non-zero status code returned while running FusedMatMul node. "
            "Name:'' Status Message: std::bad_alloc"
        ),
        RuntimeError(
            "Error in execution: Non-zero status code returned while running Mul node. Name:'' "
            "Status Message: bfc_arena.cc:360 Failed to allocate memory for requested buffer of "
            "size 9446400"
        ),
    ],
)
def test_a_failed_allocation_is_known(error: BaseException) -> None:
    assert is_allocation_failure(error)


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes"), ValueError("out of memory"), OSError(12, "x")]
)
def test_other_errors_are_not_taken_for_one(error: BaseException) -> None:
    assert not is_allocation_failure(error)


def test_torchs_own_failure_is_known() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_allocation_failure(failed.value)


def test_numpys_own_failure_is_known() -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(MemoryError) as failed:
        numpy.empty(1 << 60, numpy.uint8)
    assert is_allocation_failure(failed.value)
