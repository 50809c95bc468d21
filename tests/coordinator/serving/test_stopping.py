"""What the log says of the end of the process that serves."""

import logging

import pytest

pytest.importorskip("fastapi")

from coordinator.serving.server import NONE_CANCELLED, is_told


@pytest.mark.parametrize("count", [0, 1])
def test_a_stop_is_told_where_it_cut_a_request_short(count: int) -> None:
    line = {"name": "uvicorn.error", "msg": NONE_CANCELLED[0], "args": (count,)}
    assert is_told(logging.makeLogRecord(line)) == bool(count)
