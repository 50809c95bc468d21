"""Files of /proc and /sys, under any root, so that a made-up tree can stand for a board."""

from contextlib import suppress
from pathlib import Path


def text(file: Path) -> str:
    """What a file says, without its end; empty where there is none or it may not be read."""
    with suppress(OSError):
        return file.read_text(errors="replace").strip("\0\n ")
    return ""


def number(file: Path) -> int | None:
    """A file's whole number, or None."""
    with suppress(OSError, ValueError):
        return int(file.read_text(errors="replace"))
    return None


def folders(place: Path) -> list[Path]:
    """Folders in a folder, by name; none where it is not there or may not be read."""
    with suppress(OSError):
        return sorted(path for path in place.iterdir() if path.is_dir())
    return []


def sizes(report: str) -> dict[str, int]:
    """Bytes by the kernel's names, of lines such as `VmRSS:  12 kB` (meminfo, status, smaps)."""
    rows = (line.split() for line in report.splitlines())
    known = (row for row in rows if len(row) > 1 and row[1].isdecimal())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in known}
