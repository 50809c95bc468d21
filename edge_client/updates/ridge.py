"""Ridge regression on a frozen base's states, solved at the coordinator: a second reading.

The first round of an adapter such as `lora:8+ridge` trains nothing. Each device sends, once, the
mean of z z^T over its labelled texts, where z is the mean token state that the base alone has after
its last layer, scaled to length 1, then a one, then the text's label as a one among zeros. The
weighted mean of all devices is what one place would compute of all texts, however they are dealt.
With m_c, the mean x of a label's texts, and S, the scatter of all texts about the mean of their own
label, both of which it holds, and C labels,

    W = (n S + n/C sum_c m_c m_c^T + k I)^-1 n/C (m_1 .. m_C)

is ridge regression (Hoerl and Kennard 1970), in federated learning AFL (He et al. 2025,
arXiv:2405.16240), as if each label had as many texts; where each has, it is plain ridge regression.
Length 1 takes the place of scaling by statistics of texts and bounds what one text says. In later
rounds everything else is trained and W rests, not sent again.

An answer is the adapter's log-probabilities z plus W x (`smidgen.edge_client.engine.linear`).

The last round trains nothing either, for rounds of few devices leave z biased towards the labels of
the last ones. Each device sends the means of p z^T and p over a few of its texts, where p is the
softmax of W x. The ratio of the two sums is the adapter's mean answer to the texts of each label;
the mean of these over labels, which is the bias, comes off the intercepts of W. How frequent a
label is does not matter, as it would if the mean over all texts came off.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from smidgen.edge_client.codecs import Shapes
from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.updates.forms import MEASURED, RIDGE
from smidgen.edge_client.updates.step import (
    Contribution,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from smidgen.edge_client.wire.tensors import AdapterState, Update

WEIGHT, MOMENTS, PRIOR = "ridge.weight", "ridge.moments", "ridge.prior"
WIDEST = 1100  # numbers of a state and its label: 2.4 MB of moments
PENALTY = 1.0  # k, on the scale of sums over texts of length 1
# Nats that a score of 1 is worth. On development texts of four data sets, 16 to 256 labels, 10 to
# 25 did equally well.
NATS = 16.0
FEW = 16  # of a device's texts that give its prior; 20 of all devices did as well as 1,500
SLACK, SLACK_OF_SUM = 1e-6, 1e-4  # of float32; of sums in fixed point, under secure aggregation


def features(states: np.ndarray) -> np.ndarray:
    """x of some texts, (texts, width + 1), float64: their states at length 1, then a one.

    Args:
        states: Mean token states, (texts, width).
    """
    wide = states.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.hstack([wide / np.maximum(lengths, 1e-12), np.ones((len(wide), 1))])


def moments_of(states: np.ndarray, labels: Sequence[int], count: int) -> np.ndarray:
    """Means of z z^T over some texts, float32: the upper triangle, row by row.

    Args:
        states: Mean token states, (texts, width), of one text or more.
        labels: Index of each text's label.
        count: How many labels there are.
    """
    z = np.hstack([features(states), np.eye(count)[list(labels)]])
    mean = z.T @ z / len(z)
    found: np.ndarray = mean[_upper(len(mean))].astype(np.float32)
    return found


def solved(moments: np.ndarray, texts: float, shape: tuple[int, ...]) -> np.ndarray:
    """W, float32, in nats; zeros for labels of which there is no text.

    Args:
        moments: As `moments_of` has them, of all texts.
        texts: n, how many those are.
        shape: Of W, (labels, width + 1).
    """
    whole, columns = _whole(moments, shape), shape[1]
    shares, sums = np.diag(whole)[columns:], whole[:columns, columns:]
    there = texts * shares > 0.5
    means = np.where(there, sums / np.where(there, shares, 1.0), 0.0)
    # Rounding, or a lie within it, must not take the penalty away.
    values, vectors = np.linalg.eigh(whole[:columns, :columns] - means @ sums.T)
    scatter = (vectors * np.maximum(values, 0.0)) @ vectors.T
    each = texts / max(int(there.sum()), 1)
    xx = texts * scatter + each * means @ means.T + PENALTY * np.eye(columns)
    found: np.ndarray = np.linalg.solve(xx, each * means).T * NATS
    return found.astype(np.float32)


def prior_of(scores: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Means of p z^T and of p over some texts, float32, (labels, labels + 1).

    Args:
        scores: W x, (texts, labels), of one text or more.
        logs: z, (texts, labels); counted in `NATS`, and as -1 where it is less.
    """
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    z = np.clip(logs.astype(np.float64) / NATS, -1.0, 0.0)
    found: np.ndarray = p.T @ np.hstack([z, np.ones((len(z), 1))]) / len(z)
    return found.astype(np.float32)


def calibrated(weight: np.ndarray, prior: np.ndarray, texts: float) -> np.ndarray:
    """W with the adapter's bias off its intercepts, float32.

    Args:
        weight: W, (labels, width + 1).
        prior: As `prior_of` has it, of all texts.
        texts: How many those are; labels of which there seems to be none do not count.
    """
    shares, found = prior[:, -1:], weight.copy()
    there = texts * shares[:, 0] > 0.5
    if not there.any():
        return found
    bias = NATS * (prior[there, :-1] / shares[there]).mean(axis=0)
    found[:, -1] -= bias - bias.mean()
    return found


def bytes_of_moments(shapes: Shapes) -> int:
    """How many bytes a device's moments have, by the shapes of the run's adapter."""
    size = sum(shapes[WEIGHT])
    return 2 * size * (size + 1)


def lack_of(moments: np.ndarray, shape: tuple[int, ...], slack: float) -> str:
    """Why these are moments of no texts, in words; empty where they may be.

    What is a mean of z z^T has no negative eigenvalue and is bounded by its trace. Without that one
    device turns the labels of all others around, and with it it weighs what it says.

    Args:
        moments: As `moments_of` has them.
        shape: Of W.
        slack: How far off they may be.
    """
    whole, columns = _whole(moments, shape), shape[1]
    shares = np.diag(whole)[columns:]
    is_fit = (
        abs(np.trace(whole[: columns - 1, : columns - 1]) - 1.0) <= 10 * slack
        and abs(whole[columns - 1, columns - 1] - 1.0) <= 10 * slack
        and abs(shares.sum() - 1.0) <= 10 * slack
        and bool(np.allclose(whole[columns:, columns:], np.diag(shares), atol=slack))
        and bool(np.allclose(whole[columns - 1, columns:], shares, atol=slack))
        and np.linalg.eigvalsh(whole)[0] >= -slack
    )
    return "" if is_fit else "ridge: moments of texts of length 1 with one label each expected"


def lack_of_prior(prior: np.ndarray, slack: float) -> str:
    """Why this is a prior of no texts, in words; empty where it may be.

    Args:
        prior: As `prior_of` has it.
        slack: How far off it may be.
    """
    shares = prior[:, -1:]
    is_fit = (
        abs(shares.sum() - 1.0) <= 10 * slack
        and bool((shares >= -slack).all())
        and bool((prior[:, :-1] <= slack).all())
        and bool((prior[:, :-1] >= -shares - slack).all())
    )
    return "" if is_fit else "ridge: log-probabilities, and shares of 1 in all, expected"


def _whole(moments: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The symmetric matrix behind an upper triangle, float64."""
    size = sum(shape)
    whole = np.zeros((size, size))
    whole[_upper(size)] = moments
    return whole + np.triu(whole, 1).T


def _upper(size: int) -> np.ndarray:
    """Which entries of a matrix are in its upper triangle, diagonal included."""
    return np.triu(np.ones((size, size), bool))


class NoSolution(Failed):
    """A sum of moments that no texts have, which nobody could check before."""


class Ridge(UpdateStep):
    """See the module.

    Args:
        what: `moments` in the round that sends them, `prior` in the one that sends that.
    """

    name = RIDGE

    def __init__(self, what: str = "") -> None:
        super().__init__()
        known = not what or f"{RIDGE}:{what}" in MEASURED
        demand(known, "ridge: `moments`, `prior`, or nothing")
        self._sent = f"{RIDGE}.{what}" if what else ""
        self._mean: tuple[np.ndarray, float] | None = None

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """Without W, which rests."""
        moved = {name: one for name, one in update.delta.items() if name != WEIGHT}
        return replace(update, delta=moved)

    def shapes(self, shapes: Shapes, round_index: int) -> Shapes:
        if self._sent == MOMENTS:
            return {MOMENTS: (bytes_of_moments(shapes) // 4,)}
        if self._sent:
            labels = shapes[WEIGHT][0]
            return {PRIOR: (labels, labels + 1)}
        return {name: one for name, one in shapes.items() if name != WEIGHT}

    def check(self, update: Update, context: ServerContext) -> None:
        if self._sent:
            lack = self._lack(update.delta[self._sent], context, SLACK)
            demand(not lack, lack, WrongInput)

    def _lack(self, sent: np.ndarray, context: ServerContext, slack: float) -> str:
        if self._sent == PRIOR:
            return lack_of_prior(sent, slack)
        return lack_of(sent, context.shapes[WEIGHT], slack)

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """The same cohort; what is measured is added up, and with it no tensor moves.

        Raises:
            NoSolution: A sum of secure aggregation is of no texts.
        """
        zeros = {name: np.zeros(shape, np.float32) for name, shape in context.shapes.items()}
        if not self._sent:
            for one in cohort:
                yield replace(one, delta=one.delta | {WEIGHT: zeros[WEIGHT]})
            return
        total, texts = np.zeros(0), 0.0
        for one in cohort:
            found = one.delta[self._sent].astype(np.float64)
            if not one.device_id and (lack := self._lack(found, context, SLACK_OF_SUM)):
                raise NoSolution(lack)
            most = FEW if self._sent == PRIOR else context.most_examples
            is_sum = not one.device_id  # of which each was limited before it was masked
            weight = (one.weight if is_sum else min(one.weight, most or one.weight)) * one.share
            total = total + weight * found if total.size else weight * found
            texts += weight
            yield replace(one, delta=zeros)
        self._mean = (total / texts, texts) if texts else None

    def settled(self, adapter: AdapterState, context: ServerContext) -> AdapterState:
        """With W of the moments, or with its intercepts of the prior."""
        known, is_prior = adapter[WEIGHT], self._sent == PRIOR
        if self._mean is None or (is_prior and not known.any()):
            return adapter
        mean, texts = self._mean
        found = calibrated(known, mean, texts) if is_prior else solved(mean, texts, known.shape)
        return adapter | {WEIGHT: found}
