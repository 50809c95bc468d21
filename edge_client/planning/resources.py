"""What this device has: memory and its limits, cores, instruction sets.

Read from /proc and /sys once, on demand; `auto` budgets and nominal rates come from here. Limits
are those of control groups v1 and v2, parents included. What cannot be read is None.
"""

import math
import os
import platform
import statistics
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import psutil

from smidgen.edge_client.metering import memory as sysfs
from smidgen.edge_client.planning.cuda_memory import CPU, Accelerator
from smidgen.edge_client.planning.step_cost import Rates, nominal_rates

ARM = ("aarch64", "arm64")  # as Linux and macOS call it
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


def cgroup_folders(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """This process's groups of a controller, each with its version, from its own up to the top."""
    for line in sysfs.text(root / "proc/self/cgroup").splitlines():
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
    for line in sysfs.text(root / "proc/self/mountinfo").splitlines():
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
    for version, folder in cgroup_folders(root, "memory"):
        group = _unified_memory(folder) if version == 2 else _legacy_memory(folder)
        if group is not None:
            yield group


def _unified_memory(folder: Path) -> CgroupMemory | None:
    limits = [sysfs.number(folder / name) for name in ("memory.max", "memory.high")]
    return _group(limits, folder / "memory.current", folder / "memory.stat", "inactive_file")


def _legacy_memory(folder: Path) -> CgroupMemory | None:
    limits = [sysfs.number(folder / "memory.limit_in_bytes")]
    usage = folder / "memory.usage_in_bytes"
    return _group(limits, usage, folder / "memory.stat", "total_inactive_file")


def _group(limits: list[int | None], usage: Path, stat: Path, unused: str) -> CgroupMemory | None:
    known = [limit for limit in limits if limit is not None and limit < UNLIMITED]
    if not known:
        return None
    rows = (line.split() for line in sysfs.text(stat).splitlines())
    freeable = {row[0]: int(row[1]) for row in rows if len(row) == 2}.get(unused, 0)
    held = max(0, (sysfs.number(usage) or 0) - freeable)
    return CgroupMemory(min(known), max(0, min(known) - held))


@dataclass(frozen=True)
class Resources:
    """A device as the planner sees it.

    Attributes:
        machine: Processor architecture, such as `aarch64`.
        flags: What the processor says it has, the same on all its cores.
        cores: Processors this process may use, processor quotas counted.
        total_bytes: Physical memory, or None where the kernel does not say.
        available_bytes: What can be had now without swapping, under all limits.
        cgroup_limit_bytes: The tightest memory limit of a control group, or None.
        cpu_dtypes: What the processor computes fast beside float32.
        runtime_bytes: Resident bytes of a process ready to compute, before a base is opened.
        accelerator: The CUDA device that is planned for; None: the processor.
    """

    machine: str
    flags: frozenset[str]
    cores: int
    total_bytes: int | None
    available_bytes: int
    cgroup_limit_bytes: int | None
    cpu_dtypes: tuple[str, ...]
    runtime_bytes: int
    accelerator: Accelerator | None = None

    @property
    def device(self) -> str:
        """What plans are made for, as a `Workload` calls it."""
        return CPU if self.accelerator is None else self.accelerator.device

    @property
    def budgeted_bytes(self) -> int:
        """What can be had now of the memory that a budget is of: a card's own, or the machine's."""
        card = self.accelerator
        return self.available_bytes if card is None or card.is_unified else card.free_bytes

    @property
    def nominal(self) -> Rates:
        if self.accelerator is not None:
            return self.accelerator.nominal
        return nominal_rates(self.flags, self.cpu_dtypes, self.cores)


def read_facts(
    runtime: int,
    root: Path = Path("/"),
    machine: str = platform.machine(),
    accelerator: Accelerator | None = None,
) -> Resources:
    """Read what this device has.

    Args:
        runtime: Resident bytes of a process ready to compute.
        root: Where `proc` and `sys` lie; another folder in tests.
        machine: Processor architecture.
        accelerator: The CUDA device that is to compute, if it is not the processor.
    """
    memory, groups = meminfo(root), list(cgroup_memory(root))
    available = memory.get("MemAvailable", memory.get("MemFree", 0))
    flags = cpu_flags(sysfs.text(root / "proc/cpuinfo"), machine)
    return Resources(
        machine=machine,
        flags=flags,
        cores=usable_cores(root),
        total_bytes=memory.get("MemTotal"),
        available_bytes=min([available, *(group.headroom_bytes for group in groups)]),
        cgroup_limit_bytes=min((group.limit_bytes for group in groups), default=None),
        cpu_dtypes=fast_dtypes(machine, flags),
        runtime_bytes=runtime,
        accelerator=accelerator,
    )


def machine_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Physical bytes, and those that could be had without swapping; None: the kernel is silent."""
    memory = meminfo(root)
    return memory.get("MemTotal"), memory.get("MemAvailable", memory.get("MemFree"))


def meminfo(root: Path) -> dict[str, int]:
    """Bytes by Linux's names, such as `MemTotal`; empty where the system does not say."""
    found = sysfs.sizes(sysfs.text(root / "proc/meminfo"))
    if not found and root == Path("/"):  # another system, which psutil knows how to ask
        with suppress(OSError):
            memory = psutil.virtual_memory()
            return {"MemTotal": memory.total, "MemAvailable": memory.available}
    return found


# The processor


def cpu_flags(cpuinfo: str, machine: str = platform.machine()) -> frozenset[str]:
    """Flags that every core has: `flags` of an x86, `Features` of an ARM.

    An emulated ARM is shown the x86 below it, whose flags are not its own: none are known then.
    """
    rows = (line.partition(":") for line in cpuinfo.splitlines())
    key = "Features" if machine in ARM else "flags"
    cores = [set(text.split()) for name, _, text in rows if name.strip() == key]
    return frozenset(set.intersection(*cores)) if cores else frozenset()


def flags_here() -> frozenset[str]:
    return cpu_flags(sysfs.text(Path("/proc/cpuinfo")))


def fast_dtypes(machine: str, flags: Collection[str]) -> tuple[str, ...]:
    """16-bit types whose matrix products are faster than float32's.

    On an x86 without float16 arithmetic torch's float16 product is ten times slower than its
    float32 one (measured), so there the type is not offered at all.
    """
    is_arm = machine in ARM
    bfloat16 = {"bf16"} if is_arm else {"avx512_bf16", "amx_bf16"}
    float16 = {"asimdhp"} if is_arm else {"avx512_fp16", "amx_fp16"}
    found = {"bfloat16": bfloat16, "float16": float16}
    return tuple(dtype for dtype, wanted in found.items() if wanted & set(flags))


def usable_cores(root: Path = Path("/")) -> int:
    """Processors this process may run on; a quota of one and a half counts as two."""
    quotas = [_quota(folder) for _, folder in cgroup_folders(root, "cpu")]
    limits = [math.ceil(quota) for quota in quotas if quota is not None]
    is_linux = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    return max(1, min([cores, *limits]))


def _quota(folder: Path) -> float | None:
    unified = sysfs.text(folder / "cpu.max").split()
    quota, period = (
        unified
        if len(unified) == 2
        else (
            sysfs.text(folder / "cpu.cfs_quota_us"),
            sysfs.text(folder / "cpu.cfs_period_us"),
        )
    )
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", "-1", or no such file
    return int(quota) / int(period)


# Measured


def measured_flops(size: int = 768, repeats: int = 5) -> float:
    """Operations per second of float32 products here, measured in 50 ms; median of `repeats`."""
    a = np.ones((size, size), np.float32)
    b, out = a.copy(), a.copy()
    np.matmul(a, b, out=out)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        np.matmul(a, b, out=out)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / max(statistics.median(times), 1e-9)


def memory_bytes() -> int:
    if not hasattr(os, "sysconf"):
        return int(psutil.virtual_memory().total)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
