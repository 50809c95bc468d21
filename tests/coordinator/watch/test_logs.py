import json
import logging

import pytest

from smidgen.coordinator.watch.logs import JsonLogFormatter, about, log_to_stderr
from smidgen.edge_client.errors import WrongInput


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("a", logging.WARNING, "", 1, message, args, None)
    vars(made).update(extra)
    return made


def test_a_line_says_when_how_bad_what_and_about_whom() -> None:
    said = about(run="mail", device="küche\n2", round_index=3)
    line = JsonLogFormatter().format(record("round %d failed", 3, **said))
    told = json.loads(line)
    assert "\n" not in line
    assert told.pop("time").endswith("Z")
    assert told == {
        **{"level": "warning", "message": "round 3 failed"},
        **{"run": "mail", "device": "küche\n2", "round": 3},
    }


def test_a_line_leaves_out_what_it_is_not_about() -> None:
    assert about() == {} and about(round_index=0) == {"round": 0}
    assert set(json.loads(JsonLogFormatter().format(record("up")))) == {"time", "level", "message"}


def test_an_error_stays_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        made = record("broke")
        made.exc_info = (type(error), error, error.__traceback__)
    line = JsonLogFormatter().format(made)
    assert "\n" not in line and "two\n  lines" in json.loads(line)["error"]


def test_a_format_that_nobody_knows_is_refused() -> None:
    with pytest.raises(WrongInput, match="--log-format 'xml': text or json is expected"):
        log_to_stderr("xml")
