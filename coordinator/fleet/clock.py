"""The coordinator's clock: Unix time that does not jump while its process lives.

It starts at the wall clock's time and advances with the monotonic clock, so setting the wall clock
moves no deadline and makes no device look absent. What other machines must agree on, such as
certificates and token expiry, uses the wall clock itself. Other processes that read the store find
this clock in `clock.json` beside it.
"""

import json
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from smidgen.edge_client.files import from_json, write_atomically

FILE = "clock.json"


class Clock:
    """One per process.

    Args:
        now_s: Unix time, as the wall clock says it now.
    """

    def __init__(self, now_s: float) -> None:
        self._ahead_s = now_s - time.monotonic()

    def now_s(self) -> float:
        """Unix time at the start, and what has passed since."""
        return self._ahead_s + time.monotonic()

    def note(self, folder: Path) -> None:
        """Write down beside a store which time it goes by; a full disk may not take it."""
        told = {"ahead_s": self._ahead_s, "boot": _boot()}
        with suppress(OSError):
            write_atomically(folder / FILE, json.dumps(told).encode(), mode=0o600)


class _Noted(msgspec.Struct):
    ahead_s: float
    boot: str


def now_of(folder: Path) -> float:
    """The time that a store was last served by; the wall clock's where nobody knows."""
    try:
        noted = from_json((folder / FILE).read_bytes(), _Noted)
    except (OSError, msgspec.MsgspecError):
        return time.time()
    is_same = noted.boot != "" and noted.boot == _boot()
    return noted.ahead_s + time.monotonic() if is_same else time.time()


def _boot() -> str:
    try:
        # The monotonic clock counts from the boot
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # another system
        return ""
