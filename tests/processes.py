"""Processes of this machine, read from /proc, real memory limits for them, ports and tools."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# A shell's: enter the group, then become the command.
ENTER = ("/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"')


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A version 1 memory group of our own; skips where none can be made."""
    parent = Path("/sys/fs/cgroup/memory")
    group = parent / f"smidgen-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no writable version 1 memory controller at {parent}: {error}")
    try:
        yield group
    finally:
        end = time.monotonic() + 60  # Python's resource tracker outlives its process a little
        while (group / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.02)
        group.rmdir()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*line: str) -> "subprocess.CompletedProcess[str]":
    """A tool of the system's; skips where it is not installed."""
    if shutil.which(line[0]) is None:
        pytest.skip(f"{line[0]} is not installed")
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def _stat(pid: int | str) -> list[str]:
    """State, parent and more; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_computing(pid: int) -> bool:
    """Whether a process is there and is more than a name that nobody has asked after."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def children_of(pid: int) -> list[int]:
    """Direct children, dead ones included."""
    found = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(name) for name in found if _stat(name)[1:2] == [str(pid)]]
