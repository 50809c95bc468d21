import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from benchmarks.papers.tables.languages import apart
from smidgen.simulation.report.plots import is_choice

MODULES = ("0.q", "0.up", "1.q", "1.up")
DEALT = st.lists(st.integers(0, 3), min_size=8, max_size=8).map(
    lambda places: {name: places.count(at) for at, name in enumerate(MODULES)}
)


@given(st.lists(DEALT, min_size=2, max_size=5), st.randoms())
def test_how_far_clients_differ_hangs_on_no_order_and_lies_between_0_and_1(ranks, random) -> None:  # type: ignore[no-untyped-def]
    found = apart(ranks)
    assert 0.0 <= found <= 1.0
    assert (found == 0.0) == all(one == ranks[0] for one in ranks)
    shuffled = random.sample(ranks, len(ranks))
    assert apart(shuffled) == pytest.approx(found)


def test_clients_without_a_common_module_are_wholly_apart() -> None:
    one, other = {"0.q": 2, "0.up": 0}, {"0.q": 0, "0.up": 2}
    assert apart([one, other]) == 1.0
    assert apart([one, one, other]) == pytest.approx(2 / 3)
    assert apart([one]) == 0.0 and apart([]) == 0.0


def test_even_ranks_are_no_choice() -> None:
    assert not is_choice({"eng": {"0.q": 2.0, "0.up": 2.0}})
    assert is_choice({"eng": {"0.q": 2.0, "0.up": 2.0}, "hau": {"0.q": 1.0, "0.up": 3.0}})
    assert not is_choice({})
