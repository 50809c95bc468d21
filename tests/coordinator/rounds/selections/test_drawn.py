from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.policies import Random
from smidgen.coordinator.rounds.selection import Asking, asked_size, cohort, counted_size

IDS = st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=1, max_size=30)
FRACTIONS = st.floats(min_value=0.01, max_value=1.0)


@given(
    IDS,
    FRACTIONS,
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 10),
    st.sampled_from((1.0, 1.3)),
    st.randoms(),
)
def test_random_is_the_cohort_that_every_run_drew_before(  # type: ignore[no-untyped-def]
    ids, fraction, round_index, attempt, most, over, random
) -> None:
    size = asked_size(counted_size(fraction, len(ids), most), over)
    shuffled = random.sample(ids, len(ids))
    chosen, why_not = Random().choose(Asking(shuffled, size, "a secret", round_index, attempt))
    assert chosen == cohort(ids, fraction, "a secret", round_index, attempt, most, over)
    assert not why_not


def test_more_than_are_there_is_everybody() -> None:
    assert Random().choose(Asking(["b", "a"], 7, "0", 1, 1))[0] == ("a", "b")
