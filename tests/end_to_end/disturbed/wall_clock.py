"""A wall clock that a test sets, for real processes: libfaketime, which Debian packages."""

import ctypes.util
from collections.abc import Mapping
from pathlib import Path

import pytest

PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


class WallClock:
    """The wall clock of processes that are started with `environment`; skips without libfaketime.

    The monotonic clock stays the machine's, as it does where somebody sets the time.

    Args:
        folder: Gets the file by which it is set.
    """

    def __init__(self, folder: Path) -> None:
        found = [str(path) for place in PLACES for path in Path("/").glob(place[1:])]
        found += [name] if (name := ctypes.util.find_library("faketimeMT")) else []
        if not found:
            pytest.skip("needs libfaketime (apt install faketime)")
        self._library, self._file = found[0], folder / "wall-clock"
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Let it be so many seconds ahead of the machine's, from the next look on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}s")
        new.replace(self._file)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
