"""C library allocator settings: one arena, and memory returned to the system on demand.

No threshold is set: glibc's own adaptive ones were as small and as fast as any that were tried, and
mapping every large block by itself cost 40 % of a step (docs/decisions/005-allocator.md).
"""

import ctypes
import mmap
import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

from smidgen.edge_client.metering.memory import text

ARENA_MAX = -8  # mallopt(3)
DONT_NEED = 4  # MADV_DONTNEED, madvise(2), the same on x86-64 and arm64


def is_glibc_linux() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


def use_one_arena() -> bool:
    """Let all threads share one arena from now on, since each keeps what was freed in it.

    Returns:
        Whether it was set; False where the user has set `MALLOC_ARENA_MAX`, or it means nothing.
    """
    if "MALLOC_ARENA_MAX" in os.environ or not is_glibc_linux():
        return False
    return bool(_libc().mallopt(ARENA_MAX, 1))


def before_torch() -> None:
    """Set what torch reads as it is imported; what the user has set stands.

    Its threads wait for each other in a loop, by default of 300,000 turns: two clients on two cores
    took 2 to 12 times as long for a step as with 1,000 turns, and one alone as long (embedded base,
    8 x 64 tokens; a loop of no turns costs one alone a fifth).

    Pages of 2 MiB lie under tensors that are as large: a step takes and frees its tensors anew, and
    each page that is new is zeroed at a fault of its own. RoBERTa-base, 4 x 256 tokens, float32,
    AVX-512: 178,000 faults a step become 54,000, at the same peak.

    In bfloat16 oneDNN compiles a product for each shape, and real texts have as many as lengths. It
    and torch each keep the newest 16, not 1,024, which grow by hundreds of MiB. Figures:
    docs/decisions/005-allocator.md.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "16")


def trim() -> bool:
    """Give the heap's free memory back to the kernel now; for between rounds.

    Returns:
        Whether some was given back; False where there is no such call.
    """
    return is_glibc_linux() and bool(_libc().malloc_trim(0))


def let_go_of_code(maps: Path = Path("/proc/self/maps")) -> int:
    """Unmap resident pages of executable file mappings, which nobody can have written to.

    They stay in the kernel's page cache while memory lasts, and are mapped again on use: what only
    a start touches is not.

    Args:
        maps: See proc(5).

    Returns:
        Bytes of the mappings that were let go of, whether resident or not.
    """
    let_go = 0
    for ends in re.findall(r"^(\w+)-(\w+) r-xp (?:\S+ +){3}/", text(maps), re.MULTILINE):
        first, last = (int(end, 16) for end in ends)
        address, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        let_go += 0 if _libc().madvise(address, size, DONT_NEED) else size.value
    return let_go


def trim_above(ceiling_bytes: int) -> bool:
    """Give free memory back if this process has more than `ceiling_bytes` resident.

    Freed blocks lie scattered between used ones, and a heap grows to almost twice what it holds;
    with this between layers it does not, and a block that is given back now and then costs less
    than mapping each by itself.
    """
    return resident_bytes() > ceiling_bytes and trim()


def resident_bytes() -> int:
    """Resident bytes of this process, file pages included; 0 where the kernel does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * mmap.PAGESIZE


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
