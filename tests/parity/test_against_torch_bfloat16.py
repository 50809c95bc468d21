"""Our rounding to bfloat16 against torch's, bit by bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.quantization import from_bfloat16, to_bfloat16

torch = pytest.importorskip("torch")


@given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
def test_every_number_rounds_to_the_same_bits(values: list[float]) -> None:
    ours = to_bfloat16(np.array(values, np.float32))
    theirs = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16)
    assert ours.tolist() == theirs.view(torch.uint16).tolist()
    assert from_bfloat16(ours).tolist() == theirs.float().tolist()


@pytest.mark.parametrize("low", [0x7FFF, 0x8000, 0x8001])
def test_halfway_between_two_goes_to_the_even_one(low: int) -> None:
    bits = np.arange(0x3F80, 0x3F88, dtype=np.uint32) << 16 | low
    values = bits.view(np.float32)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16)
    assert to_bfloat16(values).tolist() == theirs.tolist()
