"""Policies that give some devices better odds: what moves them, and how little claims do."""

from collections import Counter
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    LossTold,
    StepClosed,
    StepOpened,
    decode_event,
    encode_event,
)
from smidgen.coordinator.rounds.history import Past, folded_from
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.policies import (
    beside_median,
    drawn_by,
    selection_of,
    weights_of,
    within,
)
from smidgen.coordinator.rounds.schedule import MOST_ODDS, Learning
from smidgen.coordinator.rounds.scheduling.participation import Heard, Silence
from smidgen.coordinator.rounds.selection import Asking, drawn
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.reports import counted

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
NAMES = tuple(f"d{index}" for index in range(10))
POLICIES = ("coverage", "utility", "memory", "balance:language")


def asking(**told: object) -> Asking:
    return replace(Asking(NAMES, 3, "secret", 1, 1), **told)  # type: ignore[arg-type]


def often(policy: str, known: Asking, rounds: int = 400) -> Counter[str]:
    """How often each device is chosen."""
    selection, found = selection_of(Learning(selection=policy)), Counter[str]()
    for index in range(1, rounds + 1):
        found.update(selection.choose(replace(known, round_index=index))[0])
    return found


@pytest.mark.parametrize("policy", POLICIES)
@given(
    order=st.permutations(NAMES),
    size=st.integers(1, 12),
    texts=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53)),
    memory=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**53)),
    losses=st.dictionaries(
        st.sampled_from(NAMES), st.one_of(st.none(), st.floats(-3e38, 3e38)), max_size=10
    ),
)
def test_a_choice_hangs_on_no_order_and_gives_a_reason_for_the_others(  # type: ignore[no-untyped-def]
    policy, order, size, texts, memory, losses
) -> None:
    heard = {name: Heard(1, 2**53, 1.0, loss) for name, loss in losses.items()}
    known = asking(size=size, texts=texts, memory=memory, heard=heard)
    selection = selection_of(Learning(selection=policy))
    chosen, why_not = selection.choose(known)
    assert (chosen, why_not) == selection.choose(replace(known, candidates=tuple(order)))
    assert list(chosen) == sorted(set(chosen)) and len(chosen) == min(size, len(NAMES))
    assert set(why_not) == set(NAMES) - set(chosen) and all(why_not.values())


@given(st.sets(st.sampled_from(NAMES)), st.integers(0, 12), st.integers(0, 100))
def test_equal_weights_draw_as_random_does(names: set[str], size: int, purpose: int) -> None:
    weights = dict.fromkeys(names, 3.0)
    assert drawn_by(weights, size, "s", purpose) == drawn(names, size, "s", purpose)


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(allow_nan=True)))
def test_a_weight_stays_within_its_bound(told: dict[str, float]) -> None:
    assert all(1.0 <= within(weight) <= MOST_ODDS for weight in told.values())
    honest = {name: abs(weight) for name, weight in told.items() if weight == weight}
    assert all(1.0 <= weight <= MOST_ODDS for weight in beside_median(honest).values())


def test_odds_are_as_the_weights_say() -> None:
    weights = {"heavy": 4.0} | {f"d{index}": 1.0 for index in range(4)}
    found = Counter(name for index in range(2000) for name in drawn_by(weights, 1, "s", index))
    assert 900 < found["heavy"] < 1100  # 4 of 8


@pytest.mark.parametrize("claimed", [1e30, 3e38])
def test_a_device_that_claims_a_huge_loss_is_not_always_in(claimed: float) -> None:
    heard = {name: Heard(1, 10, 1.0, 0.7) for name in NAMES}
    honest = often("utility", asking(heard=heard))
    lying = often("utility", asking(heard=heard | {"d0": Heard(1, 2**53, 1.0, claimed)}))
    assert lying["d0"] < 400  # of as many rounds: it never is for certain
    assert all(lying[name] > 0.5 * honest[name] for name in NAMES[1:])


def test_who_is_slow_or_has_learned_is_asked_less() -> None:
    heard = {name: Heard(1, 10, 1.0, 1.0) for name in NAMES}
    weights = weights_of(heard | {"d0": Heard(1, 10, 30.0, 1.0), "d1": Heard(1, 10, 1.0, 0.01)}, 5)
    assert weights["d0"] == 1.0 and weights["d1"] < weights["d2"]


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(0.1, 100.0), st.floats(0.1, 100.0))
def test_more_loss_never_costs_and_more_time_never_pays(
    less: float, more: float, quick_s: float, slow_s: float
) -> None:
    heard = {name: Heard(1, 10, 1.0, 1.0) for name in NAMES}
    low, high = sorted((less, more))
    short_s, long_s = sorted((quick_s, slow_s))

    def weight(loss: float, took_s: float) -> float:
        return weights_of(heard | {"d0": Heard(1, 10, took_s, loss)}, 4)["d0"]

    assert weight(low, 1.0) <= weight(high, 1.0)
    assert weight(1.0, long_s) <= weight(1.0, short_s) + 1e-9


def test_new_devices_are_explored_and_fewer_of_them_later() -> None:
    heard = {name: Heard(1, 10, 1.0, 1.0) for name in NAMES[:5]}
    policy = selection_of(Learning(selection="utility"))
    many, _ = policy.choose(asking(heard=heard, size=5))
    few, _ = policy.choose(asking(heard=heard, size=5, round_index=200))
    assert len(set(many) - set(NAMES[:5])) == 5 and len(set(few) - set(NAMES[:5])) == 1


def test_devices_with_labels_are_covered_first() -> None:
    texts = dict.fromkeys(NAMES, 0) | {"d0": 5, "d1": 3}
    found = often("coverage", asking(texts=texts))
    assert min(found["d0"], found["d1"]) > 2 * max(found[name] for name in NAMES[2:])
    assert all(found[name] for name in NAMES)
    _, why_not = selection_of(Learning(selection="coverage")).choose(asking(texts=texts))
    assert "holds no gold label" in why_not.values()


def test_a_label_that_few_are_sure_of_is_worth_more() -> None:
    texts = dict.fromkeys(NAMES, 0)
    common, rare = counted(4, [0], [0.9], 2), counted(4, [1], [0.9], 2)
    told = dict.fromkeys(NAMES, common) | {"d0": rare}
    found = often("coverage", asking(texts=texts, confidences=told))
    assert found["d0"] > 1.3 * max(found[name] for name in NAMES[1:])


def test_a_small_group_is_heard_as_far_as_the_bound_allows() -> None:
    tags = {name: {"language": "en"} for name in NAMES} | {"d0": {"language": "sw"}}
    found = often("balance:language", asking(tags=tags, size=1))
    assert 0.35 * 400 < found["d0"] < 0.6 * 400  # 8 of 17


def test_more_memory_has_better_odds() -> None:
    memory = dict.fromkeys(NAMES, 1 << 30) | {"d0": 1 << 40}
    found = often("memory", asking(memory=memory, size=1))
    assert found["d0"] == max(found.values()) < 400


@pytest.mark.parametrize("wrong", ["balance", "balance:", "balance:a:b", "utility:1", "Coverage"])
def test_a_policy_that_is_not_written_so_is_refused(wrong: str) -> None:
    with pytest.raises(WrongInput, match="selection: "):
        Learning(selection=wrong)


def test_why_others_are_not_asked_is_in_the_journal() -> None:
    config = RunConfig("run", TASK, fraction=0.5, learning=Learning(selection="coverage"))
    texts = {"a": 3, "b": 0, "c": 0, "d": 4}
    state = State("first", evaluated=0, texts=texts, silences={"e": Silence(1, 9)})
    opened = decide(config, state, "abcdef", "secret", 0.0)
    assert isinstance(opened, StepOpened)
    told = {one.reason: one.device_ids for one in opened.passed}
    assert told["no text to train on"] == ("b", "c") and told["rests after silence"] == ("e",)
    assert {name for _, name in opened.members} | set(told["not drawn"]) == {"a", "d", "f"}
    assert decode_event(encode_event(opened)) == opened


def test_a_loss_is_known_from_the_journal() -> None:
    state = evolve(State("first"), decode_event(encode_event(LossTold("a", 0.5))))
    assert state.heard["a"].loss == 0.5


CLAIMS = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))
HEARD = st.builds(
    Heard, st.integers(0, 60), st.integers(0, 2**53), CLAIMS, CLAIMS, st.integers(0, 9)
)


@given(st.dictionaries(st.sampled_from(NAMES), HEARD), st.integers(1, 60))
def test_whatever_devices_claim_or_fail_at_their_odds_are_within_8_to_1(
    heard: dict[str, Heard], round_index: int
) -> None:
    weights = weights_of(heard, round_index)
    assert set(weights) == set(heard)
    assert all(1.0 <= weight <= MOST_ODDS for weight in weights.values())
    assert all(weights[name] == 1.0 for name, one in heard.items() if one.tries)


@given(st.lists(HEARD, min_size=len(NAMES), max_size=len(NAMES)), st.integers(1, 60))
def test_once_all_were_asked_they_are_drawn_by_those_weights_alone(
    told: list[Heard], round_index: int
) -> None:
    heard = dict(zip(NAMES, told, strict=True))
    chosen, _ = selection_of(Learning(selection="utility")).choose(
        asking(heard=heard, round_index=round_index)
    )
    weights = weights_of(heard, round_index)
    assert chosen == drawn_by(weights, 3, "secret", "cohort", round_index, 1)


def answered(step: StepOpened, bad: str, mode: str) -> list[Event]:
    """What a step's members answer: two of them, `bad`, always fail, or come last."""
    order = sorted(step.members, key=lambda one: one[1] in bad)
    return [
        Answered(work_id, "failed", None, 0, failure="internal")
        if name in bad and mode == "fails"
        else Answered(work_id, "done", "1" * 64, 50, norm=1.0, took_s=100.0 if name in bad else 9.0)
        for work_id, name in order
    ]


@pytest.mark.parametrize("mode", ["fails", "slow"])
def test_who_always_fails_or_comes_late_is_explored_once_and_asked_no_more_than_others(
    mode: str,
) -> None:
    config = RunConfig(
        "run",
        TASK,
        rounds=60,
        fraction=0.2,
        max_cohort=5,
        evaluate_every=0,
        over_selection=1.4 if mode == "slow" else 1.0,
        learning=Learning(selection="utility"),
    )
    names = "abcdefghijklmnopqrstuvwxyz"
    state, often = State("first", evaluated=0), Counter[str]()
    for _ in range(50):
        opened = decide(config, state, names, "secret", 0.0)
        assert isinstance(opened, StepOpened) and opened.kind == "train"
        often.update(name for _, name in opened.members)
        told = answered(opened, "az", mode)
        state = reduce(evolve, [opened, *told, StepClosed("2" * 64, 0.0)], state)
        assert all(state.heard[name].tries for name in "az" if often[name])
    honest = [often[name] for name in names if name not in "az"]
    assert max(often["a"], often["z"]) <= sum(honest) / len(honest)
    assert min(often.values()) > 0


def test_a_folded_journal_keeps_who_was_asked() -> None:
    opened = StepOpened("train", 1, 1, "first", (("w", "a"),), 0.0)
    state = evolve(State("first"), opened)
    folded = folded_from(1, state, Past(), {}, (), ())
    again = evolve(State("other"), decode_event(encode_event(folded)))
    assert again.heard == state.heard == {"a": Heard(0, 0, tries=1, asked=1)}
