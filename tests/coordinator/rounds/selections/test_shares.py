"""How much speed and claims multiply a device's share of the updates that count."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.events import Answered, LossTold, StepClosed
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.schedule import MOST_ODDS, Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve
from tests.coordinator.rounds.test_machine import CONFIG


def shares(config: RunConfig, devices: str, liars: str, by_speed: bool = True) -> tuple[float, int]:
    """The hostile devices' part of all updates that counted, and how many these were.

    Hostile devices answer at once and say a loss of 3e38; others one after the other, in turn.
    """
    state, counts, turn = State("first"), Counter[str](), 0
    while not state.is_finished:
        event = decide(config, state, devices, "secret", 0.0)
        if event is None:
            assert state.step is not None
            works, told = state.step.members, state.step.answers
            due = {name: key for key, name in works.items() if key not in told}
            quick = [name for name in due if name in liars and by_speed]
            turn += 1
            name = quick[0] if quick else min(due, key=lambda one: (ord(one) - turn) % 97)
            kind = state.step.opened.kind
            answer = Answered(due[name], "done", "u", 10, labelled=9, right=5, norm=1.0)
            state = evolve(state, answer)
            loss = 3e38 if name in liars else 1.0
            state = evolve(state, LossTold(name, loss)) if kind == "train" else state
            continue
        if isinstance(event, StepClosed) and event.adapter_sha256 is None:
            assert state.step is not None
            counts.update(name for name, _ in state.step.updates())
            event = replace(event, adapter_sha256=f"a{state.round_index}")
        state = evolve(state, event)
    total = sum(counts.values())
    return sum(counts[name] for name in liars) / total, total


def test_over_selection_multiplies_the_share_of_who_answers_at_once_by_itself_at_most() -> None:
    config = replace(CONFIG, rounds=20, fraction=2 / 3, over_selection=1.5)
    share, total = shares(config, "abcdefghi", "abc")
    print(f"over_selection 1.5: three of nine have {share:.2f} of {total} updates, fair 0.33")
    assert share <= 1.5 / 3 + 1e-9


def test_a_device_is_in_a_buffer_once_however_quick() -> None:
    config = replace(CONFIG, rounds=30, asynchronous=Asynchronous(buffer=2))
    share, total = shares(config, "abcde", "a")
    print(f"asynchronous, buffer 2: one of five has {share:.2f} of {total} updates, fair 0.20")
    assert share <= 1 / 2


def test_a_claimed_loss_multiplies_the_share_within_the_odds() -> None:
    learning = Learning(selection="utility")
    config = replace(CONFIG, rounds=60, fraction=1 / 3, learning=learning)
    share, total = shares(config, "abcdefghi", "a", by_speed=False)
    print(f"utility: one of nine that claims a loss of 3e38 has {share:.2f} of {total}, fair 0.11")
    assert share <= MOST_ODDS / (MOST_ODDS + 8)


WITH: dict[str, Any] = {"min_clients": 9, "min_updates": 7}


@pytest.mark.parametrize("mean", ["trimmed:0.34", "median", "geometric"])
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"over_selection": 1.5}, "1.5 times as many of those"),
        ({"asynchronous": Asynchronous()}, "1 of 2 by itself with a buffer of 2"),
        ({"selection": "utility"}, "up to 8 times another's odds"),
        ({"selection": "balance:language"}, "up to 8 times another's odds"),
    ],
)
def test_a_mean_that_bears_a_share_is_refused_where_the_share_is_multiplied(
    mean: str, settings: dict[str, Any], said: str
) -> None:
    named = {name: one for name, one in settings.items() if name == "selection"}
    others = {name: one for name, one in settings.items() if name != "selection"}
    with pytest.raises(ConfigError, match=f"learning: mean {mean} bears .*{said}.*leave one"):
        replace(CONFIG, learning=Learning(mean=mean, **named), **WITH, **others)
    assert replace(CONFIG, learning=Learning(mean=mean), **WITH).min_updates == 7
    assert replace(CONFIG, learning=Learning(mean="krum:2"), over_selection=1.2, **WITH)
