"""Signals end a process where it may be left: at once, between two steps, or inside a long one."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from smidgen.edge_client.guest.process import (
    CUT_S,
    Ended,
    asked,
    cuttable,
    listening,
    look,
    nap,
    working,
)


def told(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@contextmanager
def ended(cut_s: float = CUT_S, kind: type[BaseException] = Ended) -> Iterator[None]:
    with pytest.raises(kind), listening(cut_s):
        yield


def test_what_waits_ends_at_once() -> None:
    began_s = time.monotonic()
    timer = threading.Timer(0.1, told)
    with ended():
        timer.start()
        time.sleep(30)
    assert time.monotonic() - began_s < 5


def test_work_goes_on_to_where_it_looks() -> None:
    reached = []
    with ended(), working():
        told()
        reached.append("step")
        look()
        reached.append("next step")
    assert reached == ["step"]


def test_work_that_never_looks_ends_where_it_is_over() -> None:
    reached = []
    with ended():
        with working():
            told(signal.SIGINT)
            reached.append("kept")
        reached.append("sent")
    assert reached == ["kept"]


def test_a_long_step_is_cut_and_nothing_else() -> None:
    reached = []
    with ended(0.05), working():
        told()
        time.sleep(0.3)
        reached.append("what may not be cut")
        with cuttable():
            reached.append("too far")
    assert reached == ["what may not be cut"]
    with ended(0.05), working(), cuttable():
        told()
        time.sleep(30)


def test_what_is_put_in_order_then_is_left_alone() -> None:
    with ended(0.05), working():
        told()
        try:
            look()
        finally:
            with cuttable():
                time.sleep(0.3)
            look()
            told()
            in_order = True
    assert in_order


def test_what_a_finalizer_swallows_is_raised_once_more() -> None:
    class Finalized:
        def __del__(self) -> None:
            told()
            time.sleep(0.01)  # the signal's handler runs here, and what it raises is lost

    with ended(0.05):
        Finalized()
        time.sleep(30)


def test_ctrl_c_twice_interrupts_as_ever() -> None:
    with ended(kind=KeyboardInterrupt), working():
        told(signal.SIGINT)
        told(signal.SIGINT)


def test_afterwards_all_is_as_before() -> None:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    with ended(), working():
        told()
        assert asked() == signal.SIGTERM
        nap(30)
    assert [signal.getsignal(number) for number in numbers] == before and asked() is None
    look()


def test_another_thread_is_not_asked() -> None:
    seen: list[object] = []

    def block() -> None:
        with listening(), working(), cuttable():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [before]
