"""How right an adapter is over the devices' own test texts, and how far a cohort may be off."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from coordinator.rounds.bounds import FEWEST, next_most_examples
from coordinator.rounds.events import Answered, StepOpened

FAR = 0.15  # of all texts; an honest run's accuracy falls by less from one round to the next
FAR_NATS = 5.0  # a factor of 148 in the odds; devices that hold other labels do differ
SURE_OF_COLLAPSE = 3.0  # standard errors
SURE = 2.0  # standard errors; what is apart by more is by chance in about 1 of 20 cases


class Score(NamedTuple):
    """An evaluation over all texts of all devices that answered.

    Attributes:
        right: Texts answered right.
        texts: Texts asked.
        error: Standard error of right / texts; 0 where nobody was left out, None where one device
            answered for several.
        median: The median device's share of right texts, of those that hold some; None where not
            said. One device's word, however false, moves it little.
    """

    right: int
    texts: int
    error: float | None = 0.0
    median: float | None = None

    @property
    def accuracy(self) -> float:
        """Right over texts; there must be one."""
        return self.right / self.texts


@dataclass(frozen=True)
class Good:
    """An adapter that was evaluated and that a run may go back to.

    Attributes:
        round_index: The round after which it stood.
        adapter_sha256: The adapter.
        score: How right it was.
        prior: Mean log-probability of each label then.
    """

    round_index: int
    adapter_sha256: str
    score: Score
    prior: tuple[float, ...] = ()


def scored(opened: StepOpened, done: Iterable[Answered]) -> Score:
    """What an evaluation found, with the error that asking a cohort implies.

    Devices that hold no texts are part of the cohort and of what it stands for. Where everybody was
    asked nothing was drawn: those that stay silent are no draw's error.

    Args:
        opened: The evaluation.
        done: Its answers, but for those that failed.
    """
    told = bounded(
        [(one.right or 0, one.num_examples) if has_tests(one) else (0, 0) for one in done]
    )
    is_drawn = opened.population > len(opened.members)
    shares = [right / texts for right, texts in told if texts]
    score = pooled(told, opened.population if is_drawn else len(told))
    return score._replace(median=median(shares) if shares else None)


def bounded(told: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Right and asked of each device, none counted for more than a few times the median's texts.

    The lower median: of two devices, what one claims is not its own bound.
    """
    most = next_most_examples([texts for _, texts in told if texts])
    return [(one * most / many, most) if many > most else (one, many) for one, many in told]


def prior_of(asked: Iterable[Answered]) -> tuple[float, ...]:
    """Mean log-probability of each label over all texts of devices that said theirs.

    A device counts for no more than a few median ones, and its word for no more than a few nats to
    either side of the median device's: labelling takes the prior off every text.
    """
    said = [(one.mean_log_probabilities, one.num_examples) for one in asked]
    rows = [(row, texts) for row, texts in said if row and texts]
    weighed = bounded([(0.0, texts) for _, texts in rows])
    told = [(row, weight) for (row, _), (_, weight) in zip(rows, weighed, strict=True)]
    weights, total = [weight for _, weight in told], sum(weight for _, weight in told)
    columns = list(zip(*(row for row, _ in told), strict=True))
    if len(told) >= FEWEST:
        columns = [_near_median(column) for column in columns]
    return tuple(
        sum(value * weight for value, weight in zip(column, weights, strict=True)) / total
        for column in columns
    )


def _near_median(values: Sequence[float]) -> tuple[float, ...]:
    middle = median(values)
    return tuple(min(max(value, middle - FAR_NATS), middle + FAR_NATS) for value in values)


def is_collapsed(newer: Score, best: Score, chance: float = 0.0) -> bool:
    """Whether a score is so far below another that the adapter must have come to harm.

    Below by more than an honest run falls (half of what the best was better than guessing), by more
    than both errors explain (of the draw of devices, and of as few texts), and in the median device
    too, so that false reports of less than half of the devices do not make it so.

    Args:
        newer: Of the newest adapter.
        best: Of the best one before.
        chance: Share of texts that guessing answers right.
    """
    if newer.error is None or best.error is None or not newer.texts or not best.texts:
        return False
    error = math.hypot(*(_error(one) for one in (newer, best)))
    far = max(FAR, (best.accuracy - chance) / 2)
    if best.accuracy - newer.accuracy <= max(far, SURE_OF_COLLAPSE * error):
        return False
    return newer.median is None or best.median is None or best.median - newer.median > FAR


def _error(score: Score) -> float:
    texts = score.accuracy * (1.0 - score.accuracy) / score.texts
    return math.hypot(score.error or 0.0, math.sqrt(max(0.0, texts)))


def has_tests(answer: Answered) -> bool:
    """Whether an answer to an evaluation tells of texts."""
    return answer.right is not None and answer.num_examples > 0


def pooled(told: Sequence[tuple[float, int]], population: int) -> Score:
    """Pool what devices answered: the ratio of two sums over a cohort drawn from a population.

    With r_i right of m_i texts on device i, n devices that answered and N that were there, the
    accuracy is p = sum(r_i) / sum(m_i), and its standard error that of a ratio over a simple random
    sample of clusters (Cochran 1977, Sampling Techniques, section 3.12):

        sqrt((1 - n / N) * n / (n - 1) * sum((r_i - p m_i)^2)) / sum(m_i)

    It says how far p may be from the accuracy over the texts of all N devices, not over texts that
    nobody holds. Devices are the unit: texts of one device resemble each other, so counting texts
    as if they were drawn one by one would promise too much. Assumed is that who answered was drawn
    by chance: that neither the draw nor being silent hangs on how right a device is. It is a little
    too small where n is small (below about 10), as every such ratio is.

    The laws: the order of devices does not matter; all of them (n = N) give an error of 0, and so
    do devices that are all equally right; where N is far larger than n, k copies of every device
    give an error smaller by about the square root of k.

    Args:
        told: Right and asked of each device that answered; 0 and 0 of one without texts.
        population: N, devices that they stand for.
    """
    right, texts, n = sum(one for one, _ in told), sum(many for _, many in told), len(told)
    score = Score(round(right), texts)
    if n >= population or not texts:
        return score
    if n == 1:
        return score._replace(error=None)
    p = right / texts
    # The exact sum: neither order nor rounding of the parts shows in it.
    spread = math.fsum((one - p * many) ** 2 for one, many in told)
    return score._replace(error=math.sqrt((1 - n / population) * n / (n - 1) * spread) / texts)


def is_below(one: Score, other: Score) -> bool:
    """Whether a share is lower than another; in whole numbers, so exact."""
    return one.right * other.texts < other.right * one.texts


def is_worse(newer: Score, older: Score) -> bool:
    """Whether a score is lower than another by more than their errors explain.

    Where both asked everybody, any difference is one. An error that nobody can tell explains all.
    """
    if newer.error is None or older.error is None:
        return False
    return is_below(newer, older) and older.accuracy - newer.accuracy > SURE * math.hypot(
        newer.error, older.error
    )
