"""What the running system says of itself other than by files; made up in tests."""

import os
import platform
import sys
import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A system.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        glibc: Its version, such as `2.27`; empty where there is none that says so.
        python: The interpreter's version, such as `3.11.7`.
        now_s: What the clock says, in seconds since 1970.
    """

    machine: str
    glibc: str
    python: str
    now_s: float


def this_host() -> Host:
    """The system that this process runs on."""
    return Host(platform.machine(), _glibc(), _python(), time.time())


def _glibc() -> str:
    with suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else ""
    return ""


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))
