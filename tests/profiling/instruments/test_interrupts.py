import os
import signal
from collections.abc import Iterator

import pytest

from profiling.instruments.interrupts import STOPS, terminable, undisturbed


@pytest.fixture
def hangup_ignored() -> Iterator[None]:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_while_a_process_starts_comes_after_it(number: int) -> None:
    steps: list[str] = []

    def start() -> None:
        with undisturbed():
            os.kill(os.getpid(), number)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]


@pytest.mark.parametrize("number", STOPS)
def test_whatever_ends_a_process_is_taken_as_a_ctrl_c(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), terminable():
        signal.raise_signal(number)


@pytest.mark.usefixtures("hangup_ignored")
def test_what_is_ignored_stays_ignored() -> None:
    with terminable(), undisturbed():
        os.kill(os.getpid(), signal.SIGHUP)


def test_handlers_are_what_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
