"""One threshold a class, such that all classes are held about equally often."""

from collections.abc import Iterable, Sequence

from edge_client.wire.confidences import BINS, STARTS, Confidences, as_bin, bin_above
from edge_client.wire.labelling import Labelling, share_of


def class_thresholds(
    told: Iterable[Confidences], labelling: Labelling, labels: Sequence[str], share: float
) -> tuple[float, ...]:
    """Least confidence of each class's pseudo-labels, for the whole population.

    Every class gets the same quota: `share` of all texts, divided by the classes; but what is more
    than `keep_first` of them must be backed by as many texts above `confidence` in the class that
    has most there. A class's threshold is the highest bin above which it has its quota; where it
    has not as many, `class_floor` (or its `confidence`, if that is lower still). With `class_floor`
    equal to `confidence` no class falls below `confidence`.

    Args:
        told: What each device said last.
        labelling: Confidences and floor.
        labels: The task's labels.
        share: k of this round, see `labelling.keep_in`.

    Returns:
        One threshold a label, each the start of a bin; nobody having told anything, each label's
        `confidence`.
    """
    least = [as_bin(labelling.least(label)) for label in labels]
    texts, total = 0, [[0] * BINS for _ in labels]
    for device in told:
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


def _threshold(counts: Sequence[int], quota: int, floor: float) -> float:
    """The start of the highest bin from which on there are as many; the floor if none is."""
    above = 0
    for index in range(BINS - 1, -1, -1):
        above += counts[index]
        if above >= quota:
            return max(STARTS[index], floor)
    return floor
