"""Which adapter is a run's in the end, and evaluations by a share of each device's texts."""

import math
import random
from dataclasses import replace
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import Answered, RolledBack, StepOpened
from smidgen.coordinator.rounds.machine import kept_of
from smidgen.coordinator.rounds.orders import event_of
from smidgen.coordinator.rounds.scoring import scored
from tests.coordinator.rounds.test_machine import CONFIG
from tests.coordinator.rounds.test_ruin import Run, right_of

BEST = replace(CONFIG, rounds=4, keep="best")
RIGHTS = st.lists(st.integers(72, 90), min_size=5, max_size=5)  # no fall that a run goes back for


@given(RIGHTS, st.integers(1, 4))
def test_the_best_evaluated_adapter_is_kept_and_of_equals_the_newest(
    rights: list[int], every: int
) -> None:
    config = replace(BEST, evaluate_every=every)
    run = Run(config).play(right_of(dict(enumerate(rights))))
    looked = [index for index in range(5) if index % every == 0 or index == 4]
    best = max(looked, key=lambda index: (rights[index], index))
    assert run.state.is_finished and not run.backs()
    assert kept_of(config, run.state) == (best, f"adapter-{best}")
    assert kept_of(replace(config, keep="last"), run.state) == (4, "adapter-4")


def test_a_run_that_nobody_evaluates_keeps_its_last_adapter() -> None:
    run = Run(BEST).play(right_of({}, texts=0))
    assert run.state.is_finished and kept_of(BEST, run.state) == (4, "adapter-4")


def test_a_run_that_goes_back_by_itself_keeps_its_best() -> None:
    run = Run(BEST).play(right_of({0: 20, 1: 60, 2: 90, 3: 15, 4: 80}))
    assert len(run.backs()) == 1
    assert kept_of(BEST, run.state) == (2, "adapter-2")


def test_after_an_ordered_roll_back_the_best_is_chosen_among_what_comes() -> None:
    run = Run(BEST).play(right_of({1: 95}), steps=5)  # round 2 is about to be evaluated
    assert kept_of(BEST, run.state) == (1, "adapter-1")
    there = {index: f"adapter-{index}" for index in range(3)}
    order = event_of("rollback", 0, BEST, run.state, run.now_s, there)
    assert isinstance(order, RolledBack)
    run.take(order)
    assert kept_of(BEST, run.state) == (2, "adapter-0")  # where it stands after round 2
    run.play(right_of({2: 70, 3: 80, 4: 75}))
    assert kept_of(BEST, run.state) == (3, "adapter-3")


def test_an_extended_run_goes_on_from_its_last_and_still_knows_its_best() -> None:
    run = Run(BEST).play(right_of({2: 95}))
    run.take(event_of("extend", 6, BEST, run.state, run.now_s))
    run.play(right_of({5: 80, 6: 80}))
    trained = [one for one in run.log if isinstance(one, StepOpened) and one.kind == "train"]
    assert (trained[-2].round_index, trained[-2].adapter_sha256) == (5, "adapter-4")
    assert run.state.round_index == 6 and kept_of(BEST, run.state) == (2, "adapter-2")


def test_all_texts_are_asked_after_the_last_round_and_a_share_before() -> None:
    config = replace(CONFIG, rounds=3, evaluate_share=0.1)
    run = Run(config).play(right_of({}))
    steps = [one for one in run.log if isinstance(one, StepOpened)]
    shares = {one.round_index: one.test_share for one in steps if one.kind == "evaluate"}
    assert shares == {0: 0.1, 1: 0.1, 2: 0.1, 3: 1.0}
    assert {one.test_share for one in steps if one.kind == "train"} == {1.0}


@pytest.mark.parametrize(("share", "last_s"), [(0.1, 0.0), (1.0, 60.0)])
def test_what_a_share_took_is_no_deadline_for_all_texts(share: float, last_s: float) -> None:
    def answer(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        return replace(right_of({})(opened, work_id, device_id), took_s=2.0)

    run = Run(replace(CONFIG, rounds=3, evaluate_share=share)).play(answer)
    steps = [one for one in run.log if isinstance(one, StepOpened) and one.kind == "evaluate"]
    assert [one.deadline_s for one in steps] == [0.0, 60.0, 60.0, last_s]


def opened_by(share: float, devices: int) -> StepOpened:
    members = tuple((f"w{number}", f"d{number}") for number in range(devices))
    return StepOpened("evaluate", 1, 1, "a", members, 0.0, population=devices, test_share=share)


def test_the_error_of_a_share_is_how_far_shares_spread() -> None:
    """2,000 draws of a tenth of the texts of ten devices."""
    deal = random.Random(5)
    fleet = [[deal.random() < 0.7 for _ in range(200)] for _ in range(10)]
    errors, found = [], []
    for _ in range(2000):
        rights = [sum(deal.sample(texts, 20)) for texts in fleet]
        answers = [Answered("w", "done", None, 20, right=right) for right in rights]
        score = scored(opened_by(0.1, 10), answers)
        errors.append(score.error or 0.0)
        found.append(score.accuracy)
    said = math.sqrt(sum(error**2 for error in errors) / len(errors))
    assert said == pytest.approx(pstdev(found), rel=0.05)


def test_whoever_asks_everybody_for_all_has_no_error() -> None:
    answers = [Answered("w", "done", None, 20, right=right) for right in (3, 20)]
    assert scored(opened_by(1.0, 2), answers).error == 0.0
