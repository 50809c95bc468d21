"""Laws of the blocks in which attention is computed."""

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.planning.layer_cost import window_blocks


@given(st.integers(1, 700), st.integers(1, 800), st.booleans())
def test_each_query_is_in_one_block_whose_keys_hold_all_that_it_sees(
    tokens: int, window: int, is_causal: bool
) -> None:
    blocks = window_blocks(tokens, window, is_causal)
    assert [row for rows, _ in blocks for row in range(tokens)[rows]] == list(range(tokens))
    for rows, keys in blocks:
        last = rows.stop - 1 if is_causal else min(tokens, rows.stop + window) - 1
        assert keys.start <= max(0, rows.start - window) and keys.stop > last
        assert not is_causal or keys.stop == rows.stop
