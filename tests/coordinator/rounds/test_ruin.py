"""What a run does about an adapter that came to harm, and about devices that all fail."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.bounds import lack_of
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Finished,
    Left,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
    Unpaused,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.machine import (
    MANY_DEVICES,
    MOST_FAILURES,
    MOST_ROLLBACKS,
    decide,
    kept_of,
)
from smidgen.coordinator.rounds.orders import OrderError, event_of
from smidgen.coordinator.rounds.scoring import Score, bounded, is_collapsed, scored, winsorized
from smidgen.coordinator.rounds.state import State, evolve, replay
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from tests.coordinator.rounds.test_machine import CONFIG

DEVICES = tuple("abcde")
Answers = Callable[[StepOpened, str, str], Answered]


def right_of(by_round: dict[int, int], texts: int = 100) -> Answers:
    """Devices that train, and that answer so many texts of theirs right after each round."""

    def answer(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        if opened.kind == "train":
            return Answered(work_id, "done", f"u-{device_id}", 4, norm=1.0)
        right = by_round.get(opened.round_index, 90)
        return Answered(work_id, "done", None, texts, labelled=4, right=right)

    return answer


class Run:
    """A run in the hands of a test: its state, its journal, and a clock."""

    def __init__(self, config: RunConfig, devices: Sequence[str] = DEVICES) -> None:
        self.config, self.state, self.devices = config, State("adapter-0"), devices
        self.log, self.now_s = list[Event](), 0.0

    def take(self, event: Event) -> None:
        self.log.append(event)
        self.state = evolve(self.state, event)

    def decided(self) -> Event | None:
        """What was due, carried out."""
        event = decide(self.config, self.state, self.devices, "secret", self.now_s)
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            assert self.state.step is not None
            after = f"adapter-{self.state.step.opened.round_index}"
            event = StepClosed(after, self.now_s)
        if event is not None:
            self.take(event)
        return event

    def play(self, answer: Answers, steps: int = 1000) -> "Run":
        """Let devices answer until it is finished, paused or has opened so many steps."""
        for _ in range(20 * steps):
            self.now_s += 1000.0 if self.state.step and self.state.step.is_failed else 0.0
            event = self.decided()
            if isinstance(event, Finished | Paused):
                break
            if isinstance(event, StepOpened):
                for work_id, device_id in event.members:
                    self.take(answer(event, work_id, device_id))
                steps -= 1
                if not steps:
                    break
        assert (
            replay("adapter-0", [decode_event(encode_event(one)) for one in self.log]) == self.state
        )
        return self

    def backs(self) -> list[RolledBack]:
        return [one for one in self.log if isinstance(one, RolledBack)]

    def works(self) -> list[str]:
        opened = [one for one in self.log if isinstance(one, StepOpened)]
        return [work_id for one in opened for work_id, _ in one.members]


def test_a_run_whose_accuracy_collapses_goes_back_to_its_best_adapter() -> None:
    run = Run(replace(CONFIG, rounds=4)).play(right_of({0: 20, 1: 60, 2: 90, 3: 15, 4: 90}))
    [back] = run.backs()
    assert (back.round_index, back.adapter_sha256) == (2, "adapter-2")
    assert back.reason == (
        "after round 3 15.0% of the devices' texts were answered right, after round 2 90.0%"
    )
    fourth = [one for one in run.log if isinstance(one, StepOpened)][-2]
    assert (fourth.kind, fourth.round_index, fourth.adapter_sha256) == ("train", 4, "adapter-2")
    assert run.state.is_finished and run.state.round_index == 4
    assert history_of("adapter-0", run.log)[1].adapters[3] == "adapter-2"


def tagged(opened: StepOpened, work_id: str, device_id: str) -> Answered:
    """Nearly all words right, and from round 3 on no entity."""
    answer = right_of({})(opened, work_id, device_id)
    if opened.kind != "evaluate":
        return answer
    strict = 0 if opened.round_index > 2 else 8
    return replace(answer, right=answer.num_examples, entities=Entities((10,), (10,), (strict,)))


def test_a_run_of_tagging_goes_back_by_entities_however_right_its_words_are() -> None:
    task = Task("drugs", ("Drug",), kind="tagging")
    run = Run(replace(CONFIG, task=task, rounds=3)).play(tagged)
    [back] = run.backs()
    assert (back.round_index, back.reason) == (
        2,
        "after round 3 the F1 of the devices' entities was 0.0%, after round 2 80.0%",
    )


def test_a_run_of_masked_words_goes_back_though_it_has_no_labels() -> None:
    run = Run(replace(CONFIG, task=Task("notes", kind="mlm"), rounds=3))
    [back] = run.play(right_of({0: 20, 1: 30, 2: 40, 3: 1})).backs()
    assert back.reason.startswith("after round 3 1.0% of the devices' masked words were guessed")


def test_a_run_goes_back_at_its_last_round_too() -> None:
    run = Run(replace(CONFIG, rounds=3)).play(right_of({2: 90, 3: 15}))
    assert run.state.is_finished and run.state.adapter_sha256 == "adapter-2"


def test_a_run_goes_back_by_itself_so_often_and_comes_to_its_end() -> None:
    run = Run(replace(CONFIG, rounds=20)).play(right_of(dict.fromkeys(range(3, 21), 5)))
    assert len(run.backs()) == MOST_ROLLBACKS
    assert run.state.is_finished and run.state.round_index == 20
    assert len(set(run.works())) == len(run.works())
    assert kept_of(run.config, run.state) == (2, "adapter-2")  # not what nobody went back from


def test_an_accuracy_that_goes_up_and_down_is_no_collapse() -> None:
    run = Run(replace(CONFIG, rounds=8)).play(right_of({i: 74 + 6 * (-1) ** i for i in range(9)}))
    assert not run.backs()


def test_few_texts_tell_too_little_to_go_back() -> None:
    assert is_collapsed(Score(20, 200), Score(80, 200))
    assert not is_collapsed(Score(1, 4), Score(2, 4))
    assert not is_collapsed(Score(20, 200, None), Score(80, 200))


def test_false_reports_of_two_of_five_do_not_take_a_run_back() -> None:
    def lying(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        told = right_of({})(opened, work_id, device_id)
        is_lie = opened.kind == "evaluate" and opened.round_index > 1 and device_id in "de"
        return replace(told, right=0) if is_lie else told

    assert not Run(replace(CONFIG, rounds=4)).play(lying).backs()


@pytest.mark.parametrize("says", [(0, 100), (100, 100), (0, 0)])
def test_what_one_device_made_alone_is_judged_beside_the_first_adapter_once_others_come(
    says: tuple[int, int],
) -> None:
    """It says what it likes of the adapter before and after; for the others it is ruined."""

    def told(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        is_start = opened.adapter_sha256 == "adapter-0"
        right = says[not is_start] if device_id == "e" else 42 if is_start else 15
        return right_of({opened.round_index: right})(opened, work_id, device_id)

    run = Run(replace(CONFIG, rounds=6, min_clients=1), "e").play(told, steps=5)
    assert run.state.step is not None and run.state.step.opened.kind == "evaluate"
    run.devices = DEVICES
    run.play(told)
    assert [back.round_index for back in run.backs()][:1] == [0]
    assert len(set(run.works())) == len(run.works())
    again = [one for one in run.log if isinstance(one, StepOpened) and one.round_index == 0]
    assert [len(one.members) for one in again] == [1, 5]


def test_who_trained_alone_and_well_goes_on_when_others_come() -> None:
    config = replace(CONFIG, rounds=6, min_clients=1)
    answer = right_of({index: 40 + 5 * index for index in range(7)})
    run = Run(config, "a").play(answer, steps=5)
    run.devices = DEVICES
    assert not run.play(answer).backs() and kept_of(config, run.state) == (6, "adapter-6")


@pytest.mark.parametrize(
    ("devices", "liars"), [("abcd", "d"), ("abcde", "e"), ("abcdefghi", "bei")]
)
@pytest.mark.parametrize("lies", [(100, 0), (0, 100), (100, 100), (0, 0)])
def test_false_reports_of_a_third_end_no_run_and_choose_no_adapter(
    devices: str, liars: str, lies: tuple[int, int]
) -> None:
    """Honest devices get ten more of 100 texts right in each round; the first lie comes before."""

    def told(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        right = 10 + 10 * opened.round_index + devices.index(device_id) % 3
        if device_id in liars:
            right = lies[opened.round_index > 0]
        return right_of({opened.round_index: right})(opened, work_id, device_id)

    config = replace(CONFIG, rounds=8, evaluate_every=1, patience=2, keep="best")
    run = Run(config, devices).play(told)
    assert run.state.round_index == 8 and not run.backs()
    assert kept_of(config, run.state) == (8, "adapter-8")


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=4, max_size=12), st.data()
)
def test_no_share_of_a_score_leaves_the_range_of_those_that_did_not_lie(
    shares: list[tuple[int, int]], data: st.DataObject
) -> None:
    told = [(min(right, texts), texts) for right, texts in shares]
    most = len(told) // 3
    liars = data.draw(st.sets(st.integers(0, len(told) - 1), max_size=most))
    honest = [right / texts for place, (right, texts) in enumerate(told) if place not in liars]
    for place in liars:
        told[place] = data.draw(st.sampled_from([(0, 1), (9**15, 9**15), (0, 9**15)]))
    kept, cut = winsorized(told)
    assert 0.0 < cut <= 2 / 3 and [texts for _, texts in kept] == [texts for _, texts in told]
    rounding = 1e-9
    for right, texts in kept:
        assert min(honest) - rounding <= right / texts <= max(honest) + rounding


def test_of_three_devices_each_is_heard_as_it_says() -> None:
    assert winsorized([(0, 10), (5, 10), (10, 10)]) == ([(0, 10), (5, 10), (10, 10)], 0.0)


def test_one_report_of_all_texts_there_are_decides_nothing() -> None:
    opened = StepOpened("evaluate", 1, 1, "x", (("w", "a"),) * 3, 0.0)
    honest = [Answered(name, "done", None, 10, right=1) for name in "ab"]
    found = scored(opened, [*honest, Answered("c", "done", None, 2**52, right=2**52)])
    assert (found.right, found.texts) == (32, 50) and found.median == 0.1
    assert bounded([(1, 10), (2, 12), (3, 14)]) == [(1, 10), (2, 12), (3, 14)]


ADAPTER = {"a": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("adapter", "step", "said"),
    [
        ({"a": np.array([np.nan], np.float32)}, 1.0, "no device can compute with"),
        ({"a": np.array([np.inf], np.float32)}, 1.0, "no device can compute with"),
        ({"a": np.array([3e38], np.float32)}, 1.0, "no device can compute with"),
        (ADAPTER, 100.0, "its step is 100 times as long as updates of the rounds before"),
        (ADAPTER, 9.0, ""),
    ],
)
def test_an_adapter_that_came_to_harm_is_told_from_a_sound_one(
    adapter: dict[str, np.ndarray], step: float, said: str
) -> None:
    found = lack_of(adapter, {"a": np.array([step], np.float32)}, [1.0], None)
    assert said in found and bool(found) == bool(said)


def test_a_round_that_is_not_taken_leaves_the_adapter_and_counts() -> None:
    run = Run(CONFIG).play(right_of({}), steps=2)
    before = run.state
    run.take(StepClosed(before.adapter_sha256, 5.0, "why"))
    assert run.state.adapter_sha256 == before.adapter_sha256
    assert run.state.round_index == 1 and run.state.medians == before.medians
    assert run.state.trouble == "round 1 was not taken: why"


def failing(opened: StepOpened, work_id: str, device_id: str) -> Answered:
    if opened.kind == "train":
        return Answered(work_id, "failed", None, 0, failure="training")
    return Answered(work_id, "done", None, 10, labelled=4, right=5)


def test_a_run_whose_every_device_fails_stops_asking_and_says_so() -> None:
    run = Run(CONFIG).play(failing)
    assert run.state.is_paused and run.decided() is None
    assert run.state.trouble == f"every device failed at round 1, {MOST_FAILURES} times"
    attempts = [one.attempt for one in run.log if isinstance(one, StepOpened)]
    assert attempts == [1, *range(1, MOST_FAILURES + 1)]
    run.take(Unpaused(run.now_s))
    assert run.state.trouble == "" and run.play(right_of({})).state.is_finished


def failing_alone(*hostile: str) -> Answers:
    """Devices of which some fail whatever they are asked to train."""

    def answer(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        fails = opened.kind == "train" and device_id in hostile
        return (failing if fails else right_of({}))(opened, work_id, device_id)

    return answer


@pytest.mark.parametrize("hostile", DEVICES)
def test_one_device_that_fails_whenever_it_is_asked_alone_stops_no_run(hostile: str) -> None:
    config = replace(CONFIG, fraction=0.2, rounds=30)
    assert Run(config).play(failing_alone(hostile)).state.is_finished


def test_all_but_one_that_fail_stop_no_run() -> None:
    config = replace(CONFIG, fraction=0.2, rounds=5)
    assert Run(config).play(failing_alone(*"abde")).state.is_finished


def test_a_run_asks_one_by_one_until_everybody_has_failed() -> None:
    run = Run(replace(CONFIG, fraction=0.2)).play(failing)
    asked = {name for one in run.log if isinstance(one, StepOpened) for _, name in one.members}
    assert run.state.is_paused and asked == set(DEVICES)
    said = run.state.trouble
    assert said.startswith("every device failed at round 1, ")
    assert int(said.split()[-2]) >= MOST_FAILURES


def test_of_a_large_fleet_many_that_failed_stand_for_all() -> None:
    fleet = [f"d{number}" for number in range(500)]
    run = Run(replace(CONFIG, fraction=0.006), fleet).play(failing)
    trained = [one for one in run.log if isinstance(one, StepOpened) and one.kind == "train"]
    failed = {name for one in trained for _, name in one.members}
    assert run.state.is_paused and MANY_DEVICES <= len(failed) < MANY_DEVICES + 3


def test_one_device_that_can_train_keeps_a_run_going() -> None:
    def most(opened: StepOpened, work_id: str, device_id: str) -> Answered:
        able = opened.kind != "train" or device_id == "c"
        return (
            right_of({})(opened, work_id, device_id)
            if able
            else failing(opened, work_id, device_id)
        )

    assert Run(CONFIG).play(most).state.is_finished


def test_an_operator_takes_a_run_back_and_no_work_id_is_used_twice() -> None:
    run = Run(replace(CONFIG, rounds=5)).play(right_of({}), steps=6)
    before = run.state.step
    assert before is not None and before.opened.round_index == 3
    adapters = history_of("adapter-0", run.log)[1].adapters
    run.take(event_of("rollback", 1, run.config, run.state, 9.0, adapters))
    assert run.state.step is None and run.state.adapter_sha256 == "adapter-1"
    event = run.decided()
    assert isinstance(event, StepOpened) and (event.round_index, event.attempt) == (3, 2)
    assert event.adapter_sha256 == "adapter-1"
    assert len(set(run.works())) == len(run.works())


def test_going_back_lets_a_run_that_stopped_asking_go_on() -> None:
    run = Run(CONFIG).play(failing)
    run.take(event_of("rollback", 0, run.config, run.state, run.now_s, {0: "adapter-0"}))
    assert not run.state.is_paused and run.play(right_of({})).state.is_finished


def test_a_finished_run_that_goes_back_has_that_adapter() -> None:
    run = Run(CONFIG).play(right_of({}))
    run.take(event_of("rollback", 1, run.config, run.state, 9.0, {1: "adapter-1"}))
    assert run.state.is_finished and run.state.adapter_sha256 == "adapter-1"
    assert history_of("adapter-0", run.log)[1].adapters[run.state.round_index] == "adapter-1"


def test_a_round_whose_adapter_is_gone_is_refused_by_its_number() -> None:
    with pytest.raises(OrderError, match="after round 7 is not there; those of rounds 0, 2 are"):
        event_of("rollback", 7, CONFIG, State("x"), 1.0, {0: "x", 2: "y"})


def test_what_a_revoked_device_answered_in_the_open_step_counts_no_more() -> None:
    run = Run(CONFIG).play(right_of({}), steps=2)
    run.take(Left("c", "revoked", 1.0))
    assert run.state.step is not None
    assert [name for name, _ in run.state.step.updates()] == ["a", "b", "d", "e"]
    assert run.state.step.is_answered
