import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client import wire
from edge_client.tasks import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
WORK = wire.Work(1, "w", "train", "r", 2, "base", "lora:8", "sha", 9, TASK, wire.Training(), 7)

# Protocol 1 on the wire, byte for byte: a change here needs a new protocol number.
GOLDEN_WORK = (
    b'{"adapter_bytes":9,"adapter_sha256":"sha","adapter_spec":"lora:8","base_id":"base",'
    b'"kind":"train","protocol":1,"round_index":2,"run_id":"r","seed":7,"task":{"labels":'
    b'["a","b"],"name":"t","patterns":["[MASK] {text}"],"verbalizer":{"a":"good","b":"bad"}},'
    b'"training":{"batch":8,"epochs":4,"lr":0.005,"tokens":128,"weight_decay":0.0},"work_id":"w"}'
)
GOLDEN_UPDATE = (
    b'\x90\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"smidgen":"{\\"num_examples\\":3,'
    b'\\"protocol\\":1,\\"work_id\\":\\"w\\"}"},"x":{"dtype":"F32","shape":[2],'
    b'"data_offsets":[0,8]}}       \x00\x00\x80\x3f\x00\x00\x00\xc0'
)


def test_work_is_these_bytes_in_protocol_1() -> None:
    assert wire.encode(WORK) == GOLDEN_WORK
    assert wire.decode(GOLDEN_WORK, wire.Work) == WORK


def test_an_update_is_these_bytes_in_protocol_1() -> None:
    body = wire.encode_update(wire.Update("w", 3, {"x": np.array([1.0, -2.0], np.float32)}))
    assert body == GOLDEN_UPDATE
    update = wire.decode_update(GOLDEN_UPDATE)
    assert (update.work_id, update.num_examples) == ("w", 3)
    assert update.delta["x"].tolist() == [1.0, -2.0]


def test_equal_updates_are_equal_bytes() -> None:
    update = wire.Update("w", 3, {"b": np.ones(3, np.float32), "a": np.ones((2, 2), np.float32)})
    swapped = wire.Update("w", 3, dict(reversed(update.delta.items())))
    assert wire.encode_update(update) == wire.encode_update(swapped)


@given(st.binary(max_size=300))
def test_garbage_ends_in_a_wire_error(body: bytes) -> None:
    for decode in (wire.decode_update, wire.decode_adapter):
        with pytest.raises(wire.WireError):
            decode(body)
    for kind in (wire.Work, wire.Report, wire.Enrol, wire.Receipt):
        with pytest.raises(wire.WireError):
            wire.decode(body, kind)


@given(st.data())
def test_a_damaged_update_is_refused_or_has_the_same_names(data: st.DataObject) -> None:
    body = bytearray(wire.encode_update(wire.Update("w", 3, {"x": np.ones(4, np.float32)})))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    try:
        update = wire.decode_update(bytes(body))
    except wire.WireError:
        return
    assert all(np.isfinite(tensor).all() for tensor in update.delta.values())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_delta_that_is_not_finite_is_named(value: float) -> None:
    body = wire.encode_adapter({"x": np.array([value], np.float32)})
    with pytest.raises(wire.WireError, match="'x' holds NaN or infinity"):
        wire.decode_adapter(body)


def test_other_parameters_are_named() -> None:
    reference = {"x": (2, 2)}
    with pytest.raises(wire.WireError, match="'y' is not expected"):
        wire.check_same_parameters({"x": np.ones((2, 2)), "y": np.ones(1)}, reference)
    with pytest.raises(wire.WireError, match="'x' is missing"):
        wire.check_same_parameters({}, reference)
    with pytest.raises(wire.WireError, match=r"'x' has shape \(4,\), not \(2, 2\)"):
        wire.check_same_parameters({"x": np.ones(4)}, reference)


def test_the_digest_is_rfc_9530s() -> None:
    # The example of RFC 9530, appendix B.1: the body {"hello": "world"} and a newline.
    expected = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
    assert wire.content_digest(b'{"hello": "world"}\n') == expected
