"""Bytes from outside end in a value or in 4xx with one line, whatever they are."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from math import inf, nan
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire import messages
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.reports import BINS
from smidgen.edge_client.wire.tensors import decode_update, digest_header, sha256
from tests.coordinator.conftest import serving
from tests.coordinator.devices import Device, key_of

BOUNDED = settings(max_examples=25, deadline=None)
Target = tuple[Device, Work, bytes]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> Iterator[Target]:
    """A device with training work, and a right update for it that is never sent."""
    task = Task("t", ("mail", "power"), ("[MASK] {text}",), {"mail": "mail", "power": "power"})
    config = RunConfig("x", task, base=str(tiny_base.folder), adapter="lora:1")
    folder: Path = tmp_path_factory.mktemp("garbage")
    with closing(Store(folder)) as store, serving(store, config) as live:
        device, _ = live.evaluated("a", "b")
        work = device.work()
        yield device, work, device.update(work)


def assert_refused(response: httpx.Response) -> None:
    assert 400 <= response.status_code < 500, (response.status_code, response.text)
    detail = response.json()["detail"]
    assert isinstance(detail, str) and detail and "\n" not in detail


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["protocol", "token", "name", "facts", "work_id", "outcome", "loss", "counts"]
            ),
            inner,
            max_size=7,
        )
    ),
    max_leaves=12,
)
BODIES = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())


@BOUNDED
@given(BODIES)
@example(b"[" * 100_000)
@example(b'{"protocol":9,"token":"\\ud800","name":"a","facts":{}}')
@example(b'{"protocol":9,"token":"x","name":"a","facts":{},"tags":{"":"x"}}')
@example(b'{"protocol":1' + b"0" * 6000 + b"}")
def test_garbage_does_not_enrol(target: Target, body: bytes) -> None:
    headers = {"Authorization": f"Bearer {key_of('new')}"}
    assert_refused(target[0].http.post("/v1/enrol", content=body, headers=headers))


@BOUNDED
@given(BODIES)
@example(b'{"state":"declined"}')
@example(b'{"state":"joined","failure":"memory"}')
@example(b'{"state":"joined","peak_bytes":-1}')
@example(b'{"state":"joined","peak_bytes":1' + b"0" * 400 + b"}")
def test_garbage_is_no_membership(target: Target, body: bytes) -> None:
    device, work, _ = target
    path = f"/v1/runs/{work.run_id}/membership"
    assert_refused(device.http.post(path, content=body, headers=device.headers))


@BOUNDED
@given(BODIES)
@example(b'{"work_id":"x","outcome":"done","num_examples":1' + b"0" * 5000 + b"}")
@example(b'{"work_id":"x","outcome":"done","loss":1e999}')
def test_garbage_is_no_report(target: Target, body: bytes) -> None:
    device, work, _ = target
    path = f"/v1/work/{work.work_id}/report"
    assert_refused(device.http.post(path, content=body, headers=device.headers))


@BOUNDED
@given(st.sampled_from(["confidences", "mean_log_probabilities"]), JSON)
def test_garbage_about_texts_is_a_receipt_or_refused(
    target: Target, name: str, value: object
) -> None:
    device, work, _ = target
    body = json.dumps({"work_id": work.work_id, "outcome": "done", name: value}).encode()
    path = f"/v1/work/{work.work_id}/report"
    response = device.http.post(path, content=body, headers=device.headers)
    if response.status_code != 200:  # null, an empty list or two numbers
        assert_refused(response)


def header(text: object) -> bytes:
    body = text if isinstance(text, bytes) else json.dumps(text).encode()
    return len(body).to_bytes(8, "little") + body


@BOUNDED
@given(st.binary(max_size=400) | JSON.map(header))
@example(b"\xff" * 8)
@example(header({}))
@example(header({"__metadata__": None}))
@example(header({"__metadata__": {"smidgen": ""}}))
@example(header({"__metadata__": {"smidgen": "{}"}}))
@example(header(b'{"a":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,0]}}'))
@example(header(b'{"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}') + b"ab")
@example(header(b'{"a":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}}') + b"a")
def test_garbage_is_no_update(target: Target, body: bytes) -> None:
    device, work, _ = target
    assert_refused(device.put(work.work_id, body))


@BOUNDED
@given(st.data())
def test_a_changed_update_is_refused(target: Target, data: st.DataObject) -> None:
    """Any byte changed in the header makes it no update, or another work's."""
    device, work, right = target
    end = 8 + int.from_bytes(right[:8], "little")
    place = data.draw(st.integers(0, end - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != right[place]))
    body = right[:place] + bytes([value]) + right[place + 1 :]
    assert device.put(work.work_id, body, digest_header(sha256(right))).status_code == 400
    try:
        update = decode_update(body)
    except messages.WireError:
        update = None
    if update is None or update.work_id != work.work_id:
        assert_refused(device.put(work.work_id, body))


TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=80)


@BOUNDED
@given(TEXT.map(lambda text: text.translate(str.maketrans("/?#%.", "xxxxx"))), TEXT)
def test_strange_names_and_keys_are_refused(target: Target, name: str, secret: str) -> None:
    device = target[0]
    ask: Callable[..., httpx.Response] = device.http.request
    assert_refused(ask("GET", f"/v1/adapters/{name}", headers=device.headers))
    assert_refused(ask("PUT", f"/v1/work/{name}/update", headers=device.headers, content=b""))
    path = f"/v1/runs/{name}/membership"
    assert_refused(ask("POST", path, headers=device.headers, content=b'{"state":"joined"}'))
    assert_refused(ask("GET", "/v1/work", headers={"Authorization": f"Bearer {secret}"}))
    assert_refused(ask("GET", f"/v1/work?wait_s=x{name}", headers=device.headers))


def test_strange_requests_are_refused(target: Target) -> None:
    device = target[0]
    latin = {b"Authorization": "Bearer \u00e9\u00ff".encode("latin-1")}
    assert_refused(device.http.get("/v1/work", headers=latin))
    assert_refused(device.http.get("/nowhere"))
    assert_refused(device.http.delete("/v1/work"))
    assert_refused(device.http.get("/v1/runs/%00%ff"))
    assert_refused(device.http.post("/v1/enrol", headers=latin, content=b"{}"))


NONE = [0] * BINS


@pytest.mark.parametrize(
    "figures",
    [
        {"num_examples": 10**400},
        {"accuracy": 1.5},
        {"accuracy": -1e300},
        {"cost": {"peak_rss_bytes": -5}},
        {"cost": {"tcp_up_bytes": 2**60}},
        {"cost": {"phases_s": {"train": -1.0}}},
        {"cost": {"phases_s": {"thinking": 1.0}}},
        {"cost": {"hottest_c": -1e9}},
        {"labelled": -1},
        {"confidences": {"texts": 1, "counts": [NONE]}},
        {"confidences": {"texts": 1, "counts": [NONE] * 3}},
        {"confidences": {"texts": 1, "counts": [NONE, NONE[1:]]}},
        {"confidences": {"texts": 1, "counts": [NONE, [*NONE, 0]]}},
        {"confidences": {"texts": 1, "counts": [NONE, [-1, *NONE[1:]]]}},
        {"confidences": {"texts": 1, "counts": [NONE, [nan, *NONE[1:]]]}},
        {"confidences": {"texts": 1, "counts": [NONE, [2**53, *NONE[1:]]]}},
        {"confidences": {"texts": -1, "counts": [NONE] * 2}},
        {"confidences": {"texts": 1e300, "counts": [NONE] * 2}},
        {"mean_log_probabilities": [-1.0]},
        {"mean_log_probabilities": [-1.0] * 3},
        {"mean_log_probabilities": [-1.0, nan]},
        {"mean_log_probabilities": [-1.0, -inf]},
        {"mean_log_probabilities": [-1.0, None]},
        {"pseudo_labels": 2**53},
        {"layer_forwards": -1},
    ],
)
def test_figures_that_cannot_be_are_refused(target: Target, figures: dict[str, Any]) -> None:
    device, work, _ = target
    body = json.dumps({"work_id": work.work_id, "outcome": "failed"} | figures).encode()
    path = f"/v1/work/{work.work_id}/report"
    response = device.http.post(path, content=body, headers=device.headers)
    assert_refused(response)
    assert response.status_code == 422


def test_the_right_update_is_still_welcome(target: Target) -> None:
    device, work, right = target
    assert device.put(work.work_id, right).json()["accepted"]
