"""What an experiment runs on, found and read: base, texts, clients, engine and first adapter."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from edge_client.adapters.initial import first_adapter
from edge_client.adapters.spec import parse_adapter
from edge_client.bases.base import Base, open_base
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine
from edge_client.engine.opening import engine_name, installed_engine, open_engine
from edge_client.texts.examples import Example
from edge_client.texts.rows import DataError
from edge_client.wire.messages import PROTOCOL, Work
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState, encode_adapter
from simulation.datasets.catalogue import read_dataset
from simulation.datasets.dataset import DataSet
from simulation.experiments.experiment import FULL, Experiment, ExperimentError
from simulation.experiments.hostile import without_tests
from simulation.population.clients import Population, merged
from simulation.population.deal import population_of

DEV_TEXTS = 1000


@dataclass(frozen=True)
class Arm:
    """Clients that train one adapter.

    Attributes:
        name: The one client that trains for itself and is judged by its own texts, or empty.
        clients: Those with labelled texts; none means that nothing is trained.
    """

    name: str
    clients: Population


@dataclass(frozen=True)
class Stage:
    """An experiment with all it needs, but for the engine.

    Attributes:
        experiment: What is run.
        base: Its base.
        dataset: Its texts; of the test texts those that are asked.
        population: Its clients.
        gate: Texts on which adapters are judged before they label; nobody's, and not trained on.
    """

    experiment: Experiment
    base: Base
    dataset: DataSet
    population: Population
    gate: tuple[Example, ...] = ()

    @property
    def key(self) -> str:
        engine = "torch" if self.experiment.adapter in FULL else engine_name(self.experiment.engine)
        texts, asked = self.dataset.sha256, self.dataset.task
        return self.experiment.key(self.base.base_id, texts, asked, engine)

    def check(self) -> None:
        """Find out before anything is computed whether all fits together.

        Raises:
            AdapterError: The adapter does not fit the base.
            EngineError: The engine is not installed, or cannot train this base.
            TaskError: A label word is unknown to the base's tokenizer, or a pattern too long.
        """
        installed_engine(self.experiment.engine)
        if self.experiment.adapter in FULL:
            from simulation.experiments.full_backend import check_trainable

            check_trainable(self.base)
        else:
            self._drawn_adapter()

    def arms(self) -> list[Arm]:
        """Who trains one adapter each: all together, all texts as one client, or every client.

        A client without test texts trains for nobody's sake and is left out of `local`; one
        without labelled texts keeps the adapter that all start from.
        """
        is_labelling = self.experiment.labelling is not None
        able = tuple(
            client
            for client in self.population
            if len(client.labelled) or (is_labelling and len(client.unlabelled))
        )
        if self.experiment.paradigm == "centralised":
            return [Arm("", (merged(self.population),))]
        if self.experiment.paradigm == "federated":
            hostile = self.experiment.hostile
            if hostile is not None and hostile.attack == "absent":
                absent = hostile.names(self.population)
                able = tuple(client for client in able if client.name not in absent)
            return [Arm("", able)]
        return [
            Arm(client.name, (client,) if len(client.labelled) else ())
            for client in self.population
            if len(client.test)
        ]

    def homes(self) -> Population:
        """Clients that train for themselves after the rounds: those with test texts."""
        return tuple(client for client in self.population if len(client.test))

    def check_homes(self) -> None:
        """Refuse a personal phase, before any round, that some client has too few texts for.

        Raises:
            ExperimentError: Names the first such client.
        """
        personal = self.experiment.personal
        if personal is None:
            return
        for client in self.homes():
            held, enough = len(client.labelled), personal.fewest
            if held < enough:
                raise ExperimentError(
                    f"personal.method {personal.method}: {client.name} holds {held} labelled "
                    f"texts; {enough} or more are expected of each client with test texts"
                )

    def open_engine(self, adapter: str = "") -> Engine:
        """The engine that all clients take turns at; the caller closes it.

        Args:
            adapter: Another adapter than the experiment's, of the clients that train that.
        """
        experiment, task = self.experiment, self.dataset.task
        use_threads(experiment.threads)
        if experiment.adapter in FULL:
            # transformers, only where it is wanted
            from simulation.experiments.full_backend import open_full

            seed = derive_seed(experiment.seed, "adapter")
            has_head = experiment.adapter.endswith("+head")
            return open_full(self.base, task, experiment.training, has_head, seed)
        spec = parse_adapter(adapter or experiment.adapter)
        rest = (experiment.engine, self.base, task, spec, experiment.training)
        if experiment.dtype == "float32":
            return open_engine(*rest)
        return open_within(*rest, budget_bytes=None)

    def first_adapter(self, engine: Engine) -> bytes:
        """What the rounds start from, encoded."""
        experiment = self.experiment
        if experiment.adapter in FULL:
            return encode_adapter(engine.adapter())
        return encode_adapter(self._drawn_adapter())

    def _drawn_adapter(self) -> AdapterState:
        said = self.experiment
        spec, task, longest = parse_adapter(said.adapter), self.dataset.task, said.training.tokens
        return first_adapter(self.base, spec, task, said.prompt_init, said.seed, longest)

    def template(self) -> Work:
        """Work as every client gets it, round and adapter not filled in."""
        experiment = self.experiment
        return Work(
            protocol=PROTOCOL,
            work_id="own",
            kind="train",
            run_id=self.key,
            round_index=0,
            base_id=self.base.base_id,
            adapter_spec=experiment.adapter,
            adapter_sha256="own",
            adapter_bytes=0,
            task=self.dataset.task,
            training=experiment.training,
            seed=experiment.seed,
            labelling=experiment.labelling,
        )


def stage(experiment: Experiment, data: Path | None) -> Stage:
    """Find the base, read the texts and deal them out.

    Args:
        experiment: What is to be run.
        data: Folder of data sets; None takes `$SMIDGEN_DATA`.

    Raises:
        BaseError: There is no such base.
        DataError: There is no such data set.
        PopulationError: The texts cannot be dealt out so.
    """
    dataset = _dataset(experiment.dataset, data, experiment.languages)
    dataset = judged(dataset, experiment.judged_on, experiment.test_texts)
    if experiment.train_texts:
        seed = derive_seed(experiment.seed, "train texts")
        rows = drawn(dataset.train, experiment.train_texts, seed)
        dataset = replace(dataset, train=tuple(dataset.train[row] for row in rows))
    gate: tuple[Example, ...] = ()
    if experiment.labelling is not None:
        dataset, gate = gated(dataset, experiment.gate_texts, experiment.seed)
    population = population_of(experiment.deal, dataset.train, dataset.test, experiment.seed)
    if experiment.hostile is not None:
        names = experiment.hostile.names(population)
        population, tests = without_tests(population, dataset.test, names)
        dataset = replace(dataset, test=tests)
    return Stage(experiment, _base(experiment.base), dataset, population, gate)


# One process runs many experiments on the same base and texts; both never change.
_base = lru_cache(maxsize=4)(open_base)
_dataset = lru_cache(maxsize=8)(read_dataset)


def gated(dataset: DataSet, texts: int, seed: int) -> tuple[DataSet, tuple[Example, ...]]:
    """A set without some of its training texts, and those; drawn by the seed."""
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "gate")))
    chosen = set(generator.permutation(len(dataset.train))[:texts].tolist())
    kept = tuple(one for row, one in enumerate(dataset.train) if row not in chosen)
    return replace(dataset, train=kept), tuple(dataset.train[row] for row in sorted(chosen))


def judged(dataset: DataSet, part: str, per_language: int) -> DataSet:
    """A set with as many texts to be judged by, the same ones for every seed.

    Args:
        dataset: All texts.
        part: `test`; or `dev`, training texts, which are not trained on then. Of pairs, no first
            text is on both sides.
        per_language: How many of each language; 0 for all test texts, or 1000 of `dev`.

    Raises:
        DataError: `dev` would leave nothing of a language to train on, or the set has pairs in
            several languages, of which nobody knows what is whose translation.
    """
    if part == "test":
        rows = drawn(dataset.test, per_language or len(dataset.test))
        return replace(dataset, test=tuple(dataset.test[row] for row in rows))
    has_pairs = any(example.text_b for example in dataset.train)
    languages = sorted({example.language for example in dataset.train})
    if has_pairs and len(languages) > 1:
        raise DataError(f"judged_on = dev: {dataset.name} has pairs; name one of its languages")
    aside = drawn(dataset.train, per_language or DEV_TEXTS)
    taken = set(aside)
    firsts = {dataset.train[row].text for row in aside}
    kept = [
        example
        for row, example in enumerate(dataset.train)
        if row not in taken and not (has_pairs and example.text in firsts)
    ]
    for language in languages:
        if not any(example.language == language for example in kept):
            raise DataError(
                f"judged_on = dev leaves no training text of {language or dataset.name}; "
                "set test_texts to fewer"
            )
    return replace(dataset, train=tuple(kept), test=tuple(dataset.train[row] for row in aside))


def drawn(texts: Sequence[Example], per_language: int, seed: int = 0) -> list[int]:
    """Rows of a number of texts per language (or all it has), ascending."""
    chosen: list[int] = []
    for language in sorted({example.language for example in texts}):
        rows = [row for row, example in enumerate(texts) if example.language == language]
        generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "judged", language)))
        chosen += [rows[index] for index in generator.permutation(len(rows))[:per_language]]
    return sorted(chosen)


def use_threads(threads: int) -> None:
    """Let engines opened from now on compute with that many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
