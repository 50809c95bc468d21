import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from smidgen.edge_client import codecs
from smidgen.edge_client.codecs import (
    INT4,
    INT8,
    NUMBERS,
    PLACES,
    SCALES,
    VALUES,
    CodecError,
    Tensors,
    Width,
    blocks_of,
    decode,
    encode,
    kept_of,
    kind_of,
    largest,
    quantize,
)
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.tensors import Update as Sent
from smidgen.edge_client.wire.tensors import encode_adapter, shapes_of
from tests.edge_client.updates.coded import encode_coded

CODECS = ("int8", "int4", "int4:128", "topk:0.01", "topk:0.3")
FINITE = st.floats(-(2.0**99), 2.0**99, width=32)
SMALL = st.floats(-4.0, 4.0, width=32)


def tensors(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Tensors]:
    shapes = st.sampled_from([(0,), (1,), (3, 5), (70,), (2, 128), (129, 1)])
    one = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=numbers))
    return st.dictionaries(st.sampled_from("abc"), one, max_size=3)


@given(tensors(FINITE), st.sampled_from([("int8", INT8), ("int4", INT4)]))
def test_a_number_comes_back_within_half_a_scale(delta: Tensors, codec: tuple[str, Width]) -> None:
    name, width = codec
    coded, _ = encode(delta, name, {})
    back = decode(coded, kind_of(name), shapes_of(delta))
    sizes = [delta[key].size for key in sorted(delta)]
    flat = [
        np.concatenate([np.zeros(0, np.float32), *(one[key].ravel() for key in sorted(one))])
        for one in (delta, back)
    ]
    starts = blocks_of(sizes, width)
    each = np.repeat(coded[SCALES].astype(np.float64), np.diff(np.append(starts, sum(sizes))))
    # A whole number times its scale is rounded once, to 24 bits.
    assert (np.abs(flat[0].astype(np.float64) - flat[1]) <= each * (0.5 + 2e-5)).all()


@given(tensors(SMALL), st.sampled_from(CODECS))
def test_what_is_sent_and_what_is_left_are_what_there_was(delta: Tensors, codec: str) -> None:
    before = {name: tensor[::-1] * np.float32(0.3) for name, tensor in delta.items()}
    coded, left = encode(delta, codec, before)
    back = decode(coded, kind_of(codec), shapes_of(delta))
    for name, tensor in delta.items():
        expected = tensor + before.get(name, np.float32(0.0))
        np.testing.assert_allclose(back[name] + left[name], expected, rtol=0.0, atol=1e-6)
    updates = encode_coded(Sent("w", 1, delta), codec, before)
    assert updates[0] == encode_coded(Sent("w", 1, delta), codec, before)[0]


@given(st.integers(0, 2**32 - 1), st.sampled_from(CODECS))
def test_an_adapters_small_numbers_lose_nothing_in_the_sum(seed: int, codec: str) -> None:
    draws = np.random.Generator(np.random.PCG64(seed))
    delta, before = (
        {"x": (draws.standard_normal((9, 64)) * 1e-2).astype(np.float32)} for _ in range(2)
    )
    coded, left = encode(delta, codec, before)
    found = decode(coded, kind_of(codec), shapes_of(delta))["x"].astype(np.float64) + left["x"]
    np.testing.assert_allclose(
        found, delta["x"].astype(np.float64) + before["x"], atol=1e-7, rtol=0
    )


@given(arrays(np.float32, st.integers(1, 300), elements=SMALL), st.sampled_from([0.01, 0.2, 0.5]))
def test_the_largest_are_kept_and_of_equal_ones_the_first(
    numbers: np.ndarray, share: float
) -> None:
    coded, left = encode({"x": numbers}, f"topk:{share}", {})
    places = coded[PLACES].astype(int)
    assert len(places) == kept_of(share, len(numbers))
    order = sorted(range(len(numbers)), key=lambda place: (-abs(numbers[place]), place))
    assert set(places.tolist()) == set(order[: len(places)])
    assert (coded[VALUES] == numbers[places]).all() and not left["x"][places].any()


def test_error_feedback_sends_in_the_end_what_a_codec_leaves_out() -> None:
    delta = {"x": np.linspace(-1.0, 1.0, 200, dtype=np.float32)}
    for codec, rounds in (("int4", 20), ("topk:0.01", 400)):
        left, total = dict[str, np.ndarray](), np.zeros(200)
        for _ in range(rounds):
            coded, left = encode(delta, codec, left)
            total += decode(coded, kind_of(codec), shapes_of(delta))["x"]
        # What is missing is the residual alone, which does not grow with the rounds.
        np.testing.assert_allclose(total + left["x"], rounds * delta["x"], atol=1e-3)
        assert np.abs(total / rounds - delta["x"]).max() < (0.01 if codec == "int4" else 0.5)


def lora(hidden: int, layers: int, ranks: int = 8) -> Tensors:
    """A LoRA adapter of queries and values under PEFT's names."""
    stem = "base_model.model.roberta.encoder.layer"
    draws = np.random.Generator(np.random.PCG64(1))
    return {
        f"{stem}.{layer}.attention.self.{module}.lora_{half}.weight": (
            draws.standard_normal((ranks, hidden) if half == "A" else (hidden, ranks)) * 1e-3
        ).astype(np.float32)
        for layer in range(layers)
        for module in ("query", "value")
        for half in "AB"
    }


@pytest.mark.parametrize(("hidden", "layers"), [(64, 2), (128, 4), (768, 12), (1024, 24)])
def test_whole_files_are_as_small_as_is_said(hidden: int, layers: int) -> None:
    delta = lora(hidden, layers)
    full = len(encode_adapter(delta))
    size = {codec: len(encode_coded(Sent("w" * 43, 64, delta), codec, {})[0]) for codec in CODECS}
    print({codec: f"{found / full:.4f}" for codec, found in size.items()}, "of", full, "bytes")
    assert size["int8"] <= 0.27 * full and size["int4"] <= 0.15 * full
    assert size["topk:0.01"] <= 0.0205 * full + 400  # a place and a value each, and the header


def test_nothing_in_is_nothing_out() -> None:
    for codec in CODECS:
        coded, left = encode({}, codec, {})
        assert decode(coded, kind_of(codec), {}) == {} == left


@pytest.mark.parametrize("codec", CODECS)
def test_nan_and_infinity_are_refused_before_they_are_sent(codec: str) -> None:
    for wrong in (np.nan, np.inf):
        with pytest.raises(CodecError, match=f"{codec} cannot hold NaN or infinity"):
            encode({"x": np.array([1.0, wrong], np.float32)}, codec, {})


def test_the_ends_of_float32s_range_stay_within_it() -> None:
    numbers = {"x": np.array([3.4028235e38, -3.4028235e38, 1e-45, 0.0], np.float32)}
    for codec in CODECS:
        coded, left = encode(numbers, codec, {})
        assert np.isfinite(decode(coded, kind_of(codec), {"x": (4,)})["x"]).all()
        assert np.isfinite(left["x"]).all()


def test_what_is_left_of_another_adapter_is_refused() -> None:
    delta = {"x": np.ones(4, np.float32)}
    for other in ({"y": np.ones(4, np.float32)}, {"x": np.ones(5, np.float32)}):
        with pytest.raises(CodecError, match="is of another adapter"):
            encode(delta, "int8", other)


Spoil = Callable[[Tensors], object]
SPOILT: list[tuple[str, Spoil, str]] = [
    ("int8", lambda t: t.pop(SCALES), "tensors q, s expected, q came"),
    ("int8", lambda t: t.update(more=t[SCALES]), "tensors q, s expected"),
    ("int8", lambda t: t.update(q=t[NUMBERS].astype(np.int16)), "numbers: 300 of int8 expected"),
    ("int8", lambda t: t.update(q=t[NUMBERS][:-1]), "numbers: 300 of int8 expected"),
    ("int8", lambda t: t.update(q=np.zeros(10**6, np.int8)), "numbers: 300 of int8 expected"),
    ("int8", lambda t: t.update(s=np.append(t[SCALES], 1).astype(np.float32)), "scales: 3 of"),
    ("int8", lambda t: t[NUMBERS].__setitem__(0, -128), "a number below -127"),
    ("int8", lambda t: t[SCALES].__setitem__(0, np.nan), "infinite or NaN"),
    ("int8", lambda t: t[SCALES].__setitem__(0, np.inf), "infinite or NaN"),
    ("int8", lambda t: t[SCALES].__setitem__(0, -1.0), "a scale is negative"),
    ("int4", lambda t: t[SCALES].__setitem__(0, 3e38), "too large"),
    ("int4", lambda t: t[NUMBERS].__setitem__(0, 0), "a number below -7"),
    ("topk:0.1", lambda t: t[PLACES].__setitem__(0, t[PLACES][1]), "one comes twice"),
    ("topk:0.1", lambda t: t[PLACES].__setitem__(-1, 300), "a place beyond the last of 300"),
    ("topk:0.1", lambda t: t.update(i=t[PLACES][::-1].copy()), "places do not rise"),
    ("topk:0.1", lambda t: t.update(i=t[PLACES].astype(np.int64)), "up to 150 places as uint32"),
    ("topk:0.1", lambda t: t.update(i=np.arange(151, dtype=np.uint32)), "up to 150 places"),
    ("topk:0.1", lambda t: t.update(i=t[PLACES].reshape(5, 6)), "up to 150 places"),
    ("topk:0.1", lambda t: t.update(v=t[VALUES][:5]), "30 values as float32"),
    ("topk:0.1", lambda t: t[VALUES].__setitem__(0, np.inf), "a value is infinite or NaN"),
]


@pytest.mark.parametrize(("codec", "spoil", "said"), SPOILT)
def test_what_a_codec_did_not_write_is_told_in_one_line(
    codec: str, spoil: Spoil, said: str
) -> None:
    draws = np.random.Generator(np.random.PCG64(5))
    delta = {"x": draws.standard_normal(300).astype(np.float32)}
    coded = {name: one.copy() for name, one in encode(delta, codec, {})[0].items()}
    spoil(coded)
    with pytest.raises(CodecError, match=said) as caught:
        decode(coded, kind_of(codec), {"x": (300,)})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_what_fills_the_last_byte_is_looked_at() -> None:
    coded, _ = encode({"x": np.ones(3, np.float32)}, "int4", {})
    coded[NUMBERS][-1] ^= 0x10
    with pytest.raises(CodecError, match="what fills the last byte"):
        decode(coded, kind_of("int4"), {"x": (3,)})


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.sampled_from([INT8, INT4]))
def test_pieces_do_not_show_in_what_is_stored(sizes: list[int], width: Width) -> None:
    numbers = np.random.default_rng(sum(sizes)).normal(size=sum(sizes)).astype(np.float32)
    whole = quantize(numbers, sizes, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codecs, "AT_ONCE", 2)
        pieces = quantize(numbers, sizes, width)
    assert [one.tobytes() for one in pieces] == [one.tobytes() for one in whole]


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 0.5]), max_size=60))
def test_of_equal_numbers_the_first_are_kept(values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    places, kept = largest(numbers, 0.3)
    order = np.argsort(-np.abs(numbers), kind="stable")[: kept_of(0.3, len(values))]
    assert places.tolist() == sorted(order.tolist())
    assert kept.tolist() == numbers[np.sort(order)].tolist()


@pytest.mark.parametrize("codec", ["int8", "int4", "topk:0.01"])
def test_encoding_holds_four_copies_of_an_adapter_and_little_more(codec: str) -> None:
    """Sum, flat form, what comes back of it, and the rest: 16 bytes for each number."""
    numbers = 1_000_000
    delta = {"w": np.random.default_rng(0).normal(size=numbers).astype(np.float32)}
    tracemalloc.start()
    try:
        encode(delta, codec, delta)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held <= 16 * numbers + (4 << 20)


def test_a_setting_names_auto_too_and_a_codec_does_not() -> None:
    with pytest.raises(WrongInput, match="int4:128, auto, or topk:SHARE"):
        Updates("int2")
    with pytest.raises(WrongInput, match="int4:128, or topk:SHARE"):
        kind_of("int2")


@pytest.mark.parametrize("wrong", ["zip", "int16", "", "topk", "topk:", "topk:2", "topk:nan"])
def test_an_unknown_codec_is_named(wrong: str) -> None:
    with pytest.raises(WrongInput, match=r"codec|share"):
        Updates(wrong)
    with pytest.raises(WrongInput, match=r"codec|share"):
        kind_of(wrong)
