"""Safe log lines: foreign text cannot move the cursor, forge records or fill the disk.

    handler.setFormatter(PlainLines("%(asctime)s %(message)s"))

Messages may contain a coordinator's reasons, file names or a peer's broken header. So each record
is one printable line of bounded length; a traceback keeps its lines, indented, so that none looks
like a record.
"""

import logging
from types import TracebackType
from typing import Any

from smidgen.edge_client.tables import plain

LONGEST = 2000  # characters of a message
MOST_LINES = 200  # of a traceback

Caught = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | Any
)


def shown(text: str, most: int = LONGEST) -> str:
    """A message as one printable line that is not too long."""
    cut = f" ... ({len(text)} characters)" if len(text) > most else ""
    line = text[:most]
    return (line if line.isprintable() else plain(line)) + cut


def shown_lines(text: str) -> str:
    """The same of a traceback, line by line; of many the first and the last."""
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], f"... ({len(lines)} lines)", *lines[-half:]]
    return "\n".join(f"  {shown(line)}" for line in lines)


class PlainLines(logging.Formatter):
    """A formatter of the standard library whose messages are made safe to show."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Caught) -> str:
        return shown_lines(super().formatException(ei))
