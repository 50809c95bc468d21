"""What a client that waits lets go of beside its heap: the code of libraries that compute.

Pages of programs and libraries are the files' own. Unmapped from this process they stay in the
kernel's cache for as long as nobody else wants the room, and come back by themselves when used.
"""

import ctypes
from pathlib import Path

from edge_client.planning.cgroups import kernel_text

DONT_NEED = 4  # MADV_DONTNEED, madvise(2), the same on x86-64 and arm64
LEAST_BYTES = 1 << 20


def let_go_of_code(maps: Path = Path("/proc/self/maps")) -> int:
    """Unmap resident pages of executable file mappings, which nobody can have written to.

    Args:
        maps: See proc(5).

    Returns:
        Bytes of the mappings that were let go of, whether resident or not.
    """
    libc, let_go = ctypes.CDLL(None), 0
    for line in kernel_text(maps).splitlines():
        place, mode, *rest = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in place.split("-"))
        is_file = len(rest) == 4 and rest[3].startswith("/")
        if mode == "r-xp" and is_file and last - first >= LEAST_BYTES:
            size = last - first
            address, length = ctypes.c_void_p(first), ctypes.c_size_t(size)
            let_go += 0 if libc.madvise(address, length, DONT_NEED) else size
    return let_go
