"""What our own instruments cost: processor time of their threads beside that of what they watch."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.metering.power import energy_counter
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.planning.resources import usable_cores
from smidgen.profiling.instruments.sampler import Sampler
from tests.edge_client.metering.boards import TX2, monitors

THREADS = {"sampler", "energy", "meter"}
STEP_S = 3.0


def cpu_s_by_thread() -> dict[str, float]:
    """Processor seconds of each of this process's threads so far, by the kernel's own clock."""
    return {
        thread.name: time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.ident is not None
    }


def step(size: int = 768) -> None:
    """What a step is made of: products, for a while of this process's own time."""
    a = np.ones((size, size), np.float32)
    end = time.process_time() + STEP_S
    while time.process_time() < end:
        np.matmul(a, a)


def instrumented(root: Path, work: Callable[[], None]) -> tuple[dict[str, float], float, float]:
    """Do something under all instruments at once.

    Returns:
        Processor seconds of each instrument, of beginning and ending them, and of the work.
    """
    energy = energy_counter(root)
    assert energy is not None
    begun = time.thread_time()
    meter = WorkMeter()
    with energy, meter.working(), Sampler(os.getpid()):
        entered, before = time.thread_time(), time.process_time()
        with meter.phase("train"):
            work()
        spent = {name: cpu for name, cpu in cpu_s_by_thread().items() if name in THREADS}
        worked, left = time.process_time() - before - sum(spent.values()), time.thread_time()
    meter.cost()
    return spent, (entered - begun) + (time.thread_time() - left), worked


@pytest.mark.slow
def test_all_instruments_together_cost_little_of_a_step(tmp_path: Path) -> None:
    """The device's own at most a hundredth, and the sampler, which looks from outside, another."""
    monitors(tmp_path, TX2, "iio")
    started_s = time.monotonic()
    spent, around, worked = instrumented(tmp_path, step)
    # Instruments look so many times a second, and a step keeps every core busy. While others
    # compute here it gets less of them, and is looked at more often than it would be by itself.
    alone = max(worked, usable_cores() * (time.monotonic() - started_s))
    shares = {name: 100 * cpu / alone for name, cpu in spent.items()}
    print(f"per cent of a step: { {name: round(one, 3) for name, one in shares.items()} }; ")
    print(f"before and after a piece of work: {1e3 * around:.1f} ms")
    assert set(spent) == THREADS
    assert shares["energy"] + shares["meter"] <= 1
    assert shares["sampler"] <= 1
    assert around <= 0.05
