"""Processes by name: what one says last, and that none of them outlives its block."""

import sys
import time
from pathlib import Path

import pytest

from smidgen.profiling.instruments.child import ProcessError, running
from tests.processes import children_of, is_computing

ASLEEP = "import time; time.sleep(60)"
SLEEPER = "import subprocess; subprocess.run(['sleep', '60'])"


def test_a_process_that_dies_is_named_with_its_last_words(tmp_path: Path) -> None:
    code = "print('no disk is left'); raise SystemExit(3)"
    with running(tmp_path) as processes:
        processes.start("coordinator", [sys.executable, "-c", code], {})
        with pytest.raises(ProcessError, match="coordinator ended with code 3: no disk is left"):
            processes.wait(lambda: False, 30.0, "nothing")


def test_a_coordinator_of_a_benchmark_has_a_store_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever operates a fleet has its database in the shell; nothing of ours may go there."""
    monkeypatch.setenv("SMIDGEN_DATABASE", "postgresql://nobody@127.0.0.1:1/fleet")
    line = ["coordinator", "status", "--store", str(tmp_path / "own")]
    with running(tmp_path) as processes:
        processes.start("coordinator", [sys.executable, "-m", "smidgen", *line], {})
        with pytest.raises(ProcessError, match=r"no store at .*own; make one"):
            processes.wait(lambda: False, 60.0, "nothing")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
def test_what_a_killed_process_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from smidgen.profiling.instruments.child import running\n"
        "with running(Path(sys.argv[1])) as processes:\n"
        f"    processes.start('parent', [sys.executable, '-c', {ASLEEP!r}], {{}})\n"
        "    time.sleep(60)\n"
    )
    with running(tmp_path) as processes:
        owner = processes.start("owner", [sys.executable, "-c", code, str(tmp_path)], {})
        processes.wait(lambda: bool(children_of(owner.pid)), 10.0, "the child")
        [child] = children_of(owner.pid)
        owner.kill()
        owner.wait()
        end = time.monotonic() + 10
        while is_computing(child):
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("every_s", [None, 0.5], ids=["unwatched", "watched"])
def test_what_a_process_started_does_not_outlive_the_block(
    tmp_path: Path, every_s: float | None
) -> None:
    with running(tmp_path, every_s) as processes:
        parent = processes.start("parent", [sys.executable, "-c", SLEEPER], {}).pid
        processes.wait(lambda: bool(children_of(parent)), 10.0, "the child")
        [child] = children_of(parent)
    assert not is_computing(parent) and not is_computing(child)
