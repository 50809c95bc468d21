from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.wire.tensors import derive_seed, seeds_under

WORDS = st.lists(st.text(max_size=9) | st.integers(), max_size=4)


@given(st.text() | st.integers(), WORDS, st.text())
def test_many_seeds_under_one_purpose_are_those_that_each_has_alone(
    root: str | int, purpose: list[str | int], word: str
) -> None:
    assert seeds_under(root, *purpose)(word) == derive_seed(root, *purpose, word)
