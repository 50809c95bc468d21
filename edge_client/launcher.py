"""Allocator hygiene: freed memory goes back to the kernel, so a peak is what is held, not what was.

glibc reads its settings once, before the first line of Python, so the process starts itself again
with them in its environment. What the user has set stays. Threads are left alone.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from functools import cache

# One arena, since each keeps what was freed in it; blocks of a megabyte and more are mapped and
# unmapped each by itself; and a megabyte free at the heap's end is given back.
ALLOCATOR = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000",
}
RELAUNCHED = "SMIDGEN_RELAUNCHED"


def is_glibc_linux() -> bool:
    """Whether these settings mean anything here."""
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def allocator_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings an environment lacks; empty where they mean nothing."""
    if not is_glibc_linux():
        return {}
    return {name: value for name, value in ALLOCATOR.items() if name not in environment}


def relaunch_if_needed() -> None:
    """Start this command again with the allocator's settings, at most once.

    To be called before anything is opened or started: the new program takes this one's place,
    process number included. Returns where there is nothing to set.
    """
    lacking = allocator_environment(os.environ)
    if not lacking or RELAUNCHED in os.environ or not sys.executable:
        return
    environment = os.environ | lacking | {RELAUNCHED: "1"}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:
        return  # not allowed here; training works without, it only takes more memory


def trim() -> bool:
    """Give the heap's free memory back to the kernel now; for between rounds.

    Returns:
        Whether some was given back; False where there is no such call.
    """
    call = _malloc_trim()
    return bool(call and call(0))


@cache
def _malloc_trim() -> "ctypes._NamedFuncPointer | None":
    if not is_glibc_linux():
        return None
    return ctypes.CDLL(None).malloc_trim
