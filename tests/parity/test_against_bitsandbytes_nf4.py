"""Our nf4 against bitsandbytes' on the same blocks: codes and scales bit by bit, values too.

Codes are equal for every input, ties included: an element halfway between two codes gets the lower
one here and in bitsandbytes' processor path (bucketize over the same float32 midpoints). Its CUDA
kernel compares with midpoints written as decimals and may differ there by one code.
"""

import numpy as np
import pytest
from hypothesis import given, settings

from smidgen.edge_client.bases.quantization import NF4, Stored, dequantize, quantize_nf4
from tests.strategies import matrices

torch = pytest.importorskip("torch")
functional = pytest.importorskip("bitsandbytes.functional")


def check_equal(weight: np.ndarray) -> None:
    tensor = torch.from_numpy(weight)
    theirs, state = functional.quantize_4bit(tensor, blocksize=64, quant_type="nf4")
    data, scale = quantize_nf4(weight)
    assert data.ravel().tolist() == theirs.ravel().tolist()
    assert scale.ravel().tolist() == state.absmax.tolist()
    values = functional.dequantize_4bit(theirs, state, blocksize=64, quant_type="nf4")
    assert (dequantize(Stored(4, "nf4", weight.shape, data, scale)) == values.numpy()).all()


def test_the_codebook_is_the_same() -> None:
    assert functional.get_4bit_type("nf4", device="cpu").tolist() == NF4.tolist()


@settings(deadline=None)
@given(matrices(column_step=64).filter(len))
def test_every_block_is_the_same(weight: np.ndarray) -> None:
    check_equal(weight)


def test_a_million_weights_are_the_same() -> None:
    generator = np.random.Generator(np.random.PCG64(0))
    check_equal(generator.standard_normal((1024, 1024), dtype=np.float32) * np.float32(0.02))


def test_ties_are_the_same() -> None:
    middles = (NF4[:-1] + NF4[1:]) / 2
    near = np.concatenate([np.nextafter(middles, -2), middles, np.nextafter(middles, 2)])
    block = np.ones(64, np.float32)
    block[: len(near)] = near
    check_equal(block.reshape(1, 64))
