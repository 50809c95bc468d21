"""A small experiment on a tiny base, written as a data set that `read_dataset` does not know."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task, task_toml
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.written import write_tagged
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.population.deal import Deal, population_of
from tests.edge_client.engine.engines import TEXTS

ALL = tuple(
    replace(text, text=f"{text.text} {number}", language=("en", "de")[number % 2])
    for number in range(4)
    for text in TEXTS
)


def small(base: Base, **said: Any) -> Experiment:
    """Three clients, two of which are asked in each of two rounds."""
    usual = Experiment(
        "small",
        "hub",
        base=str(base.folder),
        adapter="lora:2",
        deal=Deal(clients=3),
        training=Training(epochs=2, batch=2, lr=0.01, tokens=32),
        rounds=2,
        cohort=2,
        seed=7,
    )
    return replace(usual, **said)


def tagging_in(folder: Path) -> str:
    """A set of one's own of tagged words in two languages; how an experiment names it."""
    folder.mkdir()
    for part, count in (("train", 8), ("test", 4)):
        texts = [
            Example("", language=language, words=(word, part, str(n)), tags=("B-Room", "O", "O"))
            for language, word in (("eng", "door"), ("hau", "rain"))
            for n in range(count)
        ]
        write_tagged(folder / f"{part}.jsonl", texts)
    (folder / "task.toml").write_text(task_toml(Task("rooms", ("Room",), kind="tagging")))
    return f"folder:{folder}"


def texts_of(task: Task, train: tuple[Example, ...] = ALL) -> DataSet:
    """All texts, to train on and to be judged by."""
    return DataSet("hub", task, train, ALL[:12], "here", "none", "0" * 64, ())


def staged(base: Base, task: Task, **said: Any) -> Stage:
    """The small experiment, ready to run."""
    experiment, texts = small(base, **said), texts_of(task)
    return Stage(
        experiment,
        base,
        texts,
        population_of(experiment.deal, texts.train, texts.test, experiment.seed),
    )
