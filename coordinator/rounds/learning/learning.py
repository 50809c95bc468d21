"""One round's learning: a cohort's updates in, the next adapter out; the one way for every run.

A real coordinator and the simulation both come through here, so that they end in the same bytes:

    updates -> contributions (bounded weight and length) -> mean -> server optimizer -> check

Each arrow is a small protocol: `mean.Mean`, `optimizers.ServerOptimizer`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.rounds.bounds import Bounds, bounds_of, lack_of, norm_of
from coordinator.rounds.events import StepOpened
from coordinator.rounds.learning.mean import Contribution
from coordinator.rounds.learning.memory import Memory, part_of, with_part
from coordinator.rounds.learning.named import mean_of, optimizer_of
from coordinator.rounds.learning.robust.means import TooFewError
from coordinator.rounds.learning.scaffold import CONTROL, Scaffold, Tally
from coordinator.rounds.learning.settings import Learning
from edge_client.wire.tensors import AdapterState, Update

OPTIMIZER = "optimizer"  # the part of the memory that is the server optimizer's


@dataclass(frozen=True)
class Answer:
    """A device's update as it was let in.

    Attributes:
        device_id: Whose.
        update: What it sent.
        norm: Its Euclidean norm; None where that is not known.
        share: How much it counts: 1, or less where it is of an older version.
        steps: Optimizer steps that made it, by which its device's control variate is known; 0: it
            is not.
    """

    device_id: str
    update: Update
    norm: float | None = None
    share: float = 1.0
    steps: int = 0


@dataclass(frozen=True)
class Learned:
    """What a round gave.

    Attributes:
        adapter: The next one; the one before where it was not taken.
        memory: What the next round needs to know.
        lack: Why the new adapter was not taken; empty where it was.
    """

    adapter: AdapterState
    memory: Memory
    lack: str = ""


def learn(
    learning: Learning,
    opened: StepOpened,
    rounds: int,
    answers: Iterable[Answer],
    adapter: AdapterState,
    memory: Memory,
    norms: Sequence[float],
    is_guarded: bool = True,
    scaffold: Scaffold | None = None,
) -> Learned:
    """The adapter after a training step.

    Args:
        learning: How the run learns.
        opened: The step, with its bounds.
        rounds: Of the run.
        answers: In the order of device ids; read once and not kept, unless the mean must.
        adapter: What the step started from.
        memory: What the rounds before gave.
        norms: Medians of the rounds before.
        is_guarded: Whether a new adapter is checked before it is taken.
        scaffold: Of a run whose devices hold control variates.

    Raises:
        PluginError: An extension that is not known here, or did not do its part; the step stands.
    """
    tally = None if scaffold is None else Tally(scaffold, opened, part_of(memory, CONTROL))
    heard = answers if tally is None else tally.heard(answers)
    bounded = contributions(bounds_of(opened), heard)
    try:
        mean = mean_of(learning.mean).mean(bounded, adapter)
    except TooFewError as error:
        return Learned(adapter, memory, str(error))
    known = part_of(memory, OPTIMIZER)
    optimizer = optimizer_of(learning.optimizer, learning.rates)
    after, kept = optimizer.step(adapter, mean, known, opened.round_index, rounds)
    step = {name: after[name].astype(np.float64) - adapter[name] for name in adapter}
    lack = lack_of(after, step, norms, opened.norm_bound) if is_guarded else ""
    if lack:
        return Learned(adapter, memory, lack)
    learned = with_part(memory, OPTIMIZER, kept)
    return Learned(after, learned if tally is None else with_part(learned, CONTROL, tally.part()))


def contributions(bounds: Bounds, answers: Iterable[Answer]) -> Iterator[Contribution]:
    """Each answer within the bounds of its step; inside them to the last bit as it came."""
    for answer in answers:
        delta = answer.update.delta
        norm = norm_of(delta) if answer.norm is None else answer.norm
        weight = bounds.weight(answer.update.num_examples, norm)
        yield Contribution(answer.device_id, delta, weight, bounds.share(norm) * answer.share)
