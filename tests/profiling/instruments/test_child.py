import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from smidgen.profiling.instruments.child import DONE, run_child, terminable

LONG = (sys.executable, "-c", "import time; time.sleep(600)")
SHORT = (sys.executable, "-c", "import json; print(json.dumps({'event': 'done'}))")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Children by their process ids; SIGTERM comes as soon as one is there."""
    started: list[int] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    yield started
    for pid in filter(psutil.pid_exists, started):
        os.kill(pid, signal.SIGKILL)


def test_a_signal_that_comes_while_a_child_is_forked_leaves_none_behind(forked: list[int]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminable():
        run_child(LONG, None, 0, {})
    assert len(forked) == 1
    assert not any(map(psutil.pid_exists, forked))
    assert signal.getsignal(signal.SIGTERM) == before


def test_handlers_stand_as_before_once_a_child_has_ended() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run_child(SHORT, None, 0, {}).outcome == DONE
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
