from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smidgen.edge_client.bases.gguf.blocks import BLOCKS
from smidgen.edge_client.bases.quantization import (
    BLOCK,
    Stored,
    dequantize,
    quantize_int8,
    quantize_nf4,
    to_bfloat16,
)
from smidgen.edge_client.engine.onnx_backend.operators import (
    LOWEST,
    Activation,
    Attention,
    FrozenMatrix,
    Gradients,
    Linear,
    chunks,
)
from smidgen.edge_client.engine.onnx_backend.workspace import (
    Bench,
    BufferPool,
    blas_on_one_thread,
    open_bench,
)
from smidgen.edge_client.planning.layer_cost import SLICE, slice_size
from tests.edge_client.bases.gguf.files import blocks

GENERATOR = np.random.Generator(np.random.PCG64(5))


def draw(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape, dtype=np.float32)


def stored(kind: str, weight: np.ndarray) -> Stored:
    size = (weight.shape[0], weight.shape[1])
    if kind == "nf4":
        return Stored(4, kind, size, *quantize_nf4(weight))
    if kind == "int8":
        return Stored(8, kind, size, *quantize_int8(weight))
    if kind == "bfloat16":
        return Stored(16, kind, size, to_bfloat16(weight))
    return Stored(int(kind[5:]), kind, size, weight.astype(kind))


# BufferPool


def test_a_room_is_the_same_memory_as_long_as_it_is_large_enough() -> None:
    rooms = BufferPool()
    first = rooms.take("a", (4, 6))
    first[:] = 7
    assert (rooms.take("a", (2, 3)) == 7).all() and rooms.bytes == 96
    assert rooms.take("a", (24,), np.float16).shape == (24,) and rooms.bytes == 96
    rooms.take("a", (5, 6))[:] = 8
    assert rooms.bytes == 120 and (first == 7).all()  # whoever holds the old one keeps it


def test_rooms_of_two_names_are_apart_and_all_are_given_back() -> None:
    rooms = BufferPool()
    first, second = rooms.take("a", (8,)), rooms.take("b", (8,))
    first[:], second[:] = 1, 2
    assert (first == 1).all() and rooms.bytes == 64
    rooms.clear()
    assert rooms.bytes == 0


def test_a_room_that_cannot_be_had_is_a_failed_allocation() -> None:
    rooms = BufferPool()
    rooms.take("a", (4,))
    with pytest.raises(MemoryError):
        rooms.take("a", (1 << 60,), np.uint8)
    assert rooms.take("a", (4,)).shape == (4,)


# Frozen weights


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["nf4", "int8", "bfloat16", "float16", "float32"])
def test_a_dense_matrix_is_what_its_stored_numbers_stand_for(kind: str, threads: int) -> None:
    bench = open_bench(threads)
    for shape in ((1, 64), (2, 128), (97, 192)):
        matrix = stored(kind, draw(*shape))
        assert (FrozenMatrix(matrix, bench).dense() == dequantize(matrix)).all()
    bench.close()


@pytest.mark.parametrize("kind", ["q4_1", "q6_k", "float32", "float16"])
def test_a_gguf_matrix_has_its_rows_in_their_order(kind: str) -> None:
    plain = (
        Stored(4, kind, (97, 256), blocks(kind, 97, 256))
        if kind in BLOCKS
        else stored(kind, draw(97, 256))
    )
    order = GENERATOR.permutation(97)
    for threads in (1, 3):
        bench = open_bench(threads)
        dense = FrozenMatrix(replace(plain, order=order), bench).dense()
        assert np.array_equal(dense, dequantize(plain)[order])
        assert np.array_equal(FrozenMatrix(plain, bench).dense(), dequantize(plain))
        bench.close()


@pytest.mark.parametrize("elements", [1, 100, 1 << 18])
def test_a_matrix_is_made_dense_alike_whatever_fits_a_cache(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    monkeypatch.setattr("smidgen.edge_client.engine.onnx_backend.operators.CACHED", elements)
    bench, matrix = open_bench(2), stored("nf4", draw(13, 128))
    assert (FrozenMatrix(matrix, bench).dense() == dequantize(matrix)).all()
    bench.close()


def test_all_matrices_take_turns_in_one_room() -> None:
    bench = open_bench(1)
    for rows in (8, 96, 32):
        FrozenMatrix(stored("int8", draw(rows, 64)), bench).dense()
    assert bench.rooms.bytes == 4 * 96 * 64
    FrozenMatrix(stored("float32", draw(200, 64)), bench).dense()
    assert bench.rooms.bytes == 4 * 96 * 64  # used where it lies
    bench.close()


# Slices

LARGE = (1100, 1024)  # rows, columns


def sliced_bench(threads: int) -> Bench:
    bench = open_bench(threads)
    bench.is_sliced = True
    return bench


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["nf4", "int8", "bfloat16", "float16", "q4_1", "q6_k", "iq4_xs"])
def test_slices_are_the_matrix_whatever_threads_make_them(
    kind: str, threads: int, axis: int
) -> None:
    bench = sliced_bench(threads)
    plain = (
        Stored(4, kind, LARGE, blocks(kind, *LARGE))
        if kind in BLOCKS
        else stored(kind, draw(*LARGE))
    )
    order = None if plain.scale is not None else GENERATOR.permutation(LARGE[0])  # as of a GGUF
    out, dense = np.full(LARGE, np.nan, np.float32), dequantize(plain)

    def use(part: slice, weight: np.ndarray) -> None:
        out[(slice(None),) * axis + (part,)] = weight

    matrix = FrozenMatrix(replace(plain, order=order), bench)
    assert matrix.is_sliced
    matrix.in_slices(axis, use)
    assert np.array_equal(out, dense if order is None else dense[order])
    bench.close()


@pytest.mark.parametrize("shape", [LARGE, (64, 65536), (16384, 128)])
def test_slices_take_no_more_room_than_is_said(shape: tuple[int, int]) -> None:
    matrix = stored("int8", draw(*shape))
    for threads in (1, 2, 5):
        bench = sliced_bench(threads)
        for axis in (0, 1):
            FrozenMatrix(matrix, bench).in_slices(axis, lambda *_: None)
            least = slice_size(shape, axis, BLOCK, threads) * shape[1 - axis]
            assert bench.rooms.bytes <= 4 * max(2 * SLICE, least)
            bench.rooms.clear()
        bench.close()


@pytest.mark.parametrize("is_bias_trained", [False, True])
@pytest.mark.parametrize("has_rest", [False, True])
@pytest.mark.parametrize("has_lora", [False, True])
def test_a_linear_in_slices_is_the_whole_one_and_always_the_same(
    has_lora: bool, has_rest: bool, is_bias_trained: bool
) -> None:
    (rows, columns), matrix = LARGE, stored("nf4", draw(*LARGE))
    x, g, bias, found = draw(37, columns), draw(37, rows), draw(rows), []
    rest = [draw(*array.shape) if has_rest else None for array in (g, x)]
    a, b = (draw(2, columns), draw(rows, 2)) if has_lora else (None, None)
    for bench in (open_bench(2), sliced_bench(2), sliced_bench(2), sliced_bench(2)):
        linear = Linear("x", FrozenMatrix(matrix, bench), bias, is_bias_trained, a, b, 2.0, bench)
        y = linear.forward(x, np.empty_like(g), rest[0])
        found.append((y, linear.backward(g, np.empty_like(x), rest[1])))
        bench.close()
    for whole, sliced in zip(*found[:2], strict=True):
        np.testing.assert_allclose(sliced, whole, rtol=1e-5, atol=1e-4 * np.abs(whole).max())
    for again in found[2:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[1], again, strict=True))


def test_a_small_matrix_and_one_that_is_kept_dense_are_used_whole() -> None:
    bench = sliced_bench(1)
    assert not FrozenMatrix(stored("nf4", draw(8, 64)), bench).is_sliced
    assert not FrozenMatrix(stored("float32", draw(*LARGE)), bench).is_sliced
    large = FrozenMatrix(stored("int8", draw(*LARGE)), bench)
    large.keep()
    assert not large.is_sliced
    bench.close()


@pytest.mark.parametrize("is_sliced", [False, True])
def test_pages_go_back_after_each_matrix_where_matrices_are_in_slices(is_sliced: bool) -> None:
    bench, released = open_bench(1), list[int]()
    bench.is_sliced = is_sliced
    for shape in ((8, 64), LARGE):
        matrix = FrozenMatrix(stored("nf4", draw(*shape)), bench, lambda: released.append(1))
        if matrix.is_sliced:
            matrix.in_slices(0, lambda *_: None)
        else:
            matrix.dense()
    assert len(released) == 2 * is_sliced
    bench.close()


def test_numpys_products_are_made_on_the_thread_that_asks_for_them() -> None:
    assert blas_on_one_thread()  # of its own wheels, which tests run with


# Parts of a batch


def linear_of(bench: object, is_bias_trained: bool = True) -> Linear:
    matrix = FrozenMatrix(stored("float32", draw(5, 7)), bench)  # type: ignore[arg-type]
    return Linear("x", matrix, draw(5), is_bias_trained, draw(2, 7), draw(5, 2), 2.0, bench)  # type: ignore[arg-type]


def test_gradients_of_parts_add_up_to_those_of_the_whole() -> None:
    bench = open_bench(2)
    linear, x, g = linear_of(bench), draw(9, 7), draw(9, 5)
    whole, parts = Gradients(bench, {}), Gradients(bench, {})
    linear.gradients(x, g, whole)
    for rows in (slice(0, 4), slice(4, 8), slice(8, 9)):
        linear.gradients(x[rows], g[rows], parts)
    assert set(whole.tensors) == {"x.bias", "x.lora_A.weight", "x.lora_B.weight"}
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(parts.tensors[name], tensor, rtol=1e-5, atol=1e-5)
    bench.close()


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 500))
def test_chunks_are_all_rows_once_and_no_larger_than_asked(
    rows: int, columns: int, elements: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("smidgen.edge_client.engine.onnx_backend.operators.PASS_ELEMENTS", elements)
        found = chunks(np.zeros((rows, columns), np.float32))
    seen = [row for part in found for row in range(rows)[part]]
    assert seen == list(range(rows))
    assert all(len(range(rows)[part]) * columns <= max(elements, columns) for part in found)


@pytest.mark.parametrize("elements", [1, 130, 1 << 19])
def test_an_activations_gradient_is_the_same_in_chunks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, elements: int
) -> None:
    bench, x, g = open_bench(2), draw(11, 65), draw(11, 65)
    whole = Activation("gelu", bench).backward(x, g.copy())
    monkeypatch.setattr("smidgen.edge_client.engine.onnx_backend.operators.PASS_ELEMENTS", elements)
    parts = Activation("gelu", bench).backward(x, g)
    assert parts is g
    np.testing.assert_allclose(parts, whole, rtol=1e-6, atol=1e-7)  # other lanes, last places
    bench.close()


def test_padding_changes_nothing_of_what_is_seen() -> None:
    bench = open_bench(2)
    attention = Attention(4, bench)
    q, k, v = draw(2, 3, 8), draw(2, 5, 8), draw(2, 5, 8)
    mask = np.zeros((2, 1, 1, 5), np.float32)
    mask[:, :, :, 3:] = LOWEST
    k[:, 3:], v[:, 3:] = 50, 50
    padded = attention.forward(q, k, v, mask, np.empty_like(q))
    short = [np.ascontiguousarray(a[:, :3]) for a in (k, v)]
    plain = attention.forward(q, short[0], short[1], None, np.empty_like(q))
    np.testing.assert_allclose(padded, plain, rtol=1e-6, atol=1e-6)
    bench.close()
