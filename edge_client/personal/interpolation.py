"""Interpolation of a device's own adapter and the shared one: alpha * own + (1 - alpha) * shared.

The federated healthcare paper mixes the two at evaluation, alpha from 0 to 1 in steps of 0.05
(figure 3). Here alpha is chosen on held-out texts of the device, once its own adapter has been
trained on from the shared one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import badness, evaluate
from smidgen.edge_client.tasks.scores import Evaluation, TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    check_same_parameters,
    derive_seed,
    shapes_of,
)

STEPS = 20
ALPHAS = tuple(step / STEPS for step in range(STEPS + 1))
ASIDE = 0.2  # of the labelled texts, to choose by
FEWEST = 4


@dataclass(frozen=True)
class At:
    """How one alpha does on texts."""

    alpha: float
    found: Evaluation


def mixed(own: AdapterState, shared: AdapterState, alpha: float) -> AdapterState:
    """The adapter in between, float32.

    Laws: 0 is the shared one and 1 one's own, bit by bit; between equal numbers lie the same.

    Args:
        own: One's own.
        shared: The shared one, of the same tensors.
        alpha: From 0 to 1.

    Raises:
        WireError: They are of different tensors.
    """
    check_same_parameters(own, shapes_of(shared))
    if alpha in (0.0, 1.0):
        return own if alpha else shared
    return {
        name: (one + np.float32(alpha) * (own[name] - one)).astype(np.float32)
        for name, one in shared.items()
    }


def along(
    engine: Engine, own: AdapterState, shared: AdapterState, texts: Sequence[Example]
) -> list[At]:
    """How each alpha does; the engine then holds one's own.

    Args:
        engine: Of the two adapters.
        own: One's own.
        shared: The shared one.
        texts: Labelled.
    """
    found = []
    for alpha in ALPHAS:
        engine.put(mixed(own, shared, alpha))
        found.append(At(alpha, evaluate(engine, texts)))
    return found


def nearest(dev: Sequence[At], task: Task) -> float:
    """The alpha that does best, then with the least loss, then nearest to the shared one.

    Law: the order of alphas does not matter.

    Args:
        dev: How each does.
        task: What is asked, which says what is best.
    """
    return min(dev, key=lambda at: (*badness(task, at.found), at.alpha)).alpha


def kept_aside(
    texts: Sequence[Example], seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Texts to train on, and those to judge by; drawn, each in the order in which they came.

    Laws: each text is in exactly one of the two; equal seeds draw the same.

    Args:
        texts: Labelled.
        seed: Of the draw.

    Raises:
        TrainingError: Too few for both.
    """
    if len(texts) < FEWEST:
        raise TrainingError(
            f"{len(texts)} labelled text{'' if len(texts) == 1 else 's'}: a part is kept aside to "
            f"judge by, so {FEWEST} or more are needed; give it more"
        )
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "aside")))
    drawn = generator.permutation(len(texts))[: max(2, round(ASIDE * len(texts)))]
    aside, rows = set(drawn.tolist()), range(len(texts))
    return (
        tuple(texts[row] for row in rows if row not in aside),
        tuple(texts[row] for row in rows if row in aside),
    )
