"""What we read of a process's memory against what the kernel charges its memory group."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from smidgen.edge_client.metering.memory import PROC, read_memory
from smidgen.profiling.instruments.memory_cap import (
    Group,
    cached_bytes,
    drop_page_cache,
    memory_cap,
)

MIB = 1 << 20
HELD = """
import mmap, sys
held = bytearray(b"x") * (224 << 20)
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
mapped[::4096]
print("held", flush=True)
input()
"""


def charged_bytes(stat: Path) -> int:
    """Anonymous and mapped memory of a group, version 1 or 2."""
    rows = [row.split() for row in stat.read_text().splitlines()]
    found: Mapping[str, int] = {name: int(value) for name, value in rows}
    return sum(found.get(name, 0) for name in ("rss", "mapped_file", "anon", "file_mapped"))


def resident_bytes(pid: int) -> int:
    """Anonymous and mapped memory of a process, as a piece of work's meter reads it."""
    memory = read_memory(PROC / str(pid))
    assert memory is not None and memory.anon_bytes is not None and memory.file_bytes is not None
    return memory.anon_bytes + memory.file_bytes


def test_anonymous_and_mapped_memory_are_what_the_group_is_charged(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(MIB) * 224)
    drop_page_cache([file], tmp_path / "not the whole machine's")
    if cached_bytes(file):
        pytest.skip(f"the page cache of {tmp_path} cannot be dropped: it is kept in memory")
    with memory_cap(2 << 30) as cap:
        if not isinstance(cap, Group):
            pytest.skip(cap.report().note)
        command = cap.around([sys.executable, "-c", HELD, str(file)])
        stat = Path(command[3]).with_name("memory.stat")
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout and process.stdout.readline() == "held\n"
            resident, end = resident_bytes(process.pid), time.monotonic() + 60
            # The kernel sums a group's counters up every two seconds.
            while abs(charged_bytes(stat) / resident - 1) > 0.03 and time.monotonic() < end:
                time.sleep(0.1)
            assert charged_bytes(stat) == pytest.approx(resident, rel=0.03)
            assert resident > 2 * 224 * MIB
            process.communicate("\n")
