"""What the spread of a device's texts is held against: that of texts which nobody wrote.

ground = ground_of(engine, bank)
features = ground.standard(engine.spread(examples))

Means and deviations of a base's layers differ far more between layers than between languages. So
each is taken relative to drawn texts: groups of random words of the base's vocabulary, each group
of a small vocabulary of its own, as a language is. Every device draws the same groups and works the
ground out on its own base: no device's texts enter it, and nothing of it travels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.engine.engine import Engine
from edge_client.errors import Failed
from edge_client.texts.examples import Example
from edge_client.texts.tokens import Tokens
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import AdapterState

GROUPS, TEXTS, WORDS, OWN_WORDS = 24, 4, 24, 64
FARTHEST = 10.0  # deviations; an odd text moves a strategy no further
SAME = 1e-6  # of a feature's size: below this a deviation is rounding


class ConstantBase(Failed):
    """A base that reads all texts alike: there is nothing to tell devices apart by."""


@dataclass(frozen=True)
class Ground:
    """Means and deviations over groups, (layers, 2) each; deviations of 0 count as no feature."""

    mean: np.ndarray
    deviation: np.ndarray

    def standard(self, spread: np.ndarray) -> np.ndarray:
        """A spread in the ground's deviations, flat, within `FARTHEST`; 0 where there are none.

        Args:
            spread: As `Engine.spread` gives it.
        """
        there = self.deviation > 0
        apart = (spread - self.mean) / np.where(there, self.deviation, 1.0)
        found: np.ndarray = np.clip(np.where(there, apart, 0.0), -FARTHEST, FARTHEST).ravel()
        return found


def ground_of(engine: Engine, bank: AdapterState) -> Ground:
    """A base's ground.

    Args:
        engine: Of the bank; it holds what it is given here afterwards.
        bank: LoRA of the bank, B at zero: what is read is the base alone.

    Raises:
        ConstantBase: No layer tells the groups apart.
    """
    engine.put(bank)
    spreads = [engine.spread(group) for group in drawn_groups(engine.encoder.tokens)]
    return ground_from(spreads)


def ground_from(spreads: Sequence[np.ndarray]) -> Ground:
    """The ground of groups, by their spreads.

    Raises:
        ConstantBase: They are all the same.
    """
    stacked = np.stack(spreads)
    mean, deviation = stacked.mean(axis=0), stacked.std(axis=0)
    size = np.maximum(np.abs(stacked).max(axis=0), np.abs(stacked).max() * SAME)
    deviation = np.where(deviation > SAME * size, deviation, 0.0)
    if not deviation.any():
        raise ConstantBase(
            "the base's layers give the same for all texts, so a net has nothing to go by; "
            "take another base"
        )
    return Ground(mean, deviation)


def drawn_groups(tokens: Tokens) -> list[list[Example]]:
    """Texts of random words, by group.

    Args:
        tokens: The base's vocabulary.
    """
    generator = np.random.Generator(np.random.PCG64(derive_seed(0, "ground")))
    groups = []
    for _ in range(GROUPS):
        own = generator.integers(0, tokens.size, OWN_WORDS)
        drawn = generator.integers(0, OWN_WORDS, (TEXTS, WORDS))
        groups.append([Example(tokens.text_of(own[row])) for row in drawn])
    return groups
