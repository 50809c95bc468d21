"""Somebody else's code that does not return is left, named, and not called again."""

import threading
import time
from contextvars import ContextVar

import pytest

from smidgen.coordinator.plugins import LetGo, Limit
from smidgen.coordinator.rounds.extensions import PluginError, called, calling_by

SAID = r"mean 'mine' did not return within 0.2 s \(now at .*\.py, line \d+\); mend it"


@pytest.fixture
def never() -> threading.Event:
    """Set at the end, so that no thread outlives the test for long."""
    return threading.Event()


def test_a_call_gives_and_raises_what_it_would_without_a_limit() -> None:
    kept = ContextVar("kept", default=0)
    kept.set(7)

    def raising() -> None:
        raise KeyError("x")

    with calling_by(Limit(5.0).call):
        assert called("mean 'mine'", kept.get) == 7
        with pytest.raises(KeyError, match="x"):
            called("mean 'mine'", raising)


def test_without_a_limit_a_call_is_a_plain_one() -> None:
    assert called("mean 'mine'", threading.current_thread) is threading.current_thread()
    with calling_by(Limit(0.0).call):
        assert called("mean 'mine'", lambda: time.sleep(0.3)) is None


def test_what_does_not_return_is_named_and_never_called_again(never: threading.Event) -> None:
    calls: list[int] = []

    def waiting() -> None:
        calls.append(1)
        never.wait(30)

    limit = Limit(0.2)
    try:
        with calling_by(limit.call):
            with pytest.raises(PluginError, match=SAID):
                called("mean 'mine'", waiting)
            took_s = []
            for _ in range(5):  # a busy machine may take any one of them off its processor
                began_s = time.monotonic()
                with pytest.raises(PluginError, match="mend it and start the coordinator again"):
                    called("mean 'mine'", waiting)
                took_s.append(time.monotonic() - began_s)
            assert min(took_s) < 0.2 and calls == [1]
            assert called("mean 'other'", lambda: 1) == 1
    finally:
        never.set()


def test_nobody_waits_once_the_process_ends(never: threading.Event) -> None:
    limit = Limit(60.0)
    timer = threading.Timer(0.2, limit.end)
    timer.start()
    try:
        began_s = time.monotonic()
        with calling_by(limit.call), pytest.raises(LetGo):
            called("mean 'mine'", lambda: never.wait(30))
        assert time.monotonic() - began_s < 10
    finally:
        never.set()
        timer.join()


def test_of_calls_within_calls_the_one_that_hangs_is_named(never: threading.Event) -> None:
    limit = Limit(0.3)

    def mean() -> int:
        return called("step 'slow'", lambda: never.wait(30)) + 1

    with calling_by(limit.call):
        for _ in range(2):  # the second time without waiting: the step alone is barred
            with pytest.raises(PluginError, match="step 'slow' did not return"):
                called("mean 'mine'", mean)
        assert called("mean 'mine'", lambda: 7) == 7
        assert called("mean 'mine'", lambda: called("step 'quick'", lambda: 7)) == 7
