"""Score by which runs are compared, its sampling error, and pseudo-label thresholds by class.

A run is scored, stopped early and rolled back by one share that its kind of task names
(`smidgen.edge_client.tasks.scores.Measure`); `ratio_of` extracts it from a device's answer. Masked
words are scored by accuracy here and by perplexity on a device: a share is bounded and has an
error, so no liar moves the pooled share far; a device that compares adapters on its own texts
trusts itself, and a loss shows smaller differences.

`class_thresholds`: with one threshold for all classes, a federation soon trains on the easiest
class alone. So devices report histograms of confidence (`smidgen.edge_client.wire.reports`), and
each class gets the threshold above which the population holds about the same number of texts. As in
FlexMatch (Zhang et al. 2021, arXiv:2110.08263) a hard class gets a lower threshold, down to a
floor; as in CReST (Wei et al. 2021, arXiv:2102.09559) an easy one gets a higher one. The curriculum
says how many of each class are held; beyond its first step the surest class must have as many above
`Labelling.confidence`.

For every kind of task a score is a ratio of two sums over devices (`ratio_of`), so one set
of rules scores, stops early and rolls back: accuracy of labels and of masked words; for tagging the
F1 of entities whose words and type are right, 2 right / (gold + predicted).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from smidgen.coordinator.rounds.bounds import FEWEST, next_most_examples
from smidgen.coordinator.rounds.events import Answered, StepOpened
from smidgen.edge_client.tasks.counts import Entities, EntityScores
from smidgen.edge_client.tasks.counts import pooled as pooled_counts
from smidgen.edge_client.tasks.kind import kind_named, kind_of
from smidgen.edge_client.tasks.scores import Measure
from smidgen.edge_client.tasks.task import DEFAULT, Task, names
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.reports import BINS, STARTS, Confidences, as_bin, bin_above
from smidgen.edge_client.wire.training import Labelling, share_of


def measures_of(kinds: Iterable[str]) -> list[Measure]:
    """Those of runs that stand in one table, each kind's once, in a fixed order."""
    there = set(kinds) or {DEFAULT}
    return [kind_named(name).measure for name in names() if name in there]


def heads_of(measures: Sequence[Measure]) -> str:
    """What a column of scores is called: `accuracy`, `F1`, or both where runs differ."""
    return " or ".join(dict.fromkeys(measure.word for measure in measures))


def ratio_of(answer: Answered) -> tuple[int, int]:
    """Right and asked of a device's evaluation, whose quotient is its own score.

    Of tagging those of F1, not of words: nearly all words are outside of any entity.
    """
    if answer.entities is not None:
        return ratio_of_entities(answer.entities)
    return answer.right or 0, answer.num_examples


def ratio_of_entities(entities: Entities) -> tuple[int, int]:
    """The two sides of strict F1 over all types: 2 right, and there + found."""
    return 2 * sum(entities.strict), sum(entities.there) + sum(entities.found)


def judged(answer: Answered, report: Report, task: Task) -> Answered:
    """An answer to an evaluation, with what the run goes by; as it is where no text was asked.

    Args:
        answer: As it is known so far.
        report: What the device said, checked (`admission.check_report`).
        task: The run's.
    """
    if report.accuracy is None:
        return answer
    loss = report.loss if kind_of(task).measure.hears_loss else None
    return replace(
        answer,
        right=round(report.accuracy * report.num_examples),
        mean_log_probabilities=report.mean_log_probabilities,
        entities=report.entities,
        loss=loss,
    )


def class_thresholds(
    told: Iterable[Confidences], labelling: Labelling, labels: Sequence[str], share: float
) -> tuple[float, ...]:
    """Least confidence of each class's pseudo-labels, for the whole population.

    Every class gets the same quota: `share` of all texts, divided by the classes; but what is more
    than `keep_first` of them must be backed by as many texts above `confidence` in the class that
    has most there. A class's threshold is the highest bin above which it has its quota; where it
    has fewer, `class_floor` (or its `confidence`, if that is lower still). With `class_floor`
    equal to `confidence` no class falls below `confidence`. Of three devices or more, one that
    tells of more texts than three median ones counts as three.

    Args:
        told: What each device said last.
        labelling: Confidences and floor.
        labels: The task's labels.
        share: k of this round, see `wire.training.keep_in`.

    Returns:
        One threshold per label, each the start of a bin; where nobody has told anything, each
        label's `confidence`.
    """
    least = [as_bin(labelling.least(label)) for label in labels]
    texts, total = 0, [[0] * BINS for _ in labels]
    for device in _bounded(list(told)):
        texts += device.texts
        for row, counts in zip(total, device.counts, strict=True):
            for index, count in enumerate(counts):
                row[index] += count
    if not texts:
        return tuple(least)
    sure = [sum(row[bin_above(one) :]) for row, one in zip(total, least, strict=True)]
    first, grown = (
        -(-share_of(part, texts) // len(labels)) for part in (labelling.keep_first, share)
    )
    quota = max(min(first, grown), min(grown, max(sure)))
    return tuple(
        _threshold(row, quota, min(as_bin(labelling.class_floor), one))
        for row, one in zip(total, least, strict=True)
    )


def _bounded(told: Sequence[Confidences]) -> Iterator[Confidences]:
    """What devices told, none of three or more counted for more texts than three median ones."""
    sizes = [max(one.texts, sum(map(sum, one.counts))) for one in told]
    held = [size for size in sizes if size]
    most = next_most_examples(held) if len(held) >= FEWEST else max(sizes, default=0)
    for one, size in zip(told, sizes, strict=True):
        if size <= most:
            yield one
        else:
            rows = (tuple(count * most // size for count in row) for row in one.counts)
            yield Confidences(one.texts * most // size, tuple(rows))


def _threshold(counts: Sequence[int], quota: int, floor: float) -> float:
    """The start of the highest bin from which on there are enough texts; the floor if none is."""
    above = 0
    for index in range(BINS - 1, -1, -1):
        above += counts[index]
        if above >= quota:
            return max(STARTS[index], floor)
    return floor


FAR = 0.15  # of all texts; an honest run's accuracy falls by less from one round to the next
FAR_NATS = 5.0  # a factor of 148 in the odds; devices that hold other labels do differ
SURE_OF_COLLAPSE = 3.0  # standard errors
MEDIANS_ERROR = math.sqrt(math.pi / 2.0)  # of normal numbers, over the mean's
SURE = 2.0  # standard errors; what is apart by more is by chance in about 1 of 20 cases


class Score(NamedTuple):
    """An evaluation over all texts of all devices that answered.

    Attributes:
        right: Answers that were right; of tagging twice the entities.
        texts: Answers asked for, of labels one of each text; of tagging the entities that are there
            and those that were found.
        error: Standard error of right / texts; 0 where no device and no text was left out, None
            where one device answered for several.
        median: The median device's share of right answers, of those that hold texts; None where not
            said. One device's word, however false, moves it little.
        loss: Mean cross-entropy in nats, of tagging and of masked words; else None.
        median_loss: The median device's loss; None where `loss` is.
        devices: How many were asked; 0 where not said.
    """

    right: int
    texts: int
    error: float | None = 0.0
    median: float | None = None
    loss: float | None = None
    median_loss: float | None = None
    devices: int = 0

    @property
    def is_of_few(self) -> bool:
        """Whether one device may have led it."""
        return 0 < self.devices < FEWEST

    @property
    def accuracy(self) -> float:
        """Right over texts, of tagging F1; there must be one."""
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
    """What an evaluation found, with the error that asking a cohort, or of each a share, implies.

    Of four devices or more it is a winsorized mean (`winsorized`): whatever ends a run, takes it
    back, chooses its adapter or opens its gate goes by this score. Devices that hold no texts are
    part of the cohort and of what it stands for. Where everybody was asked nothing was drawn: those
    that stay silent are no draw's error.

    Args:
        opened: The evaluation.
        done: Its answers, but for those that failed.
    """
    answers = list(done)
    said = bounded([ratio_of(one) if has_tests(one) else (0, 0) for one in answers])
    told, cut = winsorized(said)
    is_drawn = opened.population > len(opened.members)
    shares = [right / texts for right, texts in said if texts]
    score = pooled(told, opened.population if is_drawn else len(told))
    if score.error is not None:  # what is cut back is less far apart
        score = score._replace(error=score.error / (1.0 - cut))
    if opened.test_share < 1.0 and score.texts and score.error is not None:
        wider = 1.0 + cut * (MEDIANS_ERROR - 1.0)
        error = wider * math.sqrt((1.0 - opened.test_share) * _of_texts(score))
        score = score._replace(error=math.hypot(score.error, error))
    losses = [(one.loss, one.num_examples) for one in answers if one.loss is not None]
    return score._replace(
        median=median(shares) if shares else None,
        loss=mean_loss(losses),
        median_loss=median(loss for loss, _ in losses) if losses else None,
        devices=len(opened.members),
    )


def bounded(told: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Right and asked of each device, none counted for more than a few times the median's texts.

    The lower median: of two devices, what one claims is not its own bound. Both numbers of a device
    shrink alike, so its own score stays: a claim can be loud, not louder than a few devices.
    """
    most = next_most_examples([texts for _, texts in told if texts])
    return [(one * most / many, most) if many > most else (one, many) for one, many in told]


def winsorized(told: Sequence[tuple[float, int]]) -> tuple[list[tuple[float, int]], float]:
    """Right and asked of each device, the outer thirds' shares cut back to the middle third's.

    Tukey and McLaughlin 1963 (Sankhya A 25). Law: of four devices or more, whatever a third of
    them say, no share leaves the range of the others'; of fewer devices all stay as they are.

    Args:
        told: Right and asked of each device; 0 and 0 of one without texts.

    Returns:
        Those, and the share of devices that may have been cut back, 0 to 2/3.
    """
    shares = sorted(right / texts for right, texts in told if texts)
    count = len(shares)
    cut = count // 3 if count > FEWEST else 0
    if not cut:
        return list(told), 0.0
    low, high = shares[cut], shares[-1 - cut]
    kept = [(min(max(right, low * texts), high * texts), texts) for right, texts in told]
    return kept, 2 * cut / count


def entity_scores(told: Sequence[Entities]) -> EntityScores | None:
    """F1 over devices, in each way and of each type; None where nobody told of any entity.

    All counts of a device are multiplied by the share to which `bounded` brings the two of its
    strict F1: what it claims to be there and to find weighs no more than a few median devices', in
    each type and each way to be right, and its own F1 of each stays.
    """
    ratios = [ratio_of_entities(one) for one in told]
    kept = [many for _, many in bounded(ratios)]
    weighed = [
        (one, most / many) for one, (_, many), most in zip(told, ratios, kept, strict=True) if many
    ]
    return pooled_counts(weighed) if weighed else None


def mean_loss(told: Sequence[tuple[float, int]]) -> float | None:
    """Mean cross-entropy over devices' answers; None where nobody told of any.

    As of priors, a device counts for no more than a few median ones, and its word for no more than
    a few nats to either side of the median device's: a loss, unlike a share, has no end.

    Args:
        told: Of each device its mean, and over how many answers.
    """
    known = [(loss, many) for loss, many in told if many]
    weights = [many for _, many in bounded([(0.0, many) for _, many in known])]
    return _mean([loss for loss, _ in known], weights) if known else None


def prior_of(asked: Iterable[Answered]) -> tuple[float, ...]:
    """Mean log-probability of each label over all texts of devices that said theirs.

    A device counts for no more than a few median ones, and its word for no more than a few nats to
    either side of the median device's: labelling takes the prior off every text.
    """
    said = [(one.mean_log_probabilities, one.num_examples) for one in asked]
    rows = [(row, texts) for row, texts in said if row and texts]
    weights = [weight for _, weight in bounded([(0.0, texts) for _, texts in rows])]
    columns = zip(*(row for row, _ in rows), strict=True)
    return tuple(_mean(column, weights) for column in columns)


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    """A weighted mean; of three values or more none is far from the median."""
    near = _near_median(values) if len(values) >= FEWEST else values
    total = sum(value * weight for value, weight in zip(near, weights, strict=True))
    return total / sum(weights)


def _near_median(values: Sequence[float]) -> tuple[float, ...]:
    middle = median(values)
    return tuple(min(max(value, middle - FAR_NATS), middle + FAR_NATS) for value in values)


def is_collapsed(newer: Score, best: Score, chance: float = 0.0) -> bool:
    """Whether a score is so far below another that the adapter must have come to harm.

    Below by more than an honest run falls (half of what the best was better than guessing), by more
    than both errors explain (of the draw of devices, and of as few texts), and in the median device
    too, so that false reports of less than half of the devices do not make it so. And not where
    the median device's loss, if devices told it, is no worse: a head that was drawn finds entities
    by luck, one that begins to learn finds none at first, and fits the texts better all the same.
    Nor where one or two devices' word would stand against that of more.

    Args:
        newer: Of the newest adapter.
        best: Of the best one before.
        chance: Share that guessing answers right.
    """
    if newer.error is None or best.error is None or not newer.texts or not best.texts:
        return False
    if newer.is_of_few and not best.is_of_few:
        return False
    losses = newer.median_loss, best.median_loss
    if losses[0] is not None and losses[1] is not None and losses[0] <= losses[1]:
        return False
    error = math.hypot(*(_error(one) for one in (newer, best)))
    far = max(FAR, (best.accuracy - chance) / 2)
    if best.accuracy - newer.accuracy <= max(far, SURE_OF_COLLAPSE * error):
        return False
    return newer.median is None or best.median is None or best.median - newer.median > FAR


def better(known: Good | None, newer: Good) -> Good | None:
    """The better one of two adapters, of equals the newer; one without texts is none."""
    if not newer.score.texts or (known and not is_as_good(newer.score, known.score)):
        return known
    return newer


def is_as_good(newer: Score, older: Score) -> bool:
    """Whether a share is at least another; that of one or two devices never is one of more's."""
    if newer.is_of_few != older.is_of_few:
        return older.is_of_few
    return not is_below(newer, older)


def _error(score: Score) -> float:
    return math.hypot(score.error or 0.0, math.sqrt(_of_texts(score)))


def _of_texts(score: Score) -> float:
    """The variance of a share of as few texts, each drawn for itself."""
    return max(0.0, score.accuracy * (1.0 - score.accuracy) / score.texts)


def has_tests(answer: Answered) -> bool:
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
