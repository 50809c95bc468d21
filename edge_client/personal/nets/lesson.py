"""What a device does for the generator in a round: find out what it needs, and teach it that.

First it trains a bank from the lambdas that the generator gives for its texts; then it moves the
generator towards the lambdas that came out (FedP2EFT's two stages). Only the generator's numbers
leave the device: neither features nor lambdas nor adapters do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge_client.adapters.generators import Generator
from edge_client.engine.engine import Engine
from edge_client.engine.onnx_backend.adamw import AdamW
from edge_client.errors import demand
from edge_client.personal.bank import Bank, bank_numbers, lambdas_of
from edge_client.personal.fitting import Fitted, Terms, fit
from edge_client.personal.nets.generator import factors, pull
from edge_client.personal.nets.ground import Ground
from edge_client.tasks.scores import TrainingError
from edge_client.texts.examples import Example
from edge_client.wire.tensors import AdapterState

FEWEST_TEXTS = 2  # whose spread says something; that of few is far from the language's


@dataclass(frozen=True)
class Teaching:
    """How the generator learns from one device's lambdas.

    Attributes:
        steps: Steps of Adam towards them. In ten steps of 1e-4 all lambdas that fall have fallen
            alike, and no rank is told from another.
        lr: Their learning rate.
    """

    steps: int = 100
    lr: float = 1e-4

    def __post_init__(self) -> None:
        demand(1 <= self.steps <= 1_000_000, "steps: 1 to 1000000")
        demand(0.0 < self.lr <= 100.0, "lr: above 0, at most 100")


@dataclass(frozen=True)
class Lesson:
    """What a device's work for the generator gave.

    Attributes:
        numbers: The generator's, after it.
        lambdas: That the bank ended with, by module; they stay here.
        fitted: The bank's training.
        distance: Mean distance of the generator's lambdas from those, before it learned.
    """

    numbers: AdapterState
    lambdas: Mapping[str, np.ndarray]
    fitted: Fitted
    distance: float


def features_of(
    engine: Engine, ground: Ground, bank: AdapterState, texts: Sequence[Example]
) -> np.ndarray:
    """What the generator reads of a device's texts, labelled or not; by the base alone.

    Args:
        engine: Of the bank.
        ground: The base's.
        bank: LoRA of the bank, B at zero.
        texts: All that the device has.

    Raises:
        TrainingError: Too few.
    """
    if len(texts) < FEWEST_TEXTS:
        raise TrainingError(
            f"{len(texts)} text here: a generator goes by {FEWEST_TEXTS} or more, labelled or not; "
            "give it more, or keep to the shared adapter"
        )
    engine.put(bank)
    return ground.standard(engine.spread(texts))


def lesson(
    engine: Engine,
    generator: Generator,
    numbers: AdapterState,
    bank: AdapterState,
    ground: Ground,
    labelled: Sequence[Example],
    unlabelled: Sequence[Example],
    terms: Terms,
    teaching: Teaching,
    seed: int,
) -> Lesson:
    """A device's work of a round. Equal arguments give equal bytes.

    Args:
        engine: Of the bank.
        generator: The net.
        numbers: Its numbers; they stay as they are.
        bank: LoRA that the bank starts from, the same on all devices, B at zero.
        ground: The base's.
        labelled: Texts to train on.
        unlabelled: The device's other texts; their spread counts as well.
        terms: Of the bank's training.
        teaching: Of the generator's.
        seed: Seed of the order of the texts.

    Raises:
        AdapterError: Numbers of another base or bank.
        TrainingError: Too few texts, none with a label, or the loss is no longer finite.
    """
    generator.check(numbers)
    features = features_of(engine, ground, bank, [*labelled, *unlabelled])
    given = factors(generator, numbers, features)
    fitted = fit(engine, Bank(), bank_numbers(bank, given), labelled, terms, seed)
    aims = lambdas_of(fitted.numbers)
    after, distance = taught(generator, numbers, features, aims, teaching)
    return Lesson(after, aims, fitted, distance)


def taught(
    generator: Generator,
    numbers: AdapterState,
    features: np.ndarray,
    aims: Mapping[str, np.ndarray],
    teaching: Teaching,
) -> tuple[AdapterState, float]:
    """The generator moved towards lambdas, and how far it was from them.

    Args:
        generator: The net.
        numbers: Its numbers; they stay as they are.
        features: Of a device.
        aims: Lambdas of that device, by module.
        teaching: How far it moves.
    """
    own = {name: np.array(one, np.float32) for name, one in numbers.items()}
    optimizer = AdamW(own, teaching.lr, 0.0)
    distances = []
    for _ in range(teaching.steps):
        distance, gradients = pull(generator, own, features, aims)
        distances.append(distance)
        optimizer.step(gradients)
    return own, distances[0]
