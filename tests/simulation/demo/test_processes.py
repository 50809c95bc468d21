import os
import signal

import pytest

pytest.importorskip("torch")

from simulation.demo.processes import undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_process_starts_comes_after_it(number: int) -> None:
    steps: list[str] = []

    def start() -> None:
        with undisturbed():
            os.kill(os.getpid(), number)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]


def test_handlers_are_what_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
