"""The end of the process that serves: what is told before it, and what the log says of it."""

import logging
import signal
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.serving.server import NONE_CANCELLED, is_told
from smidgen.edge_client.bases.base import Base
from tests.command_line import smidgen
from tests.coordinator.devices import joined, wait_for
from tests.coordinator.test_cli import created, server


@pytest.mark.parametrize("count", [0, 1])
def test_a_stop_is_told_where_it_cut_a_request_short(count: int) -> None:
    line = {"name": "uvicorn.error", "msg": NONE_CANCELLED[0], "args": (count,)}
    assert is_told(logging.makeLogRecord(line)) == bool(count)


def drained(folder: Path, base: Base, seconds: str, *signals: int) -> float:
    """How long a process serves on after the first of these signals, which it has told of."""
    token = created(folder, base, rounds=1)
    with server(folder, "--port", "0", "--drain", seconds) as (process, url):
        with httpx.Client(base_url=url, timeout=60) as http:
            assert http.get("/readyz").text == "ready"
            process.send_signal(signals[0])
            began_s = time.monotonic()
            wait_for(lambda: http.get("/readyz").text == "stopping", 5.0)
            assert http.get("/readyz").status_code == 503
            assert joined(http, token, "a").waiting()
        for number in signals[1:]:
            process.send_signal(number)
        assert process.wait(60) == 0
        return time.monotonic() - began_s


def test_a_process_that_drains_is_not_ready_and_serves_until_its_time_is_over(
    tmp_path: Path, tiny_base: Base
) -> None:
    assert drained(tmp_path, tiny_base, "1", signal.SIGTERM) >= 1.0
    assert "ends in 1 s: /readyz says so" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_second_signal_ends_it_before(tmp_path: Path, tiny_base: Base) -> None:
    assert drained(tmp_path, tiny_base, "600", signal.SIGTERM, signal.SIGINT) < 60.0


def test_a_drain_has_bounds(tmp_path: Path, tiny_base: Base) -> None:
    created(tmp_path, tiny_base, rounds=1)
    done = smidgen("coordinator", "serve", "--store", str(tmp_path / "store"), "--drain", "-1")
    assert done.exit_code == 2
    assert "--drain -1: 0, for none, to 3600 seconds are expected" in done.stderr
