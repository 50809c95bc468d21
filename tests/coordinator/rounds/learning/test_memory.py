"""What a coordinator remembers between rounds: parts apart, equal bytes, clear refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.coordinator.rounds.learning.memory import (
    Memory,
    UnreadableError,
    decode_memory,
    encode_memory,
    part_of,
    with_part,
)

NAMES = st.text("abc./", min_size=1, max_size=6)
TENSORS = st.one_of(
    arrays(np.float32, (2, 3), elements=st.floats(-9, 9, width=32)),
    arrays(np.float64, (4,), elements=st.floats(-9, 9)),
    arrays(np.int64, (), elements=st.integers(-9, 9)),
)
PARTS = st.dictionaries(NAMES, TENSORS, max_size=4)


@given(PARTS, PARTS)
def test_a_part_takes_the_place_of_itself_alone(one: Memory, other: Memory) -> None:
    memory = with_part(with_part(with_part({}, "a", other), "b", other), "a", one)
    assert part_of(memory, "a").keys() == one.keys() and part_of(memory, "b").keys() == other.keys()
    assert all(np.array_equal(part_of(memory, "a")[name], one[name]) for name in one)


@given(PARTS)
def test_a_memory_comes_back_in_its_own_types_and_equal_ones_give_equal_bytes(
    part: Memory,
) -> None:
    memory = with_part({}, "a", part)
    body = encode_memory(memory)
    back = decode_memory(body)
    assert {name: (one.dtype, one.shape) for name, one in back.items()} == {
        name: (one.dtype, one.shape) for name, one in memory.items()
    }
    assert all(back[name].tobytes() == memory[name].tobytes() for name in memory)
    assert encode_memory(dict(reversed(list(memory.items())))) == body


def test_no_bytes_are_an_empty_memory_and_garbage_is_refused() -> None:
    assert decode_memory(b"") == {}
    with pytest.raises(UnreadableError, match="not a safetensors file"):
        decode_memory(b"garbage")
