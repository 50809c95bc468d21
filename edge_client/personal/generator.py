"""FedP2EFT's strategy generator: a net that gives a device LoRA ranks by its texts' statistics.

From means and deviations of the inputs of the base's layers, a net with one hidden layer gives a
factor for each rank of each module of a bank (Lee et al. 2026, arXiv:2502.04387):

    features -> linear (twice as many) -> PReLU -> linear -> lambda

In a round a device first trains a bank from the generator's lambdas, then moves the generator
towards the lambdas that came out. Only the generator's weights leave the device: no features,
lambdas or adapters. They are an adapter's tensors (`smidgen.edge_client.adapters.banks`); forward
and backward are numpy in float64.

Features are relative to reference statistics of random text, since a base's layers differ far more
than languages do: groups of random words, each group from a small vocabulary of its own, as a
language is. Every device draws the same groups and computes them on its own base; no device's texts
enter, and nothing of it is sent.

    ground = ground_of(engine, bank)
    features = ground.standard(engine.spread(examples))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.adapters.banks import (
    IN,
    IN_BIAS,
    OUT,
    OUT_BIAS,
    SLOPE,
    Generator,
    rates_of,
)
from smidgen.edge_client.adapters.spec import net_in
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.onnx_backend.optimizers import AdamW
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts
from smidgen.edge_client.personal.bank import (
    Bank,
    bank_numbers,
    drawn_bank,
    lambdas_of,
    modules_of,
    within,
)
from smidgen.edge_client.personal.fitting import Fitted, FitTerms, fit, learned
from smidgen.edge_client.personal.interpolation import kept_aside
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.forms import LORA_A
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import AdapterState, Update, derive_seed


def factors(
    generator: Generator, numbers: AdapterState, features: np.ndarray
) -> dict[str, np.ndarray]:
    """A factor for every rank of every module, float32, as they count.

    Args:
        generator: The net.
        numbers: Its own.
        features: As `Ground.standard` gives them.
    """
    given = within(_forward(numbers, features)[-1].astype(np.float32))
    rows = given.reshape(len(generator.modules), generator.rank)
    return {module: rows[place].copy() for place, module in enumerate(generator.modules)}


def pull(
    generator: Generator,
    numbers: AdapterState,
    features: np.ndarray,
    aims: Mapping[str, np.ndarray],
) -> tuple[float, AdapterState]:
    """Mean distance of its lambdas from others, and the gradients of that, float32.

    The ends of lambda's range let gradients through (straight-through), as a bank's do.

    Args:
        generator: The net.
        numbers: Its own.
        features: As `Ground.standard` gives them.
        aims: Lambdas by module.
    """
    given, slope = features.astype(np.float64), float(numbers[SLOPE][0])
    before, hidden, out = _forward(numbers, features)
    aim = np.concatenate([aims[module] for module in generator.modules]).astype(np.float64)
    apart = within(out).astype(np.float64) - aim
    d_out = np.sign(apart) / len(aim)
    d_hidden = numbers[OUT].astype(np.float64).T @ d_out
    d_before = d_hidden * np.where(before > 0, 1.0, slope)
    pulled = {
        IN: np.outer(d_before, given),
        IN_BIAS: d_before,
        SLOPE: np.array([d_hidden @ np.minimum(before, 0.0)]),
        OUT: np.outer(d_out, hidden),
        OUT_BIAS: d_out,
    }
    gradients = {name: one.astype(np.float32) for name, one in pulled.items()}
    return float(np.abs(apart).mean()), gradients


def _forward(
    numbers: AdapterState, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden units before and after PReLU, and what comes out, float64."""
    wide = {name: one.astype(np.float64) for name, one in numbers.items()}
    before = wide[IN] @ features.astype(np.float64) + wide[IN_BIAS]
    hidden = np.where(before > 0, before, wide[SLOPE][0] * before)
    return before, hidden, wide[OUT] @ hidden + wide[OUT_BIAS]


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
        return np.clip(np.where(there, apart, 0.0), -FARTHEST, FARTHEST).ravel()


def ground_of(engine: Engine, bank: AdapterState) -> Ground:
    """A base's ground.

    Args:
        engine: Of the bank; it holds what it is given here afterwards.
        bank: LoRA of the bank, B at zero: what is read is the base alone.

    Raises:
        ConstantBase: No layer tells the groups apart.
    """
    engine.put(bank)
    spreads = [engine.spread(group) for group in drawn_groups(engine.encoder)]
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


def drawn_groups(encoder: Encoder) -> list[list[Example]]:
    """Texts of random words, by group.

    Args:
        encoder: Has the base's vocabulary, and the task whose texts they are read as.
    """
    tokens, kind = encoder.tokens, kind_of(encoder.task)
    generator = np.random.Generator(np.random.PCG64(derive_seed(0, "ground")))
    groups = []
    for _ in range(GROUPS):
        own = generator.integers(0, tokens.size, OWN_WORDS)
        drawn = generator.integers(0, OWN_WORDS, (TEXTS, WORDS))
        groups.append([kind.unwritten(tokens.text_of(own[row])) for row in drawn])
    return groups


FEWEST_TEXTS = 2  # whose spread says something; that of few is far from the language's


# In ten steps of 1e-4 all lambdas that fall have fallen alike, and no rank is told from another.
TEACHING = FitTerms(steps=100, lr=1e-4)


def features_of(engine: Engine, bank: AdapterState, texts: Sequence[Example]) -> np.ndarray:
    """What the generator reads of a device's texts, labelled or not; by the base alone.

    Args:
        engine: Of the bank.
        bank: LoRA of the bank, B at zero.
        texts: All that the device has.

    Raises:
        ConstantBase: The base reads all texts alike.
        TrainingError: Too few.
    """
    if len(texts) < FEWEST_TEXTS:
        raise TrainingError(
            f"{len(texts)} text here: a generator goes by {FEWEST_TEXTS} or more, labelled or not; "
            "give it more, or keep to the shared adapter"
        )
    ground = ground_of(engine, bank)
    return ground.standard(engine.spread(texts))


def lesson(
    engine: Engine,
    generator: Generator,
    numbers: AdapterState,
    bank: AdapterState,
    labelled: Sequence[Example],
    unlabelled: Sequence[Example],
    terms: FitTerms,
    seed: int,
    teaching: FitTerms = TEACHING,
) -> tuple[AdapterState, Fitted, float]:
    """A device's work of a round. Equal arguments give equal bytes.

    Args:
        engine: Of the bank.
        generator: The net.
        numbers: Its numbers; they stay as they are.
        bank: LoRA that the bank starts from, the same on all devices, B at zero.
        labelled: Texts to train on.
        unlabelled: The device's other texts; their spread counts as well.
        terms: Of the bank's training.
        seed: Seed of the order of the texts.
        teaching: Of the generator's, by Adam.

    Returns:
        The generator's numbers; the bank's training, which stays here; and the mean distance of the
        generator's lambdas from those that came out, before it learned.

    Raises:
        AdapterError: Numbers of another base or bank.
        ConstantBase: The base reads all texts alike.
        TrainingError: Too few texts, none with a label, or the loss is no longer finite.
    """
    generator.check(numbers)
    features = features_of(engine, bank, [*labelled, *unlabelled])
    given = factors(generator, numbers, features)
    fitted = fit(engine, Bank(), bank_numbers(bank, given), labelled, terms, seed)
    aims = lambdas_of(fitted.numbers)
    after, distance = taught(generator, numbers, features, aims, teaching)
    return after, fitted, distance


def taught(
    generator: Generator,
    numbers: AdapterState,
    features: np.ndarray,
    aims: Mapping[str, np.ndarray],
    teaching: FitTerms,
) -> tuple[AdapterState, float]:
    """The generator moved towards lambdas, and how far it was from them.

    Args:
        generator: The net.
        numbers: Its numbers; they stay as they are.
        features: Of a device.
        aims: Lambdas of that device, by module.
        teaching: Its steps and their learning rate.
    """
    own = {name: np.array(one, np.float32) for name, one in numbers.items()}
    optimizer = AdamW(own, teaching.lr, 0.0)
    distances = []
    for _ in range(teaching.steps):
        distance, gradients = pull(generator, own, features, aims)
        distances.append(distance)
        optimizer.step(gradients)
    return own, distances[0]


def teach(
    engine: Engine, start: AdapterState, own: OwnTexts, work: Work, device_id: str
) -> tuple[Update, Report]:
    """A round's work for a net; nothing but its numbers leaves the device.

    Args:
        engine: Of the LoRA that the net is for; it holds another one afterwards.
        start: The net.
        own: The device's texts.
        work: What is asked.
        device_id: The device.

    Raises:
        AdapterError: A net of another base, bank or adapter.
        ConstantBase: The base reads all texts alike.
        TrainingError: Too few texts, or the loss is no longer finite.
    """
    said = work.training
    terms = FitTerms(
        epochs=said.epochs, batch=said.batch, lr=said.lr, weight_decay=said.weight_decay
    )
    seed = derive_seed(work.seed, "train", device_id, work.round_index)
    by = _rates if net_in(work.adapter_spec) == "rates" else _generator
    numbers, loss = by(engine, start, own, terms, seed)
    delta = {name: numbers[name] - start[name] for name in start}
    num_examples = len(own.data.labelled)
    return (
        Update(work.work_id, num_examples, delta),
        Report(work.work_id, "done", num_examples, loss),
    )


def _generator(
    engine: Engine, start: AdapterState, own: OwnTexts, terms: FitTerms, seed: int
) -> tuple[AdapterState, float]:
    bank = drawn_bank(engine.adapter())
    modules, texts = modules_of(bank), (own.data.labelled, own.data.unlabelled)
    generator = Generator(tuple(modules), len(bank[modules[0] + LORA_A]), engine.layers)
    numbers, fitted, _ = lesson(engine, generator, start, bank, *texts, terms, seed)
    return numbers, fitted.loss


def _rates(
    engine: Engine, start: AdapterState, own: OwnTexts, terms: FitTerms, seed: int
) -> tuple[AdapterState, float]:
    """A fifth of the labelled texts is held out: by their loss the net learns."""
    adapter = drawn_bank(engine.adapter())
    rates = rates_of(adapter, engine.layers)
    rates.check(start)
    features = features_of(engine, adapter, [*own.data.labelled, *own.data.unlabelled])
    texts, aside = kept_aside(own.data.labelled, seed)
    numbers, losses = learned(engine, rates, start, features, adapter, texts, aside, terms, seed)
    return numbers, losses[-1]
