"""The log as lines of JSON: what a collector of logs reads, one object per line.

A line about a run, a device or a round names it: `LOG.info("...", extra=about(run="mail"))`.
"""

import json
import logging
from datetime import datetime, timezone
from typing import Any

from edge_client.errors import WrongInput
from edge_client.log_lines import PlainLines, shown, shown_lines

ABOUT = ("run", "device", "round")  # the fields of a line beside time, level and message


def about(
    run: str | None = None, device: str | None = None, round_index: int | None = None
) -> dict[str, Any]:
    """What a line is about, as `extra` of the standard library's loggers."""
    told = {"run": run, "device": device, "round": round_index}
    return {key: value for key, value in told.items() if value is not None}


class JsonLines(logging.Formatter):
    """One JSON object per record: time (UTC), level, message, and what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line: an object with time, level, message, and whom it is about."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": shown(record.getMessage()),
        }
        line |= {name: vars(record)[name] for name in ABOUT if name in vars(record)}
        if record.exc_info:
            line["error"] = shown_lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)


def log_to_stderr(form: str) -> None:
    """Let the process that serves log to stderr, as `text` or as `json`.

    Raises:
        WrongInput: Neither of them.
    """
    forms = {"text": PlainLines("%(asctime)s %(message)s"), "json": JsonLines()}
    if form not in forms:
        raise WrongInput(f"--log-format {form!r:.80}: {' or '.join(forms)} is expected")
    handler = logging.StreamHandler()
    handler.setFormatter(forms[form])
    logging.basicConfig(level=logging.INFO, handlers=[handler])
