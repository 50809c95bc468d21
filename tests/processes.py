"""Processes of this machine, read from /proc."""

from pathlib import Path


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
