"""Bounds on one device's influence: on an update's norm, its weight and their product, the pull.

Bounds are fixed and journaled when a training step opens, from rounds closed by then. So no answer
affects the bounds of its own round, neither order of arrival nor a restart changes a byte, and
updates still stream. Where no round says anything yet, a wide bound opens the step, and the lower
medians of its own updates, which the journal holds too, narrow it as it closes (`narrowed`).

An update above the norm bound is scaled down to it, not refused, so that an honest device with much
to say is heard. Norm clipping: Sun et al. 2019 (arXiv:1911.07963), section 4; a bound that adapts
to observed norms: Andrew et al. 2021 (arXiv:1905.03871). An update that is long and heavy at once
loses weight, so that no device pulls harder than three median ones.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low

import numpy as np

from smidgen.coordinator.rounds.events import Answered, StepOpened
from smidgen.edge_client.updates.clip import LARGEST, UpdateBounds
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import SGD, Training

NORM_FACTOR = 3.0  # times the median norm of the last rounds
EXAMPLES_FACTOR = 3.0  # times the median weight of the last rounds
PULL_FACTOR = 3.0  # times the product of the two medians
LEAST_SHARE = 0.05  # of the wide bound: no answers, however short, make a bound less than this
WIDE_FACTOR = 2.0  # times the longest update of the median device, before any round is closed
STEP_FACTOR = 10.0  # times the median norm of the last rounds: a longer step of a run is not taken
REMEMBERED = 5  # closed rounds whose medians are known
FEWEST = 3  # updates whose median is no single device's word
GRADIENT_NORM = 4.0  # of a batch's mean loss by the adapter; SGD steps are lr times that
UNTOLD_STEPS = 16  # optimizer steps of a pass over the texts, where nobody said how many it has
MOST_STEPS = 10_000  # of a pass that are believed, however many texts a device says it has
MOST_APART = 64  # times the lower median of texts, above which the mean of two is not believed


@dataclass(frozen=True)
class Medians:
    """Of the last closed rounds, the newest last; what is not known is left out.

    Attributes:
        norms: The median norm of each round's updates, none counted longer than its bound.
        examples: Their median weight, bounded alike.
        few: Device -> norm and weight of its last update in a round of few. Once they are of enough
            devices, they stand for a round.
    """

    norms: tuple[float, ...] = ()
    examples: tuple[float, ...] = ()
    few: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def after(self, opened: StepOpened, done: Iterable[tuple[str, Answered]]) -> "Medians":
        """With a round that is closed now.

        Args:
            opened: Its step.
            done: Devices and their answers that brought an update.
        """
        if opened.measures:
            return self
        bounds, answers = bounds_of(opened), list(done)
        told = {
            name: (norm * bounds.share(norm), bounds.weight(one.num_examples, norm))
            for name, one in answers
            if (norm := one.norm) is not None
        }
        if len(answers) < FEWEST:
            told = {**self.few, **told}
        if len(told) < FEWEST:
            return replace(self, few=told)
        weights = [weight for _, weight in told.values() if weight]
        return Medians(
            _with(self.norms, median(norm for norm, _ in told.values())),
            # The lower one: of two devices, what one claims is not the other's bound.
            _with(self.examples, median_low(weights)) if weights else self.examples,
        )

    def without(self, rounds: int) -> "Medians":
        """Without those of the last rounds, but for the oldest known: it stays a bound."""
        norms, examples = (one[: max(1, len(one) - rounds)] for one in (self.norms, self.examples))
        return replace(self, norms=norms, examples=examples)


def _with(known: tuple[float, ...], newest: float) -> tuple[float, ...]:
    return (*known, newest)[-REMEMBERED:]


def bounds_of(opened: StepOpened) -> UpdateBounds:
    return UpdateBounds(opened.norm_bound, opened.most_examples, opened.most_pull)


def norm_of(delta: AdapterState) -> float:
    """Euclidean norm over all tensors, in double precision; the order of tensors is nothing."""
    squares = (float(np.square(tensor, dtype=np.float64).sum()) for tensor in delta.values())
    return math.sqrt(math.fsum(squares))


def next_norm_bound(norms: Sequence[float], wide: float) -> float:
    """The bound after rounds whose medians are known; the wide one where none is.

    A floor that no device has a say in keeps empty updates of a few from stopping all others.
    """
    return max(NORM_FACTOR * median(norms), LEAST_SHARE * wide) if norms else wide


def next_most_examples(told: Sequence[float]) -> int:
    """The largest weight after what is known of earlier ones; 0 where nothing is."""
    return math.ceil(EXAMPLES_FACTOR * median_low(told)) if told else 0


def pull_bound(norm: float, most_examples: int) -> float | None:
    """The largest pull, from two bounds that follow the rounds before; None where nothing is told.

    Each of the two is a multiple of a median, so either alone may still be used to the full.
    """
    return PULL_FACTOR * (norm / NORM_FACTOR) * (most_examples / EXAMPLES_FACTOR) or None


def wide_bound(training: Training, told: Sequence[float], parameters: int) -> float:
    """The bound where no round is closed yet: twice as far as training can well take most devices.

    A step of AdamW moves each parameter by about the learning rate at most, whatever the loss is,
    so `lr * sqrt(parameters) * steps` is as long as an update gets whose steps all go one way.
    Medians measured 0.2 to 0.7 of that, the longest update of a device with ten times the median
    device's texts 1.03.

    A step of SGD is lr times the gradient, and no setting bounds that: only experience does. Over
    two passes with the embedded base, lr 0.01 and 0.1 and all kinds of adapters, gradients of
    batches were 0.4 to 6 long and updates 0.3 to 1.5 times `lr * steps`; `GRADIENT_NORM` leaves
    room for larger bases. Momentum m lengthens steps by up to 1 / (1 - m). Where an honest
    update is longer still it is scaled down, and the bound follows the medians from round 2 on,
    where three devices or more train: two set none.

    Args:
        training: How devices train.
        told: Texts that each device may train on, of those that said so.
        parameters: Trained parameters.
    """
    # Of two devices, what one claims widens the other's bound so far and no further.
    least = median_low([texts for texts in told if texts > 0] or [0])
    texts = training.samples_of(math.ceil(min(median(told), MOST_APART * least) if told else 0))
    steps = min(math.ceil(texts / training.batch), MOST_STEPS) or UNTOLD_STEPS
    return WIDE_FACTOR * training.epochs * steps * _step_norm(training, parameters)


def _step_norm(training: Training, parameters: int) -> float:
    """How long an optimizer step well gets."""
    if training.optimizer == SGD:
        return training.lr * GRADIENT_NORM / (1.0 - training.momentum)
    return training.lr * math.sqrt(max(1, parameters))


def lack_of(
    adapter: AdapterState,
    moved: AdapterState,
    norms: Sequence[float],
    bound: float | None,
    length: Callable[[AdapterState], float] = norm_of,
    what: str = "its step",
) -> str:
    """Why a new adapter must not be handed out; empty where it may.

    Args:
        adapter: The new one.
        moved: What was added to the one before; of a step that is as long for any mean, the mean.
        norms: Medians of the rounds before.
        bound: The round's bound on an update's length, if it has one.
        length: How long an update is.
        what: What `moved` is called.
    """
    if not all(is_computable(tensor) for tensor in adapter.values()):
        return "the new adapter holds numbers that no device can compute with"
    usual, step = median(norms) if norms else 0.0, length(moved)
    usual = max(usual, (bound or 0.0) / NORM_FACTOR)
    if usual and step > STEP_FACTOR * usual:
        return f"{what} is {step / usual:.3g} times as long as updates of the rounds before"
    return ""


def is_computable(tensor: np.ndarray) -> bool:
    """Whether products of its numbers stay inside float32's range; no NaN, no infinity."""
    return not tensor.size or bool(np.abs(tensor).max() <= LARGEST)
