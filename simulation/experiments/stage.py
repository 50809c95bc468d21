"""An experiment's loaded inputs (base, texts, clients, engine, first adapter), and bases it writes.

A base written by an experiment is a complete folder, named by its hash as any other.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from smidgen.coordinator.rounds.schedule import check_kind
from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import engine_name, installed_engine, open_engine
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.messages import PROTOCOL, Work
from smidgen.edge_client.wire.tensors import AdapterState, derive_seed, encode_adapter
from smidgen.simulation.datasets.catalogue import read_dataset
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.experiments.experiment import FULL, Experiment, ExperimentError
from smidgen.simulation.experiments.hostile import without_tests
from smidgen.simulation.experiments.texts import OwnedTexts, gated, judged, trained_on
from smidgen.simulation.population.clients import Population, merged
from smidgen.simulation.population.deal import population_of

CONFIG, TOKENIZER, WEIGHTS = "config.json", "tokenizer.json", "model.safetensors"


def trained(base: Base, state: AdapterState, folder: Path) -> Path:
    """A folder of the base with every weight as a run that trained them all left it.

    Args:
        base: What the run trained, a Hugging Face folder.
        state: All its weights by their names.
        folder: Where the new base is to be; made where it is not there.
    """
    config = json.loads((base.folder / CONFIG).read_text(encoding="utf-8"))
    tokenizer = json.loads((base.folder / TOKENIZER).read_text(encoding="utf-8"))
    return write_base(folder, config, tokenizer, state)


def write_base(
    folder: Path,
    config: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
) -> Path:
    """Write a base's files; equal ones are written equal, and a cut leaves whole ones."""
    folder.mkdir(parents=True, exist_ok=True)
    bodies = {
        CONFIG: json.dumps(config, indent=2, sort_keys=True).encode(),
        TOKENIZER: json.dumps(tokenizer, ensure_ascii=False).encode(),
        WEIGHTS: save(dict(tensors), {"format": "pt"}),
    }
    for name, body in bodies.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != body:
            write_atomically(path, body)
    return folder


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
        dev: Texts that patience and the best adapter go by, and nobody trains on; None: the tests.
        origin: Key of the rounds that taught the base; empty where it is as it was found.
        weights: The base with the weights that those ended with, once they are there.
        device: What engines compute on, `cpu` or `cuda`; no part of the key, as no processor is.
    """

    experiment: Experiment
    base: Base
    dataset: DataSet
    population: Population
    gate: tuple[Example, ...] = ()
    dev: OwnedTexts | None = None
    origin: str = ""
    weights: Base | None = None
    device: str = CPU

    @property
    def key(self) -> str:
        engine = "torch" if self.experiment.adapter in FULL else engine_name(self.experiment.engine)
        texts, asked = self.dataset.sha256, self.dataset.task
        base_id = (
            f"{self.base.base_id} taught by {self.origin}" if self.origin else self.base.base_id
        )
        return self.experiment.key(base_id, texts, asked, engine)

    @property
    def _begun(self) -> Base:
        return self.weights or self.base

    def check(self) -> None:
        """Find out before anything is computed whether all fits together.

        Raises:
            AdapterError: The adapter does not fit the base.
            EngineError: The engine is not installed, or cannot train this base.
            TaskError: A label word is unknown to the base's tokenizer, or a pattern too long.
        """
        installed_engine(self.experiment.engine)
        if self.experiment.adapter in FULL:
            from smidgen.simulation.experiments.virtual.full_backend import check_trainable

            check_trainable(self.base)
        else:
            self._drawn_adapter()

    def arms(self) -> list[Arm]:
        """Who trains one adapter each: all together, all texts as one client, or every client.

        A client without test texts trains for nobody's sake and is left out of `local`, as who is
        not asked is; one without labelled texts keeps the adapter that all start from.
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
        asked = self.experiment.alone or [client.name for client in self.population]
        return [
            Arm(client.name, (client,) if len(client.labelled) else ())
            for client in self.population
            if len(client.test) and client.name in asked
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
        experiment, task, base = self.experiment, self.dataset.task, self._begun
        use_threads(experiment.threads)
        if experiment.adapter in FULL:
            # transformers, only where it is wanted
            from smidgen.simulation.experiments.virtual.full_backend import open_full

            seed = derive_seed(experiment.seed, "adapter")
            has_head = experiment.adapter.endswith("+head")
            return open_full(base, task, experiment.training, has_head, seed, self.device)
        spec = parse_adapter(adapter or experiment.adapter)
        rest = (experiment.engine, base, task, spec, experiment.training)
        if experiment.dtype == "float32":
            engine = open_engine(*rest, device=self.device)
        else:
            engine = open_within(*rest, budget_bytes=None, device=self.device)
        engine.encoder.tokens.remember()
        return engine

    def first_adapter(self, engine: Engine) -> bytes:
        experiment = self.experiment
        if experiment.adapter in FULL:
            return encode_adapter(engine.adapter())
        return encode_adapter(self._drawn_adapter())

    def _drawn_adapter(self) -> AdapterState:
        said = self.experiment
        spec, task, longest = parse_adapter(said.adapter), self.dataset.task, said.training.tokens
        return first_adapter(self._begun, spec, task, said.prompt_init, said.seed, longest)

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
        ExperimentError: It goes by labels of texts, and the set's task has none; or its pattern
            asks a second text, and the set has none.
        PopulationError: The texts cannot be dealt out so.
    """
    dataset = _dataset(experiment.dataset, data, experiment.languages)
    _check_kind(experiment, dataset.task)
    if experiment.pattern:
        _check_columns(experiment.pattern, dataset)
        asked = replace(dataset.task, patterns=(experiment.pattern,), ensemble=False)
        dataset = replace(dataset, task=asked)
    base = _base(experiment.base)
    asked = replace(dataset.task, patterns=dataset.task.asked(base.shape.is_decoder))
    dataset = judged(replace(dataset, task=asked), experiment.judged_on, experiment.test_texts)
    dataset, aside = trained_on(dataset, experiment)
    population = population_of(experiment.deal, dataset.train, dataset.test, experiment.seed)
    gate: tuple[Example, ...] = ()
    if experiment.labelling is not None:
        population, rows = gated(population, experiment.gate_texts, experiment.seed)
        gate = tuple(dataset.train[row] for row in rows)
    strangers = set(experiment.alone) - {client.name for client in population if len(client.test)}
    if strangers:
        raise ExperimentError(
            f"alone: {min(strangers)!r:.100} is none of the clients that have test texts"
        )
    dev = None
    if aside:
        dealt = population_of(experiment.deal, dataset.train, aside, experiment.seed)
        dev = OwnedTexts(aside, {client.name: client.test for client in dealt})
    if experiment.hostile is not None:
        names = experiment.hostile.names(population)
        population, tests = without_tests(population, dataset.test, names)
        dataset = replace(dataset, test=tests)
    origin = _taught_by(experiment.taught, data) if experiment.taught else ""
    return Stage(experiment, base, dataset, population, gate, dev, origin)


def _taught_by(teacher: Experiment, data: Path | None) -> str:
    """The key of an experiment that others begin from."""
    on = stage(teacher, data)
    if on.dataset.task.files.wants == "tags":
        raise ExperimentError(
            f"taught: {teacher.dataset} is a set of tagged words, whose tagger leaves no head of "
            "words behind, and no base; masked or labelled texts are expected"
        )
    return on.key


def _check_columns(pattern: str, dataset: DataSet) -> None:
    """Refuse a pattern that asks what the texts do not have."""
    texts = (*dataset.train, *dataset.test)
    if "{text_b}" in pattern and not any(example.text_b for example in texts):
        raise ExperimentError(
            f"pattern {pattern!r:.200}: {dataset.name} has one text in each row; ask by {{text}}"
        )


def _check_kind(said: Experiment, task: Task) -> None:
    """Refuse what goes by labels of texts where none has any."""
    try:
        check_kind(task.kind, said.learning, said.training, said.labelling is not None)
    except ValueError as error:
        raise ExperimentError(str(error)) from None
    dealt = said.deal.labelled or said.deal.labelled_clients
    if task.files.wants == "text" and dealt:
        raise ExperimentError(
            f"a task of kind {task.kind} has no labels of texts: leave out deal.labelled and "
            "deal.labelled_clients; all texts are trained on"
        )


# One process runs many experiments on the same base and texts; both never change.
_base = lru_cache(maxsize=4)(open_base)
_dataset = lru_cache(maxsize=8)(read_dataset)


def use_threads(threads: int) -> None:
    """Let engines opened from now on compute with that many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
