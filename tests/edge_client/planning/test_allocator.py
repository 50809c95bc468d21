import os
import subprocess
import sys

import pytest

from smidgen.edge_client.planning.allocator import is_glibc_linux, trim_above, use_one_arena

pytestmark = pytest.mark.skipif(not is_glibc_linux(), reason="these calls are glibc's")

BLOCKS = """
from smidgen.edge_client.planning.allocator import resident_bytes, trim
before = resident_bytes()
blocks = [bytearray(b"x" * 50_000) for _ in range(4000)]
last = bytearray(b"x" * 50_000)  # holds the heap's end, so that nothing below is given back
full = resident_bytes()
del blocks
kept = resident_bytes()
given = trim()
print(before, full, kept, resident_bytes(), given)
"""
# Threads that allocate at the same time; malloc_info(3) names every arena in its XML.
ARENAS = """
import ctypes, sys, threading
from smidgen.edge_client.planning.allocator import use_one_arena
if sys.argv[1] == "one":
    assert use_one_arena()
ready = threading.Barrier(5)
def allocate():
    ready.wait()
    blocks = [bytearray(20_000) for _ in range(500)]
    ready.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
ready.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
ready.wait()
"""


def run(program: str, *arguments: str) -> str:
    environment = {name: text for name, text in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    return done.stdout


def test_trimming_gives_freed_memory_back() -> None:
    numbers = run(BLOCKS).split()
    before, full, kept, after = map(int, numbers[:4])
    assert full - before > 150 << 20
    assert after - before < 20 << 20
    assert numbers[4] == str(kept - after > 0)


def test_nothing_is_trimmed_below_the_ceiling() -> None:
    assert not trim_above(1 << 50)
    ceiling = BLOCKS.replace("given = trim()", "given = trim_above(before + (50 << 20))")
    numbers = run(ceiling.replace("import resident_bytes, trim", "import *")).split()
    before, _, _, after = map(int, numbers[:4])
    assert after - before < 20 << 20


def test_threads_share_one_arena() -> None:
    assert run(ARENAS, "many").count("<heap nr=") > 1
    assert run(ARENAS, "one").count("<heap nr=") == 1


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not use_one_arena()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "1000 16 16"),
        ({"GOMP_SPINCOUNT": "7", "LRU_CACHE_CAPACITY": "9"}, "7 9 16"),
        ({"OMP_WAIT_POLICY": "active"}, "- 16 16"),
    ],
)
def test_what_torch_reads_as_it_is_imported_is_set_unless_the_user_has(
    given: dict[str, str], said: str
) -> None:
    names = ("GOMP_SPINCOUNT", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    script = (
        "import os; from smidgen.edge_client.planning.allocator import before_torch; "
        f"before_torch(); print(*(os.environ.get(name, '-') for name in {names}))"
    )
    others = (*names, "OMP_WAIT_POLICY")
    own = {name: value for name, value in os.environ.items() if name not in others}
    line, env = [sys.executable, "-c", script], own | given
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said
