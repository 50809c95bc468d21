from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client import wire
from edge_client.labelling import Labelling
from edge_client.tasks import Task

TASK = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
WORK = wire.Work(2, "w", "train", "r", 2, "base", "lora:8", "sha", 9, TASK, wire.Training(), 7)

LABEL_WORK = replace(WORK, kind="label", labelling=Labelling(confidences={"a": 0.8}), keep=8)
REPORT = wire.Report("w", "done", 5, phases_s={"label": 0.5}, trainable=3, pseudo_labels=2)

# Protocol 2 on the wire, byte for byte: a change here needs a new protocol number.
GOLDEN_WORK = (
    b'{"adapter_bytes":9,"adapter_sha256":"sha","adapter_spec":"lora:8","base_id":"base",'
    b'"keep":0,"kind":"train","labelling":null,"protocol":2,"round_index":2,"run_id":"r","seed":7,'
    b'"task":{"ensemble":false,"labels":["a","b"],"name":"t","patterns":["[MASK] {text}"],'
    b'"verbalizer":{"a":"good","b":"bad"}},"training":{"batch":8,"epochs":4,"lr":0.005,'
    b'"tokens":128,"weight_decay":0.0},"work_id":"w"}'
)
GOLDEN_LABELLING = (
    b'{"class_share":0.0,"compute_share":0.25,"confidence":0.9,"confidences":{"a":0.8},'
    b'"early_exit":true,"infer_clients":0,"infer_every":1,"is_gated":true,"keep_first":8,'
    b'"keep_last":64,"read_share":1.0,"weight":1.0}'
)
GOLDEN_REPORT = (
    b'{"accuracy":null,"bytes_down":0,"bytes_up":0,"error":"","layer_forwards":0,"loss":null,'
    b'"num_examples":5,"outcome":"done","peak_rss_bytes":0,"phases_s":{"label":0.5},'
    b'"pseudo_labels":2,"requests":0,"trainable":3,"work_id":"w"}'
)
GOLDEN_UPDATE = (
    b'\x90\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"smidgen":"{\\"num_examples\\":3,'
    b'\\"protocol\\":2,\\"work_id\\":\\"w\\"}"},"x":{"dtype":"F32","shape":[2],'
    b'"data_offsets":[0,8]}}       \x00\x00\x80\x3f\x00\x00\x00\xc0'
)


def test_work_is_these_bytes_in_protocol_2() -> None:
    assert wire.encode(WORK) == GOLDEN_WORK
    assert wire.decode(GOLDEN_WORK, wire.Work) == WORK


def test_label_work_is_these_bytes_in_protocol_2() -> None:
    golden = GOLDEN_WORK.replace(b'"keep":0,"kind":"train"', b'"keep":8,"kind":"label"')
    golden = golden.replace(b'"labelling":null', b'"labelling":' + GOLDEN_LABELLING)
    assert wire.encode(LABEL_WORK) == golden
    assert wire.decode(golden, wire.Work) == LABEL_WORK


def test_label_work_says_how() -> None:
    body = GOLDEN_WORK.replace(b'"kind":"train"', b'"kind":"label"')
    with pytest.raises(wire.WireError, match="labelling: expected with label work"):
        wire.decode(body, wire.Work)
    with pytest.raises(wire.WireError, match="keep: 0 or more"):
        wire.decode(GOLDEN_WORK.replace(b'"keep":0', b'"keep":-1'), wire.Work)


def test_a_report_is_these_bytes_in_protocol_2() -> None:
    assert wire.encode(REPORT) == GOLDEN_REPORT
    assert wire.decode(GOLDEN_REPORT, wire.Report) == REPORT
    old = b'{"outcome":"done","work_id":"w"}'  # what is not said has a value
    assert wire.decode(old, wire.Report) == wire.Report("w", "done")


def test_an_update_is_these_bytes_in_protocol_2() -> None:
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
