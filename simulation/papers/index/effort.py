"""How much an experiment computes, estimated, to say how long a list of them still takes."""

import math

from simulation.experiments.experiment import Experiment
from simulation.experiments.stage import Stage

BACKWARD = 2  # a pass back costs as much as so many forward


def effort_of(on: Stage) -> float:
    """Estimated, in a unit of its own: layers x hidden squared x tokens, of every text read.

    Attention, tokenizing and the head are left out; a personal phase counts its passes alone.
    """
    asked, shape = on.experiment, on.base
    per_text = shape.layers * shape.hidden**2 * asked.training.tokens
    trained = _visits(on, asked) + _own_visits(on, asked)
    return per_text * ((1 + BACKWARD) * trained + _judged(on, asked) + _read(on, asked))


def _visits(on: Stage, asked: Experiment) -> float:
    """Texts trained on in all rounds."""
    there = [client for client in on.population if not asked.alone or client.name in asked.alone]
    sizes = [len(client.labelled) for client in there if len(client.labelled)]
    share = 1.0
    if asked.paradigm == "centralised":
        sizes = [sum(sizes)]
    elif asked.paradigm == "federated" and asked.cohort:
        share = min(1.0, asked.cohort / max(1, len(sizes)))
    each = sum(asked.training.samples_of(size) for size in sizes)
    return asked.rounds * asked.training.epochs * share * each


def _own_visits(on: Stage, asked: Experiment) -> float:
    if asked.personal is None:
        return 0.0
    return asked.personal.epochs * float(sum(len(client.labelled) for client in on.homes()))


def _judged(on: Stage, asked: Experiment) -> float:
    every = asked.evaluate_every
    times = 1 + (math.ceil(asked.rounds / every) if every else asked.rounds > 0)
    return float(times * len(on.dataset.test))


def _read(on: Stage, asked: Experiment) -> float:
    """Unlabelled texts read in all label steps."""
    labelling = asked.labelling
    if labelling is None:
        return 0.0
    texts, clients = len(on.dataset.train), len(on.population)
    share = min(1.0, (labelling.infer_clients or clients) / clients)
    return asked.rounds / labelling.infer_every * (share * texts + len(on.gate))
