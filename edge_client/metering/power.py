"""Energy of this machine while something runs, from the instrument that it has.

A Jetson's power monitor (INA3221) first, which measures the whole module; else the processor's own
counter (RAPL), its packages alone; else the battery while it is being used up. All three count
everything that runs on the machine, not this process alone. Where there is none, or it may not be
read, there is no figure: never 0.

    meter = energy_counter()  # None: not available here
    with meter:
        train()
    print(meter.energy())
"""

import re
import threading
import time
from collections import Counter as Multiset
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from smidgen.edge_client.metering.memory import folders, text
from smidgen.edge_client.wire.reports import EnergySource

RAILS_OF_ALL = ("VDD_IN", "POM_5V_IN")  # what the others branch off
STANDS_STILL_S = 0.1  # a counter moves a thousand times a second, one that a guest is shown never


@dataclass(frozen=True)
class Energy:
    """What was used while a meter ran.

    Attributes:
        joules: Of all that the instrument sees, idle load included.
        seconds: Between the first sample and the last.
        mean_w: Joules over seconds.
        samples: How often the instrument was read.
        longest_gap_s: Longest time between two samples. Between them power is taken as changing
            evenly; a counter (RAPL) misses nothing.
        source: `ina3221`, `rapl` or `battery`.
    """

    joules: float
    seconds: float
    mean_w: float
    samples: int
    longest_gap_s: float
    source: EnergySource


class PowerSource(Protocol):
    """An instrument that measures power or energy."""

    @property
    def name(self) -> EnergySource: ...

    @property
    def interval_s(self) -> float: ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of what it sums up, such as rails."""

    def start(self, now_s: float) -> None:
        """Forget what was counted.

        Raises:
            OSError: It could not be read this time.
        """

    def advance(self, now_s: float) -> float | None:
        """Joules since the last call; None where it cannot say what was used meanwhile.

        Raises:
            OSError: It could not be read this time.
        """


class EnergyMeter:
    """Counts joules while its block runs; its thread lives no longer than that.

    It may be entered again, and counts from 0 then.

    Args:
        source: The instrument.
    """

    def __init__(self, source: PowerSource) -> None:
        self._source = source
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._begin()

    @property
    def source(self) -> EnergySource:
        return self._source.name

    def __enter__(self) -> "EnergyMeter":
        self._begin()
        with self._lock:
            self._is_known = self._read()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        with self._lock:
            self._is_known = self._read() and self._is_known

    @property
    def joules_since_start(self) -> float | None:
        """Joules up to now, or of the whole block after it; None where it cannot say."""
        with self._lock:
            is_now = self._thread is None or self._read()
            return self._joules if is_now and self._is_known and self._samples > 1 else None

    def energy(self) -> Energy | None:
        """What was used up to now, or in the whole block after it; None where it cannot say."""
        joules = self.joules_since_start
        with self._lock:
            seconds = self._last_s - self._first_s
            if joules is None or seconds <= 0:
                return None
            return Energy(
                joules, seconds, joules / seconds, self._samples, self._longest_gap_s, self.source
            )

    def _begin(self) -> None:
        self._joules, self._samples, self._longest_gap_s = 0.0, 0, 0.0
        self._first_s = self._last_s = 0.0
        self._is_known = True

    def _watch(self) -> None:
        while not self._is_over.wait(self._source.interval_s):
            with self._lock:
                self._read()

    def _read(self) -> bool:
        """Take one sample; one that fails (False) makes the gap to the next longer."""
        now_s = time.monotonic()
        with suppress(OSError, ValueError):
            if self._samples:
                joules = self._source.advance(now_s)
                self._is_known = self._is_known and joules is not None
                self._joules += joules or 0.0
                self._longest_gap_s = max(self._longest_gap_s, now_s - self._last_s)
            else:
                self._source.start(now_s)
                self._first_s = now_s
            self._last_s = now_s
            self._samples += 1
            return True
        return False


def energy_counter(root: Path = Path("/")) -> EnergyMeter | None:
    """A meter on the best instrument of this machine; None where none can be read.

    Args:
        root: Where `sys` lies; another folder in tests.
    """
    source = power_rails(root) or packages(root) or battery(root)
    return None if source is None else EnergyMeter(source)


def sees_as_much(now: PowerSource, before: PowerSource) -> bool:
    """Whether an instrument that was found again is of the same kind and leaves nothing out."""
    is_all = any(part in RAILS_OF_ALL for part in now.parts)
    return now.name == before.name and (is_all or not Multiset(before.parts) - Multiset(now.parts))


# Instruments that tell watts


class Power:
    """An instrument that tells power, integrated by the trapezoid rule.

    Args:
        name: Of the instrument.
        watts: Reads it; None where it cannot say. Less than 0 is taken as that: what flows back is
            not what was used.
        parts: Names of what it sums up.
    """

    interval_s = 0.2

    def __init__(
        self, name: EnergySource, watts: Callable[[], float | None], parts: tuple[str, ...] = ()
    ) -> None:
        self.name, self.parts, self._watts = name, parts, watts
        self._last: tuple[float, float | None] = (0.0, None)

    def start(self, now_s: float) -> None:
        self._last = now_s, self._watts_used()

    def advance(self, now_s: float) -> float | None:
        then_s, before = self._last
        now = self._watts_used()
        self._last = now_s, now
        return None if before is None or now is None else (before + now) / 2 * (now_s - then_s)

    def _watts_used(self) -> float | None:
        watts = self._watts()
        return None if watts is None or watts < 0 else watts


@dataclass(frozen=True)
class Rail:
    """One channel of a power monitor.

    Attributes:
        name: Such as `VDD_IN`.
        factors: Files of numbers whose product is its power.
        unit_w: Watts of a product of 1.
    """

    name: str
    factors: tuple[Path, ...]
    unit_w: float

    def watts(self) -> float:
        """Its power now.

        Raises:
            OSError: It is switched off, or may not be read.
        """
        product = 1.0
        for file in self.factors:
            product *= int(file.read_text())
        return product * self.unit_w


def power_rails(root: Path) -> Power | None:
    """A Jetson's INA3221: the rail that feeds all others, or the sum where there is none."""
    found = list(_rails(root))
    try:
        rails = [rail for rail in found if _is_on(rail)]
    except PermissionError:
        return None  # without one of its rails a sum would be too small
    chosen = [rail for rail in rails if rail.name in RAILS_OF_ALL] or rails
    names = tuple(rail.name for rail in chosen)
    return Power("ina3221", lambda: sum(rail.watts() for rail in chosen), names) if chosen else None


def _is_on(rail: Rail) -> bool:
    try:
        rail.watts()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def _rails(root: Path) -> Iterator[Rail]:
    for monitor in folders(root / "sys/bus/i2c/devices"):
        if "ina3221" in text(monitor / "name"):
            for folder in folders(monitor):
                if folder.name.startswith("iio:device"):  # JetPack 4
                    yield from _iio_rails(folder)
            for folder in folders(monitor / "hwmon"):  # JetPack 5 and later
                yield from _hwmon_rails(folder)


def _iio_rails(folder: Path) -> Iterator[Rail]:
    for file in sorted(folder.glob("rail_name_*")):
        name, number = text(file), file.name.removeprefix("rail_name_")
        if name not in ("", "NC"):
            yield Rail(name, (folder / f"in_power{number}_input",), 1e-3)


def _hwmon_rails(folder: Path) -> Iterator[Rail]:
    """Labelled channels; the seventh is the sum of shunt voltages, which is no rail."""
    for file in sorted(folder.glob("in*_label")):
        name, number = text(file), file.name[len("in") : -len("_label")]
        if name not in ("", "NC") and number != "7":
            factors = folder / f"in{number}_input", folder / f"curr{number}_input"
            yield Rail(name, factors, 1e-6)


def battery(root: Path) -> Power | None:
    """What batteries give; a battery that is charged says nothing of what is used."""
    supplies = folders(root / "sys/class/power_supply")
    found = [
        folder
        for folder in supplies
        if text(folder / "type") == "Battery" and text(folder / "scope") != "Device"
    ]
    try:
        for folder in found:
            _battery_watts(folder)
    except (OSError, ValueError):
        return None
    names = tuple(folder.name for folder in found)
    return Power("battery", lambda: _drawn_watts(found), names) if found else None


def _drawn_watts(batteries: Sequence[Path]) -> float | None:
    states = {text(folder / "status") for folder in batteries}
    if "Discharging" not in states or not states <= {"Discharging", "Full", "Not charging"}:
        return None
    drawn = [folder for folder in batteries if text(folder / "status") == "Discharging"]
    return sum(_battery_watts(folder) for folder in drawn)


def _battery_watts(folder: Path) -> float:
    if (folder / "power_now").is_file():
        return abs(int((folder / "power_now").read_text())) * 1e-6
    volts = int((folder / "voltage_now").read_text()) * 1e-6
    return abs(volts * int((folder / "current_now").read_text()) * 1e-6)


# An instrument that counts joules


class Counter:
    """RAPL: counters of energy, one per processor package.

    It cannot say what was used where none of them moved in `STANDS_STILL_S`, or one began again and
    its range is not told.

    Args:
        files: Counter in microjoules, and how far it counts before it begins again; 0: not told.
    """

    name: EnergySource = "rapl"
    # A counter of 2^32 units of 15 microjoules, the smallest there is, begins again after 65 kJ.
    interval_s = 30.0

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        self._files, self._last = files, [0] * len(files)
        self.parts = tuple(file.parent.name for file, _most in files)
        self._moved_s = 0.0

    def start(self, now_s: float) -> None:
        self._last, self._moved_s = self._counts(), now_s

    def advance(self, now_s: float) -> float | None:
        """See `PowerSource`; None where no package moved for longer than one ever stands."""
        before, now = self._last, self._counts()
        self._last = now
        if now != before:
            self._moved_s = now_s
        used = [
            count - then if count >= then else count - then + most
            for (_file, most), then, count in zip(self._files, before, now, strict=True)
        ]
        if min(used) < 0 or now_s - self._moved_s > STANDS_STILL_S:
            return None
        return sum(used) * 1e-6

    def _counts(self) -> list[int]:
        return [int(file.read_text()) for file, _most in self._files]


def packages(root: Path) -> Counter | None:
    """RAPL's processor packages, if they may be read: since Linux 5.10 by root alone.

    Not cores and graphics, which are parts of them; nor `psys`, of which they are parts; nor
    memory, which some processors count inside the package.
    """
    found = []
    try:
        for zone in folders(root / "sys/class/powercap"):
            is_zone = re.fullmatch(r"intel-rapl:\d+", zone.name)  # a part has one number more
            if is_zone and (zone / "name").read_text().startswith("package"):
                int((zone / "energy_uj").read_text())
                most = int((zone / "max_energy_range_uj").read_text())
                found.append((zone / "energy_uj", most))
    except (OSError, ValueError):
        return None
    return Counter(found) if found else None
