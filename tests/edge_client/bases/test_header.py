import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from smidgen.edge_client.bases.header import ITEM_BYTES, WeightsError, read_header, write_header

# The format, byte for byte: the length, the header with its padding; the tensors follow.
GOLDEN = (
    b'\x98\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"},"x.scale":{"dtype":"F32",'
    b'"shape":[2,1],"data_offsets":[0,8]},"x":{"dtype":"I8","shape":[2,3],"data_offsets":[8,14]}}'
    b"    "
)
FORMS = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.sampled_from(sorted(ITEM_BYTES)),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
    ),
    max_size=6,
)


def test_a_header_is_these_bytes() -> None:
    header, entries = write_header({"x.scale": ("F32", (2, 1)), "x": ("I8", (2, 3))})
    assert header == GOLDEN and len(header) % 8 == 0
    assert (entries["x"].start, entries["x"].end) == (len(header) + 8, len(header) + 14)


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(8, dtype=np.uint8).reshape(2, 4),
        "c": np.arange(-3, 3, dtype=np.int8),
    }
    forms = {"b": ("F32", (2, 3)), "a": ("U8", (2, 4)), "c": ("I8", (6,))}
    header, _ = write_header(forms)
    (tmp_path / "w").write_bytes(header + b"".join(t.tobytes() for t in tensors.values()))
    theirs = load_file(tmp_path / "w")
    assert set(theirs) == set(tensors)
    for name, tensor in tensors.items():
        assert theirs[name].dtype == tensor.dtype and (theirs[name] == tensor).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forms=FORMS)
def test_what_is_written_is_read_back(
    tmp_path: Path, forms: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    header, entries = write_header(forms)
    size = sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in forms.values())
    path = tmp_path / "w"
    path.write_bytes(header + bytes(size))
    with path.open("rb") as file:
        assert read_header(file, path) == entries


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_refused_or_stays_inside_the_file(
    tmp_path: Path, data: st.DataObject
) -> None:
    header, _ = write_header({"a": ("F32", (2, 3)), "b": ("U8", (4,))})
    body = bytearray(header + bytes(28))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.sampled_from((len(body), len(body) - 1, 40, 8, 7, 0)))]
    path = tmp_path / "w"
    path.write_bytes(body)
    with path.open("rb") as file:
        try:
            entries = read_header(file, path)
        except WeightsError:
            return
    assert all(8 <= entry.start <= entry.end <= len(body) for entry in entries.values())


def test_a_web_page_saved_as_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_text("<!DOCTYPE html><html>Not found</html>")
    with path.open("rb") as file, pytest.raises(WeightsError, match="copy the file again"):
        read_header(file, path)
