import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import (
    PREFIX,
    TARGETS,
    AdapterError,
    AdapterSpec,
    ModuleRank,
    frozen_layers,
    largest_rank,
    layers_of,
    parse_adapter,
)
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.wire.tensors import encode_adapter

TARGET_SETS = st.lists(st.sampled_from(TARGETS), min_size=1, unique=True)
ALPHAS = st.sampled_from([16.0, 32.0, 0.5, 12.25])


def of_ranks(found: list[tuple[int, str, int, float]]) -> AdapterSpec:
    """LoRA of rank 8 on query and value, but where a module says otherwise."""
    named = [
        ModuleRank(layer, target, rank, alpha if rank else 16.0)
        for layer, target, rank, alpha in sorted(found)
        if (rank, alpha if rank else 16.0) != (8 if target in "qv" else 0, 16.0)
    ]
    return AdapterSpec(rank=8, targets=("q", "v"), ranks=tuple(named))


SPECS = st.one_of(
    st.builds(AdapterSpec, rank=st.integers(1, 9999), targets=TARGET_SETS.map(tuple)),
    st.builds(AdapterSpec, prompt_tokens=st.integers(1, 9999)),
    st.just(AdapterSpec(head=True)),
    st.just(AdapterSpec(bias=True)),
    st.just(AdapterSpec(rank=8, targets=("q", "v"), head=True)),
    st.just(AdapterSpec(prompt_tokens=8, head=True)),
    st.just(AdapterSpec(bias=True, head=True)),
    st.builds(
        AdapterSpec,
        rank=st.just(8),
        targets=st.just(("q", "v")),
        top=st.integers(1, 9999),
        head=st.booleans(),
    ),
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(TARGETS), st.integers(0, 64), ALPHAS),
        max_size=40,
        unique_by=lambda one: one[:2],
    ).map(lambda found: of_ranks(found)),
    st.builds(AdapterSpec, bias=st.just(True), top=st.integers(1, 9999), head=st.booleans()),
)


@given(SPECS)
def test_a_spec_parses_from_its_own_name(spec: AdapterSpec) -> None:
    assert parse_adapter(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "lora", "lora:0", "lora:-1", "lora:8@x", "lora:8@", "head+head", "lora:8+lora:4"),
        *("head/top1", "lora:8/top0", "lora:8/top", "lora:8+head/top2", "bias/top-1", "/top2"),
    ],
)
def test_a_name_outside_the_grammar_says_where_it_stands(text: str) -> None:
    with pytest.raises(AdapterError, match=r"lora:R, prompt:N, bias, head, and more in the run"):
        parse_adapter(text)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        *(("lora8", "lora:8"), ("LoRA:16", "lora:16"), ("lora", "lora:8"), ("biases", "bias")),
        *(("prompt 20", "prompt:20"), ("lora:8+heads", "lora:8+head"), ("lora:8+fa", "lora:8+ffa")),
    ],
)
def test_what_was_meant_is_named_in_a_short_line(text: str, near: str) -> None:
    with pytest.raises(AdapterError, match=rf"did you mean {re.escape(near)}\?") as raised:
        parse_adapter(text)
    assert len(str(raised.value)) < 160
    parse_adapter(near)


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


# Of the top layers alone


@pytest.mark.parametrize("name", ["lora:4@q,up/top1", "bias/top1", "lora:2/top1+head"])
def test_an_adapter_of_top_layers_is_the_upper_part_of_the_whole_one(
    tiny_base: Base, name: str
) -> None:
    top, whole = (
        initial_adapter(parse_adapter(text), tiny_base, 6, seed=1)
        for text in (name, name.replace("/top1", ""))
    )
    assert set(top) == {tensor for tensor in whole if ".layer.0." not in tensor}
    assert all(top[tensor].shape == whole[tensor].shape for tensor in top)


def test_as_many_top_layers_as_there_are_is_the_whole_adapter(tiny_base: Base) -> None:
    top, whole = (
        initial_adapter(parse_adapter(name), tiny_base, 6, seed=1)
        for name in ("lora:4/top2", "lora:4")
    )
    assert encode_adapter(top) == encode_adapter(whole)


def test_a_soft_prompt_of_top_layers_is_refused() -> None:
    with pytest.raises(AdapterError, match=r"lies below all layers; leave /top2 out"):
        parse_adapter("prompt:8/top2")


def test_more_top_layers_than_there_are_is_told(tiny_base: Base) -> None:
    with pytest.raises(AdapterError, match=r"the base has 2 layers; leave /top3 out"):
        initial_adapter(parse_adapter("lora:4/top3"), tiny_base, 6, seed=1)


def test_top_layers_of_one_layer_used_again_are_told(tiny_base: Base) -> None:
    shape = replace(tiny_base.shape, architecture="albert", layers=4, stored_layers=1)
    with pytest.raises(AdapterError, match="are one layer, repeated"):
        initial_adapter(parse_adapter("bias/top1"), replace(tiny_base, shape=shape), 6, seed=1)


def test_the_layers_of_a_state_are_those_of_its_tensors(tiny_base: Base) -> None:
    for name, expected in (("lora:4", [0, 1]), ("bias/top1", [1]), ("head", []), ("prompt:4", [])):
        state = initial_adapter(parse_adapter(name), tiny_base, 6, seed=1)
        assert layers_of(state, "bert") == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lora:8/0-3=0/11.v=16:32", "lora:8@q,v/0-3=0/11.v=16:32"),
        ("lora:8/3=0/0-2=0", "lora:8@q,v/0-3=0"),
        ("lora:8/0.q=4/0.v=4/1=4", "lora:8@q,v/0-1=4"),
        ("lora:8/0=8/1.q=8:16", "lora:8@q,v"),
        ("lora:8/0.k=2", "lora:8@q,v/0.k=2"),
        ("lora:8/0=0:32", "lora:8@q,v/0=0"),
        ("lora:4/top2/1=2+head", "lora:4@q,v/top2/1=2+head"),
    ],
)
def test_ranks_by_module_have_one_short_name(text: str, name: str) -> None:
    assert str(parse_adapter(text)) == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lora:8/3-1=4", "3-1=4 names no layer"),
        ("lora:8/0=4/0.q=2", "0.q is named twice"),
        ("lora:8/0.x=4", "no linear x; one of q, v, k, o, up, down".replace("q, v, k", "q, k, v")),
        ("bias/0=4", "ranks by module are LoRA's; leave /0=4 out"),
        ("lora:8/0=10000", "is unknown; did you mean"),
    ],
)
def test_ranks_that_make_no_sense_are_refused(text: str, said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        parse_adapter(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lora:8/2=4", "2.q: the base has layers 0 to 1"),
        ("lora:8/1.up=17", "1.up: rank 17; its matrix has 16 at most"),
        ("lora:17", "0.q: rank 17; its matrix has 16 at most .16 x 16.; take lora:16, or /0.q=16"),
        ("lora:9999@down/top1", "1.down: rank 9999; its matrix has 16 at most .16 x 32."),
        ("lora:8/0-1=0", "no module is left that carries LoRA"),
    ],
)
def test_ranks_that_do_not_fit_the_base_are_refused(tiny_base: Base, text: str, said: str) -> None:
    with pytest.raises(AdapterError, match=said):
        initial_adapter(parse_adapter(text), tiny_base, 6, seed=1)


@pytest.mark.parametrize("text", ["lora:16@q,v,k,o,up,down", "lora:500/0-1=16", "lora:9999/0-1=4"])
def test_ranks_that_no_module_has_are_not_looked_at(tiny_base: Base, text: str) -> None:
    spec = parse_adapter(text)
    found = initial_adapter(spec, tiny_base, 6, seed=1)
    ranks = {len(tensor) for name, tensor in found.items() if "lora_A" in name}
    assert ranks == {largest_rank(spec, tiny_base.shape)}


def test_every_module_has_its_own_rank_and_those_of_rank_0_no_tensor(tiny_base: Base) -> None:
    spec = parse_adapter("lora:4/0=0/1.v=2:32/1.down=3")
    state = initial_adapter(spec, tiny_base, 6, seed=1)
    ranks = {
        name.split("layer.1.")[1].removesuffix(".lora_A.weight"): len(tensor)
        for name, tensor in state.items()
        if name.endswith("lora_A.weight")
    }
    assert ranks == {"attention.self.query": 4, "attention.self.value": 2, "output.dense": 3}
    assert layers_of(state, "bert") == [1] and frozen_layers(spec, 2) == 1
    assert spec.module_rank(1, "v", 2).scaling == 16.0


@given(st.integers(1, 64), st.integers(0, 3))
def test_ranks_that_say_nothing_new_change_no_byte(tiny_base: Base, rank: int, layer: int) -> None:
    plain = parse_adapter(f"lora:{rank}")
    assert parse_adapter(f"lora:{rank}/{layer}={rank}/{layer + 1}.k=0") == plain
