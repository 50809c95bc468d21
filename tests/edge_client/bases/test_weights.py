import ctypes
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.header import WeightsError, write_header
from smidgen.edge_client.bases.quantization import (
    dequantize,
    quantize_int8,
    quantize_nf4,
    to_bfloat16,
)
from smidgen.edge_client.bases.weights import Weights
from smidgen.edge_client.engine.onnx_backend.workspace import ReadAhead

WIDE = np.random.Generator(np.random.PCG64(0)).standard_normal((50, 128), dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One tensor of every kind."""
    eight, eight_scale = quantize_int8(WIDE)
    four, four_scale = quantize_nf4(WIDE)
    tensors = {
        "plain.weight": WIDE,
        "half.weight": WIDE.astype(np.float16),
        "norm.gamma": np.arange(5, dtype=np.float32),
        "norm.beta": np.arange(5, dtype=np.float16),
        "eight.weight": eight,
        "eight.weight.scale": eight_scale,
        "four.weight": four,
        "four.weight.scale": four_scale,
        "ids": np.arange(3),
    }
    save_file(tensors, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_scales_belong_to_their_tensors_and_old_names_are_todays(path: Path) -> None:
    with Weights(path) as weights:
        assert set(weights.names) == {
            *("plain.weight", "half.weight", "norm.weight", "norm.bias"),
            *("eight.weight", "four.weight", "ids"),
        }
        assert "norm.weight" in weights
        assert "norm.gamma" not in weights and "four.weight.scale" not in weights


def test_names_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    header, _ = write_header({"z": ("U8", (1,)), "a": ("U8", (1,)), "m": ("U8", (1,))})
    (tmp_path / "w").write_bytes(header + b"123")
    assert Weights(tmp_path / "w").names == ["z", "a", "m"]


def test_shapes_are_those_of_the_matrix_meant(path: Path) -> None:
    with Weights(path) as weights:
        matrices = ("plain.weight", "half.weight", "eight.weight", "four.weight")
        assert {weights.shape(name) for name in matrices} == {(50, 128)}
        assert weights.shape("norm.bias") == (5,)


@pytest.mark.parametrize(
    ("name", "bits", "kind"),
    [
        ("plain.weight", 32, "float32"),
        ("half.weight", 16, "float16"),
        ("eight.weight", 8, "int8"),
        ("four.weight", 4, "nf4"),
    ],
)
def test_rows_are_rows_of_the_stored_matrix(path: Path, name: str, bits: int, kind: str) -> None:
    weights = Weights(path)
    stored = weights.stored(name)
    assert (stored.bits, stored.kind, stored.shape) == (bits, kind, (50, 128))
    rows = weights.rows(name, [3, 0, 3])
    assert rows.dtype == np.float32
    assert (rows == dequantize(stored)[[3, 0, 3]]).all()
    assert np.abs(rows - WIDE[[3, 0, 3]]).max() < 0.6  # half the widest gap of nf4


def test_bfloat16_is_read_back(tmp_path: Path) -> None:
    header, _ = write_header({"x": ("BF16", WIDE.shape), "v": ("BF16", (2,))})
    body = to_bfloat16(WIDE).tobytes() + to_bfloat16(np.array([1, -2], np.float32)).tobytes()
    (tmp_path / "w").write_bytes(header + body)
    weights = Weights(tmp_path / "w")
    assert weights.stored("x").data.dtype == np.uint16
    assert np.abs(weights.rows("x", range(50)) - WIDE).max() < 0.02
    assert weights.vector("v").tolist() == [1.0, -2.0]


def test_vectors_are_copies_in_float32(path: Path) -> None:
    with Weights(path) as weights:
        bias = weights.vector("norm.bias")
    assert bias.dtype == np.float32 and bias.tolist() == [0, 1, 2, 3, 4]


def test_views_can_be_written_but_the_file_never_changes(path: Path) -> None:
    before = path.read_bytes()
    weights = Weights(path)
    view = weights.stored("plain.weight").data
    view[:] = 0
    assert path.read_bytes() == before


def test_released_tensors_can_still_be_read(path: Path) -> None:
    weights = Weights(path)
    first = weights.rows("plain.weight", range(50))
    weights.release(weights.names)
    assert (weights.rows("plain.weight", range(50)) == first).all()


def test_release_gives_pages_back(tmp_path: Path) -> None:
    tensors = {f"t{n}": np.ones((1024, 1024), np.float32) for n in range(3)}
    save_file(tensors, tmp_path / "w")
    weights = Weights(tmp_path / "w")
    for name in weights.names:
        assert weights.stored(name).data.sum() == 1024 * 1024
    before = resident_file_bytes()
    weights.release(["t0", "t2"])
    given_back = before - resident_file_bytes()
    assert abs(given_back - 2 * 4 * 1024 * 1024) <= 8 * mmap.PAGESIZE


def cached(path: Path) -> np.ndarray:
    """Which pages of a file the kernel holds in memory, bool, (pages,)."""
    pages = -(-path.stat().st_size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        held = (ctypes.c_ubyte * pages)()
        start = np.asarray(memoryview(view)).ctypes.data
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(view)), held) == 0
    return np.array([page & 1 for page in held], bool)


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """Three matrices of 4 MiB, none of which is in memory."""
    path = tmp_path / "w.safetensors"
    save_file({name: np.ones((1024, 1024), np.float32) for name in "abc"}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path).any():
        pytest.skip(f"{tmp_path} is on a file system without a page cache of its own")
    return path


def test_rows_read_their_own_pages_alone(cold: Path) -> None:
    weights = Weights(cold)
    before, mapped = cached(cold).sum(), resident_file_bytes()  # pages around the header
    assert (weights.rows("b", [3, 700, 701]) == 1).all()
    assert cached(cold).sum() - before <= 5
    assert resident_file_bytes() - mapped < 8 * mmap.PAGESIZE


@pytest.mark.parametrize("row", [-1, 1024])
def test_a_row_that_is_not_there_is_no_other_matrixs(cold: Path, row: int) -> None:
    with pytest.raises(IndexError, match="b has 1024 rows"):
        Weights(cold).rows("b", [3, row])


def test_rows_of_a_file_cut_short_since_are_refused(cold: Path) -> None:
    weights = Weights(cold)
    os.truncate(cold, cold.stat().st_size - 4096)
    assert (weights.rows("c", [3]) == 1).all()
    with pytest.raises(WeightsError, match="cut short since it was opened"):
        weights.rows("c", [1023])


def test_what_was_used_next_before_is_read_ahead(cold: Path) -> None:
    weights = Weights(cold)
    ahead, stored = ReadAhead(weights), {name: weights.stored(name) for name in "abc"}
    pages = {
        name: slice(-(-span[0] // mmap.PAGESIZE), span[1] // mmap.PAGESIZE)
        for name in "abc"
        for span in weights.spans(stored[name])
    }
    ahead.restart()
    for name in "acb":
        ahead.use(stored[name])
    assert not cached(cold)[pages["c"]].any()
    ahead.restart()
    ahead.use(stored["a"])
    end = time.monotonic() + 10
    while not cached(cold)[pages["c"]].all():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not cached(cold)[pages["b"]].any()
    ahead.use(stored["b"])  # another pass than before: nothing is known
    assert not cached(cold)[pages["b"]].any()


def test_a_closed_map_lives_as_long_as_its_views(path: Path) -> None:
    weights = Weights(path)
    view = weights.stored("plain.weight").data
    weights.close()
    assert (view == WIDE).all()


def test_files_do_not_stay_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (counted, not walked)
    for _ in range(5):
        Weights(path).close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody.weight", "has no tensor nobody.weight"),
        ("norm.weight", r"norm.weight has shape \(5,\), a matrix is expected"),
        ("ids", "ids is I64, which no base here is made of"),
    ],
)
def test_what_is_no_matrix_is_named(path: Path, name: str, said: str) -> None:
    with pytest.raises(WeightsError, match=said):
        Weights(path).stored(name)


def test_a_quantized_matrix_is_no_vector(path: Path) -> None:
    with pytest.raises(WeightsError, match=r"four.weight is quantized; read its rows"):
        Weights(path).vector("four.weight")


def test_scales_of_another_shape_are_refused(tmp_path: Path) -> None:
    header, _ = write_header({"x.scale": ("F32", (2, 2)), "x": ("U8", (2, 32))})
    (tmp_path / "w").write_bytes(header + bytes(16 + 64))
    with pytest.raises(WeightsError, match=r"scales of x are float32 \(2, 2\)"):
        Weights(tmp_path / "w").stored("x")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"cannot read weights .*nowhere: No such file"):
        Weights(tmp_path / "nowhere")


def test_a_real_base_is_read_as_the_library_reads_it(real_base: Base) -> None:
    safetensors = pytest.importorskip("safetensors")
    with (
        safetensors.safe_open(real_base.weights, "numpy") as theirs,
        Weights(real_base.weights) as ours,
    ):
        assert set(ours.names) == set(theirs.keys())
        for name in ours.names:
            assert (ours.vector(name) == theirs.get_tensor(name)).all()


def resident_file_bytes() -> int:
    """What this process holds of mapped files, measured by the kernel."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssFile:"))
    return int(line.split()[1]) * 1024
