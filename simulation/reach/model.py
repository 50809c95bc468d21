"""What a fleet of any size needs, by what its state was measured to take and what devices cost.

Everything here is estimated. Each figure grows with the devices, so a limit is passed once: what
breaks first is whose limit is passed by the smallest fleet (`breaks`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from simulation.reach.costs import KINDS, Costs
from simulation.reach.taken import POLL_S, Growth

Need: TypeAlias = Callable[[float], float]  # of a resource, by devices
TICK_S = 1.0  # between two looks at whether something is due (`serving.app`)
REST, LONGEST_REST_S = 9.0, 0.5  # after a look, times as long as it took
SAVE_S, SHARE_S = 30.0, 2.0  # between two writes of who was heard of (`fleet.presence`)
CLOCKS_S, LONGEST_READ_REST_S = 10.0, 30.0
MEASURED_S = CLOCKS_S + SHARE_S  # of polls, in `Taken.refresh_cpu_s`
MOST_FILES, OWN_FILES = 65_536, 128  # of a process (`serving.server`, `serving.http.guests`)
POLL_BYTES = 800  # request, answer, TLS and TCP, by counting what a client sends and is sent
CHANGES = 3  # of an answer in training (update and report) and one in evaluation: they call a look
MOST_DEVICES = 1e9
DAY_S = 86_400.0


@dataclass(frozen=True)
class Rounds:
    """How rounds go on.

    Attributes:
        cohort: Devices that train in a round, and that evaluate.
        round_s: Seconds of a round.
    """

    cohort: int
    round_s: float


@dataclass(frozen=True)
class Place:
    """Where a coordinator runs.

    Attributes:
        name: What it is called.
        cores: That its processes may use, each one of them at most.
        memory_bytes: That its processes may use.
        processes: How many serve; None: any number, on machines like this one.
        is_shared: Whether the store lies on a database that others use too.
    """

    name: str
    cores: float
    memory_bytes: float
    processes: int | None
    is_shared: bool


@dataclass(frozen=True)
class Break:
    """A limit that a fleet of some size passes.

    Attributes:
        what: The resource.
        devices: The smallest fleet that passes it.
        beyond: What it takes to go on.
    """

    what: str
    devices: float
    beyond: str


class Model:
    """A fleet's needs by its size.

    Args:
        costs: What devices cost.
        growth: What their state takes of a process.
        rounds: How rounds go on.
    """

    def __init__(self, costs: Costs, growth: Growth, rounds: Rounds) -> None:
        self.costs, self.growth, self.rounds = costs, growth, rounds

    def polls(self, devices: float) -> float:
        """Cores for everybody's polls."""
        return self.costs.poll_s * devices / POLL_S

    def work(self, devices: float) -> float:
        """Cores for the work of rounds."""
        return self.costs.work_s * self.pieces(devices) / self.rounds.round_s

    def pieces(self, devices: float) -> float:
        """Pieces of work of a round."""
        return KINDS * min(float(self.rounds.cohort), devices)

    def lead(self, devices: float) -> float:
        """Cores for what one process does for all: looks at what is due, and opening steps."""
        tick = self.growth.at("tick_cpu_s", devices)
        wanted = 1 / TICK_S + CHANGES * self.pieces(devices) / KINDS / self.rounds.round_s
        rate = min(wanted, 1 / (tick + min(REST * tick, LONGEST_REST_S))) if tick else wanted
        steps = KINDS * self.growth.at("step_cpu_s", devices) / self.rounds.round_s
        return tick * rate + steps

    def presence(self, devices: float, is_shared: bool) -> float:
        """Cores for writing who was heard of, of all processes together."""
        if is_shared:
            return self.growth.at("share_cpu_s", devices) / SHARE_S
        return self.growth.at("save_cpu_s", devices) / SAVE_S

    def rows_per_s(self, devices: float, is_shared: bool) -> float:
        """Rows that this writes: of a device that polls twice in between only one."""
        return devices / (POLL_S if is_shared else SAVE_S)

    def listening(self, devices: float) -> float:
        """Share of its time in which each of several processes reads whom the others have heard.

        It rests after a long look, and the next one has as much more to read.
        """
        took = self.growth.at("refresh_cpu_s", devices)
        rest = max(TICK_S, min(REST * took, LONGEST_READ_REST_S))
        took *= min(max(rest + CLOCKS_S, MEASURED_S), POLL_S) / MEASURED_S
        return took / (took + rest)

    def process_bytes(self, devices: float, connected: float) -> float:
        """Resident memory of a process that knows some devices and is connected with others."""
        own, held = self.costs.process_bytes, self.growth.at("held_bytes", devices)
        return own + held + connected * self.costs.connection_bytes

    def processes(self, devices: float) -> float:
        """Processes of one core that a shared store needs; the one that leads does more."""
        free = 1.0 - self.listening(devices)
        shared = self.polls(devices) + self.work(devices) + self.presence(devices, True)
        return max(1.0, (shared + self.lead(devices)) / free)

    def cores(self, devices: float, place: Place) -> float:
        """Cores that are busy, of the coordinator and where it is known of its store's servers."""
        busy = self.polls(devices) + self.work(devices) + self.lead(devices)
        busy += self.presence(devices, place.is_shared)
        if not place.is_shared:
            return busy
        count = place.processes or self.processes(devices)
        busy += count * self.listening(devices) if count > 1 else 0.0
        return busy * (1.0 + (self.costs.beside or 0.0))

    def memory_bytes(self, devices: float, place: Place) -> float:
        """Resident memory of all processes."""
        count = place.processes or self.processes(devices)
        return count * self.process_bytes(devices, devices / count)

    def files(self, devices: float, place: Place) -> float:
        """Files that a process has open: one for each device that is connected with it."""
        return OWN_FILES + devices / (place.processes or self.processes(devices))

    def round_bytes(self, devices: float) -> float:
        """Bytes that go over the network in a round; each piece of work downloads its adapter."""
        sent = 1.5 * self.pieces(devices) * self.costs.update_bytes
        return sent + POLL_BYTES * devices * self.rounds.round_s / POLL_S

    def enrolling_s(self, devices: float) -> float:
        """Seconds until all have enrolled at one process that does nothing else."""
        return self.costs.enrol_s * devices

    def day_core_hours(self, devices: float, place: Place) -> float:
        """Core-hours of a day."""
        return self.cores(devices, place) * DAY_S / 3600

    def breaks(self, place: Place) -> list[Break]:
        """Limits of a place in the order in which a growing fleet passes them."""
        found = []
        for what, need, most, beyond in self._limits(place):
            if (devices := passed_at(need, most)) is not None:
                found.append(Break(what, devices, beyond))
        return sorted(found, key=lambda one: one.devices)

    def _limits(self, place: Place) -> list[tuple[str, Need, float, str]]:
        """What may run out: its name, what a fleet needs of it, how much there is, a way on."""
        writing = partial(self.presence, is_shared=place.is_shared)
        files, most = partial(self.files, place=place), float(MOST_FILES)
        found: list[tuple[str, Need, float, str]]
        found = [("one writer of the database", writing, 1.0, BEYOND_WRITER)]
        if place.processes is None:
            each, memory = place.memory_bytes / place.cores, partial(self._each_bytes, place=place)
            return [
                *found,
                ("the process that leads", self._leading, 1.0, BEYOND_LEAD),
                ("memory of a process", memory, each, BEYOND_HELD),
                ("open files of a process", files, most, BEYOND_FILES),
            ]
        cores, memory = partial(self.cores, place=place), partial(self.memory_bytes, place=place)
        is_shared = place.is_shared
        return [
            *found,
            (
                "processor time",
                cores,
                min(place.cores, float(place.processes)),
                BEYOND_CORES if is_shared else BEYOND_ONE,
            ),
            ("memory", memory, place.memory_bytes, BEYOND_MEMORY),
            ("open files of a process", files, most, BEYOND_FILES if is_shared else BEYOND_ONE),
        ]

    def _leading(self, devices: float) -> float:
        return self.lead(devices) + self.listening(devices)

    def _each_bytes(self, devices: float, place: Place) -> float:
        return self.memory_bytes(devices, place) / self.processes(devices)


BEYOND_ONE = "`serve --workers N --database URL`: several processes share the devices"
BEYOND_CORES = "more cores, or further machines that serve the same database"
BEYOND_MEMORY = "more memory, or further machines that serve one database"
BEYOND_FILES = f"more processes: {MOST_FILES:,} files of each are the program's own bound"
BEYOND_LEAD = "longer rounds: what one process does for all cannot be divided"
BEYOND_HELD = "more memory for each process: every one holds the whole fleet"
BEYOND_WRITER = (
    "polls less often than every 25 s, or a note of them less often; neither has a setting"
)


def passed_at(need: Need, most: float) -> float | None:
    """The smallest fleet of which a need passes a limit; None where none does.

    Looked for in steps of a twentieth, and there to within a billionth of the fleet.
    """
    low = high = 1.0
    while need(high) <= most:
        if high >= MOST_DEVICES:
            return None
        low, high = high, min(1.05 * high, MOST_DEVICES)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if need(middle) > most else (middle, high)
    return high
