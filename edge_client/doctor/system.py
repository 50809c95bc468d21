"""The C library, kernel, interpreter, processor and clock."""

import re
from datetime import datetime, timezone
from pathlib import Path

from edge_client.doctor.finding import ERROR, NOTHING, OK, UNKNOWN, WARNING, Finding, unreadable
from edge_client.doctor.host import Host
from edge_client.doctor.wheels import ALL_HAVE, dying, is_without_lse
from edge_client.metering.sysfs import text
from edge_client.planning.resources import cpu_flags

OLDEST_GLIBC = (2, 27)  # what the wheels of onnxruntime to 1.28 need
PLAIN_GLIBC = (2, 28)  # what today's index takes for granted, hf-xet among it
PYTHONS = ((3, 10), (3, 14))
MACHINES = ("aarch64", "x86_64")
NOTED = (  # of a processor's flags
    *("atomics", "asimdhp", "asimddp", "i8mm", "bf16", "sve"),
    *("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8"),
)
BORN, YEARS = 2026, 25  # a certificate of a coordinator is from no earlier year
OSRELEASE, CPUINFO = "proc/sys/kernel/osrelease", "proc/cpuinfo"


def _version(said: str) -> tuple[int, int] | None:
    numbers = re.match(r"(\d+)\.(\d+)", said)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def read_glibc(host: Host) -> Finding:
    """The C library that wheels are built for."""
    version = _version(host.glibc)
    if version is None:
        todo = "take a system with glibc 2.27 or newer, if this has another C library"
        return Finding("glibc", UNKNOWN, "this system does not say that it has glibc", todo)
    if version < OLDEST_GLIBC:
        todo = "install a newer system: no wheel of onnxruntime is for this one"
        return Finding("glibc", ERROR, f"{host.glibc}, older than 2.27", todo)
    if version < PLAIN_GLIBC:
        todo = "install from a wheelhouse for JetPack 4; from an index hf-xet has no wheel for it"
        return Finding("glibc", OK, host.glibc, todo)
    return Finding("glibc", OK, host.glibc)


def read_kernel(root: Path) -> Finding:
    """The kernel; what lies on it matters in containers alone."""
    closed = unreadable("kernel", root, OSRELEASE)
    said = text(root / OSRELEASE)
    version = _version(said)
    if closed is not None:
        return closed
    if version is None:
        return Finding("kernel", UNKNOWN, "/proc does not say which", "mount /proc")
    todo = "in a container take Ubuntu 20.04: threads of newer ones may be refused by old Dockers"
    return Finding("kernel", OK, said, todo if version < (5, 0) else NOTHING)


def read_python(host: Host) -> Finding:
    """The interpreter that this runs on."""
    version = _version(host.python)
    if version is not None and PYTHONS[0] <= version <= PYTHONS[1]:
        return Finding("python", OK, host.python)
    todo = "put cpython.tar.gz into the wheelhouse; install.sh then brings it along"
    return Finding("python", WARNING, f"{host.python}; smidgen needs 3.10 to 3.14", todo)


def read_processor(root: Path, host: Host) -> Finding:
    """Architecture and instruction sets, the same on all cores."""
    if host.machine not in MACHINES:
        todo = "install a 64-bit system; onnxruntime has wheels for aarch64 and x86_64"
        return Finding("processor", ERROR, host.machine, todo)
    flags = cpu_flags(text(root / CPUINFO))
    if not flags or (host.machine == "aarch64" and ALL_HAVE not in flags):  # of an emulator's host
        closed = unreadable("processor", root, CPUINFO)
        told = f"{host.machine}; /{CPUINFO} does not say what it can"
        return closed or Finding("processor", UNKNOWN, told, f"avoid {dying()} until it does")
    noted = [flag for flag in NOTED if flag in flags]
    shown = f"{host.machine} with {', '.join(noted)}" if noted else host.machine
    if is_without_lse(host.machine, flags):
        todo = f"install from the wheelhouse alone: {dying()} die on it"
        return Finding("processor", OK, f"{shown}, an ARMv8.0 without LSE atomics", todo)
    return Finding("processor", OK, shown)


def read_clock(host: Host) -> Finding:
    """Whether the clock can be right; TLS believes no certificate in 1970."""
    try:
        now = datetime.fromtimestamp(host.now_s, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return Finding("clock", ERROR, "the clock says no date at all", SET_CLOCK)
    shown = f"{now:%Y-%m-%d %H:%M} UTC"
    if not BORN <= now.year < BORN + YEARS:
        return Finding("clock", ERROR, f"{shown}, which cannot be", SET_CLOCK)
    return Finding("clock", OK, shown)


SET_CLOCK = "set the clock (timedatectl, or a time server); until then no certificate is believed"
