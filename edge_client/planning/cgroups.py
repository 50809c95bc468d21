"""Control groups' memory limits, versions 1 and 2, read from the kernel's files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNLIMITED = 1 << 60  # version 1 says so by a number close to the largest


@dataclass(frozen=True)
class CgroupMemory:
    """One control group's limit and what it still grants.

    Attributes:
        limit_bytes: What its processes may hold together.
        headroom_bytes: What is left of it; file pages nobody uses count as free.
    """

    limit_bytes: int
    headroom_bytes: int


def kernel_text(path: Path) -> str:
    """A kernel file's text; empty if it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """This process's groups of a controller, each with its version, from its own up to the top."""
    for line in kernel_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if hierarchy == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for mount_root, mount_point in _mounts(root, version, controller):
            below = _below(path, mount_root)
            folder = root / mount_point.lstrip("/")
            yield from ((version, folder / part) for part in (below, *below.parents))


def _mounts(root: Path, version: int, controller: str) -> Iterator[tuple[str, str]]:
    """Root and mount point of each mount of a hierarchy (`proc(5)`, mountinfo)."""
    for line in kernel_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] != ("cgroup2" if version == 2 else "cgroup"):
            continue
        if version == 2 or controller in kind[-1].split(","):
            yield _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _below(path: str, mount_root: str) -> PurePosixPath:
    """A group's path under its mount; a container may see only part of the hierarchy."""
    try:
        return PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()


def cgroup_memory(root: Path = Path("/")) -> Iterator[CgroupMemory]:
    """Every memory limit that applies to this process."""
    for version, folder in cgroup_folders(root, "memory"):
        group = _unified_memory(folder) if version == 2 else _legacy_memory(folder)
        if group is not None:
            yield group


def _unified_memory(folder: Path) -> CgroupMemory | None:
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    return _group(limits, folder / "memory.current", folder / "memory.stat", "inactive_file")


def _legacy_memory(folder: Path) -> CgroupMemory | None:
    limits = [_number(folder / "memory.limit_in_bytes")]
    usage = folder / "memory.usage_in_bytes"
    return _group(limits, usage, folder / "memory.stat", "total_inactive_file")


def _group(limits: list[int | None], usage: Path, stat: Path, unused: str) -> CgroupMemory | None:
    known = [limit for limit in limits if limit is not None and limit < UNLIMITED]
    if not known:
        return None
    rows = (line.split() for line in kernel_text(stat).splitlines())
    freeable = {row[0]: int(row[1]) for row in rows if len(row) == 2}.get(unused, 0)
    held = max(0, (_number(usage) or 0) - freeable)
    return CgroupMemory(min(known), max(0, min(known) - held))


def _number(path: Path) -> int | None:
    text = kernel_text(path).strip()
    return int(text) if text.isdigit() else None
