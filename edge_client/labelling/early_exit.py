"""Early exit for labelling: stops reading a text after some layers once its answer is clear.

At each exit, ridge regression maps hidden states to the full model's log-probabilities. The
required confidence is measured on the same texts, each by a map fitted without it
(leave-one-fold-out): at least 99 % of the answers that confident must equal those of all layers. An
exit with too few texts or too little agreement is not used.

    watch = EarlyExit(layers_to_try(frozen, layers))
    rows, went = watch.settle(engine.read(texts, watch), layers)  # in full, until enough is learnt
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

AGREEMENT = 0.99
FEWEST = 128  # texts read in full before anybody leaves early
FEWEST_CLEAR = 64  # of them, as clear as one must be
WORTH = 2 * FEWEST  # texts from which on it is worth it
FOLDS = 8
RIDGE = 1.0  # per text, relative to the states' mean square
MOST_EXITS = 3


@dataclass(frozen=True)
class Exit:
    """An exit after some layers.

    Attributes:
        weights: Map a state and a one to log-probabilities, (hidden + 1, labels).
        margin: How far the first label must be ahead of the second, in nats.
    """

    weights: np.ndarray
    margin: float

    def answers(self, states: np.ndarray) -> np.ndarray:
        """Log-probabilities, not normalized, (texts, labels)."""
        found: np.ndarray = _with_one(states) @ self.weights
        return found


def layers_to_try(frozen: int, layers: int) -> tuple[int, ...]:
    """The layers that have an exit behind them: at most three, evenly spread.

    Args:
        frozen: Lowest layers whose results are kept, see `adapters.frozen_layers`: no exit lies
            inside them.
        layers: The base's layers.
    """
    able = range(max(1, frozen), layers)
    places = np.linspace(0, len(able) - 1, min(MOST_EXITS, len(able)))
    return tuple(able[round(place)] for place in places)


def learnt_first(names: Sequence[str]) -> list[str]:
    """A queue with the texts to learn from in front: evenly spread over it, since the first ones
    of a telling order are not like the rest; few texts stay as they are.
    """
    if len(names) < WORTH:
        return list(names)
    places = {round(place) for place in np.linspace(0, len(names) - 1, FEWEST)}
    first = [names[place] for place in sorted(places)]
    return [*first, *(name for place, name in enumerate(names) if place not in places)]


class EarlyExit:
    """See `engine.watch.Watch`: learns from texts read in full, then lets clear ones go.

    Args:
        layers: After which there may be exits.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        self._seen: dict[int, dict[int, np.ndarray]] = {layer: {} for layer in layers}
        self._states: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}
        self._answers: list[np.ndarray] = []
        self._exits: dict[int, Exit] | None = None
        self._left: dict[int, tuple[int, np.ndarray]] = {}

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states are needed: all while learning, then those with an exit."""
        return self._layers if self._exits is None else tuple(self._exits)

    @property
    def is_learning(self) -> bool:
        return self._exits is None

    def see(self, layer: int, rows: Sequence[int], states: np.ndarray) -> np.ndarray:
        """Which texts are already clear; none until enough is learnt."""
        if self._exits is None:
            self._seen[layer].update(zip(rows, states.copy(), strict=True))
            return np.zeros(len(rows), bool)
        way_out = self._exits[layer]
        answers = way_out.answers(states)
        is_clear: np.ndarray = _margins(answers) >= way_out.margin
        for place in np.flatnonzero(is_clear).tolist():
            self._left[rows[place]] = (layer, answers[place])
        return is_clear

    def settle(self, rows: np.ndarray, layers: int) -> tuple[np.ndarray, list[int]]:
        """Take in what a call of `Engine.read` gave; log-probabilities, and how far each text went.

        Args:
            rows: Its log-probabilities, nan where a text left early.
            layers: The base's layers.
        """
        whole, went = rows.copy(), [layers] * len(rows)
        for row, (layer, answers) in self._left.items():
            whole[row] = answers - np.logaddexp.reduce(answers)
            went[row] = layer
        self._left.clear()
        if self._exits is None:
            self._learn(rows)
        return whole, went

    def _learn(self, rows: np.ndarray) -> None:
        self._answers += list(rows)
        for layer, seen in self._seen.items():
            self._states[layer] += [seen[row] for row in range(len(rows))]
            seen.clear()
        if len(self._answers) < FEWEST:
            return
        answers = np.stack(self._answers)
        tried = {layer: fitted(np.stack(found), answers) for layer, found in self._states.items()}
        self._exits = {layer: found for layer, found in tried.items() if found is not None}
        self._states.clear()


def fitted(states: np.ndarray, log_probabilities: np.ndarray) -> Exit | None:
    """An exit whose answers agree with those of all layers; None if none can be trusted.

    Args:
        states: (texts, hidden), 32 texts or more.
        log_probabilities: Answers of all layers, (texts, labels).
    """
    targets = log_probabilities - log_probabilities.mean(axis=1, keepdims=True)
    inputs, guessed = _with_one(states), np.empty_like(targets)
    folds = np.arange(len(states)) % FOLDS
    for fold in range(FOLDS):
        weights = _ridge(inputs[folds != fold], targets[folds != fold])
        guessed[folds == fold] = inputs[folds == fold] @ weights
    margins = _margins(guessed)
    is_same = guessed.argmax(axis=1) == targets.argmax(axis=1)
    order = np.argsort(-margins, kind="stable")
    counts = np.arange(1, len(order) + 1)
    is_good = (np.cumsum(is_same[order]) >= AGREEMENT * counts) & (counts >= FEWEST_CLEAR)
    if not is_good.any():
        return None
    last = int(np.flatnonzero(is_good).max())
    return Exit(_ridge(inputs, targets), float(margins[order[last]]))


def _with_one(states: np.ndarray) -> np.ndarray:
    return np.concatenate((states, np.ones((len(states), 1), states.dtype)), axis=1)


def _ridge(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Least squares with a penalty, by the smaller of the two systems; the mean is not penalized
    apart, since states carry a one.
    """
    x, y = inputs.astype(np.float64), targets.astype(np.float64)
    penalty = RIDGE * float((x * x).mean()) * len(x)
    gram = x @ x.T + penalty * np.eye(len(x))
    return x.T @ np.linalg.solve(gram, y)


def _margins(answers: np.ndarray) -> np.ndarray:
    """How far the first label is ahead of the second."""
    best = np.partition(answers, -2, axis=1)
    return best[:, -1] - best[:, -2]
