"""A tree of real processes, watched from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smidgen.edge_client.metering.memory import PROC
from smidgen.profiling.instruments.sampler import ProcessTree

BUSY = "import time; t = time.process_time\nwhile t() < 0.3: pass\nprint('done', flush=True)\n"
GRANDCHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])\n"
HOLDS = "a = b'x' * (64 << 20); print('held', flush=True); input(); del a; print('freed')\n"
# Two processes more, of which the last outlives both.
ORPHAN = (
    "import subprocess, sys; sleep = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
    "child = subprocess.Popen(sleep); print(child.pid, flush=True); input()\n"
)


@contextmanager
def python(code: str) -> Iterator["subprocess.Popen[str]"]:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", code]
    with subprocess.Popen(command, text=True, bufsize=1, stdin=pipe, stdout=pipe) as process:
        yield process
        process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while (PROC / str(pid) / "exe").exists():
        assert time.monotonic() < deadline, f"process {pid} lives"
        time.sleep(0.01)


@pytest.mark.few(1)
@pytest.mark.parametrize("code", [BUSY, GRANDCHILD], ids=["itself", "a process it started"])
def test_processor_time_is_that_of_all_processes(code: str) -> None:
    with python(code + "input()") as process, ProcessTree(process.pid, 0.01) as tree:
        assert line_of(process) == "done"
        assert 0.2 < tree.take().cpu_s < 2


def test_processor_time_of_a_process_between_two_samples_is_counted() -> None:
    code = GRANDCHILD + "print('done')\ninput()"
    with python(code) as process, ProcessTree(process.pid, 60) as tree:
        assert [line_of(process), line_of(process)] == ["done", "done"]
        assert 0.2 < tree.take().cpu_s < 2


def test_resident_memory_is_counted_at_its_peak() -> None:
    with python(HOLDS) as process, ProcessTree(process.pid) as tree:
        assert line_of(process) == "held"
        held = tree.take().peak_pss_bytes
        assert process.stdin is not None
        process.stdin.write("\n")
        assert line_of(process) == "freed"
        assert 64 << 20 < held < 256 << 20 and tree.take().peak_pss_bytes == held


def test_a_process_that_outlives_its_parents_is_ended() -> None:
    with python(ORPHAN) as process, ProcessTree(process.pid, 0.01) as tree:
        orphan = int(line_of(process))
        tree.take()
        process.kill()
        process.wait()
        assert (PROC / str(orphan)).exists()
    assert tree.left == [orphan]
    wait_until_gone(orphan)


def test_where_all_have_ended_nothing_is_left() -> None:
    with python("input()") as process, ProcessTree(process.pid, 0.01) as tree:
        process.kill()
        process.wait()
    assert tree.left == []


def test_a_stranger_with_an_id_that_was_given_out_again_is_not_counted() -> None:
    last = PROC / "sys/kernel/ns_last_pid"
    if not os.access(last, os.W_OK):
        pytest.skip(f"{last} cannot be written to, so no id can be chosen")
    with python("input()") as process, ProcessTree(process.pid, 60) as tree:
        process.kill()
        process.wait()
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # the kernel tells when one began by this clock
        for _ in range(50):  # others start processes too
            last.write_text(str(process.pid - 1))
            with python(BUSY + "input()") as stranger:
                line_of(stranger)
                if stranger.pid == process.pid:
                    assert tree.take().cpu_s < 0.1
                    break
        else:
            pytest.skip("others took the id every time")
    assert tree.left == []
