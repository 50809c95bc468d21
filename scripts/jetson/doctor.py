#!/usr/bin/env python3
"""Say whether smidgen will work on this board, before anything is installed on it.

    python3 scripts/jetson/doctor.py          a line for each thing that was looked at
    python3 scripts/jetson/doctor.py --json   one object on the last line, for machines

It needs Python 3.6 and nothing else, changes nothing and asks no network. Exit code 0: it will
work; 1: it will not, and what to do is said; 2: wrong use. After an install `smidgen client doctor`
says the same and more. What is not known is said as `unknown`. None of it was run on a real board.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

Finding = namedtuple("Finding", "check state found todo")
Host = namedtuple("Host", "machine glibc python now_s")
OK, UNKNOWN, WARNING, ERROR = "ok", "unknown", "warning", "error"
NOTHING = "nothing to do"
STATE = "/var/lib/smidgen"


def finding(check, state, found, todo=NOTHING):
    return Finding(check, state, found, todo)


# Small files of the kernel


def text(path):
    """What a file says, without its end; empty where there is none or it may not be read."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


def number(path):
    try:
        return int(text(path))
    except ValueError:
        return None


def folders(place):
    """Folders in a folder, by name; none where it is not there or may not be read."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def unreadable(check, root, *places):
    """A finding on the first place that is there and cannot be read, or None."""
    for place in places:
        try:
            if (root / place).is_dir():
                next((root / place).iterdir(), None)
            else:
                (root / place).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found = "/{} cannot be read: {}".format(place, error.strerror)
            return finding(
                check, UNKNOWN, found, "run it as a user who may read that, such as root"
            )
    return None


def size(value):
    power = 0
    while value >= 1000 and power < 4:
        value, power = value / 1024, power + 1
    if not power or not value:
        return "{} {}".format(round(value), ("B", "KiB", "MiB", "GiB", "TiB")[power])
    behind = sum(value < bound for bound in (99.95, 9.995, 0.0995))
    return "{:.{}f} {}".format(value, behind, ("B", "KiB", "MiB", "GiB", "TiB")[power])


def version(said):
    numbers = re.match(r"(\d+)\.(\d+)", said)
    return None if numbers is None else (int(numbers.group(1)), int(numbers.group(2)))


# The board and its system

TREE, RELEASE = "proc/device-tree", "etc/nv_tegra_release"
MODULES = {
    "p2180": "Jetson TX1",
    "p2888": "Jetson AGX Xavier",
    "p3310": "Jetson TX2 8 GB",
    "p3448-0000": "Jetson Nano 4 GB",
    "p3448-0003": "Jetson Nano 2 GB",
    "p3489-0000": "Jetson TX2i",
    "p3489-0888": "Jetson TX2 4 GB",
    "p3636-0001": "Jetson TX2 NX",
    "p3668": "Jetson Xavier NX",
    "p3701": "Jetson AGX Orin",
    "p3767-0000": "Jetson Orin NX 16 GB",
    "p3767-0001": "Jetson Orin NX 8 GB",
    "p3767-0003": "Jetson Orin Nano 8 GB",
    "p3767-0004": "Jetson Orin Nano 4 GB",
    "p3767-0005": "Jetson Orin Nano 8 GB",
}
SMALL = ("Jetson Nano 2 GB", "Jetson TX2 4 GB", "Jetson TX2 NX")
GO_ON = "continue if nothing below is an error; smidgen has not been tried on this board"
ONNX_ALONE = "take the onnx engine: there is too little memory for PyTorch beside a base"
UPDATE = "flash the newest release of NVIDIA's that is for this board"


def is_jetson(root):
    return "nvidia,tegra" in text(root / TREE / "compatible") or bool(text(root / RELEASE))


def board(root, host):
    model = "".join(one for one in text(root / TREE / "model") if one.isprintable())[:100]
    compatible = text(root / TREE / "compatible")
    closed = unreadable("board", root, TREE + "/compatible", TREE + "/model")
    if closed is not None and not compatible:
        return closed
    if not model and not compatible:
        if host.machine == "x86_64":
            return finding("board", OK, "no device tree, as on other x86_64 machines")
        return finding("board", UNKNOWN, "no device tree on this " + host.machine, GO_ON)
    shown = model or "a board without a model line"
    found = module(compatible) or module(text(root / TREE / "nvidia,dtsfilename"))
    if found:
        shown = "{}: {} ({})".format(shown, found[1], found[0])
        if found[1] == "Jetson TX1":
            return finding("board", UNKNOWN, shown, GO_ON)
        return finding("board", OK, shown, ONNX_ALONE if found[1] in SMALL else NOTHING)
    if "raspberrypi," in compatible:
        return finding("board", OK, shown)
    told = "which is not in our list"
    for tegra, kind in (("210", "TX1 or Nano"), ("186", "TX2"), ("194", "Xavier"), ("234", "Orin")):
        if "tegra" + tegra in compatible:
            told = "of the {} kind, with an unlisted part number".format(kind)
    return finding("board", UNKNOWN, "{}, {}".format(shown, told), GO_ON)


def module(names):
    for part in re.findall(r"p\d{4}-\d{4}", names):
        known = MODULES.get(part) or MODULES.get(part[:5])
        if known:
            return part, known
    return None


def release(root):
    closed = unreadable("JetPack", root, RELEASE)
    if closed is not None:
        return closed
    said = re.search(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text(root / RELEASE))
    if said is None:
        package = r"^Package: nvidia-l4t-core\n(?:\S.*\n)*?Version: (\d+)\.(\d[\d.]*)"
        said = re.search(package, text(root / "var/lib/dpkg/status"), re.MULTILINE)
    if said is None and is_jetson(root):
        told = "a Jetson, but neither /{} nor dpkg says which release".format(RELEASE)
        return finding("JetPack", UNKNOWN, told, "see NVIDIA's page of the image that it runs")
    if said is None:
        return finding("JetPack", OK, "not a Jetson: no L4T")
    major, rest = int(said.group(1)), said.group(2).strip(".")
    shown = "L4T {}.{}".format(major, rest)
    jetpack = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}.get(major)
    if jetpack is None:
        return finding("JetPack", UNKNOWN, shown + ", which is not in our list", GO_ON)
    shown = "{} (JetPack {})".format(shown, jetpack)
    if jetpack > 6:
        return finding("JetPack", UNKNOWN, shown, GO_ON)
    if (major, int(rest.split(".")[0])) < (32, 6):
        return finding("JetPack", WARNING, shown + ", older than JetPack 4.6", UPDATE)
    return finding("JetPack", OK, shown)


def glibc(host):
    found = version(host.glibc)
    if found is None:
        todo = "take a system with glibc 2.27 or newer, if this has another C library"
        return finding("glibc", UNKNOWN, "this system does not say that it has glibc", todo)
    if found < (2, 27):
        todo = "install a newer system: no wheel of onnxruntime is for this one"
        return finding("glibc", ERROR, host.glibc + ", older than 2.27", todo)
    todo = "install from a wheelhouse for JetPack 4; from an index hf-xet has no wheel for it"
    return finding("glibc", OK, host.glibc, todo if found < (2, 28) else NOTHING)


def kernel(root):
    place = "proc/sys/kernel/osrelease"
    closed, said = unreadable("kernel", root, place), text(root / place)
    found = version(said)
    if closed is not None:
        return closed
    if found is None:
        return finding("kernel", UNKNOWN, "/proc does not say which", "mount /proc")
    todo = "in a container take Ubuntu 20.04: threads of newer ones may be refused by old Dockers"
    return finding("kernel", OK, said, todo if found < (5, 0) else NOTHING)


def python(host):
    found = version(host.python)
    if found is not None and (3, 10) <= found <= (3, 14):
        return finding("python", OK, host.python)
    todo = "put cpython.tar.gz into the wheelhouse; install.sh then brings it along"
    return finding("python", WARNING, host.python + "; smidgen needs 3.10 to 3.14", todo)


DYING = "torch 2.0.0, 2.4.0, 2.10.0 and onnxruntime 1.21.0"
NOTED = (
    *("atomics", "asimdhp", "asimddp", "i8mm", "bf16", "sve"),
    *("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8"),
)


def processor(root, host):
    if host.machine not in ("aarch64", "x86_64"):
        todo = "install a 64-bit system; onnxruntime has wheels for aarch64 and x86_64"
        return finding("processor", ERROR, host.machine, todo)
    rows = [line.partition(":") for line in text(root / "proc/cpuinfo").splitlines()]
    cores = [set(said.split()) for name, _, said in rows if name.strip() in ("flags", "Features")]
    flags = set.intersection(*cores) if cores else set()
    if not flags or (host.machine == "aarch64" and "asimd" not in flags):
        told = "{}; /proc/cpuinfo does not list its features".format(host.machine)
        closed = unreadable("processor", root, "proc/cpuinfo")
        todo = "avoid {} until it does".format(DYING)
        return closed or finding("processor", UNKNOWN, told, todo)
    noted = [flag for flag in NOTED if flag in flags]
    shown = "{} with {}".format(host.machine, ", ".join(noted)) if noted else host.machine
    if host.machine == "aarch64" and "atomics" not in flags:
        todo = "install from the wheelhouse alone: {} die on it".format(DYING)
        return finding("processor", OK, shown + ", an ARMv8.0 without LSE atomics", todo)
    return finding("processor", OK, shown)


def clock(host):
    todo = "set the clock (timedatectl, or a time server); until then no certificate is believed"
    try:
        now = datetime.fromtimestamp(host.now_s, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return finding("clock", ERROR, "the clock has no date", todo)
    shown = "{:%Y-%m-%d %H:%M} UTC".format(now)
    if not 2026 <= now.year < 2051:
        return finding("clock", ERROR, shown + ", which cannot be", todo)
    return finding("clock", OK, shown)


# Memory

LITTLE_BYTES = 512 << 20
MAKE_ROOM = "stop other programs, or see what fits: smidgen client plan"
RAISE = "raise MemoryMax of the unit, or see what fits: smidgen client plan"


def memory(root):
    rows = (line.split() for line in text(root / "proc/meminfo").splitlines())
    rows = [row for row in rows if len(row) > 1 and row[1].isdecimal()]
    known = {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows}
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    closed = unreadable("memory", root, "proc/meminfo")
    if closed is not None or total is None:
        told = finding("memory", UNKNOWN, "/proc/meminfo does not say how much", "mount /proc")
        return [closed or told, memory_limit(root)]
    if available is None:
        shown = size(total) + "; available memory is unknown"
        return [finding("memory", UNKNOWN, shown, MAKE_ROOM), swap(root, known), memory_limit(root)]
    shown = "{}, of which {} is available".format(size(total), size(available))
    found = finding("memory", OK, shown)
    if available < LITTLE_BYTES:
        found = finding("memory", WARNING, shown, MAKE_ROOM)
    return [found, swap(root, known), memory_limit(root)]


def swap(root, known):
    total = known.get("SwapTotal")
    if total is None:
        return finding("swap", UNKNOWN, "/proc/meminfo does not say", "see it with `swapon`")
    if not total:
        return finding("swap", OK, "none")
    disks = [disk for disk in folders(root / "sys/block") if disk.name.startswith("zram")]
    zram = sum(number(disk / "disksize") or 0 for disk in disks)
    if not zram:
        return finding("swap", OK, size(total))
    todo = "nothing to do; pages swapped to zram still use memory"
    return finding("swap", OK, "{}, zram of {}".format(size(total), size(zram)), todo)


def memory_limit(root):
    closed = unreadable("memory limit", root, "proc/self/cgroup")
    if closed is not None:
        return closed
    if not text(root / "proc/self/cgroup"):
        told = "/proc/self/cgroup does not say which control group this is"
        return finding("memory limit", UNKNOWN, told, "mount /proc and /sys/fs/cgroup")
    groups = [group for group in map(limit_and_room, memory_groups(root)) if group]
    if not groups:
        return finding("memory limit", OK, "no control group limits this process")
    limit, left = min(group[0] for group in groups), min(group[1] for group in groups)
    shown = "{} by its control group, of which {} is left".format(size(limit), size(left))
    if left < LITTLE_BYTES:
        return finding("memory limit", WARNING, shown, RAISE)
    return finding("memory limit", OK, shown)


def memory_groups(root):
    """Folders of this process's control groups, each with its version, up to the top."""
    for line in text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        kind = 2 if hierarchy == "0" and not controllers else 1
        if kind == 1 and "memory" not in controllers.split(","):
            continue
        for above, mount in mounts(root, kind):
            try:
                below = PurePosixPath(path).relative_to(above)
            except ValueError:
                below = PurePosixPath()
            for part in (below, *below.parents):
                yield kind, root / mount.lstrip("/") / part


def mounts(root, kind):
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, said = before.split(), after.split()
        if len(fields) < 5 or not said or said[0] != ("cgroup2" if kind == 2 else "cgroup"):
            continue
        if kind == 2 or "memory" in said[-1].split(","):
            yield fields[3].replace("\\040", " "), fields[4].replace("\\040", " ")


def limit_and_room(group):
    """The limit of one group and what is left of it, in bytes, or None."""
    kind, folder = group
    names = ("memory.max", "memory.high") if kind == 2 else ("memory.limit_in_bytes",)
    said = [text(folder / name) for name in names]
    limits = [int(one) for one in said if one.isdigit() and int(one) < 1 << 60]
    if not limits:
        return None
    rows = (line.split() for line in text(folder / "memory.stat").splitlines())
    freeable = {row[0]: int(row[1]) for row in rows if len(row) == 2}
    unused = "inactive_file" if kind == 2 else "total_inactive_file"
    used = number(folder / ("memory.current" if kind == 2 else "memory.usage_in_bytes")) or 0
    return min(limits), max(0, min(limits) - max(0, used - freeable.get(unused, 0)))


# How it runs

CPUS, THERMAL, I2C = "sys/devices/system/cpu", "sys/class/thermal", "sys/bus/i2c/devices"
HWMON, PROCESSOR_CHIPS = "sys/class/hwmon", ("coretemp", "k10temp", "zenpower", "cpu_thermal")
SLOWS_THE_PROCESSOR = re.compile(r"cpu(?!.*fan)|^Processor$")
OWNERS = "nothing to do; change the mode with `sudo nvpmodel -m NUMBER`"
COOL = "give it air or a fan, or a lower power mode"
NO_NUMBER = "nothing to do; throttling cannot be detected"
MEASURE = "nothing to do; energy per round is not measured"
RULE = "install 70-smidgen-power.rules, and let the client's user be of group smidgen"


def power_mode(root):
    status, tool = "var/lib/nvpmodel/status", "usr/sbin/nvpmodel"
    kept = re.search(r"pmode:(\d+)", text(root / status))
    name = None
    if kept is not None:
        row = r"<\s*POWER_MODEL\s+ID={}\s+NAME=(\S+?)\s*>".format(int(kept.group(1)))
        name = re.search(row, text(root / "etc/nvpmodel.conf"))
    shown = asked_mode(root) if name is None else None
    if shown is None and kept is not None:
        shown = "{} {}".format(int(kept.group(1)), name.group(1) if name else "").strip()
    if shown is not None:
        return finding("power mode", OK, shown, OWNERS)
    if not is_jetson(root):
        return finding("power mode", OK, "not a Jetson: no power modes")
    closed = unreadable("power mode", root, status, tool)
    told = "nvpmodel does not say"
    return closed or finding("power mode", UNKNOWN, told, "sudo nvpmodel -q")


def asked_mode(root):
    """What `nvpmodel -q` says, or None."""
    for tool in (root / "usr/sbin/nvpmodel", root / "usr/bin/nvpmodel"):
        if not os.access(str(tool), os.X_OK):
            continue
        try:
            said = subprocess.check_output(
                [str(tool), "-q"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=5
            )
        except (OSError, subprocess.SubprocessError):
            return None
        told = re.search(
            r"^NV Power Mode:\s*(\S+)\s*\n(\d+)\s*$", said.decode("utf-8", "replace"), re.M
        )
        if told:
            return "{} {}".format(int(told.group(2)), told.group(1))
    return None


def clocks(root):
    online, present = text(root / CPUS / "online"), text(root / CPUS / "present")
    on = "online cores unknown"
    if online and present:
        on = "cores {} of {} are on".format(online, present)
    cores = [
        folder / "cpufreq"
        for folder in folders(root / CPUS)
        if re.match(r"cpu\d+$", folder.name) and text(folder / "online") != "0"
    ]
    read = [
        [number(core / "scaling_{}_freq".format(name)) for core in cores] for name in ("cur", "max")
    ]
    now, most = [[value for value in values if value is not None] for values in read]
    if not now:
        first = CPUS + "/cpu0/cpufreq"
        closed = unreadable("clocks", root, first, first + "/scaling_cur_freq")
        told = "the kernel reports no clock rate; " + on
        return closed or finding("clocks", UNKNOWN, told, NO_NUMBER)
    governors = ",".join(sorted({text(core / "scaling_governor") for core in cores} - {""}))
    shown = "up to {:.2f} GHz now".format(max(now) * 1e3 / 1e9)
    shown += ", at most {:.2f} GHz".format(max(most) * 1e3 / 1e9) if most else ""
    shown += ", by {}".format(governors) if governors else ""
    return finding("clocks", OK, "{}; {}".format(shown, on))


def temperature(root):
    zones, steps = [], []
    for place in folders(root / THERMAL):
        kind = text(place / "type")
        degrees, step = number(place / "temp"), number(place / "cur_state")
        if place.name.startswith("thermal_zone"):
            if kind != "PMIC-Die" and degrees is not None and degrees >= -100000:
                named = [name for name, _ in zones]
                zones.append((place.name if kind in named else kind, degrees / 1000))
        elif place.name.startswith("cooling_device") and step is not None:
            steps += [step] if SLOWS_THE_PROCESSOR.search(kind) else []
    for chip in [] if zones else folders(root / HWMON):
        if text(chip / "name") in PROCESSOR_CHIPS:
            read = [number(sensor) for sensor in sorted(chip.glob("temp*_input"))]
            zones += [(text(chip / "name"), value / 1000) for value in read if value is not None]
    if not zones:
        first = THERMAL + "/thermal_zone0"
        closed = unreadable("temperature", root, THERMAL, first + "/type", first + "/temp")
        return closed or finding("temperature", UNKNOWN, "no sensor can be read", NO_NUMBER)
    name, hottest = max(zones, key=lambda zone: zone[1])
    shown = "{:.1f} degrees Celsius ({})".format(hottest, name)
    if max(steps, default=0):
        told = shown + ", and the processor is throttled"
        return finding("temperature", WARNING, told, COOL)
    if hottest >= 85:
        return finding("temperature", WARNING, shown, COOL)
    return finding("temperature", OK, shown)


def power_sensors(root):
    monitors = [one for one in folders(root / I2C) if "ina3221" in text(one / "name")]
    closed, rails = rails_of(monitors)
    if rails and not closed:
        return finding("power sensors", OK, "INA3221 can be read")
    for name, can_be_read in (("RAPL", has_rapl(root)), ("battery", has_battery(root))):
        if can_be_read:
            return finding("power sensors", OK, name + " can be read")
    if monitors:
        at = monitors[0].relative_to(root)
        return finding("power sensors", UNKNOWN, "INA3221 at /{} cannot be read".format(at), RULE)
    closed = unreadable("power sensors", root, I2C)
    return closed or finding("power sensors", UNKNOWN, "none that can be read", MEASURE)


def rails_of(monitors):
    """Whether a rail is there that its owner alone may read, and those that can be read."""
    closed, rails = False, []
    for monitor in monitors:
        inner = [one for one in folders(monitor) if one.name.startswith("iio:device")]
        for folder in inner:
            for file in sorted(folder.glob("rail_name_*")):
                power = "in_power{}_input".format(file.name[len("rail_name_") :])
                if text(file) not in ("", "NC"):
                    rails.append([folder / power])
        for folder in folders(monitor / "hwmon"):
            for file in sorted(folder.glob("in*_label")):
                channel = file.name[len("in") : -len("_label")]
                if text(file) not in ("", "NC") and channel != "7":
                    names = ("in{}_input", "curr{}_input")
                    rails.append([folder / name.format(channel) for name in names])
    readable = []
    for rail in rails:
        try:
            readable += [int(file.read_bytes()) for file in rail]
        except PermissionError:
            closed = True
        except (OSError, ValueError):
            continue
    return closed, readable


def has_rapl(root):
    zones = [one for one in folders(root / "sys/class/powercap") if RAPL.match(one.name)]
    packages = [one for one in zones if text(one / "name").startswith("package")]
    wanted = ("energy_uj", "max_energy_range_uj")
    read = [number(zone / name) for zone in packages for name in wanted]
    return bool(read) and None not in read


RAPL = re.compile(r"intel-rapl:\d+$")


def has_battery(root):
    read = []
    for supply in folders(root / "sys/class/power_supply"):
        if text(supply / "type") == "Battery" and text(supply / "scope") != "Device":
            one = supply / "power_now"
            names = ("power_now",) if one.is_file() else ("voltage_now", "current_now")
            read += [number(supply / name) for name in names]
    return bool(read) and None not in read


# The disk, and all of it


def disk(state):
    place = state if state.is_absolute() else Path.cwd() / state
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(str(place)).free
        is_read_only = os.statvfs(str(place)).f_flag & os.ST_RDONLY
    except OSError as error:
        found = "{}: {}".format(place, error.strerror)
        return finding("disk", UNKNOWN, found, "run it as the client's user")
    shown = "{} free at {}".format(size(free), place)
    todo = "free some, or name a larger disk with --state"
    elsewhere = "name another place with --state"
    if not place.is_dir():
        return finding("disk", ERROR, "{} is not a folder".format(place), elsewhere)
    if is_read_only:
        return finding("disk", ERROR, "{} is read-only".format(place), elsewhere)
    if free < 100 << 20:
        return finding("disk", ERROR, shown + ", 100 MiB is the least", todo)
    return finding("disk", WARNING, shown, todo) if free < 1 << 30 else finding("disk", OK, shown)


def this_host():
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # another C library
        said = ""
    name, _, found = said.partition(" ")
    python = ".".join(map(str, sys.version_info[:3]))
    machine = platform.machine()
    if sys.maxsize < 1 << 32:  # the kernel may be a 64-bit one all the same
        machine = "a 32-bit system on " + machine
    return Host(machine, found if name == "glibc" else "", python, time.time())


def findings(root, host, state):
    """All of them, as `smidgen client doctor` begins."""
    return [
        board(root, host),
        release(root),
        glibc(host),
        kernel(root),
        python(host),
        processor(root, host),
        *memory(root),
        power_mode(root),
        clocks(root),
        temperature(root),
        power_sensors(root),
        disk(state),
        clock(host),
    ]


def main():
    asked = argparse.ArgumentParser(description="Say whether smidgen will work on this board.")
    asked.add_argument("--json", action="store_true", help="last line of stdout: one JSON object")
    asked.add_argument("--state", default=STATE, help="state folder; {} by default".format(STATE))
    given = asked.parse_args()
    begun_s = time.monotonic()
    found = findings(Path("/"), this_host(), Path(given.state))
    works = all(one.state != ERROR for one in found)
    if given.json:
        rows = [dict(one._asdict()) for one in found]
        seconds = round(time.monotonic() - begun_s, 3)
        print(json.dumps({"works": works, "findings": rows, "elapsed_s": seconds}))
    else:
        for one in found:
            print("{:<14} {:<8} {}".format(one.check, one.state, one.found))
            if one.todo != NOTHING:
                print("{:<24}-> {}".format("", one.todo))
        print("no error found" if works else "smidgen will not work here yet; see each error's ->")
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
