"""What machines ask: readiness in one word, and Prometheus's figures for a viewer."""

import json
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smidgen.coordinator.page import routes
from smidgen.coordinator.storage.blobs import FolderBlobs
from smidgen.coordinator.watch.logs import JsonLogFormatter
from smidgen.edge_client.wire.messages import Report
from tests.coordinator.devices import wait_for
from tests.coordinator.page.conftest import Served

Start = Callable[..., Served]


def figures(served: Served) -> dict[str, float]:
    answer = served.http.get("/metrics", headers=served.bearer(served.viewer))
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = [line.rpartition(" ") for line in answer.text.splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


def test_prometheus_counts_runs_devices_answers_and_requests(start: Start) -> None:
    served = start(rounds=1)
    first, second = served.join("kitchen", "hall")
    first.do(first.work())
    second.report(Report(second.work().work_id, "failed", failure="memory"))
    told = figures(served)
    assert told['smidgen_answers_total{kind="evaluate",outcome="done"}'] == 1
    assert told['smidgen_answers_total{kind="evaluate",outcome="failed"}'] == 1
    assert told["smidgen_devices"] == told["smidgen_devices_here"] == 2
    wait_for(lambda: figures(served)['smidgen_runs{phase="train"}'] == 1)
    assert figures(served)["smidgen_work_open"] == 2
    for device in (first, second):
        device.do(device.work())
    wait_for(lambda: figures(served)["smidgen_rounds_total"] == 1)
    told = figures(served)
    report = 'route="/v1/work/{work_id}/report"'
    name = f'smidgen_request_seconds_count{{method="POST",{report},status="2xx"}}'
    assert told[name] == 4
    assert told[f"smidgen_received_bytes_total{{{report}}}"] > 400
    assert told["process_resident_memory_bytes"] > 10 * 1024 * 1024


def test_labels_hold_no_name_from_outside(start: Start) -> None:
    served = start()
    served.join("kitchen")
    served.http.get("/kitchen/secrets")
    served.http.request("PROPFIND", "/v1/work")
    text = served.http.get("/metrics", headers=served.bearer(served.viewer)).text
    assert "kitchen" not in text and "mail" not in text and served.run_id not in text
    assert 'method="other"' in text and 'route="other"' in text


def test_figures_are_for_who_has_a_token(start: Start) -> None:
    served = start()
    assert served.http.get("/metrics").status_code == 401
    assert served.http.get("/metrics", headers=served.bearer(served.token)).status_code == 401
    assert served.http.get("/metrics", headers=served.bearer(served.operator)).status_code == 200


def test_lines_of_the_log_name_run_device_and_round(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    served = start()
    first, second = served.join("kitchen", "hall")
    first.report(Report(first.work().work_id, "failed", failure="memory"))
    second.do(second.work())
    second.work()
    told = [json.loads(JsonLogFormatter().format(record)) for record in caplog.records]
    asked = [one for one in told if "asked hall, kitchen" in one["message"]]
    assert [(one["run"], one["round"]) for one in asked] == [("mail", 0), ("mail", 1)]
    (failed,) = [one for one in told if one["level"] == "warning"]
    assert (failed["run"], failed["device"], failed["round"]) == ("mail", "kitchen", 0)
    assert {one["device"] for one in told if "enrolled" in one["message"]} == {"kitchen", "hall"}


def test_a_coordinator_that_can_work_is_ready(start: Start) -> None:
    answer = start().http.get("/readyz")
    assert (answer.status_code, answer.text) == (200, "ready")


def test_a_store_that_cannot_be_written_is_not_ready(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "LASTS_S", 0.0)
    served = start()
    shutil.rmtree(served.store.folder / "blobs")
    answer = served.http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "store")
    (served.store.folder / "blobs").mkdir()
    assert served.http.get("/readyz").text == "ready"


def test_a_disk_that_is_full_is_not_ready(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LASTS_S", 0.0)
    served = start()
    room = served.service.caretaker.room
    least, room.least_free_bytes = room.least_free_bytes, 1 << 60  # more than any disk has
    answer = served.http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "disk")
    room.least_free_bytes = least
    assert served.http.get("/readyz").text == "ready"


def test_a_store_that_several_ask_for_at_once_is_ready_for_all(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        blobs = FolderBlobs(tmp_path)
        assert all(pool.map(lambda _: blobs.is_writable(), range(200)))
    assert not list(tmp_path.iterdir())


def test_rounds_that_stand_still_are_not_ready(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SLOWEST_TICK_S", -1.0)
    answer = start().http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "driver")
