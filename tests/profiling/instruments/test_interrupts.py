import os
import signal
from collections.abc import Iterator

import pytest

from smidgen.profiling.instruments.child import STOPS, terminable, undisturbed


@pytest.fixture
def hangup_ignored() -> Iterator[None]:
    """As `nohup` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def as_a_shell_starts_it() -> Iterator[None]:
    """Whatever these tests themselves were started by, `nohup` say."""
    before = {number: signal.getsignal(number) for number in STOPS[1:]}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_a_shell_starts_it")
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


@pytest.mark.usefixtures("as_a_shell_starts_it")
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
