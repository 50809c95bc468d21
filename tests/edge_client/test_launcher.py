import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from edge_client.launcher import ALLOCATOR, RELAUNCHED, allocator_environment, is_glibc_linux, trim

pytestmark = pytest.mark.skipif(not is_glibc_linux(), reason="these settings are glibc's")

PROGRAM = """
import json, os, sys
from edge_client.launcher import relaunch_if_needed
relaunch_if_needed()
named = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "OMP_"))}
print(json.dumps({"environment": named, "arguments": sys.argv, "pid": os.getpid(),
                  "flags": list(sys.warnoptions), "again": os.environ.get("SMIDGEN_RELAUNCHED")}))
"""
BLOCKS = """
from edge_client.launcher import relaunch_if_needed, trim
relaunch_if_needed()
from edge_client.device_facts import resident_bytes
before = resident_bytes()
blocks = [bytearray(b"x" * 50_000) for _ in range(4000)]
last = bytearray(b"x" * 50_000)  # holds the heap's end, so that nothing below is given back
full = resident_bytes()
del blocks
kept = resident_bytes()
given = trim()
print(before, full, kept, resident_bytes(), given)
"""


def clean(**more: str) -> dict[str, str]:
    """This environment without settings of the allocator and of threads."""
    names = (*ALLOCATOR, RELAUNCHED, "OMP_NUM_THREADS")
    return {name: value for name, value in os.environ.items() if name not in names} | more


def run(program: str, *arguments: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    return done.stdout


def test_a_process_starts_again_with_the_settings_and_its_arguments() -> None:
    out = json.loads(run(PROGRAM, "client", "--x", "a b", environment=clean(OMP_NUM_THREADS="3")))
    assert out["environment"] == ALLOCATOR | {"OMP_NUM_THREADS": "3"}
    assert out["arguments"] == ["-c", "client", "--x", "a b"]
    assert out["flags"] == ["error"] and out["again"] == "1"


def test_the_process_keeps_its_number() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=clean()
    ) as process:
        out, _ = process.communicate(timeout=60)
    assert json.loads(out)["pid"] == process.pid and process.returncode == 0


def test_what_the_user_has_set_stays() -> None:
    out = json.loads(run(PROGRAM, environment=clean(MALLOC_ARENA_MAX="4")))
    assert out["environment"] == ALLOCATOR | {"MALLOC_ARENA_MAX": "4"}


def test_nothing_starts_again_where_all_is_set_or_it_did_already() -> None:
    assert json.loads(run(PROGRAM, environment=clean(**ALLOCATOR)))["again"] is None
    out = json.loads(run(PROGRAM, environment=clean(SMIDGEN_RELAUNCHED="1")))
    assert out["environment"] == {}


def test_only_what_an_environment_lacks_is_added() -> None:
    assert allocator_environment({}) == ALLOCATOR
    assert set(allocator_environment({"MALLOC_TRIM_THRESHOLD_": "7"})) == {
        "MALLOC_ARENA_MAX",
        "MALLOC_MMAP_THRESHOLD_",
    }
    assert allocator_environment(ALLOCATOR) == {}


def test_trimming_gives_freed_memory_back() -> None:
    numbers = run(BLOCKS, environment=clean()).split()
    before, full, kept, after = map(int, numbers[:4])
    assert full - before > 150 << 20
    assert after - before < 20 << 20
    assert numbers[4] == str(kept - after > 0)


def test_trimming_twice_is_harmless() -> None:
    trim()
    assert trim() in (True, False)
