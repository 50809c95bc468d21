import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.bases.quantization import (
    NF4,
    Stored,
    dequantize,
    from_bfloat16,
    quantize_int8,
    quantize_nf4,
    to_bfloat16,
)
from tests.strategies import matrices

ULP = 2.0**-23  # float32's spacing, relative


def int8(weight: np.ndarray) -> Stored:
    return Stored(8, "int8", weight.shape, *quantize_int8(weight))


def nf4(weight: np.ndarray) -> Stored:
    return Stored(4, "nf4", weight.shape, *quantize_nf4(weight))


def codes(stored: Stored) -> np.ndarray:
    """The 16 codes' numbers, one per element: the first of a pair lies in the high half."""
    return np.stack([stored.data >> 4, stored.data & 15], axis=-1).reshape(stored.shape)


@given(matrices())
def test_int8_moves_an_element_by_half_a_step_at_most(weight: np.ndarray) -> None:
    stored = int8(weight)
    assert stored.scale is not None and (stored.scale > 0).all()
    error = np.abs(dequantize(stored).astype(np.float64) - weight)
    assert (error <= stored.scale * (0.5 + 127 * ULP)).all()


@given(matrices())
def test_int8_quantized_again_has_the_same_codes(weight: np.ndarray) -> None:
    once = int8(weight)
    values = dequantize(once)
    again = int8(values)
    assert (again.data == once.data).all()
    # 127 * x / 127 is not always x in float32, but never further than its neighbour.
    np.testing.assert_allclose(dequantize(again), values, rtol=2 * ULP, atol=0)


@given(matrices(column_step=64))
def test_nf4_picks_the_nearest_code(weight: np.ndarray) -> None:
    stored = nf4(weight)
    assert stored.scale is not None
    scales = np.repeat(stored.scale, 64, axis=1).astype(np.float64)
    chosen = np.abs(NF4.astype(np.float64)[codes(stored)] * scales - weight)
    candidates = np.abs(NF4.astype(np.float64) * scales[..., None] - weight[..., None])
    slack = np.maximum(2 * ULP * scales, 1e-38)  # below bitsandbytes' bound nothing is promised
    assert (chosen <= candidates.min(axis=-1) + slack).all()


@given(matrices(column_step=64))
def test_nf4_quantized_again_is_the_same_bytes(weight: np.ndarray) -> None:
    once = nf4(weight)
    values = dequantize(once)
    normal = np.abs(values).max(initial=0.0, axis=1) >= 1e-30
    again = nf4(values[normal])
    assert again.scale is not None and once.scale is not None
    assert (again.scale == once.scale[normal]).all()
    assert (dequantize(again) == values[normal]).all()


def test_of_two_codes_equally_near_the_lower_is_taken() -> None:
    weight = np.zeros((1, 64), np.float32)
    weight[0, 0] = 1.0
    weight[0, 1:16] = (NF4[:-1] + NF4[1:]) / 2
    assert codes(nf4(weight))[0, :16].tolist() == [15, *range(15)]


def test_the_first_of_two_elements_lies_in_the_high_half() -> None:
    weight = np.zeros((1, 64), np.float32)
    weight[0, 0], weight[0, 1] = 1.0, -1.0
    data, scale = quantize_nf4(weight)
    assert data[0, 0] == 0xF0 and data[0, 1] == 0x77 and scale.tolist() == [[1.0]]


def test_nf4_refuses_columns_that_are_no_whole_blocks() -> None:
    with pytest.raises(ValueError, match="columns in blocks of 64, not 65"):
        quantize_nf4(np.ones((2, 65), np.float32))


def test_zeros_stay_zeros() -> None:
    zeros = np.zeros((3, 128), np.float32)
    assert not dequantize(int8(zeros)).any() and not dequantize(nf4(zeros)).any()


@given(matrices())
def test_bfloat16_keeps_eight_bits_of_a_number(weight: np.ndarray) -> None:
    rounded = from_bfloat16(to_bfloat16(weight))
    assert (np.abs(rounded - weight) <= np.maximum(np.abs(weight) * 2.0**-8, 1e-38)).all()
    assert (to_bfloat16(rounded) == to_bfloat16(weight)).all()


@given(matrices(column_step=64), st.data())
def test_some_rows_are_those_rows_of_the_whole(weight: np.ndarray, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(weight) - 1), max_size=5)) if len(weight) else []
    wide = Stored(16, "bfloat16", weight.shape, to_bfloat16(weight))
    for stored in (int8(weight), nf4(weight), wide, Stored(32, "float32", weight.shape, weight)):
        rows = dequantize(stored, chosen)
        assert rows.dtype == np.float32 and rows.shape == (len(chosen), weight.shape[1])
        assert (rows == dequantize(stored)[np.array(chosen, np.int64)]).all()


@given(matrices(column_step=64))
def test_rows_quantized_by_themselves_are_the_same_bytes(weight: np.ndarray) -> None:
    for quantize in (quantize_int8, quantize_nf4):
        data, scale = quantize(weight)
        for row in range(len(weight)):
            one = quantize(weight[row : row + 1])
            assert (one[0] == data[row]).all() and (one[1] == scale[row]).all()
