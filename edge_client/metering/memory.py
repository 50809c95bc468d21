"""Files of /proc and /sys, and the memory of a process as the kernel counts it, by no package.

Readers take any root, so that a made-up tree can stand for a board.

VmHWM is one figure for the whole process, and whoever resets it takes it from everybody else. So
all resets go through `reset_peak_rss`, which first notes the peak for each `PeakSpan` in use; the
engine's guard, which wants the peak since the last reset alone, is none.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from weakref import WeakSet

PROC = Path("/proc")
SELF = PROC / "self"
RESET_PEAK = "5"  # proc(5), clear_refs: the peak becomes what is resident now


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


@dataclass(frozen=True)
class Memory:
    """One reading of `/proc/PID/status`.

    Attributes:
        peak_rss_bytes: VmHWM, the highest resident set since the process began (or reset it).
        anon_bytes: RssAnon, private memory without a file behind it, now; None before Linux 4.5.
        file_bytes: RssFile, resident pages of mapped files, now; None before Linux 4.5.
    """

    peak_rss_bytes: int
    anon_bytes: int | None
    file_bytes: int | None = None


def read_memory(process: Path = SELF) -> Memory | None:
    """One reading; None where the process is gone or has let go of its memory.

    Args:
        process: Its folder in /proc.
    """
    found = sizes(text(process / "status"))
    if "VmHWM" not in found:
        return None  # it is gone, or a zombie
    return Memory(found["VmHWM"], found.get("RssAnon"), found.get("RssFile"))


def peak_rss_bytes(process: Path = SELF) -> int:
    """VmHWM now; 0 where the kernel does not tell."""
    return memory.peak_rss_bytes if (memory := read_memory(process)) else 0


def pss_bytes(process: Path = SELF) -> int | None:
    """Resident memory, a page that several processes share counted in part; kernel 4.14 and on."""
    return sizes(text(process / "smaps_rollup")).get("Pss")


class PeakSpan:
    """The peak of this process's resident set from here on, whoever resets the kernel's between.

    Args:
        is_fresh: Whether to forget what was before; else it is of the process's whole life.

    Attributes:
        is_own: Whether the kernel let the peak begin here; else it may be an older one.
    """

    def __init__(self, is_fresh: bool = True) -> None:
        self._noted = 0
        with _changing:
            self.is_own = is_fresh and reset_peak_rss()
            _spans.add(self)

    def peak_bytes(self) -> int:
        return max(self._noted, peak_rss_bytes())

    def note(self, peak_bytes: int) -> None:
        self._noted = max(self._noted, peak_bytes)


_spans: WeakSet[PeakSpan] = WeakSet()
_changing = RLock()  # several threads may train at once: a peak read is noted before another resets


def reset_peak_rss(process: Path = SELF) -> bool:
    """Let VmHWM start again from what is resident now; False where the kernel refuses."""
    with _changing:
        if process == SELF and _spans:
            peak = peak_rss_bytes()
            for span in _spans:
                span.note(peak)
        try:
            (process / "clear_refs").write_text(RESET_PEAK)
        except OSError:
            return False
    return True
