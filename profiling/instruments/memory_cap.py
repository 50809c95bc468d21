"""A hard memory cap around one child process, and the kernel's statistics of it.

The first mechanism that works here is used: cgroup v2, cgroup v1, RLIMIT_DATA, none; the report
names it, since a run without a cap proves nothing. Pages of a file are charged to the cgroup that
reads them first, so a file already in the page cache costs nothing: call `drop_page_cache` before a
capped run, or the cap is too generous.

    with memory_cap(512 << 20) as cap:
        process = subprocess.Popen(cap.around([sys.executable, "train.py"]))
        process.wait()
        print(cap.report())
"""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from smidgen.edge_client.metering.memory import number, text

MOUNTS = Path("/proc/self/mounts")
_numbers = count()


@dataclass(frozen=True)
class CapReport:
    """What a cap was and what it saw.

    Attributes:
        mechanism: `cgroup v2`, `cgroup v1`, `RLIMIT_DATA` or `none`.
        limit_bytes: The group's limit on memory and swap together, as the kernel rounded it;
            None without a group.
        peak_bytes: The group's highest charge, page cache included; None where it is not told.
        oom_kills: Processes of the group killed for memory; None where it is not told.
        note: One line for people.
    """

    mechanism: str
    limit_bytes: int | None
    peak_bytes: int | None
    oom_kills: int | None
    note: str


@dataclass(frozen=True)
class CgroupVersion:
    """The file names of one version of the memory controller."""

    mechanism: str
    limit: str
    swap: str
    peak: str
    events: str
    is_swap_in_total: bool  # v1 limits memory + swap, v2 swap alone


V2 = CgroupVersion(
    "cgroup v2", "memory.max", "memory.swap.max", "memory.peak", "memory.events", False
)
V1 = CgroupVersion(
    "cgroup v1",
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    True,
)


class Group:
    """A memory cgroup of one child; see `memory_cap`.

    Args:
        folder: The group's folder, made already.
        dialect: The version of its files.
    """

    def __init__(self, folder: Path, dialect: CgroupVersion) -> None:
        self._folder, self._dialect = folder, dialect

    def around(self, command: Sequence[str]) -> list[str]:
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self._folder / "cgroup.procs"), *command]

    def report(self) -> CapReport:
        names = (self._dialect.limit, self._dialect.peak)
        limit, peak = (number(self._folder / name) for name in names)
        note = f"capped by {self._dialect.mechanism} at {(limit or 0) >> 20} MiB"
        if not (self._folder / self._dialect.swap).exists():
            note += "; swap is not counted here"
        return CapReport(self._dialect.mechanism, limit, peak, self._oom_kills(), note)

    def remove(self) -> None:
        """Delete the group; a killed member may take a moment to be gone."""
        for _ in range(100):
            with suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.02)

    def _oom_kills(self) -> int | None:
        rows = text(self._folder / self._dialect.events).splitlines()
        kills = [int(row.split()[1]) for row in rows if row.startswith("oom_kill ")]
        return kills[0] if kills else None  # kernels before 4.13 do not count them


class DataLimit:
    """RLIMIT_DATA: no kill, an allocation fails; close to the truth for private memory alone.

    The kernel counts reserved private writable memory, mapped files among it, not what is resident;
    so the size of privately mapped files is added.
    """

    def __init__(self, limit_bytes: int, mapped_bytes: int) -> None:
        self._limit_bytes, self._mapped_bytes = limit_bytes, mapped_bytes

    def around(self, command: Sequence[str]) -> list[str]:
        kibibytes = str((self._limit_bytes + self._mapped_bytes) >> 10)
        return ["/bin/sh", "-c", 'ulimit -d "$0" && exec "$@"', kibibytes, *command]

    def report(self) -> CapReport:
        note = (
            "the cap was NOT enforced by a memory cgroup (that needs root and a memory "
            f"controller); RLIMIT_DATA held reserved private memory to {self._limit_bytes >> 20} "
            f"MiB + {self._mapped_bytes >> 20} MiB of mapped weights"
        )
        return CapReport("RLIMIT_DATA", None, None, None, note)


class NoCap:
    """Nothing is limited.

    Args:
        note: Why.
    """

    def __init__(self, note: str) -> None:
        self._note = note

    def around(self, command: Sequence[str]) -> list[str]:
        return list(command)

    def report(self) -> CapReport:
        return CapReport("none", None, None, None, self._note)


MemoryCap = Group | DataLimit | NoCap


@contextmanager
def memory_cap(
    limit_bytes: int | None, mapped_bytes: int = 0, mounts: Path = MOUNTS
) -> Iterator[MemoryCap]:
    """The hardest cap that can be had here; its group is removed in the end.

    Args:
        limit_bytes: Memory and swap together; None for no cap at all.
        mapped_bytes: Files the child maps privately, which RLIMIT_DATA would count.
        mounts: The kernel's list of mounted file systems.
    """
    if limit_bytes is None:
        yield NoCap("no cap was asked for")
        return
    group = _make_group(limit_bytes, mounts)
    if group is None:
        yield _data_limit(limit_bytes, mapped_bytes)
        return
    try:
        yield group
    finally:
        group.remove()


def _data_limit(limit_bytes: int, mapped_bytes: int) -> DataLimit | NoCap:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY and hard < limit_bytes + mapped_bytes:
        return NoCap("the cap was NOT enforced: no memory cgroup, and RLIMIT_DATA is set already")
    return DataLimit(limit_bytes, mapped_bytes)


def _make_group(limit_bytes: int, mounts: Path) -> Group | None:
    for dialect, parent in _controllers(mounts):
        folder = parent / f"smidgen-{os.getpid()}-{next(_numbers)}"
        try:
            folder.mkdir()
        except OSError:
            continue
        group = Group(folder, dialect)
        try:
            _limit(folder, dialect, limit_bytes)
            return group
        except OSError:
            group.remove()
    return None


def _controllers(mounts: Path) -> Iterator[tuple[CgroupVersion, Path]]:
    """Mounted hierarchies whose children can be given a memory limit, version 2 first."""
    rows = [row.split() for row in mounts.read_text().splitlines()]
    for _, point, kind, *_ in rows:
        if kind == "cgroup2" and _enables_memory(Path(point)):
            yield V2, Path(point)
    for _, point, kind, options, *_ in rows:
        if kind == "cgroup" and "memory" in options.split(","):
            yield V1, Path(point)


def _enables_memory(root: Path) -> bool:
    with suppress(OSError):
        if "memory" not in (root / "cgroup.controllers").read_text().split():
            return False
        control = root / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            control.write_text("+memory")
        return True
    return False


def _limit(folder: Path, dialect: CgroupVersion, limit_bytes: int) -> None:
    (folder / dialect.limit).write_text(str(limit_bytes))
    with suppress(FileNotFoundError):  # a kernel without swap accounting, or without swap
        path = folder / dialect.swap
        path.read_text()
        path.write_text(str(limit_bytes if dialect.is_swap_in_total else 0))


def drop_page_cache(files: Sequence[Path], drop: Path = Path("/proc/sys/vm/drop_caches")) -> str:
    """Empty the page cache of files, and of the machine where that is allowed.

    Returns:
        One line: what was done, and what is cached still since another process has it mapped;
        that will be charged to nobody.
    """
    os.sync()
    for file in files:
        with suppress(OSError), file.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        drop.write_text("3")
        machine = "the machine's page cache was dropped"
    except OSError:
        machine = "the machine's page cache was NOT dropped (needs root)"
    left = {file.name: cached_bytes(file) >> 20 for file in files if file.is_file()}
    still = ", ".join(f"{mebibytes} MiB of {name}" for name, mebibytes in left.items() if mebibytes)
    return f"{machine}, that of {len(left)} files by name; cached still: {still or 'none of them'}"


def cached_bytes(file: Path) -> int:
    """Bytes of a file that lie in the page cache (mincore)."""
    size = file.stat().st_size
    if size == 0:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    vector = (ctypes.c_ubyte * pages)()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        start = ctypes.c_void_p(ctypes.addressof(anchor))
        failed = libc.mincore(start, ctypes.c_size_t(size), vector)
        del anchor
    if failed:
        raise OSError(ctypes.get_errno(), "mincore failed", str(file))
    return sum(page & 1 for page in vector) * mmap.PAGESIZE
