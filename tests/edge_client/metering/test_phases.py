import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.metering.work import PhaseClock, phase
from smidgen.edge_client.wire.reports import Phase


class Watched(PhaseClock):
    """A clock that keeps when its outermost phases began and ended."""

    began_s = ended_s = 0.0

    def _settle(self) -> None:
        super()._settle()
        self.began_s = self.began_s or self._since[0]
        self.ended_s = self._since[0]


PHASES: list[Phase] = ["load", "train", "tokenize", "cache"]


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_phase_inside_another_counts_for_itself_alone() -> None:
    clock, began_s = PhaseClock(), time.process_time()
    with clock.phase("train"):
        burn(0.02)
        with phase("tokenize"):
            burn(0.03)
    spent_s = time.process_time() - began_s
    assert clock.cpu_s["tokenize"] >= 0.03 - 1e-9 and clock.cpu_s["train"] >= 0.02 - 1e-9
    assert sum(clock.cpu_s.values()) <= spent_s + 1e-9  # nothing is counted twice


def test_without_a_clock_a_phase_is_nothing() -> None:
    with phase("tokenize"):
        pass


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=6))
def test_the_phases_add_up_to_the_time_spent(tree: list[object]) -> None:
    clock = Watched()

    def walk(branches: list[object], depth: int) -> None:
        for inner in branches:
            assert isinstance(inner, list)
            with clock.phase(PHASES[depth % len(PHASES)]):
                walk(inner, depth + 1)

    start = time.perf_counter()
    with clock.phase("load"):
        walk(tree, 1)
    spent = time.perf_counter() - start
    outer = clock.ended_s - clock.began_s
    assert sum(clock.wall_s.values()) == pytest.approx(outer, abs=1e-9)
    assert outer <= spent


def test_a_phase_that_fails_is_counted_and_left() -> None:
    clock, over = PhaseClock(lambda name: over.append(name)), list[Phase]()
    with pytest.raises(KeyError), clock.phase("train"), clock.phase("cache"):
        raise KeyError
    assert set(clock.wall_s) == {"train", "cache"} and over == ["train"]
