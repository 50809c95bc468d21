"""How fast updates get through a device's link, by those that were sent; kept between starts.

link = Link(folder / "link.json")
link.sent(1_186_440, 4.2)
link.rate()  # bytes per second, or None before anything was sent
"""

import logging
from pathlib import Path

import msgspec

from edge_client.files import PRIVATE, from_json, write_atomically

NEW = 0.5  # how much the newest one counts
LEAST_BYTES = 1024  # of less, latency is all that is seen

log = logging.getLogger(__name__)


class Link:
    """The link of one device.

    Law: the rate lies between the slowest and the fastest of what was sent.

    Args:
        path: Written when something was sent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def rate(self) -> float | None:
        """Bytes per second; None where nobody knows."""
        try:
            found = from_json(self._path.read_bytes(), dict[str, float])
            rate = found["bytes_per_s"]
        except (OSError, KeyError, msgspec.DecodeError):
            return None
        return rate if rate > 0.0 else None

    def sent(self, size_bytes: int, seconds: float) -> None:
        """Learn from an update that got through; tries that failed are in its seconds.

        Args:
            size_bytes: Its size.
            seconds: From the first byte to the receipt.
        """
        if size_bytes < LEAST_BYTES or seconds <= 0.0:
            return
        before, now = self.rate(), size_bytes / seconds
        rate = now if before is None else NEW * now + (1.0 - NEW) * before
        try:
            write_atomically(self._path, msgspec.json.encode({"bytes_per_s": rate}), PRIVATE)
        except OSError as error:
            log.warning("how fast the link is is not kept: %s", error)
