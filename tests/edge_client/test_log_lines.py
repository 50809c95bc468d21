import io
import logging
import time

from hypothesis import given
from hypothesis import strategies as st

from smidgen.edge_client.log_lines import LONGEST, PlainLines, shown, shown_lines

EVIL = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\r\n2026-01-01 00:00:00,000 all is well\0\x7f\ud83d"


def logged(message: str, *args: object, error: Exception | None = None) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines("%(asctime)s %(message)s"))
    logger = logging.Logger("a")
    logger.addHandler(handler)
    logger.error(message, *args, exc_info=error)
    return stream.getvalue()


@given(st.text())
def test_whatever_is_said_is_one_printable_line_with_its_words(text: str) -> None:
    line = shown(text)
    assert line.isprintable() and len(line) == len(text)
    assert not text.isprintable() or line == text
    assert all(one.isprintable() for one in shown_lines(text).split("\n"))


def test_a_record_is_one_line_whatever_its_arguments_are() -> None:
    said = logged("run %s cannot be joined: %s", EVIL, ValueError(EVIL))
    assert said.count("\n") == 1 and said[:-1].isprintable() and "owned" in said


def test_fifty_megabytes_are_told_shortly_and_at_once() -> None:
    began_s = time.process_time()
    said = logged("%s", "\x1b[31m" * 10**7)
    assert len(said) < LONGEST + 100 and "50000000 characters" in said
    assert time.process_time() - began_s < 2


def test_no_line_of_a_traceback_passes_for_a_record() -> None:
    try:
        raise ValueError(EVIL + "\n2026-01-01 forged" * 5000)
    except ValueError as error:
        first, *rest = logged("broke", error=error)[:-1].split("\n")
    assert first.endswith("broke") and "Traceback" in rest[0] and len(rest) < 300
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
