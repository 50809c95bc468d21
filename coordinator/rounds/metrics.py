"""Run metrics: the score by which runs are compared, and pseudo-label thresholds for each class.

A run is scored, stopped early and rolled back by one share that its kind of task names
(`edge_client.tasks.scores.Measure`); `ratio_of` extracts it from a device's answer. Masked words
are scored by accuracy here and by perplexity on a device: a share is bounded and has an error, so
no liar moves the pooled share far; a device that compares adapters on its own texts trusts itself,
and a loss shows smaller differences.

`class_thresholds`: with one threshold for all classes, a federation soon trains on the easiest
class alone. So devices report histograms of confidence (`edge_client.wire.reports`), and each class
gets the threshold above which the population holds about the same number of texts. As in FlexMatch
(Zhang et al. 2021, arXiv:2110.08263) a hard class gets a lower threshold, down to a floor; as in
CReST (Wei et al. 2021, arXiv:2102.09559) an easy one gets a higher one. The curriculum says how
many of each class are held; beyond its first step the surest class must have as many above
`Labelling.confidence`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from coordinator.rounds.bounds import FEWEST, next_most_examples
from coordinator.rounds.events import Answered
from edge_client.tasks.counts import Entities
from edge_client.tasks.kind import kind_named, kind_of
from edge_client.tasks.registry import DEFAULT, names
from edge_client.tasks.scores import Measure
from edge_client.tasks.task import Task
from edge_client.wire.labelling import Labelling, share_of
from edge_client.wire.messages import Report
from edge_client.wire.reports import BINS, STARTS, Confidences, as_bin, bin_above


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
        share: k of this round, see `labelling.keep_in`.

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
