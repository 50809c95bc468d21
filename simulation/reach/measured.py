"""A fleet's state in one process of a coordinator, by its own code on real rows, without HTTP.

    taken = measure(folder, Asked(10_000, 200), now_s)

The store is filled by one process (`filling.fill`), and opened and measured by a fresh one.
"""

import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import median
from typing import TypeVar

from coordinator.fleet.presence import CLOCKS_S, SAVE_S, SHARE_S
from coordinator.rounds.events import StepOpened
from coordinator.serving.service import Service
from coordinator.storage.rows.devices import Device
from coordinator.storage.store import Store
from edge_client.metering.memory import peak_rss_bytes
from edge_client.planning.allocator import resident_bytes, trim
from edge_client.wire.messages import Report, encode_brief
from simulation.reach.taken import POLL_S, Asked, Taken

T = TypeVar("T")
TICKS = 5  # of which the median counts
MOST_POLLS = 400
LABELLED = 8


def measure(folder: Path, asked: Asked, now_s: float) -> Taken:
    """Open a store that `fill` has made and measure what a process takes for its devices.

    Args:
        folder: The store.
        asked: What was filled in.
        now_s: Unix time; all devices are heard of then.
    """
    store = Store(folder)
    try:
        before = settled_bytes()
        open_s, service = timed(lambda: Service(store, now_s))
        peak, everyone = peak_rss_bytes(), service.fleet.all()
        Random(0).shuffle(everyone)  # they come in no order of the database's
        here = _Here(service, now_s)
        here.saw(everyone)
        held = settled_bytes() - before
        here.tick()  # opens the evaluation before round 1
        answer_s = here.answer()
        step_cpu_s = here.tick()
        tick_cpu_s = median(here.tick() for _ in range(TICKS))
        polls, size = here.polls(everyone)
        share_cpu_s = here.save(everyone, SHARE_S)
        save_cpu_s = here.save(everyone, SAVE_S)
        return Taken(
            asked.devices,
            len(here.opened().members),
            open_s,
            held,
            peak,
            tick_cpu_s,
            step_cpu_s,
            answer_s,
            median(polls),
            sorted(polls)[-1 - len(polls) // 100],
            size,
            save_cpu_s,
            share_cpu_s,
            here.refresh(everyone),
            sum(one.stat().st_size for one in folder.glob(f"{store.place.file.name}*")),
        )
    finally:
        store.close()


class _Here:
    """One service at one moment that moves by what was measured on it.

    Args:
        service: Which.
        now_s: Unix time.
    """

    def __init__(self, service: Service, now_s: float) -> None:
        self._service, self._now_s = service, now_s
        self._run_id = service.runs()[0].run.run_id

    def saw(self, devices: Iterable[Device]) -> None:
        """Let devices ask, as the route of polls notes it."""
        for device in devices:
            self._service.check_life(device, device.life, self._now_s)
            self._service.saw(device, self._now_s)

    def tick(self) -> float:
        """Processor time of a tick, a second after the last."""
        self._now_s += 1.0
        return used(lambda: self._service.tick(self._now_s))

    def opened(self) -> StepOpened:
        """The open step."""
        step = self._service.run(self._run_id).state.step
        assert step is not None  # everyone is there, so one is open
        return step.opened

    def answer(self) -> float:
        """Let all members of the open evaluation report; median seconds of one."""
        spent = []
        for work_id, device_id in self.opened().members:
            device = self._service.fleet.get(device_id)
            assert device is not None
            told = Report(work_id, "done", 10, 1.0, 0.5, labelled=LABELLED)
            answers, now_s = self._service.answers, self._now_s
            took_s, _ = timed(lambda: answers.report(device, told, now_s))  # noqa: B023
            spent.append(took_s)
        return median(spent)

    def polls(self, everyone: list[Device]) -> tuple[list[float], int]:
        """Seconds in which devices that are not asked hear so, and how long the answer is."""
        asked = {device_id for _, device_id in self.opened().members}
        idle = [one for one in everyone if one.device_id not in asked] or everyone
        spent, size = [], 0
        for device in idle[:MOST_POLLS]:
            took_s, given = timed(lambda: self._service.next(device, self._now_s))  # noqa: B023
            spent.append(took_s)
            size = max(size, len(encode_brief(given)))
        return spent, size

    def save(self, everyone: list[Device], of_s: float) -> float:
        """Processor time to write all whose polls came in so many seconds."""
        self._now_s += of_s
        self._service.presence.save(self._now_s, is_last=True)
        self.saw(everyone[: heard_in(of_s, len(everyone))])
        return used(lambda: self._service.presence.save(self._now_s, is_last=True))

    def refresh(self, everyone: list[Device]) -> float:
        """Processor time to read who was heard since the last look, and before it as is safe.

        All of them are known here by then: it is the same work.
        """
        self._now_s += CLOCKS_S + SAVE_S
        self.saw(everyone[: heard_in(CLOCKS_S + SHARE_S, len(everyone))])
        self._service.presence.save(self._now_s, is_last=True)
        return used(self._service.presence.refresh)


def heard_in(seconds: float, devices: int) -> int:
    """How many different devices poll within so many seconds."""
    return min(devices, round(devices * seconds / POLL_S))


def settled_bytes() -> int:
    """Resident memory, without what was freed."""
    gc.collect()
    trim()
    return resident_bytes()


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds of a call, and what it gave."""
    began_s = time.perf_counter()
    found = work()
    return time.perf_counter() - began_s, found


def used(work: Callable[[], object]) -> float:
    """Processor time of a call, user and system: other programs may be at work beside it."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s
