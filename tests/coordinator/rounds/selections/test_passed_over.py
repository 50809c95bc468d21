"""Why devices are not asked, found without walking through all of them for each."""

from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import Passed
from smidgen.coordinator.rounds.policies import (
    NAMED,
    NO_TEXTS,
    NOT_DRAWN,
    RESTS,
    TRAINS,
    passed_over,
)
from smidgen.coordinator.rounds.scheduling.participation import Silence, awake
from smidgen.coordinator.rounds.state import State

NAMES = [f"d{number:02d}" for number in range(40)]
SOME = st.sets(st.sampled_from(NAMES))


def slowly(
    state: State,
    alive: set[str],
    names: list[str],
    chosen: set[str],
    why_not: dict[str, str],
    at_work: set[str],
) -> tuple[Passed, ...]:
    """The same as it is said: by name, each looked for among all."""
    up, reasons = awake(alive, state.silences, state.steps + 1), dict[str, list[str]]()
    for name in sorted(alive - chosen):
        if name in at_work:
            reason = TRAINS
        elif name in names:
            reason = why_not.get(name, NOT_DRAWN)
        else:
            reason = NO_TEXTS if name in up else RESTS
        reasons.setdefault(reason, []).append(name)
    ordered = sorted(reasons.items(), key=lambda one: (-len(one[1]), one[0]))
    return tuple(Passed(reason, len(some), tuple(some[:NAMED])) for reason, some in ordered)


@given(SOME, SOME, SOME, SOME, SOME, st.dictionaries(st.sampled_from(NAMES), st.just("little")))
def test_the_quick_way_says_what_the_slow_one_does(
    alive: set[str],
    able: set[str],
    chosen: set[str],
    at_work: set[str],
    silent: set[str],
    why_not: dict[str, str],
) -> None:
    state = State("a", silences={name: Silence(1, 9) for name in silent})
    told = alive, sorted(able), chosen, why_not, at_work
    assert passed_over(state, *told) == slowly(state, *told)
