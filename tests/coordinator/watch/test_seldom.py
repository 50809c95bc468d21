"""What is said again and again does not fill the log."""

import io
import logging

import pytest

from smidgen.coordinator.watch.logs import Seldom


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO, Seldom]:
    logger, written, seldom = logging.Logger("test"), io.StringIO(), Seldom()
    handler = logging.StreamHandler(written)
    handler.addFilter(seldom)
    logger.addHandler(handler)
    return logger, written, seldom


def test_a_line_per_connection_is_a_few_a_minute_with_a_count(
    log: tuple[logging.Logger, io.StringIO, Seldom], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, written, seldom = log
    for _ in range(5000):
        logger.warning("Invalid HTTP request received.")
    assert written.getvalue().count("\n") == Seldom.AT_ONCE
    monkeypatch.setattr(seldom, "EVERY_S", 0.0)
    logger.warning("Invalid HTTP request received.")
    assert f"{5000 - Seldom.AT_ONCE} times more" in written.getvalue()


def test_a_traceback_per_second_is_one_too_and_other_lines_are_heard(
    log: tuple[logging.Logger, io.StringIO, Seldom],
) -> None:
    logger, written, _ = log
    for number in range(200):
        try:
            raise OSError(24, "Too many open files")
        except OSError:
            logger.exception("socket.accept() out of system resource\nsocket: <fd=%d>", number)
        logger.info("device %d enrolled", number)
    said = written.getvalue()
    assert said.count("Traceback") == Seldom.AT_ONCE
    assert said.count("enrolled") == 200
