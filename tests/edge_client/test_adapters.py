import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.adapters import (
    PREFIX,
    TARGETS,
    AdapterError,
    AdapterSpec,
    initial_adapter,
    parse_adapter,
)
from edge_client.base import Base
from edge_client.wire import encode_adapter

TARGET_SETS = st.lists(st.sampled_from(TARGETS), min_size=1, unique=True)
SPECS = st.one_of(
    st.builds(AdapterSpec, rank=st.integers(1, 9999), targets=TARGET_SETS.map(tuple)),
    st.builds(AdapterSpec, prompt_tokens=st.integers(1, 9999)),
    st.just(AdapterSpec(head=True)),
    st.just(AdapterSpec(bias=True)),
    st.just(AdapterSpec(rank=8, targets=("q", "v"), head=True)),
    st.just(AdapterSpec(prompt_tokens=8, head=True)),
    st.just(AdapterSpec(bias=True, head=True)),
)


@given(SPECS)
def test_a_spec_parses_from_its_own_name(spec: AdapterSpec) -> None:
    assert parse_adapter(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    ["", "lora", "lora:0", "lora:-1", "lora:8@x", "lora:8@", "head+head", "lora:8+lora:4"],
)
def test_a_name_outside_the_grammar_shows_it(text: str) -> None:
    with pytest.raises(AdapterError, match=r"lora:R, lora:R@q,v,k,o,up,down, prompt:N"):
        parse_adapter(text)


def test_lora_starts_as_the_base_itself(tiny_base: Base) -> None:
    state = initial_adapter(parse_adapter("lora:4"), tiny_base, 6, seed=1)
    assert len(state) == 2 * 2 * tiny_base.layers
    assert all(not tensor.any() for name, tensor in state.items() if "lora_B" in name)
    bound = 1 / np.sqrt(tiny_base.hidden)
    drawn = np.concatenate([state[name].ravel() for name in state if "lora_A" in name])
    assert np.abs(drawn).max() <= bound and np.abs(drawn).std() > 0


def test_biases_start_as_the_bases_own_but_for_the_keys(tiny_base: Base) -> None:
    state = initial_adapter(parse_adapter("bias"), tiny_base, 6, seed=1)
    with tiny_base.open_weights() as weights:
        for name, bias in state.items():
            assert (weights.vector(name.removeprefix(PREFIX)) == bias).all()
    # Of eight linears and norms in a layer one, the keys', has no effect on any score.
    assert len(state) == 7 * tiny_base.layers and not any(".key." in name for name in state)


def test_equal_seeds_give_equal_bytes(tiny_base: Base) -> None:
    spec = parse_adapter("lora:4@q,k,v,o,up,down")
    first, second, other = (
        encode_adapter(initial_adapter(spec, tiny_base, 6, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_a_prompt_starts_from_the_words_of_its_text(tiny_base: Base) -> None:
    state = initial_adapter(parse_adapter("prompt:5"), tiny_base, 6, 0, prompt_ids=[7, 9])
    rows = state["prompt_embeddings"]
    assert rows.shape == (5, tiny_base.hidden)
    assert (rows[0] == rows[2]).all() and (rows[1] == rows[3]).all() and (rows[0] != rows[1]).any()
