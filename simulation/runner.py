"""Runs experiments, one after the other or several processes at once, and goes on where they are.

results = run_all(experiments, Place(data, out), jobs=2, tell=print)
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from simulation.compute import training_layer_forwards
from simulation.devices import InProcess
from simulation.experiment import Experiment, schedule_of
from simulation.federation import Devices, Round, SimulationError, federate
from simulation.population import Population
from simulation.record import Record, Result
from simulation.stage import Stage, stage

FEW_CLIENTS = 64  # up to so many, every row says how each of them does
POLL_S = 0.3

Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Place:
    """Where experiments find and leave things.

    Attributes:
        data: Folder of data sets; None takes `$SMIDGEN_DATA`.
        out: Folder of results; finished ones in it are not run again.
        ray: Address of a Ray cluster whose workers train; empty for this process.
    """

    data: Path | None
    out: Path
    ray: str = ""


def run_all(
    experiments: Sequence[Experiment], place: Place, jobs: int = 1, tell: Tell | None = None
) -> list[Result]:
    """Run experiments; results in their order.

    Args:
        experiments: What to run.
        place: Where.
        jobs: Processes at once; each result is the same with any number.
        tell: Told rounds done, rounds in all, and the experiment at hand.

    Raises:
        SimulationError: One cannot go on; the others' results are kept.
    """
    total = sum(max(1, experiment.rounds) for experiment in experiments)
    said = tell or (lambda done, total, name: None)
    if jobs > 1 and not place.ray and len(experiments) > 1:
        return _in_processes(experiments, place, jobs, partial(_said, said, total))
    results, done = [], 0
    for experiment in experiments:
        said(done, total, experiment.name)

        def on_round(closed: Round, before: int = done, name: str = experiment.name) -> None:
            said(before + closed.round_index, total, name)

        results.append(run(experiment, place, on_round))
        done += max(1, experiment.rounds)
    said(total, total, "done")
    return results


def _said(tell: Tell, total: int, done: int, name: str) -> None:
    tell(done, total, name)


def run(
    experiment: Experiment, place: Place, on_round: Callable[[Round], None] = lambda closed: None
) -> Result:
    """Run one experiment, from where its folder says it stands.

    Raises:
        SimulationError: It cannot go on.
    """
    on = stage(experiment, place.data)
    record = Record(place.out / on.key, experiment)
    devices: Devices | None = None
    try:
        for arm, name in _open_arms(on, record):
            devices = devices or _devices(on, place)
            _run_arm(on, record, devices, arm, name, on_round)
    finally:
        if devices is not None:
            devices.close()
    return record.result


def _open_arms(on: Stage, record: Record) -> list[tuple[Population, str]]:
    """Arms with rounds left, and the names their rows go by."""
    rounds = on.experiment.rounds
    is_local = on.experiment.paradigm == "local"
    arms = [(arm, arm[0].name if is_local else "") for arm in on.arms()]
    standings = {name: record.standing(name) for _, name in arms}
    return [
        (arm, name)
        for arm, name in arms
        if (standing := standings[name]) is None
        or min(standing.round_index, standing.evaluated) < rounds
    ]


def _run_arm(
    on: Stage,
    record: Record,
    devices: Devices,
    arm: Population,
    name: str,
    on_round: Callable[[Round], None],
) -> None:
    experiment = on.experiment
    names = [client.name for client in arm]

    def keep(closed: Round) -> None:
        forwards = training_layer_forwards(experiment, on.base.layers, closed.num_examples)
        record.add(name, closed, forwards, keep_clients=len(on.population) <= FEW_CLIENTS)
        on_round(closed)

    start = record.standing(name) or devices.start()
    federate(schedule_of(experiment, len(names)), on.template(), start, names, devices, keep, name)


def _devices(on: Stage, place: Place) -> Devices:
    if not place.ray:
        return InProcess(on)
    if find_spec("ray") is None:
        raise SimulationError("--ray needs Ray; pip install 'smidgen[ray]'")
    from simulation.ray_devices import RayDevices  # only where it is wanted

    return RayDevices(on, place.ray)


def _in_processes(
    experiments: Sequence[Experiment], place: Place, jobs: int, tell: Callable[[int, str], None]
) -> list[Result]:
    """The same in several processes; progress is read from their records."""
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(min(jobs, len(experiments)), mp_context=context) as pool:
        running = [pool.submit(run, experiment, place) for experiment in experiments]
        try:
            while not all(future.done() for future in running):
                _raise_first(running)
                done = sum(
                    max(1, experiment.rounds)
                    for experiment, future in zip(experiments, running, strict=True)
                    if future.done()
                )
                active = [f for f in running if f.running()]
                tell(done, f"{len(active)} at once")
                time.sleep(POLL_S)
            return [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _raise_first(running: Sequence["Future[Result]"]) -> None:
    for future in running:
        if future.done() and (error := future.exception()) is not None:
            raise error
