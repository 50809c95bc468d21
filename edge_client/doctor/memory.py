"""Memory, swap, and the limit of this process's control group."""

from collections.abc import Sequence
from pathlib import Path

from edge_client.doctor.finding import OK, UNKNOWN, WARNING, Finding, unreadable
from edge_client.metering.sysfs import folders, number, text
from edge_client.planning.cgroups import cgroup_memory
from edge_client.planning.resources import meminfo
from edge_client.tables import size

MEMINFO, CGROUP = "proc/meminfo", "proc/self/cgroup"
LITTLE_BYTES = 512 << 20  # below it only small bases are trained
MAKE_ROOM = "stop other programs, or see what fits: smidgen client plan"
RAISE = "raise MemoryMax of the unit, or see what fits: smidgen client plan"


def read_memory(root: Path) -> Sequence[Finding]:
    """Physical memory, swap, and what a control group allows."""
    known = meminfo(root)
    closed = unreadable("memory", root, MEMINFO)
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    if closed is not None or total is None:
        told = Finding("memory", UNKNOWN, f"/{MEMINFO} does not say how much", "mount /proc")
        return [closed or told, _limit(root)]
    if available is None:
        shown, state = f"{size(total)}; how much is available is not told", UNKNOWN
        return [Finding("memory", state, shown, MAKE_ROOM), _swap(root, known), _limit(root)]
    shown = f"{size(total)}, of which {size(available)} can be had now"
    memory = Finding("memory", OK, shown)
    if available < LITTLE_BYTES:
        memory = Finding("memory", WARNING, shown, MAKE_ROOM)
    return [memory, _swap(root, known), _limit(root)]


def _swap(root: Path, known: dict[str, int]) -> Finding:
    total = known.get("SwapTotal")
    if total is None:
        return Finding("swap", UNKNOWN, f"/{MEMINFO} does not say", "see it with `swapon`")
    if not total:
        return Finding("swap", OK, "none")
    disks = [disk for disk in folders(root / "sys/block") if disk.name.startswith("zram")]
    zram = sum(number(disk / "disksize") or 0 for disk in disks)
    if not zram:
        return Finding("swap", OK, size(total))
    todo = "nothing to do; what is swapped to zram still takes memory"
    return Finding("swap", OK, f"{size(total)}, zram of {size(zram)}", todo)


def _limit(root: Path) -> Finding:
    """The tightest limit, parents included."""
    closed = unreadable("memory limit", root, CGROUP)
    if closed is not None:
        return closed
    if not text(root / CGROUP):
        told = f"/{CGROUP} does not say which control group this is"
        return Finding("memory limit", UNKNOWN, told, "mount /proc and /sys/fs/cgroup")
    groups = list(cgroup_memory(root))
    if not groups:
        return Finding("memory limit", OK, "no control group limits this process")
    limit = min(group.limit_bytes for group in groups)
    left = min(group.headroom_bytes for group in groups)
    shown = f"{size(limit)} by its control group, of which {size(left)} is left"
    if left < LITTLE_BYTES:
        return Finding("memory limit", WARNING, shown, RAISE)
    return Finding("memory limit", OK, shown)
