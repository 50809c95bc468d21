"""How the machine runs: power mode, clocks, temperature, and whether its power can be measured."""

from collections.abc import Sequence
from pathlib import Path

from edge_client.doctor.board import is_jetson
from edge_client.doctor.finding import OK, UNKNOWN, WARNING, Finding, unreadable
from edge_client.metering.heat import CPUS, NVPMODEL, STATUS, Heat, read_heat
from edge_client.metering.power import battery, packages, power_rails
from edge_client.metering.sysfs import folders, text

HOT_C = 85.0  # Jetsons slow down a little above it
THERMAL, I2C = "sys/class/thermal", "sys/bus/i2c/devices"
OWNERS = "nothing to do; modes are yours to change, with `sudo nvpmodel -m NUMBER`"
COOL = "give it air or a fan, or a lower power mode"
NO_NUMBER = "nothing to do; steps may be slow without smidgen knowing why"
MEASURE = "nothing to do; without it a round's energy is not told"
RULE = "install 70-smidgen-power.rules, and let the client's user be of group smidgen"


def read_running(root: Path) -> Sequence[Finding]:
    """Power mode, clocks, temperature, power sensors."""
    heat = read_heat(root)
    return [_mode(root, heat), _clocks(root, heat), _temperature(root, heat), _power(root)]


def _mode(root: Path, heat: Heat) -> Finding:
    if heat.power_mode is not None:
        return Finding("power mode", OK, str(heat.power_mode), OWNERS)
    if not is_jetson(root):
        return Finding("power mode", OK, "not a Jetson: no power modes")
    closed = unreadable("power mode", root, STATUS, NVPMODEL[0])
    return closed or Finding("power mode", UNKNOWN, "nvpmodel does not say", "sudo nvpmodel -q")


def _clocks(root: Path, heat: Heat) -> Finding:
    cores = text(root / CPUS / "online")
    present = text(root / CPUS / "present")
    on = f"cores {cores} of {present} are on" if cores and present else "which cores is not told"
    clocks = list(heat.clocks_hz.values())
    if not clocks:
        closed = unreadable("clocks", root, f"{CPUS}/cpu0/cpufreq", f"{CPUS}/cpu0/cpufreq/{NOW}")
        told = f"the kernel tells no clock; {on}"
        return closed or Finding("clocks", UNKNOWN, told, NO_NUMBER)
    limits = list(heat.limits_hz.values())
    most = f", at most {max(limits) / 1e9:.2f} GHz" if limits else ""
    by = f", by {heat.governor}" if heat.governor else ""
    return Finding("clocks", OK, f"up to {max(clocks) / 1e9:.2f} GHz now{most}{by}; {on}")


def _temperature(root: Path, heat: Heat) -> Finding:
    hottest = heat.hottest_c
    if hottest is None:
        first = f"{THERMAL}/thermal_zone0"
        closed = unreadable("temperature", root, THERMAL, f"{first}/type", f"{first}/temp")
        told = Finding("temperature", UNKNOWN, "no sensor tells it", NO_NUMBER)
        return closed or told
    zone = next(name for name, degrees in heat.zones_c.items() if degrees == hottest)
    shown = f"{hottest:.1f} degrees Celsius ({zone})"
    if heat.cooling_steps:
        return Finding("temperature", WARNING, f"{shown}, and the processor is slowed down", COOL)
    if hottest >= HOT_C:
        return Finding("temperature", WARNING, shown, COOL)
    return Finding("temperature", OK, shown)


def _power(root: Path) -> Finding:
    """The instrument that energy is measured by, the best one that can be read."""
    for name, source in (("INA3221", power_rails), ("RAPL", packages), ("battery", battery)):
        if source(root) is not None:
            return Finding("power sensors", OK, f"{name} can be read")
    monitors = [one for one in folders(root / I2C) if "ina3221" in text(one / "name")]
    if monitors:
        at = monitors[0].relative_to(root)
        return Finding("power sensors", UNKNOWN, f"INA3221 at /{at} cannot be read", RULE)
    closed = unreadable("power sensors", root, I2C)
    return closed or Finding("power sensors", UNKNOWN, "none that can be read", MEASURE)


NOW = "scaling_cur_freq"
