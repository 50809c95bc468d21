"""Experiments on one machine, by the device's and the coordinator's own code."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from smidgen.coordinator.plugins import know_folder
from smidgen.edge_client.errors import demand
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.simulation.experiments.experiment import Experiment, read_experiment
from smidgen.simulation.experiments.record import Result
from smidgen.simulation.experiments.runner import Place, Tell, run_all

OUT = Path("smidgen-results")
SEEDS, JOBS = 1, 1


@dataclass(frozen=True)
class Simulated:
    """What an experiment gave with one seed.

    Attributes:
        name: The experiment's.
        seed: Its seed.
        accuracy: Share of right labels in the end, over all test texts.
        accuracy_by_round: The same where it was asked for; 0 is before any training.
        bytes_up: Updates handed in, all clients together.
        bytes_down: Adapters handed out, all clients together.
        result: All rows.
    """

    name: str
    seed: int
    accuracy: float
    accuracy_by_round: dict[int, float]
    bytes_up: int
    bytes_down: int
    result: Result = field(repr=False)


def simulate(
    experiments: Experiment | str | Path | Iterable[Experiment | str | Path],
    *,
    data: str | Path | None = None,
    out: str | Path = OUT,
    seeds: int = SEEDS,
    jobs: int = JOBS,
    ray: str = "",
    plugins: str | Path | None = None,
    device: str = CPU,
    tell: Tell | None = None,
) -> list[Simulated]:
    """Run experiments, each with each seed; finished ones in `out` are not run again.

        smidgen.simulate(smidgen.Experiment("few", "ag_news", rounds=5), data="data")[0].accuracy

    Args:
        experiments: Experiments or their TOML files, one or several.
        data: Folder of data sets; `$SMIDGEN_DATA` by default.
        out: Folder of results.
        seeds: Number of seeds, from each experiment's own on.
        jobs: Experiments at once, one process each.
        ray: Address of a Ray cluster that trains, or `local`.
        plugins: Folder of Python files whose means, optimizers and selections experiments may name.
        device: What they compute on: `cpu`, or `cuda`, the first CUDA device that torch sees.
        tell: Told rounds done, rounds in all, and what is at hand.

    Returns:
        One per experiment and seed, in order of experiments, then seeds.

    Raises:
        WrongInput: An experiment that makes no sense, or asks for what cannot be had.
        Failed: One cannot go on; the others' results so far are kept.
    """
    demand(1 <= seeds <= 1000, f"--seeds {seeds}: 1 to 1000 is expected")
    demand(1 <= jobs <= 1024, f"--jobs {jobs}: 1 to 1024 is expected")
    folder = None if plugins is None else Path(plugins)
    if folder is not None:
        know_folder(folder)
    given = [experiments] if isinstance(experiments, Experiment | str | Path) else experiments
    said = [_read(one) for one in given]
    every = [replace(one, seed=one.seed + more) for one in said for more in range(seeds)]
    texts = None if data is None else Path(data)
    place = Place(texts, Path(out) / "experiments", ray, folder, device)
    return [_simulated(result) for result in run_all(every, place, jobs, tell)]


def _read(given: Experiment | str | Path) -> Experiment:
    return given if isinstance(given, Experiment) else read_experiment(Path(given))


def _simulated(result: Result) -> Simulated:
    return Simulated(
        name=result.experiment.name,
        seed=result.experiment.seed,
        accuracy=result.accuracy,
        accuracy_by_round={index: score.accuracy for index, score in result.curve()},
        bytes_up=round(result.total("bytes_up")),
        bytes_down=round(result.total("bytes_down")),
        result=result,
    )
