"""Personalization phase: each client trains its own adapter and scores it on its own test texts.

It uses a device's own code on the experiment's base, here or on a Ray cluster. A client's adapter
follows from the stage, its name and the earlier rounds alone, so that results do not depend on
where they are computed; they come back in the order asked.

What precedes the phase (rounds, or what pretrained the base) is an experiment of its own that does
not know how its adapter is used: by its key it runs once for all rank budgets and for all other
experiments that continue from it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from smidgen.edge_client.adapters.spec import AdapterSpec, parse_adapter
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.personal.interpolation import along
from smidgen.edge_client.personal.methods import Given, Own, own_adapter
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.wire.tensors import decode_adapter, derive_seed, encode_adapter
from smidgen.simulation.experiments.experiment import FULL, Experiment
from smidgen.simulation.experiments.federation.devices import Between, Round, Standing
from smidgen.simulation.experiments.personal_settings import GUIDED, left_out
from smidgen.simulation.experiments.scoring import Score, judged, score
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.population.clients import Client


@dataclass(frozen=True)
class Asked:
    """A client that is to train for itself.

    Attributes:
        name: The client.
        shared: The encoded adapter that the rounds before gave; empty without any.
        first: That of an earlier round, where the client's own begins there.
        beneath: Those that it is trained above, in turn; the last is there in the end.
    """

    name: str
    shared: bytes = b""
    first: bytes = b""
    beneath: tuple[bytes, ...] = ()


@contextmanager
def fitted(on: Stage, data: ClientData, seed: int, asked: Asked) -> Iterator[Own]:
    """Train one client's own adapter. Equal arguments give equal bytes.

    Args:
        on: An experiment with a personal phase.
        data: The client's texts.
        seed: Seed of its draws and of the order of its texts.
        asked: The client, and what the rounds before have trained.
    """
    personal, said = on.experiment.personal, on.experiment.adapter
    assert personal is not None, f"{on.experiment.name} has no personal phase"
    # Of a base whose every weight is trained there is no form: `open_engine` knows what it opens.
    spec = AdapterSpec() if said in FULL else parse_adapter(said)
    given = Given(spec, decode_adapter(asked.shared)) if asked.shared else None
    first = decode_adapter(asked.first) if asked.first else None
    above = parse_adapter(personal.above) if asked.beneath else AdapterSpec()
    beneath = [Given(above, decode_adapter(one)) for one in asked.beneath]
    way = personal.way(on.dataset.task)
    with own_adapter(
        way,
        on.base.shape,
        lambda spec: on.open_engine(str(spec)),
        data,
        seed,
        given,
        first,
        beneath,
    ) as own:
        yield own


@dataclass(frozen=True)
class Parts:
    """Rounds that clients go on from, and those that an experiment's base comes from.

    Attributes:
        given: What its method goes by: of all clients, or without each group of languages; none
            for a method that goes by nothing.
        early: What one's own begins with, if that is before the rounds are over; at most one.
        beneath: What one's own is trained above, in turn; the last is there in the end.
        taught: What trained the weights of the base; at most one.
    """

    given: tuple[Experiment, ...] = ()
    early: tuple[Experiment, ...] = ()
    beneath: tuple[Experiment, ...] = ()
    taught: tuple[Experiment, ...] = ()

    @property
    def rounds(self) -> tuple[Experiment, ...]:
        """Those that clients go on from, whose costs are the experiment's too."""
        return (*self.given, *self.early, *self.beneath)

    @property
    def every(self) -> tuple[Experiment, ...]:
        return (*self.rounds, *self.taught)


def parts(experiment: Experiment) -> Parts:
    """What goes before an experiment.

    Args:
        experiment: Any.
    """
    personal = experiment.personal
    if experiment.taught is not None:
        return Parts(taught=(experiment.taught,))
    if personal is None or not experiment.rounds:
        return Parts()
    plain = replace(experiment, personal=None)
    whole = (_lasting(plain, plain.rounds),)
    if personal.groups:
        groups = left_out(plain.languages, personal.groups)
        return Parts(tuple(_without(plain, group) for group in groups))
    if personal.above:
        training = replace(plain.training, lr=personal.lr)
        shared = replace(plain, adapter=personal.above, training=training)
        stages = range(personal.stages)
        ends = [stage * plain.rounds // personal.stages for stage in stages]
        beneath = tuple(_lasting(shared, rounds) for rounds in (*ends, plain.rounds))
        return Parts(whole if personal.method in GUIDED else (), (), beneath)
    is_early = personal.start not in (None, plain.rounds)
    return Parts(whole, (_lasting(plain, personal.start or 0),) if is_early else ())


def _lasting(plain: Experiment, rounds: int) -> Experiment:
    return replace(plain, name=f"{rounds} rounds, seed {plain.seed}", rounds=rounds)


def _without(plain: Experiment, group: tuple[str, ...]) -> Experiment:
    return replace(
        plain,
        name=f"rounds without {', '.join(group)}, seed {plain.seed}"[:200],
        languages=tuple(one for one in plain.languages if one not in group),
    )


def part_of(experiment: Experiment, client: str) -> int:
    """Which of `Parts.given` a client goes on from: the one in which it was left out, if it was."""
    personal = experiment.personal
    if personal is None or not personal.groups:
        return 0
    groups = left_out(experiment.languages, personal.groups)
    return next(number for number, group in enumerate(groups) if client in group)


def own_round(on: Stage, asked: Asked) -> Round:
    """Train a client's own adapter and score it; a round with the client as its cohort.

    Args:
        on: An experiment with a personal phase.
        asked: The client.

    Raises:
        TrainingError: No labelled texts, or the loss is no longer finite.
    """
    start_s, index = time.perf_counter(), on.experiment.rounds + 1
    [client] = [one for one in on.population if one.name == asked.name]
    train = on.dataset.train
    labelled = tuple(train[row] for row in client.labelled)
    others = tuple(replace(train[row], label=None) for row in client.unlabelled)
    data = ClientData(labelled, others, ())
    seed = derive_seed(on.experiment.seed, "personal", client.name)
    with fitted(on, data, seed, asked) as own:
        forwards, train_s = own.layer_forwards, time.perf_counter() - start_s
        scored, body = _judged(on, own.engine, client), encode_adapter(own.engine.adapter())
        between = _between(on, own, client, asked.shared)
    return Round(
        round_index=index,
        cohort=(client.name,),
        num_examples=len(labelled),
        loss=own.loss,
        layer_forwards=forwards,
        train_s=train_s,
        standing=Standing(body, index, index),
        score=scored,
        ranks=own.ranks,
        between=between,
    )


def own_rounds(on: Stage, asked: Sequence[Asked], ray: str = "") -> Iterator[Round]:
    """As `own_round` for each, in order.

    Args:
        on: An experiment with a personal phase.
        asked: The clients.
        ray: Address of a Ray cluster whose processors do it; empty for this process.
    """
    if not ray:
        yield from (own_round(on, one) for one in asked)
        return
    from smidgen.simulation.experiments.virtual.devices import each  # only where it is wanted

    yield from each(ray, own_round, on, asked)


def _between(on: Stage, own: Own, client: Client, shared: bytes) -> Between | None:
    """How each step of the way from the shared adapter does, where the client went one."""
    if own.alpha is None or own.end is None:
        return None
    tests = [on.dataset.test[row] for row in client.test]
    way = along(own.engine, own.end, decode_adapter(shared), tests)
    right = tuple(round(at.found.accuracy * at.found.num_examples) for at in way)
    return Between(own.alpha, right)


def _judged(on: Stage, engine: Engine, client: Client) -> Score:
    tests = [on.dataset.test[row] for row in client.test]
    if not kind_of(on.dataset.task).is_one_label:
        return judged(engine, tests, {client.name: np.arange(len(tests))})
    labels = {label: row for row, label in enumerate(on.dataset.task.labels)}
    gold = np.array([labels[text.label or ""] for text in tests])
    spoken = [text.language for text in tests]
    return score(engine.predict(tests), gold, spoken, {client.name: np.arange(len(tests))})
