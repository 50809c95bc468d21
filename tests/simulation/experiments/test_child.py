import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smidgen.edge_client.errors import Failed, WrongInput
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.simulation.experiments.child import child
from tests.processes import children_of, is_computing

# Work of the children


def twice(text: str) -> str:
    return text * 2


def ask_too_much() -> None:
    raise BudgetError("below the smallest plan")


def fail() -> None:
    raise Failed("no client could train")


def fill_the_disk() -> None:
    raise OSError(28, "No space left on device")


def err() -> None:
    raise ZeroDivisionError("a bug")


def leave() -> None:
    os._exit(7)


def note_and_sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def test_a_child_answers_however_long() -> None:
    with child(twice, "long " * 100_000, name="it") as running:
        assert running.answer() == "long " * 200_000  # more than a pipe holds
    assert running.process.exitcode is not None


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("work", "kind", "said"),
    [
        (ask_too_much, WrongInput, "it: below the smallest plan"),
        (fail, Failed, "it: no client could train"),
        (fill_the_disk, Failed, r"it: .*No space left on device"),
        (leave, Failed, "it: its process ended with code 7"),
    ],
)
def test_a_childs_error_is_the_parents(
    work: Callable[[], None], kind: type[Exception], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with child(work, name="it") as running, pytest.raises(kind, match=said):
        running.answer()
    assert not capfd.readouterr().err


def test_a_bug_in_a_child_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    with child(err, name="it") as running, pytest.raises(Failed, match="ended with code 1"):
        running.answer()
    assert "ZeroDivisionError: a bug" in capfd.readouterr().err


def test_a_signal_to_the_whole_group_is_the_parents_to_answer(tmp_path: Path) -> None:
    with child(note_and_sleep, str(tmp_path / "pid"), name="it") as running:
        pid = _pid_in(tmp_path / "pid")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        assert not running.pipe.poll(0.3) and running.process.is_alive()
    assert not is_computing(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
def test_a_child_ends_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import sys; from smidgen.simulation.experiments.child import child\n"
        "from tests.simulation.experiments.test_child import note_and_sleep\n"
        "if __name__ == '__main__':\n"
        "    with child(note_and_sleep, sys.argv[1], name='it') as running:\n"
        "        running.answer()\n"
    )
    (tmp_path / "parent.py").write_text(code)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "pid")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pid = _pid_in(tmp_path / "pid")
    assert pid in children_of(parent.pid)
    parent.kill()
    parent.wait()
    _await(lambda: not is_computing(pid))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="looks for children in /proc")
def test_zero_compute_leaves_no_child_behind() -> None:
    pytest.importorskip("torch")
    line = ["-m", "benchmarks", "zero-compute", "--clients", "1000000"]
    parent = subprocess.Popen([sys.executable, *line], stderr=subprocess.PIPE, text=True)
    _await(lambda: any(map(_is_busy, children_of(parent.pid))))
    left = children_of(parent.pid)
    parent.terminate()
    _, said = parent.communicate(timeout=90)
    assert parent.returncode == 130 and said == "python -m benchmarks: stopped\n"
    _await(lambda: not any(map(is_computing, left)))


def _is_busy(pid: int) -> bool:
    """Whether it has come to its work: it ignores SIGTERM from there on."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    return bool(ignored >> (signal.SIGTERM - 1) & 1)


def _pid_in(path: Path) -> int:
    _await(lambda: path.is_file() and bool(path.read_text()))
    return int(path.read_text())


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
