"""This machine by the kernel's files.

What this machine is called by its firmware, and whether it runs from the mains.

How warm this machine is, how fast it is clocked, and whether heat slows it down.

Read before and after a piece of work; what the machine does not tell is None or missing.

    before = read_heat()
    train()
    print(is_throttled(before, read_heat()))

Nothing is ever changed here: the power mode is the owner's decision.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from smidgen.edge_client.metering.memory import folders, number, text


def board(root: Path = Path("/")) -> str:
    """The board's model, such as `Raspberry Pi 5 Model B Rev 1.0`; empty where nothing tells.

    Args:
        root: Where `proc` and `sys` lie; another folder in tests.
    """
    said = text(root / "proc/device-tree/model")
    return "".join(letter for letter in said if letter.isprintable())[:100]


def is_on_mains(root: Path = Path("/")) -> bool | None:
    """Whether the machine's power comes from outside; None where the kernel names no supply.

    A supply that is plugged in decides, then a battery that is not being used up, then the mains'
    own plug: a USB port without anything in it says nothing. Nor does a battery of something else,
    such as a mouse.
    """
    supplies = [
        folder
        for folder in folders(root / "sys/class/power_supply")
        if text(folder / "scope") != "Device"
    ]
    batteries = [folder for folder in supplies if text(folder / "type") == "Battery"]
    plugs = {folder: number(folder / "online") for folder in supplies if folder not in batteries}
    if any(plugs.values()):
        return True
    states = {text(folder / "status") for folder in batteries} - {"", "Unknown"}
    if states:
        return "Discharging" not in states
    outs = [folder for folder, online in plugs.items() if online == 0]
    return False if any(text(folder / "type") in ("Mains", "UPS") for folder in outs) else None


CPUS = "sys/devices/system/cpu"
COLDEST = -100_000  # thousandths of a degree; -256000 is a Jetson's "switched off"
PROCESSOR_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
SLOWS_THE_PROCESSOR = re.compile(r"cpu(?!.*fan)|^Processor$")
NVPMODEL = ("usr/sbin/nvpmodel", "usr/bin/nvpmodel")
STATUS = "var/lib/nvpmodel/status"
ASK_S, KILL_S = 5.0, 1.0


@dataclass(frozen=True)
class PowerMode:
    """A Jetson's power mode (nvpmodel): which cores are on, and how fast they may run.

    Attributes:
        mode_id: Its number.
        name: Such as `MAXN`, or None.
    """

    mode_id: int
    name: str | None

    def __str__(self) -> str:
        return f"{self.mode_id} {self.name}" if self.name else f"{self.mode_id}"


@dataclass(frozen=True)
class Heat:
    """One reading.

    Attributes:
        zones_c: Degrees Celsius by thermal zone.
        clocks_hz: Present clock of each core that is switched on, by its number.
        limits_hz: Clock that each core may now reach at most.
        governor: What chooses clocks, such as `schedutil`; several are joined by a comma.
        throttle_events: How often an x86 processor was slowed down by heat since it started.
        cooling_steps: Highest step of a device that cools by slowing the processor down.
        power_mode: A Jetson's.
    """

    zones_c: dict[str, float]
    clocks_hz: dict[int, float]
    limits_hz: dict[int, float]
    governor: str | None
    throttle_events: int | None
    cooling_steps: int | None
    power_mode: PowerMode | None

    @property
    def hottest_c(self) -> float | None:
        return max(self.zones_c.values(), default=None)


def read_heat(root: Path = Path("/")) -> Heat:
    """What the machine says now; takes about a millisecond, but where `nvpmodel` is asked once.

    Args:
        root: Where `sys` and `var` lie; another folder in tests.
    """
    cores = dict(_cores(root))
    return Heat(
        zones_c=_zones_c(root),
        clocks_hz=_clocks_hz(cores, "scaling_cur_freq"),
        limits_hz=_clocks_hz(cores, "scaling_max_freq"),
        governor=governor(root),
        throttle_events=_throttle_events(root),
        cooling_steps=_cooling_steps(root),
        power_mode=power_mode(root),
    )


def is_throttled(before: Heat, after: Heat) -> bool | None:
    """Whether heat slowed the processor down between two readings; None: the machine cannot say.

    The first of these that the machine has decides: an x86's own counter of such events; a device
    that cools by slowing the processor, at work in one of the two readings; a core whose limit has
    sunk meanwhile. A limit that was there before may be its owner's or a power mode's.
    """
    if before.throttle_events is not None and after.throttle_events is not None:
        return after.throttle_events > before.throttle_events
    steps = [heat.cooling_steps for heat in (before, after) if heat.cooling_steps is not None]
    if steps:
        return any(steps)
    both = before.limits_hz.keys() & after.limits_hz.keys()
    return any(after.limits_hz[core] < before.limits_hz[core] for core in both) if both else None


def governor(root: Path = Path("/")) -> str | None:
    """What chooses the cores' clocks, or None where nothing does."""
    names = {text(folder / "scaling_governor") for _, folder in _cores(root)} - {""}
    return ",".join(sorted(names)) or None


def power_mode(root: Path = Path("/")) -> PowerMode | None:
    """A Jetson's power mode, from what `nvpmodel` has written down, else by asking it."""
    status = text(root / STATUS)
    kept = re.search(r"pmode:(\d+)", status)
    if kept is None:
        return _asked_mode(root, status)
    mode_id = int(kept[1])
    row = re.compile(rf"<\s*POWER_MODEL\s+ID={mode_id}\s+NAME=(\S+?)\s*>")
    named = row.search(text(root / "etc/nvpmodel.conf"))
    if named:
        return PowerMode(mode_id, named[1])
    return _asked_mode(root, status) or PowerMode(mode_id, None)


@cache
def _asked_mode(root: Path, status: str) -> PowerMode | None:
    """What `nvpmodel` answers; asked once for each status, which it rewrites with every change."""
    tools = [root / tool for tool in NVPMODEL if os.access(root / tool, os.X_OK)]
    with suppress(OSError, subprocess.SubprocessError):
        for tool in tools:
            told = re.search(r"^NV Power Mode:\s*(\S+)\s*\n(\d+)\s*$", _answer(tool), re.M)
            if told:
                return PowerMode(int(told[2]), told[1])
    return None


def _answer(tool: Path) -> str:
    """What a tool says to `-q` within `ASK_S`; one that cannot even be killed is left behind.

    Raises:
        subprocess.TimeoutExpired: It said nothing.
    """
    asked = subprocess.Popen(
        [tool, "-q"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    try:
        return asked.communicate(timeout=ASK_S)[0]
    finally:
        asked.kill()
        with suppress(subprocess.TimeoutExpired):
            asked.wait(KILL_S)
        if asked.stdout:
            asked.stdout.close()


def _zones_c(root: Path) -> dict[str, float]:
    """By thermal zone; of a processor without any, its own sensors, which psutil finds."""
    found: dict[str, float] = {}
    zones = folders(root / "sys/class/thermal")
    for zone in (zone for zone in zones if zone.name.startswith("thermal_zone")):
        name, thousandths = text(zone / "type"), number(zone / "temp")
        # PMIC-Die always says 100 degrees
        if name == "PMIC-Die" or thousandths is None or thousandths < COLDEST:
            continue
        found[zone.name if name in found else name] = thousandths / 1000
    return found or (_sensors_c() if root == Path("/") else {})


def _sensors_c() -> dict[str, float]:
    """Of the processor's own chips; not on every system does psutil have sensors."""
    read = getattr(psutil, "sensors_temperatures", dict)
    return {
        f"{chip} {one.label}".strip(): float(one.current)
        for chip, sensors in read().items()
        if chip in PROCESSOR_CHIPS
        for one in sensors
    }


def _cores(root: Path) -> Iterator[tuple[int, Path]]:
    """Cores that are switched on, each with the folder of its clock."""
    for folder in folders(root / CPUS):
        core = re.fullmatch(r"cpu(\d+)", folder.name)
        if core and text(folder / "online") != "0" and folder / "cpufreq" in folders(folder):
            yield int(core[1]), folder / "cpufreq"


def _clocks_hz(cores: dict[int, Path], file: str) -> dict[int, float]:
    told = {core: number(folder / file) for core, folder in sorted(cores.items())}
    return {core: kilohertz * 1e3 for core, kilohertz in told.items() if kilohertz is not None}


def _throttle_events(root: Path) -> int | None:
    """Summed over cores, each of which repeats its package's counter: only its growth counts."""
    names = ("core_throttle_count", "package_throttle_count")
    files = [
        folder / "thermal_throttle" / name
        for folder in folders(root / CPUS)
        if re.fullmatch(r"cpu\d+", folder.name)
        for name in names
    ]
    counts = [count for file in files if (count := number(file)) is not None]
    return sum(counts) if counts else None


def _cooling_steps(root: Path) -> int | None:
    steps = [
        step
        for device in folders(root / "sys/class/thermal")
        if device.name.startswith("cooling_device")
        and SLOWS_THE_PROCESSOR.search(text(device / "type"))
        and (step := number(device / "cur_state")) is not None
    ]
    return max(steps, default=None)
