"""Output heads: label words at the mask, the whole vocabulary, or a trained classifier.

Sizes: B answers, H hidden, E width of the word table, L labels. The head sees one row per answer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from smidgen.edge_client.engine.torch_backend.layers import Linear, Norm, streamed_cross_entropy
from smidgen.edge_client.planning.layer_cost import word_rows
from smidgen.edge_client.tasks.kind import Loss
from smidgen.edge_client.texts.batches import Batch

Activation = Callable[[Tensor], Tensor]


class Head(Protocol):
    """A head: turns top states into the labels' logits."""

    def logits(self, h: Tensor) -> Tensor:
        """Logits, float32, (B, L), from the top states (B, H)."""

    def judge(self, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Each answer's cross-entropy in nats, and whether it is the likeliest; both (B,)."""

    def backward(self, h: Tensor, batch: Batch, scale: float) -> float:
        """The mean weighted loss in nats; `scale` times its gradient goes back through `h`."""


class Transform:
    """What a language-model head does to states before it compares them with words.

    Args:
        dense: First linear.
        activation: Behind it.
        norm: Behind that.
    """

    def __init__(self, dense: Linear, activation: Activation, norm: Norm) -> None:
        self._dense, self._activation, self._norm = dense, activation, norm

    def __call__(self, h: Tensor) -> Tensor:
        return self._norm(self._activation(self._dense(h)))  # (B, E)


class Classifier:
    """Linears behind each other: a trained classifier, or label words' rows of the word table.

    Args:
        parts: Weight and bias of each, from below.
        activation: Between them.
        loss: See `tasks.kind.HeadSpec`.
        transform: What comes before, if anything.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Tensor, Tensor]],
        activation: Activation,
        loss: Loss = "softmax",
        transform: Transform | None = None,
    ) -> None:
        self._parts, self._activation, self._loss = parts, activation, loss
        self._transform = transform

    def logits(self, h: Tensor) -> Tensor:
        *below, last = self._parts
        inner = (h if self._transform is None else self._transform(h)).float()
        for part in below:
            inner = self._activation(functional.linear(inner, *part))
        return functional.linear(inner, *last)

    def judge(self, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return judged(self.logits(h), labels, self._loss)

    def backward(self, h: Tensor, batch: Batch, scale: float) -> float:
        return _backward(self.logits(h), batch, scale, self._loss)


class Words:
    """The base's own language-model head, for all its words, whose logits never lie together.

    Args:
        transform: What comes before, if anything.
        rows: Gives the words' rows [start, end) in a type.
        bias: The words' biases.
    """

    def __init__(
        self,
        transform: Transform | None,
        rows: Callable[[int, int, torch.dtype], Tensor],
        bias: Tensor,
    ) -> None:
        self._transform, self._rows, self._bias = transform, rows, bias

    def logits(self, h: Tensor) -> Tensor:
        """Logits of all words at once, for whoever asks at few places; rows slice by slice."""
        words = self._behind(h).float()
        return torch.cat([logits for _, logits in self._slices(words)], dim=1)

    def _behind(self, h: Tensor) -> Tensor:
        return h if self._transform is None else self._transform(h)

    def judge(self, h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """As `Head` has it, slice by slice; of words that are equally likely the first counts."""
        words = self._behind(h).float()
        count = len(labels)
        total = words.new_full((count,), -torch.inf)
        highest, likeliest = total.clone(), torch.full_like(labels, -1)
        right = words.new_zeros(count)
        for start, logits in self._slices(words):
            total = torch.logaddexp(total, logits.logsumexp(dim=1))
            best, place = logits.max(dim=1)
            likeliest = torch.where(best > highest, place + start, likeliest)
            highest = torch.maximum(best, highest)
            is_here = (labels >= start) & (labels < start + logits.shape[1])
            right[is_here] = logits[is_here, labels[is_here] - start]
        return total - right, likeliest == labels

    def _slices(self, words: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The first word's number, and the logits, (B, slice), of as many as lie together."""
        step = word_rows(words.shape[1])
        for start in range(0, len(self._bias), step):
            end = min(start + step, len(self._bias))
            rows = self._rows(start, end, words.dtype)
            yield start, functional.linear(words, rows, self._bias[start:end])

    def backward(self, h: Tensor, batch: Batch, scale: float) -> float:
        """As `Head` has it, a block of words at a time."""
        assert batch.offsets is None, "words have no offsets"
        words = self._behind(h)
        weights = None if batch.weights is None else torch.from_numpy(batch.weights).to(h.device)
        labels = torch.from_numpy(batch.labels).to(h.device)
        losses, grad = streamed_cross_entropy(
            words.detach(),
            labels,
            lambda start, end: self._rows(start, end, words.dtype),
            len(self._bias),
            word_rows(words.shape[1]),
            self._bias,
            weights,
        )
        words.backward(grad * scale)
        return float(losses.mean())


def log_probabilities(logits: Tensor, loss: Loss) -> Tensor:
    """Of each label, (B, L): of one of them, or of each by itself."""
    if loss == "sigmoid":
        return functional.logsigmoid(logits)
    return torch.log_softmax(logits, dim=-1)


def _sigmoid_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels of each text's binary cross-entropies, (B,); unknown ones have none."""
    gold = labels.clamp(min=0).to(logits.dtype)
    losses = functional.binary_cross_entropy_with_logits(logits, gold, reduction="none")
    return (losses * (labels >= 0)).mean(dim=1)


def judged(logits: Tensor, labels: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Each answer's loss in nats, (B,), and whether it is right, all its labels if several."""
    if loss == "sigmoid":
        is_right = ((logits > 0) == (labels > 0)).all(dim=1)
        return _sigmoid_losses(logits.float(), labels), is_right
    losses = functional.cross_entropy(logits.float(), labels, reduction="none")
    return losses, logits.argmax(dim=1) == labels


def _backward(logits: Tensor, batch: Batch, scale: float, kind: Loss) -> float:
    labels = torch.from_numpy(batch.labels).to(logits.device)
    if batch.offsets is not None:
        logits = logits + torch.from_numpy(batch.offsets).to(logits.device)
    if kind == "softmax" and batch.weights is None:
        loss = functional.cross_entropy(logits, labels)
    else:
        losses = judged(logits, labels, kind)[0]
        if batch.weights is not None:
            losses = losses * torch.from_numpy(batch.weights).to(logits.device)
        loss = losses.mean()
    (loss * scale).backward()
    return float(loss.detach())
