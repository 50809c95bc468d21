"""Output heads, forward and backward: label words at the mask, whole vocabulary, or a classifier.

Sizes: B answers, H hidden, E width of the word table, L labels. The head sees one row per answer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from smidgen.edge_client.bases.quantization import Stored
from smidgen.edge_client.engine.frozen_base import FrozenBase
from smidgen.edge_client.engine.onnx_backend import graphs
from smidgen.edge_client.engine.onnx_backend.operators import (
    Activation,
    FrozenMatrix,
    Gradients,
    Linear,
    Norm,
)
from smidgen.edge_client.engine.onnx_backend.workspace import Bench
from smidgen.edge_client.tasks.kind import Loss


class Head(Protocol):
    """A head: turns top states into the labels' logits."""

    def forward(self, top: np.ndarray) -> np.ndarray:
        """Logits (B, L) from the top states (B, H)."""

    def judge(self, top: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each answer's cross-entropy in nats, and whether it is the likeliest; both (B,)."""

    def backward(
        self,
        top: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        share: float,
        into: Gradients,
        offsets: np.ndarray | None = None,
    ) -> tuple[float, np.ndarray]:
        """The mean weighted loss in nats, and `share` times its gradient at `top`, (B, H).

        Offsets are added to the labels' logits.
        """


class Transform:
    """What a language-model head does to states before it compares them with words.

    Args:
        dense: First linear.
        activation: Behind it.
        norm: Behind that.
        width: E.
    """

    def __init__(self, dense: Linear, activation: Activation, norm: Norm, width: int) -> None:
        self._dense, self._activation, self._norm, self._width = dense, activation, norm, width

    def forward(self, top: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Behind the linear, the activation and the norm, each (B, E)."""
        inner = self._dense.forward(top, np.empty((len(top), self._width), np.float32))
        active = self._activation.forward(inner, np.empty_like(inner))
        return inner, active, self._norm.forward(active, np.empty_like(active))

    def backward(
        self, inner: np.ndarray, active: np.ndarray, g: np.ndarray, top: np.ndarray
    ) -> np.ndarray:
        """The gradient at the top states, from that behind the norm."""
        g = self._activation.backward(inner, self._norm.backward(active, g, g))
        return self._dense.backward(g, np.empty_like(top))


class Words:
    """The base's own language-model head, for all its words, whose logits never lie together.

    Args:
        transform: What comes before, if anything.
        frozen: Has the words' rows and biases.
        bench: Where work is done.
    """

    def __init__(self, transform: Transform | None, frozen: FrozenBase, bench: Bench) -> None:
        self._transform, self._frozen, self._bench = transform, frozen, bench
        self._bias = frozen.vocabulary_bias()

    def forward(self, top: np.ndarray) -> np.ndarray:
        """Logits of all words at once, for whoever asks at few places."""
        slices = self._slices(self._behind(top)[-1])
        return np.concatenate([logits.copy() for _, _, logits in slices], axis=1)

    def _behind(self, top: np.ndarray) -> tuple[np.ndarray, ...]:
        """What is compared with the words, (B, E), behind what the transform makes on the way."""
        return (top,) if self._transform is None else self._transform.forward(top)

    def judge(self, top: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `Head` has it, slice by slice; of words that are equally likely the first counts."""
        totals = np.full(len(top), -np.inf, np.float32)  # logarithms of sums of exponentials
        most, likeliest = totals.copy(), np.full(len(top), -1)
        right = np.zeros(len(top), np.float32)
        for start, rows, logits in self._slices(self._behind(top)[-1]):
            highest = logits.max(axis=1)
            likeliest = np.where(highest > most, start + logits.argmax(axis=1), likeliest)
            most = np.maximum(most, highest)
            sums = np.exp(logits - highest[:, None]).sum(axis=1)
            with np.errstate(invalid="ignore"):  # where training has diverged, the loss says so
                totals = np.logaddexp(totals, highest + np.log(sums))
            answers, places = _inside(labels, start, len(rows))
            right[answers] = logits[answers, places]
        return totals - right, likeliest == labels

    def backward(
        self,
        top: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        share: float,
        into: Gradients,
        offsets: np.ndarray | None = None,
    ) -> tuple[float, np.ndarray]:
        """The mean weighted loss in nats, and `share` times its gradient at `top`.

        In one pass over the words: what is summed so far, of exponentials and of words by them,
        is scaled down whenever a higher logit comes (Milakov & Gimelshein 2018, arXiv:1805.02867).
        """
        assert offsets is None, "words have no offsets"
        *way, states = self._behind(top)
        losses, g = self._swept(states, labels)
        scale = np.full(len(labels), share / len(labels), np.float32)
        if weights is not None:
            losses, scale = losses * weights, scale * weights
        g *= scale[:, None]
        if self._transform is not None:
            g = self._transform.backward(way[0], way[1], g, top)
        return float(losses.mean()), g

    def _swept(self, states: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each answer's cross-entropy in nats, (B,), and its gradient at the states, (B, E)."""
        most, sums = np.full(len(states), -np.inf, np.float32), np.zeros(len(states), np.float32)
        right, g = np.zeros_like(sums), np.zeros_like(states)
        with np.errstate(invalid="ignore"):  # where training has diverged, the loss says so
            for start, rows, logits in self._slices(states):
                answers, places = _inside(labels, start, len(rows))
                right[answers] = logits[answers, places]
                highest = np.maximum(most, logits.max(axis=1))
                shrunk, most = np.exp(most - highest), highest
                logits -= most[:, None]
                weights = np.exp(logits, out=logits)
                sums = sums * shrunk + weights.sum(axis=1)
                g *= shrunk[:, None]
                g += linear_back(self._bench, weights, rows)
            g /= sums[:, None]
            losses = most + np.log(sums) - right
        for part, rows in self._frozen.answer_rows(labels):
            g[part] -= rows
        return losses, g

    def _slices(self, states: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """The first word's number, rows and logits of as many words as lie together.

        Each slice lies where the one before did: rows where layers' matrices are made dense.
        """
        for start, rows in self._frozen.vocabulary_rows(self._dense):
            bias = self._bias[start : start + len(rows)]
            logits = self._bench.rooms.take("logits", (len(states), len(rows)))
            yield start, rows, linear(self._bench, states, rows, bias, logits)

    def _dense(self, words: Stored) -> np.ndarray:
        return FrozenMatrix(words, self._bench).dense()


def _inside(labels: np.ndarray, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which answers are of these words, and which of the words they are."""
    answers = np.flatnonzero((labels >= start) & (labels < start + count))
    return answers, labels[answers] - start


class Classifier:
    """Linears behind each other: a trained classifier, or label words' rows of the word table.

    Args:
        parts: Weight and bias of each, from below; one or two.
        names: The trained linears' names in the adapter; none of label words.
        activation: Between them.
        bench: Where work is done.
        loss: See `tasks.kind.HeadSpec`.
        transform: What comes before, if anything.
    """

    def __init__(
        self,
        parts: Sequence[tuple[np.ndarray, np.ndarray]],
        names: Sequence[str],
        activation: Activation,
        bench: Bench,
        loss: Loss = "softmax",
        transform: Transform | None = None,
    ) -> None:
        self._parts, self._names, self._losses = parts, names, LOSSES[loss]
        self._activation, self._bench, self._transform = activation, bench, transform

    def forward(self, top: np.ndarray) -> np.ndarray:
        return self._forward(top)[-1]

    def _forward(self, top: np.ndarray) -> tuple[np.ndarray, ...]:
        """What the transform gives, in three, and all linears: the last are the logits, (B, L)."""
        found = (top,) if self._transform is None else self._transform.forward(top)
        if len(self._parts) > 1:
            inner = linear(self._bench, found[-1], *self._parts[0])
            found = (*found, inner, self._activation.forward(inner, np.empty_like(inner)))
        return (*found, linear(self._bench, found[-1], *self._parts[-1]))

    def judge(self, top: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._losses.judged(self.forward(top), labels)

    def backward(
        self,
        top: np.ndarray,
        labels: np.ndarray,
        weights: np.ndarray | None,
        share: float,
        into: Gradients,
        offsets: np.ndarray | None = None,
    ) -> tuple[float, np.ndarray]:
        """The mean weighted loss in nats, and `share` times its gradient at `top`."""
        *found, logits = self._forward(top)
        loss, g = self._losses.mean(logits, labels, weights, offsets)
        g = self._back(-1, found[-1], g * np.float32(share), into)  # (B, H)
        if len(self._parts) > 1:
            *found, inner, _ = found
            g = self._back(0, found[-1], self._activation.backward(inner, g), into)
        if self._transform is not None:
            g = self._transform.backward(found[0], found[1], g, top)
        return loss, g

    def _back(self, which: int, x: np.ndarray, g: np.ndarray, into: Gradients) -> np.ndarray:
        """The gradient at a linear's input, `x`, from that at its result; its own into `into`."""
        if self._names:
            name, out = self._names[which], np.empty((g.shape[1], x.shape[1]), np.float32)
            inputs = {"x": x, "g": g}
            self._bench.runtime.run("weight", graphs.weight_gradient, inputs, {"weight_g": out})
            into.add(f"{name}.weight", out)
            into.add_bias(name, g)
        return linear_back(self._bench, g, self._parts[which][0])


def linear(
    bench: Bench,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """x W.T + bias with a float32 weight: (N, columns) -> (N, rows), into `out` if given."""
    out = np.empty((len(x), len(weight)), np.float32) if out is None else out
    inputs = {"x": x, "weight": weight, "bias": bias}
    key = ("linear", False, False, 0.0)
    bench.runtime.run(key, lambda: graphs.linear(*key[1:]), inputs, {"y": out})
    return out


def linear_back(bench: Bench, g: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """g W with a float32 weight: (N, rows) -> (N, columns)."""
    out = np.empty((len(g), weight.shape[1]), np.float32)
    key = ("linear_back", False, False, 0.0)
    inputs = {"g": g, "weight": weight}
    bench.runtime.run(key, lambda: graphs.linear_back(*key[1:]), inputs, {"dx": out})
    return out


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of each row, float32, (B, L)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    rows: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return rows


def judged(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's cross-entropy in nats, and whether its label is the likeliest; both (B,)."""
    losses = -log_softmax(logits)[np.arange(len(labels)), labels]
    return losses, logits.argmax(axis=1) == labels


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    offsets: np.ndarray | None = None,
) -> tuple[float, np.ndarray]:
    """Mean of the texts' weighted cross-entropies in nats, and its gradient at the logits, (B, L).

    The mean is over the texts, not over their weights; without weights every one has 1. Offsets are
    added to the logits.
    """
    logits = logits if offsets is None else logits + offsets
    rows, found = np.arange(len(labels)), log_softmax(logits)  # (B,), (B, L)
    losses, g = -found[rows, labels], np.exp(found)  # (B,), (B, L)
    g[rows, labels] -= 1
    if weights is not None:
        losses, g = losses * weights, g * weights[:, None]
    return float(losses.mean()), g / np.float32(len(labels))


def log_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Log-probability of each label by itself, float32, (B, L)."""
    rows: np.ndarray = -np.logaddexp(np.float32(0.0), -logits)
    return rows


def sigmoid_judged(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each text's mean binary cross-entropy in nats, and whether all its labels are right; (B,)."""
    is_right = ((logits > 0) == (labels > 0)).all(axis=1)
    return _binary_losses(logits, labels).mean(axis=1), is_right


def binary_cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    offsets: np.ndarray | None = None,
) -> tuple[float, np.ndarray]:
    """Mean over texts and labels of weighted binary cross-entropies, and its gradient, (B, L).

    As torch's `BCEWithLogitsLoss`. Labels are 1 or 0; -1, which is unknown, has no loss.
    """
    assert offsets is None, "labels by themselves have no offsets"
    losses = _binary_losses(logits, labels).mean(axis=1)
    g = np.exp(log_sigmoid(logits)) - np.maximum(labels, 0)
    g *= labels >= 0
    if weights is not None:
        losses, g = losses * weights, g * weights[:, None]
    return float(losses.mean()), (g / np.float32(labels.size)).astype(np.float32)


def _binary_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    signs = np.where(labels > 0, np.float32(1), np.float32(-1))
    losses: np.ndarray = -log_sigmoid(logits * signs) * (labels >= 0)
    return losses


class Losses(NamedTuple):
    """How logits become log-probabilities and losses."""

    log_probabilities: Callable[[np.ndarray], np.ndarray]
    judged: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    mean: Callable[..., tuple[float, np.ndarray]]


LOSSES: dict[Loss, Losses] = {
    "softmax": Losses(log_softmax, judged, cross_entropy),
    "sigmoid": Losses(log_sigmoid, sigmoid_judged, binary_cross_entropy),
}
