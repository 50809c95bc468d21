"""Steps from one adapter to the next, coded: the same adapter for whoever makes or adds them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load

from smidgen.edge_client.codecs import CodecError, decode, kind_of
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    add_step,
    decode_adapter,
    encode_adapter,
    encode_step,
    header_of,
    sha256,
    shapes_of,
)
from tests.edge_client.codecs.test_codec import CODECS, lora

NUMBERS = st.floats(-4.0, 4.0, width=32)
SHAPES = st.dictionaries(
    st.sampled_from("abc"), st.sampled_from([(), (0,), (3, 5), (70,), (2, 128), (129, 1)])
)


@st.composite
def steps(draw: st.DrawFn) -> tuple[AdapterState, AdapterState, AdapterState]:
    """An adapter, where it is to go, and what earlier steps left out, if anything."""
    shapes = draw(SHAPES)
    adapter, after, left = (
        {name: draw(arrays(np.float32, shape, elements=NUMBERS)) for name, shape in shapes.items()}
        for _ in range(3)
    )
    return adapter, after, draw(st.sampled_from([left, {}]))


@given(steps(), st.sampled_from(CODECS))
def test_whoever_adds_a_step_has_the_adapter_of_whoever_made_it(
    known: tuple[AdapterState, AdapterState, AdapterState], codec: str
) -> None:
    adapter, after, before = known
    start = encode_adapter(adapter)
    body, found, left = encode_step(adapter, after, codec, before, sha256(start))
    assert add_step(start, body) == encode_adapter(found)
    assert body == encode_step(adapter, after, codec, before, sha256(start))[0]
    for name, tensor in adapter.items():
        moved = found[name].astype(np.float64) - tensor + left[name]
        expected = after[name].astype(np.float64) - tensor + before.get(name, np.float32(0.0))
        np.testing.assert_allclose(moved, expected, rtol=0.0, atol=4e-6)


@given(steps(), st.sampled_from(CODECS))
def test_an_adapter_moves_by_exactly_what_its_step_decodes_to(
    known: tuple[AdapterState, AdapterState, AdapterState], codec: str
) -> None:
    adapter, after, before = known
    body, found, left = encode_step(adapter, after, codec, before, "0" * 64)
    sent = decode(stored(body), kind_of(codec), shapes_of(adapter))
    for name, tensor in adapter.items():
        assert found[name].dtype == np.float32 and found[name].shape == tensor.shape
        np.testing.assert_array_equal(found[name], tensor + sent[name])
        told = (after[name] - tensor) + before.get(name, np.float32(0.0))
        np.testing.assert_allclose(sent[name] + left[name], told, rtol=0.0, atol=2e-6)


def stored(body: bytes) -> AdapterState:
    """The tensors of a step as they lie in its file."""
    return dict(load(body))


@pytest.mark.parametrize(("hidden", "layers"), [(64, 2), (128, 4), (768, 12), (1024, 24)])
def test_steps_are_as_small_as_is_said(hidden: int, layers: int) -> None:
    after = lora(hidden, layers)
    adapter = {name: np.zeros_like(tensor) for name, tensor in after.items()}
    full = len(encode_adapter(adapter))
    known = adapter, after
    size = {codec: len(encode_step(*known, codec, {}, "0" * 64)[0]) for codec in CODECS}
    print({codec: f"{found / full:.4f}" for codec, found in size.items()}, "of", full, "bytes")
    assert size["int8"] <= 0.27 * full and size["int4"] <= 0.15 * full


ADAPTER = {"x": np.linspace(-1, 1, 270, dtype=np.float32).reshape(9, 30)}
AFTER = {"x": ADAPTER["x"] * np.float32(1.1)}
START = encode_adapter(ADAPTER)


def step_of(codec: str = "int4") -> bytes:
    return encode_step(ADAPTER, AFTER, codec, {}, sha256(START))[0]


def test_a_step_of_another_adapter_is_refused_in_one_line() -> None:
    other = encode_adapter(AFTER)
    said = f"a step of adapter {sha256(START)[:12]}, not of {sha256(other)[:12]}, which is here"
    with pytest.raises(WireError, match=f"^{said}$"):
        add_step(other, step_of())


@pytest.mark.parametrize("codec", CODECS)
def test_a_step_that_is_cut_or_of_an_unknown_codec_is_refused_in_one_line(codec: str) -> None:
    body, kind = step_of(codec), kind_of(codec)
    unknown = body.replace(kind.encode(), f"z{kind[1:]}".encode())
    with pytest.raises(WireError, match=f"Invalid enum value 'z{kind[1:]}'"):
        add_step(START, unknown)
    for wrong in (b"", body[:-1], body[:40], START):
        with pytest.raises(WireError) as caught:
            add_step(START, wrong)
        assert "\n" not in str(caught.value)
    of_other_shapes = encode_adapter({"x": ADAPTER["x"][:3]})
    fitting = body.replace(sha256(START).encode(), sha256(of_other_shapes).encode())
    if not codec.startswith("topk"):  # whose places are there
        with pytest.raises(WireError, match=f"{codec}: .*expected"):
            add_step(of_other_shapes, fitting)


def test_plain_tensors_are_a_step_only_where_they_are_the_adapters() -> None:
    header = header_of(step_of()).decode().replace("int4", "float32")
    good = encode_adapter({"x": np.ones((9, 30), np.float32)}, header)
    assert (decode_adapter(add_step(START, good))["x"] == ADAPTER["x"] + np.float32(1.0)).all()
    for wrong in ({"y": AFTER["x"]}, {"x": AFTER["x"][:1]}, {}):
        with pytest.raises(WireError, match=r"tensor '[xy]' "):
            add_step(START, encode_adapter(wrong, header))


def test_bytes_that_a_disk_has_changed_end_in_a_refusal_or_an_adapter_of_another_name() -> None:
    body, name = step_of(), sha256(add_step(START, step_of()))
    for place in range(len(body)):
        flipped = body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]
        try:
            found = add_step(START, flipped)
        except WireError:
            continue
        assert sha256(found) != name


def test_what_no_codec_holds_is_refused_before_it_is_stored() -> None:
    for wrong in (np.nan, np.inf, 3.4e38):
        after = {"x": np.full_like(ADAPTER["x"], wrong)}
        adapter = {"x": np.full_like(ADAPTER["x"], -3.4e38)}
        with pytest.raises(CodecError, match="int8 cannot hold NaN or infinity"):
            encode_step(adapter, after, "int8", {}, "0" * 64)
    with pytest.raises(CodecError, match="of another adapter"):
        encode_step(ADAPTER, AFTER, "int8", {"y": AFTER["x"]}, "0" * 64)
