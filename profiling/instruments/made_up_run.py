"""A run without compute for benchmarks: every device adds 0.01 to each number, in every round."""

import json

import numpy as np

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.instruments.environment import label_words

ADDED = 0.01  # by every client to every number, in every round


def task_of(base: Base) -> Task:
    """A task that the base's tokenizer knows the words of; its texts are never looked at."""
    words = {word: word for word in label_words(base)}
    return Task("none", tuple(words), ("{text} [MASK]",), words)


def first_state(base: Base, adapter: str) -> AdapterState:
    return first_adapter(base, parse_adapter(adapter), task_of(base), "", 0, Training.tokens)


def is_sum(first: AdapterState, last: AdapterState, rounds: int) -> bool:
    """Whether an adapter is the first one with 0.01 added in each round."""
    return first.keys() == last.keys() and all(
        np.allclose(last[name] - tensor, rounds * ADDED, rtol=1e-3, atol=1e-5)
        for name, tensor in first.items()
    )


def run_file(base: Base, adapter: str, **more: str | int) -> str:
    """A run's TOML; what JSON calls a string, a number or a list is one in TOML too."""
    task = task_of(base)
    run = {"base": str(base.folder.resolve()), "adapter": adapter, **more}
    said = {"name": task.name, "labels": task.labels, "patterns": task.patterns}
    rows = [f"{key} = {json.dumps(value)}" for key, value in run.items()]
    rows += ["[task]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
    return "\n".join(rows) + "\n"
