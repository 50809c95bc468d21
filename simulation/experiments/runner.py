"""Runs experiments, in sequence or in parallel processes, and resumes interrupted ones.

results = run_all(experiments, Place(data, out), jobs=2, tell=print)
"""

import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path

from smidgen.coordinator.plugins import know_folder, know_installed
from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.engine.opening import check_device, find_card
from smidgen.edge_client.errors import demand, installing
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.labelling.pseudo_labels import chosen, text_id
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.wire.tensors import decode_adapter, sha256
from smidgen.edge_client.wire.training import keep_in, keep_of
from smidgen.simulation.experiments.child import Child, start_child
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import (
    Devices,
    Looking,
    Round,
    Rounds,
    SimulationError,
    schedule_of,
)
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.hostile import told_texts
from smidgen.simulation.experiments.personalization import Asked, Parts, own_rounds, part_of, parts
from smidgen.simulation.experiments.record import (
    FINISHED,
    ROWS,
    Record,
    Result,
    kept_adapter,
    read_rows,
)
from smidgen.simulation.experiments.scoring import Tally
from smidgen.simulation.experiments.stage import Arm, Stage, stage, trained
from smidgen.simulation.experiments.virtual.devices import InProcess, told_of_card


class PseudoScore:
    """Compares pseudo-labels with the labels that the data set has.

    Args:
        on: Texts and clients of an experiment that labels.
    """

    def __init__(self, on: Stage) -> None:
        self._on = on
        self._gold = {text_id(one): one.label for one in on.dataset.train}
        self._texts = {client.name: len(client.unlabelled) for client in on.population}

    def tally(self, books: Mapping[str, LabelJournal], looking: Looking, share: float) -> Tally:
        """Right ones among all that the clients would train on now.

        Args:
            books: The clients' books.
            looking: The label step that was; its thresholds.
            share: k of the round.
        """
        said = self._on.experiment.labelling
        assert said is not None, "an experiment that labels"
        thresholds = dict(zip(self._on.dataset.task.labels, looking.thresholds, strict=True))
        right = held = 0
        for name, book in books.items():
            limit = keep_of(said, share, self._texts[name])
            for text, reading in chosen(book.readings, thresholds, limit, said.class_share).items():
                held += 1
                right += self._gold[text] == reading.label
        return Tally(right, held)


FEW_CLIENTS = 64  # up to this many, every row says how each of them does
POLL_S = 0.3

Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Place:
    """Where experiments find and leave things.

    Attributes:
        data: Folder of data sets; None takes `$SMIDGEN_DATA`.
        out: Folder of results; finished ones in it are not run again.
        ray: Address of a Ray cluster whose workers train; empty for this process.
        plugins: Folder of extensions that experiments name; None for none.
        device: What experiments compute on, `cpu` or `cuda`; their keys do not know it, since
            results are the same but for rounding.
    """

    data: Path | None
    out: Path
    ray: str = ""
    plugins: Path | None = None
    device: str = CPU


def run_all(
    experiments: Sequence[Experiment], place: Place, jobs: int = 1, tell: Tell | None = None
) -> list[Result]:
    """Run experiments; results in their order. Equal ones are run once.

    Whether each can be run is found out before the first begins.

    Args:
        experiments: What to run.
        place: Where experiments find and leave things.
        jobs: Processes at once; each result is the same with any number.
        tell: Told rounds done, rounds in all, and what is at hand.

    Raises:
        WrongInput: One asks for what cannot be had, such as memory for its smallest plan.
        Failed: One cannot go on; the others' results so far are kept.
    """
    said = tell or (lambda done, total, name: None)
    stages = [stage(experiment, place.data) for experiment in experiments]
    parted = [stage(part, place.data) for on in stages for part in _before(on, place)]
    first = {on.key: on for on in parted}
    different = first | {on.key: on for on in stages}
    for on in different.values():
        on.check()
    _check_device(different.values(), place)
    total = sum(rounds_of(on) for on in different.values())
    if jobs > 1 and not place.ray and len(different) > 1:
        rest = [on for key, on in different.items() if key not in first]
        for wave, others in ((list(first.values()), rest), (rest, list(first.values()))):
            further = partial(_tell_more, said, _rounds_done(others, place), total)
            _in_processes(wave, place, jobs, further)
        found = {key: run(on.experiment, place) for key, on in different.items()}  # read, not run
    else:
        found = {}
        for key, on in different.items():
            kept = [  # of the others what there is is forgotten once they are run on
                one
                for one in different.values()
                if not one.experiment.cache_bytes or (place.out / one.key / FINISHED).is_file()
            ]
            name, before = on.experiment.name, _rounds_done(kept, place)
            said(before, total, name)
            found[key] = run(on.experiment, place, _counting(said, before, total, name))
    said(total, total, "done")
    return [
        replace(found[on.key], experiment=experiment)
        for on, experiment in zip(stages, experiments, strict=True)
    ]


def _tell_more(tell: Tell, there: int, total: int, done: int, name: str) -> None:
    tell(there + done, total, name)


def _counting(tell: Tell, before: int, total: int, name: str) -> Callable[[Round], None]:
    done = count(before + 1)
    return lambda closed: tell(next(done), total, name)


def rounds_of(on: Stage) -> int:
    """Rows that an experiment has in the end: its rounds and the evaluation before them, by arm."""
    if on.experiment.personal is not None:
        return len(on.homes())
    return sum(1 + on.experiment.rounds * bool(arm.clients) for arm in on.arms())


def _rounds_done(stages: Sequence[Stage], place: Place) -> int:
    paths = [place.out / on.key / ROWS for on in stages]
    return sum(path.read_bytes().count(b"\n") for path in paths if path.is_file())


def run(
    experiment: Experiment, place: Place, on_round: Callable[[Round], None] = lambda closed: None
) -> Result:
    """Run one experiment, from where its folder says it stands.

    Raises:
        SimulationError: It cannot go on.
        RecordError: Another process runs it.
    """
    on = replace(stage(experiment, place.data), device=place.device)
    on.check_homes()
    before = parts(experiment)
    ended = {part: _ended(part, place, on_round) for part in _before(on, place)}
    card = find_card(on.device, on.base.bits)
    weights = next((ended[part][1] for part in before.taught if part in ended), b"")
    with (
        Record(
            place.out / on.key, experiment, card.name if card else "", _facts(on, weights)
        ) as record,
        told_of_card(on.device),
    ):
        if experiment.personal is not None:
            there = {part: adapter for part, (_, adapter) in ended.items()}
            _run_personal(on, record, before, there, place.ray, on_round)
            record.finish()
            return replace(record.result, parts=tuple(ended[part][0] for part in before.rounds))
        if experiment.cache_bytes and not record.is_finished:
            record.begin_anew()  # what layers cost hangs on what this process has computed before
        with _begun(on, weights, record.base) as begun:
            _run_arms(begun, place, record, on_round)
        record.finish()
        return record.result


def _before(on: Stage, place: Place) -> tuple[Experiment, ...]:
    """What has to be there before an experiment is run; less before it is only read."""
    before = parts(on.experiment)
    return before.rounds if (place.out / on.key / FINISHED).is_file() else before.every


@contextmanager
def _begun(on: Stage, weights: bytes, folder: Path) -> Iterator[Stage]:
    """The stage with the weights that taught its base, if any did; they lie on disk meanwhile."""
    if not weights:
        yield on
        return
    try:
        base = open_base(str(trained(on.base, decode_adapter(weights), folder.resolve())))
        yield replace(on, weights=base)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_arms(on: Stage, place: Place, record: Record, on_round: Callable[[Round], None]) -> None:
    devices: Devices | None = None
    try:
        for arm in _open_arms(on, record):
            devices = devices or _devices(on, place)
            _run_arm(on, record, devices, arm, on_round)
    finally:
        if devices is not None:
            devices.close()


def finished(on: Stage, place: Place) -> Result | None:
    """What an experiment gave, where it has been run to its end; nothing is run.

    Raises:
        RecordError: A row on disk is damaged.
    """
    folder = place.out / on.key
    if not (folder / FINISHED).is_file():
        return None
    before = [stage(part, place.data) for part in parts(on.experiment).rounds]
    ended = [Result(one.experiment, tuple(read_rows(place.out / one.key))) for one in before]
    return Result(on.experiment, tuple(read_rows(folder)), tuple(ended))


def _ended(
    part: Experiment, place: Place, on_round: Callable[[Round], None]
) -> tuple[Result, bytes]:
    """Rounds that others go on from, run where they have not been, and their last adapter."""
    on = stage(part, place.data)
    folder = place.out / on.key
    rows = read_rows(folder)  # without the lock: several processes go on from finished rounds
    is_whole = (folder / FINISHED).is_file()  # patience may have ended it early
    if not rows or not (is_whole or min(rows[-1].round_index, rows[-1].evaluated) >= part.rounds):
        run(part, place, on_round)
        rows = read_rows(folder)
    return Result(part, tuple(rows)), kept_adapter(folder, rows[-1])


def _run_personal(
    on: Stage,
    record: Record,
    before: Parts,
    ended: Mapping[Experiment, bytes],
    ray: str,
    on_round: Callable[[Round], None],
) -> None:
    """What is left of a personal phase: the clients that have no row yet."""
    _check_ray(ray)
    done = {row.arm for row in record.result.rows}
    names = [client.name for client in on.homes() if client.name not in done]
    given = [ended[part] for part in before.given] or [b""]
    first = next((ended[part] for part in before.early), b"")
    beneath = tuple(ended[part] for part in before.beneath)
    asked = [Asked(name, given[part_of(on.experiment, name)], first, beneath) for name in names]
    for closed in own_rounds(on, asked, ray):
        record.add(closed.cohort[0], closed, keep_clients=True)
        on_round(closed)


def _facts(on: Stage, weights: bytes) -> dict[str, object]:
    """What numbers come from, beside the experiment itself."""
    texts = {name: getattr(on.dataset, name) for name in ("origin", "licence", "sha256", "notes")}
    sizes = {"train": len(on.dataset.train), "test": len(on.dataset.test)}
    return {
        "base_id": on.base.base_id,
        **({"weights_sha256": sha256(weights)} if weights else {}),
        "texts": texts | sizes | {"task": asdict(on.dataset.task)},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("smidgen", "torch", "numpy", "onnxruntime", "transformers"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _open_arms(on: Stage, record: Record) -> list[Arm]:
    standings = [(arm, record.standing(arm.name)) for arm in on.arms()]
    if record.is_finished:
        return []
    return [
        arm
        for arm, standing in standings
        if standing is None
        or min(standing.round_index, standing.evaluated) < _rounds(on, arm).rounds
    ]


def _rounds(on: Stage, arm: Arm) -> Rounds:
    """An arm's schedule; without labelled texts its first adapter is judged, and that is all."""
    task = on.dataset.task
    schedule = schedule_of(on.experiment, len(arm.clients), task.labels, task.kind)
    return schedule if arm.clients or not arm.name else replace(schedule, rounds=0)


def _run_arm(
    on: Stage, record: Record, devices: Devices, arm: Arm, on_round: Callable[[Round], None]
) -> None:
    experiment, names = on.experiment, [client.name for client in arm.clients]

    def keep(closed: Round) -> None:
        held = None
        if pseudo is not None and closed.looking is not None and experiment.labelling is not None:
            share = keep_in(experiment.labelling, closed.round_index, experiment.rounds)
            held = pseudo.tally(devices.books, closed.looking, share)
        record.add(arm.name, closed, len(on.population) <= FEW_CLIENTS, held)
        on_round(closed)

    pseudo = PseudoScore(on) if experiment.labelling is not None else None
    start = record.standing(arm.name) or devices.start()
    schedule = _rounds(on, arm)
    present = names if schedule.rounds else ["whoever judges"]
    texts = {client.name: len(client.labelled) for client in arm.clients}
    hostile = experiment.hostile
    forgers = hostile.names(on.population) if hostile else frozenset[str]()
    texts = told_texts(texts, hostile, forgers)
    dealt, ranks = experiment.ranks, dict[str, int]()
    if dealt:
        ranks = {name: dealt[index % len(dealt)] for index, name in enumerate(names)}
    federate(
        schedule, on.template(), start, present, devices, keep, arm.name, texts, forgers, "", ranks
    )


def _devices(on: Stage, place: Place) -> Devices:
    if not place.ray:
        return InProcess(on)
    _check_ray(place.ray)
    from smidgen.simulation.experiments.virtual.devices import (
        RayDevices,
    )  # only where it is wanted

    return RayDevices(on, place.ray)


def _check_device(stages: Iterable[Stage], place: Place) -> None:
    """Find out before anything is computed whether there is such a device.

    Raises:
        EngineError: There is none, or an experiment's engine does not compute on it.
        SimulationError: It is asked for on a cluster.
    """
    demand(
        not place.ray or place.device == CPU,
        f"--ray: a cluster's processors compute; leave it out, or --device {place.device}",
        SimulationError,
    )
    asked = list(stages)
    for on in asked:
        check_device(place.device, on.experiment.engine)
    for bits in {on.base.bits for on in asked}:
        find_card(place.device, bits)


def _check_ray(address: str) -> None:
    if address and find_spec("ray") is None:
        raise SimulationError(f"--ray needs Ray; {installing('ray')}")


def _in_processes(
    stages: Sequence[Stage], place: Place, jobs: int, tell: Callable[[int, str], None]
) -> None:
    """Run each in a process of its own, `jobs` at once; none outlives this call."""
    waiting, running = list(stages), list[Child]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                asked = waiting.pop(0).experiment
                running.append(start_child(_run_unseen, asked, place, name=asked.name))
            heard = wait([one.pipe for one in running], POLL_S)
            for ended in [one for one in running if one.pipe in heard]:
                ended.answer()
                ended.process.join()
                running.remove(ended)
            tell(_rounds_done(stages, place), f"{len(running)} at once")
    finally:
        for left in running:
            left.process.kill()
        for left in running:
            left.end()


def _run_unseen(experiment: Experiment, place: Place) -> None:
    """One experiment whose result is on disk; the parent reads it there."""
    know_installed()
    if place.plugins is not None:
        know_folder(place.plugins)
    run(experiment, place)
