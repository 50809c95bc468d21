"""Scores of an adapter on test texts, as counts of right answers, so that parts add up exactly.

`score` is for texts with labels, `judged` for tagged texts and those with masked words.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.scoring import answers_to, evaluation_of
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.scores import Evaluation, TextAnswers
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.messages import Report


@dataclass(frozen=True)
class Tally:
    """Right answers among those asked for."""

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
    """Answers to test texts: one of each text; of other tasks each tagged word or masked token.

    Attributes:
        total: Tally of all answers.
        loss: Mean cross-entropy in nats; None where it is not finite.
        by_language: Tallies by language; empty where the set names none.
        by_client: Tallies by the owner of the test texts; clients without any are left out.
        balanced: Tally of all texts with the prior taken off; None where nobody counted.
        losses: Mean cross-entropy by language, nats; of tasks without labels of texts alone.
        entities: Entities found, by language (empty where none is named); of tagging alone.
        losses_by_client: Each one's own mean cross-entropy, nats; of one adapter, and of tasks
            without labels of texts alone.
        entities_by_client: Entities found in each one's texts; of one adapter, of tagging alone.
    """

    total: Tally
    loss: float | None
    by_language: dict[str, Tally]
    by_client: dict[str, Tally]
    balanced: Tally | None = None
    losses: dict[str, float] = field(default_factory=dict)
    entities: dict[str, Entities] = field(default_factory=dict)
    losses_by_client: dict[str, float] = field(default_factory=dict)
    entities_by_client: dict[str, Entities] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """Share of the answers whose most probable label, tag or word is the right one."""
        return self.total.share

    def without_clients(self) -> "Score":
        """The same, but for what each client's own texts gave."""
        return replace(self, by_client={}, losses_by_client={}, entities_by_client={})


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


def judged(engine: Engine, tests: Sequence[Example], owned: Mapping[str, np.ndarray]) -> Score:
    """Score the engine's adapter on tagged texts, or on texts some of whose words are masked.

    Each client's texts are asked by themselves, as its device asks them, so that the same words are
    masked whoever else is asked.

    Args:
        engine: Of a task without labels of texts.
        tests: The texts that are asked.
        owned: Client -> indices of its own among them.

    Raises:
        ValueError: No texts.
        TrainingError: The loss is not finite.
    """
    whose = {int(row): name for name, mine in owned.items() for row in mine}
    groups: dict[str, list[Example]] = {}
    for row, text in enumerate(tests):
        groups.setdefault(whose.get(row, ""), []).append(text)
    scores = [_of_client(engine, name, texts) for name, texts in sorted(groups.items())]
    return replace(
        pooled(scores),
        losses_by_client={name: x for one in scores for name, x in one.losses_by_client.items()},
        entities_by_client={
            name: x for one in scores for name, x in one.entities_by_client.items()
        },
    )


def _of_client(engine: Engine, client: str, texts: Sequence[Example]) -> Score:
    """Of all of a client's texts at once, told apart by language afterwards."""
    task, answers = engine.encoder.task, answers_to(engine, texts)
    whole = evaluation_of(task, answers)
    parts: dict[str, list[TextAnswers]] = {}
    for text, one in zip(texts, answers, strict=True):
        parts.setdefault(text.language, []).append(one)
    found = {language: evaluation_of(task, own) for language, own in sorted(parts.items())}
    spoken = {language: one for language, one in found.items() if language}
    return Score(
        total=_tally_of(whole),
        loss=whole.loss,
        by_language={language: _tally_of(one) for language, one in spoken.items()},
        by_client={client: _tally_of(whole)} if client else {},
        losses={language: one.loss for language, one in spoken.items()},
        entities={language: one.entities for language, one in found.items() if one.entities},
        losses_by_client={client: whole.loss} if client else {},
        entities_by_client={client: whole.entities} if client and whole.entities else {},
    )


def _tally_of(found: Evaluation) -> Tally:
    return Tally(round(found.accuracy * found.num_examples), found.num_examples)


def report_of(work_id: str, found: Score, name: str) -> Report:
    """What a client tells of its own test texts; of none where it holds none."""
    tally = found.by_client.get(name)
    if tally is None:
        return Report(work_id, "done")
    return Report(
        work_id,
        "done",
        num_examples=tally.asked,
        loss=found.losses_by_client.get(name),
        accuracy=tally.share,
        entities=found.entities_by_client.get(name),
    )


def pooled(scores: Sequence[Score]) -> Score:
    """One score of several that asked different texts; counts add up, the loss is their mean's.

    Where clients tell of adapters of their own nobody asks for the loss or entities of each.

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
        losses=_mean_losses(scores),
        entities=_all_entities(scores),
    )


def _mean_losses(scores: Sequence[Score]) -> dict[str, float]:
    """By language, weighted by answers."""
    sums: dict[str, tuple[float, int]] = {}
    for one in scores:
        for name, loss in one.losses.items():
            before, asked = sums.get(name, (0.0, 0))
            here = one.by_language[name].asked
            sums[name] = before + loss * here, asked + here
    return {name: loss / asked for name, (loss, asked) in sorted(sums.items())}


def _all_entities(scores: Sequence[Score]) -> dict[str, Entities]:
    parts: dict[str, list[Entities]] = {}
    for one in scores:
        for name, found in one.entities.items():
            parts.setdefault(name, []).append(found)
    return {name: together(found) for name, found in sorted(parts.items())}


def together(parts: Sequence[Entities]) -> Entities:
    """Counts of several texts' entities, of the same types, added up.

    Raises:
        ValueError: No parts.
    """
    if not parts:
        raise ValueError("no entities to add up")

    def by_type(name: str) -> tuple[int, ...]:
        columns = zip(*(getattr(one, name) for one in parts), strict=True)
        return tuple(map(sum, columns))

    return Entities(
        by_type("there"),
        by_type("found"),
        by_type("strict"),
        sum(one.typed for one in parts),
        sum(one.partial_halves for one in parts),
    )


def _by_name(parts: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    names = sorted({name for part in parts for name in part})
    return {name: _sum([part[name] for part in parts if name in part]) for name in names}


def _sum(tallies: Sequence[Tally]) -> Tally:
    return sum(tallies, Tally(0, 0))


def _tally(is_right: np.ndarray) -> Tally:
    return Tally(int(is_right.sum()), len(is_right))
