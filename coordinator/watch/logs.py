"""JSON log lines, one object per line, for log collectors.

A line about a run, a device or a round names it: `LOG.info("...", extra=about(run="mail"))`.
"""

import json
import logging
import time
from collections import OrderedDict
from datetime import datetime, timezone
from typing import Any

from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.log_lines import PlainLines, shown, shown_lines


def about(
    run: str | None = None, device: str | None = None, round_index: int | None = None
) -> dict[str, Any]:
    """What a line is about, as `extra` of the standard library's loggers."""
    told = {"run": run, "device": device, "round": round_index}
    return {key: value for key, value in told.items() if value is not None}


class JsonLogFormatter(logging.Formatter):
    """One JSON object per record: time (UTC), level, message, and what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line: an object with time, level, message, and whom it is about."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": shown(record.getMessage()),
        }
        # The fields of a line beside time, level and message
        line |= {
            name: vars(record)[name] for name in ("run", "device", "round") if name in vars(record)
        }
        if record.exc_info:
            line["error"] = shown_lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


class Seldom(logging.Filter):
    """Lets a line through a few times a minute; the next one says how many were left out.

    What fails once per connection, or once a second, would fill a disk. Lines are told apart by
    who says them and by how they begin: a traceback does not count, nor does a line's second line.
    """

    AT_ONCE, EVERY_S, MOST = 5, 60.0, 1000

    def __init__(self) -> None:
        super().__init__()
        self._said: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        error = record.exc_info[1] if record.exc_info else None
        line = (record.getMessage().splitlines() or [""])[0][:200]
        key = record.name, f"{line} {type(error).__name__}"
        now_s = time.monotonic()
        since_s, times = self._said.get(key, (now_s, 0))
        if now_s - since_s >= self.EVERY_S:
            if times > self.AT_ONCE:
                record.msg = f"{record.getMessage()} (and {times - self.AT_ONCE} times more before)"
                record.args = ()
            since_s, times = now_s, 0
        self._said[key] = since_s, times + 1
        if len(self._said) > self.MOST:
            self._said.popitem(last=False)
        return times < self.AT_ONCE


def log_to_stderr(form: str) -> None:
    """Let the process that serves log to stderr, as `text` or as `json`.

    Raises:
        WrongInput: Neither of them.
    """
    forms = {"text": PlainLines("%(asctime)s %(message)s"), "json": JsonLogFormatter()}
    if form not in forms:
        raise WrongInput(f"--log-format {form!r:.80}: {' or '.join(forms)} is expected")
    handler = logging.StreamHandler()
    handler.setFormatter(forms[form])
    handler.addFilter(Seldom())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
