"""How an adapter does on test texts: counts of right answers, so that parts add up exactly."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tally:
    """Right answers among those asked."""

    right: int
    asked: int

    @property
    def share(self) -> float:
        """Right of asked, 0 to 1; nan where nothing was asked."""
        return self.right / self.asked if self.asked else math.nan

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.right + other.right, self.asked + other.asked)


@dataclass(frozen=True)
class Score:
    """Answers to test texts.

    Attributes:
        total: Tally of all texts asked.
        loss: Mean cross-entropy in nats; None where it is not finite.
        by_language: Tallies by language; empty where the set names none.
        by_client: Tallies by the owner of the test texts; clients without any are left out.
        balanced: Tally of all texts with the prior taken off; None where nobody counted.
    """

    total: Tally
    loss: float | None
    by_language: dict[str, Tally]
    by_client: dict[str, Tally]
    balanced: Tally | None = None

    @property
    def accuracy(self) -> float:
        """Share of the texts whose most probable label is the right one."""
        return self.total.share


def score(
    log_probabilities: np.ndarray,
    gold: np.ndarray,
    languages: Sequence[str],
    owned: Mapping[str, np.ndarray],
) -> Score:
    """Compare answers with the right ones; an answer that is NaN is wrong.

    The prior of a language is its texts' mean log-probability of each label, which knows no text's
    label. Taken off, it leaves how much more a text speaks for a label than texts do anyway; where
    labels are about equally frequent, that is the better answer of a lopsided adapter.

    Args:
        log_probabilities: Shape (texts, labels).
        gold: Index of each text's label, shape (texts,).
        languages: Each text's language, or empty strings.
        owned: Client -> indices of its test texts.

    Raises:
        ValueError: No texts.
    """
    if not len(gold):
        raise ValueError("no labelled test texts to evaluate on")
    is_right = log_probabilities.argmax(axis=1) == gold
    is_right &= np.isfinite(log_probabilities).all(axis=1)
    loss = -float(log_probabilities[np.arange(len(gold)), gold].mean())
    spoken = np.array(languages)
    by_language = {name: _tally(is_right[spoken == name]) for name in sorted(set(languages))}
    return Score(
        total=_tally(is_right),
        loss=loss if math.isfinite(loss) else None,
        by_language={name: tally for name, tally in by_language.items() if name},
        by_client={name: _tally(is_right[rows]) for name, rows in owned.items() if len(rows)},
        balanced=_balanced(log_probabilities, gold, spoken),
    )


def _balanced(log_probabilities: np.ndarray, gold: np.ndarray, spoken: np.ndarray) -> Tally:
    is_known = np.isfinite(log_probabilities).all(axis=1)
    scores = np.where(is_known[:, None], log_probabilities, 0.0).astype(np.float64)
    for language in sorted(set(spoken.tolist())):
        rows = (spoken == language) & is_known
        if rows.any():
            scores[rows] -= scores[rows].mean(axis=0)
    return _tally((scores.argmax(axis=1) == gold) & is_known)


def pooled(scores: Sequence[Score]) -> Score:
    """One score of several that asked different texts; counts add up, the loss is their mean's.

    Raises:
        ValueError: No scores.
    """
    if not scores:
        raise ValueError("no score to pool")
    losses = [(one.loss, one.total.asked) for one in scores]
    total = _sum([one.total for one in scores])
    is_known = all(loss is not None for loss, _ in losses)
    balanced = [one.balanced for one in scores if one.balanced is not None]
    weighted = sum((loss or 0.0) * asked for loss, asked in losses)
    return Score(
        total=total,
        loss=weighted / total.asked if is_known else None,
        by_language=_by_name([one.by_language for one in scores]),
        by_client=_by_name([one.by_client for one in scores]),
        balanced=_sum(balanced) if len(balanced) == len(scores) else None,
    )


def _by_name(parts: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    names = sorted({name for part in parts for name in part})
    return {name: _sum([part[name] for part in parts if name in part]) for name in names}


def _sum(tallies: Sequence[Tally]) -> Tally:
    return sum(tallies, Tally(0, 0))


def _tally(is_right: np.ndarray) -> Tally:
    return Tally(int(is_right.sum()), len(is_right))
