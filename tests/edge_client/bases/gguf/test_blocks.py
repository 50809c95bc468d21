import hashlib
from dataclasses import replace

import numpy as np
import pytest

from smidgen.edge_client.bases import quantization
from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.quantization import Stored, dequantize, fill
from tests.edge_client.bases.gguf.files import blocks

ROWS, COLUMNS = 33, 512
# SHA-256 of the values that gguf 0.19.0's quants.dequantize gives for the same blocks, whose bits
# are llama.cpp's own.
DIGESTS = {
    "q4_0": "4f2d8dfb3979f3e79c0622925d0f40e0",
    "q4_1": "d12954facca7bc2038fb3af2e80c720f",
    "q5_0": "c7142db7da1c5be87d978205291a6c4a",
    "q5_1": "0337863aed56a3cdb078193e4f872e25",
    "q8_0": "207e4a8b6d6346dd711a8d65734bd17f",
    "q4_k": "d7d935b7ef32edf12ad40e66e0ea41b6",
    "q5_k": "e6421dd191f7ae24b20e38eea02aca61",
    "q6_k": "b14ff546f837b21dda9cf37137fae49d",
    "iq4_nl": "24b77b5245aaef854c15b98100d31ec4",
    "iq4_xs": "a44ced28f67be01bb83f99c64f4b9e66",
}


def stored(kind: str) -> Stored:
    return Stored(BLOCKS[kind].bits, kind, (ROWS, COLUMNS), blocks(kind, ROWS, COLUMNS))


@pytest.mark.parametrize("kind", BLOCKS)
def test_values_are_llama_cpps_to_the_bit(kind: str) -> None:
    values = dequantize(stored(kind)).astype("<f4")
    assert hashlib.sha256(values.tobytes()).hexdigest()[:32] == DIGESTS[kind]


@pytest.mark.parametrize("kind", BLOCKS)
def test_some_rows_are_those_of_the_whole_in_any_order(kind: str) -> None:
    whole, rows = dequantize(stored(kind)), [30, 2, 2, 0]
    assert np.array_equal(dequantize(stored(kind), rows), whole[rows])
    order = np.random.Generator(np.random.PCG64(0)).permutation(ROWS)
    ordered = replace(stored(kind), order=order)
    assert np.array_equal(dequantize(ordered), whole[order])
    assert np.array_equal(dequantize(ordered, rows), whole[order[rows]])
    assert dequantize(stored(kind), []).shape == (0, COLUMNS)


@pytest.mark.parametrize("cached", [1, COLUMNS * 2, 1 << 20])
def test_parts_fill_the_whole(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "CACHED", cached)
    out = np.full((ROWS, COLUMNS), np.nan, np.float32)
    for part in (slice(20, ROWS), slice(0, 7), slice(7, 20)):
        fill(stored("q5_k"), part, out)
    assert np.array_equal(out, dequantize(stored("q5_k")))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_floats_are_filled_in_their_order_too(kind: str) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    held: dict[str, np.ndarray] = {"float32": data, "float16": data.astype(np.float16)}
    held["bfloat16"] = (data.view(np.uint32) >> 16).astype(np.uint16)
    order, out = np.array([2, 0, 3, 1]), np.empty((4, 6), np.float32)
    one = Stored(32, kind, (4, 6), held[kind], order=order)
    fill(one, slice(0, 4), out)
    assert np.array_equal(out, data[order])
    assert np.array_equal(dequantize(one), data[order])
