"""Pseudo-labels: which unlabelled texts a device reads, and which of the answers it trains on.

AUG-FedPrompt (Cai et al. 2023, arXiv:2212.00192) keeps answers with a confidence of at least 90 %.
A small model's confidence does not match its accuracy, so answers are calibrated first: the prior
(how often the model gives each label anyway) is subtracted, and a temperature applied.

    sure = calibrated(engine.predict(texts), prior, temperature)
    held = chosen(readings, thresholds, limit)

Whether an unlabelled text is readable takes its tokens, so this is computed once, by the first work
that asks, and again only after the texts were reloaded from disk. Texts to train or evaluate on are
drawn by the run's seed, the device and the round alone: neither the order of devices nor earlier
rounds matter, and repeated work draws the same texts.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import derive_seed
from smidgen.edge_client.wire.training import Training


@dataclass(frozen=True)
class OwnTexts:
    """A device's texts as its engine reads them.

    Attributes:
        data: The texts by role: labelled, unlabelled, to test on.
        unknown_share: Share of a text's tokens that the base does not know, see `Encoder`.
    """

    data: ClientData
    unknown_share: Callable[[Example], float]

    @cached_property
    def readable(self) -> dict[str, Example]:
        return readable(self.data.unlabelled, self.data.labelled, self.unknown_share)

    def to_label(self, revoked: Collection[str]) -> dict[str, Example]:
        """The texts that may get a pseudo-label, by id, in order.

        Args:
            revoked: Ids of texts whose pseudo-label was taken back by hand; they get none.
        """
        return {name: text for name, text in self.readable.items() if name not in revoked}

    def not_read(self, revoked: Collection[str]) -> str:
        """How many of the unlabelled texts are never read, and why; empty if all are."""
        names = [text_id(example) for example in self.data.unlabelled]
        once, gold = set(names), {text_id(example) for example in self.data.labelled}
        taken_back = (once - gold) & set(revoked)
        unknown = len(once - gold - taken_back) - len(self.to_label(revoked))
        counts = {
            "there more than once": len(names) - len(once),
            "labelled by hand": len(once & gold),
            "whose label was taken back": len(taken_back),
            "mostly of tokens the base does not know": unknown,
        }
        return ", ".join(f"{count} {why}" for why, count in counts.items() if count)


def sampled(texts: int, training: Training, seed: int) -> list[int]:
    """Rows to train on: all, or so many of them as the training says; ascending.

    Drawn uniformly and with replacement, so a row may come several times, and a device that holds
    fewer texts than it is to draw repeats them. Laws: `training.samples_of(texts)` rows of any
    texts at all; equal seeds give equal rows.

    Args:
        texts: How many the device has to train on.
        training: How it trains.
        seed: Of this device and this round.
    """
    if not training.least_samples or not texts:
        return list(range(texts))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "samples")))
    rows: list[int] = generator.integers(texts, size=training.samples_of(texts)).tolist()
    return sorted(rows)


def capped(labels: Sequence[str | None], gold: int, most: int, seed: int) -> list[int]:
    """Rows to train on: of each label all, or as many as may be, drawn; ascending.

    Gold labels win: of a label nothing else is drawn while there is a gold one left.

    Args:
        labels: The texts' labels, gold ones first.
        gold: How many these are.
        most: Most texts of one label; 0 for no cap.
        seed: Of this device and this round.
    """
    if not most:
        return list(range(len(labels)))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "drawn")))
    counts: Counter[str | None] = Counter()
    kept = []
    order = generator.permutation(len(labels)).tolist()
    for row in sorted(order, key=lambda row: row >= gold):  # stable
        if counts[labels[row]] < most:
            counts[labels[row]] += 1
            kept.append(row)
    return sorted(kept)


def evaluated(texts: int, share: float, seed: int) -> list[int]:
    """Rows to evaluate on: all, or a share of them, drawn without replacement; ascending.

    Laws: `share_of(texts, share)` rows, none twice; equal seeds give equal rows.

    Args:
        texts: How many test texts the device keeps.
        share: Above 0 to 1.
        seed: Of this device and this round.
    """
    count = share_of(texts, share)
    if count == texts:
        return list(range(texts))
    generator = np.random.Generator(np.random.PCG64(derive_seed(seed, "tests")))
    rows: list[int] = generator.permutation(texts)[:count].tolist()
    return sorted(rows)


def tests_of(work: Work, device_id: str, texts: int) -> list[int]:
    """Rows of a device's test texts that an evaluation asks for; see `evaluated`."""
    seed = derive_seed(work.seed, "evaluate", device_id, work.round_index)
    return evaluated(texts, work.test_share, seed)


def share_of(texts: int, share: float) -> int:
    """A share of a device's texts, rounded; one at least of those who have any."""
    return min(texts, max(1, round(share * texts)))


FEWEST = 8  # labelled texts below which no temperature is fitted
COLDEST, HOTTEST = 0.1, 10.0
MOST_UNKNOWN = 0.5  # share of tokens the base does not know, above which a text is not read


@dataclass(frozen=True)
class Reading:
    """What a model said of one unlabelled text; a pseudo-label, if it is sure enough.

    Attributes:
        label: The most probable one.
        confidence: Its calibrated probability.
        round_index: The round before which the text was read.
        adapter_sha256: The adapter it was read with.
        layers: Layers it went through; fewer than all if it was clear earlier.
        agreeing: Readings in a row up to this one that gave this label and were sure; 0 if this one
            was not sure.
        by: The label whose threshold it must reach, where that is another: of a text that may have
            several the least sure one. Empty: `label`.
    """

    label: str
    confidence: float
    round_index: int
    adapter_sha256: str
    layers: int
    agreeing: int = 0
    by: str = ""

    @property
    def threshold_label(self) -> str:
        """The label whose threshold it must reach, and that it counts for."""
        return self.by or self.label


def text_id(example: Example) -> str:
    """A text's name in the book: equal texts, but for spaces around and within, have one."""
    text = "\x1f".join(" ".join(part.split()) for part in (example.text, example.text_b))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def readable(
    unlabelled: Iterable[Example],
    gold: Iterable[Example],
    unknown_share: Callable[[Example], float],
) -> dict[str, Example]:
    """The texts that a model can label, by id, in order.

    Every text comes once. Left out are texts that have a gold label, and texts mostly of tokens
    the base does not know, such as another script's: whatever it says of them is not an answer.
    """
    known, found = {text_id(example) for example in gold}, {}
    for example in unlabelled:
        name = text_id(example)
        if name not in known and unknown_share(example) <= MOST_UNKNOWN:
            known.add(name)
            found[name] = example
    return found


def chosen(
    readings: Mapping[str, Reading],
    thresholds: Mapping[str, float],
    limit: int,
    class_share: float = 1.0,
) -> dict[str, Reading]:
    """The pseudo-labels: the surest readings that are sure enough.

    Where no class is capped, a smaller limit gives a part of what a larger one gives, and so does
    a higher threshold. The order of the readings does not matter.

    Args:
        readings: The readings, by text id.
        thresholds: Least confidence by label.
        limit: Most pseudo-labels.
        class_share: Most of `limit` that one class may take, rounded up.
    """
    most, found, counts = math.ceil(class_share * limit), dict[str, Reading](), dict[str, int]()
    for name, reading in sorted(readings.items(), key=lambda item: (-item[1].confidence, item[0])):
        if len(found) == limit:
            break
        taken = counts.get(reading.threshold_label, 0)
        if taken < most and is_sure(reading, thresholds):
            found[name], counts[reading.threshold_label] = reading, taken + 1
    return found


def is_sure(reading: Reading, thresholds: Mapping[str, float]) -> bool:
    """Whether a reading is sure enough of its label; of a label without a threshold none is."""
    return reading.confidence >= thresholds.get(reading.threshold_label, math.inf)


def agreed(
    new: Mapping[str, Reading], before: Mapping[str, Reading], thresholds: Mapping[str, float]
) -> dict[str, Reading]:
    """New readings that know how many in a row have been sure of their label.

    Args:
        new: Readings, by text id.
        before: The last readings of these and other texts.
        thresholds: Least confidence by label.
    """
    found = {}
    for name, reading in new.items():
        last = before.get(name)
        earlier = last.agreeing if last is not None and last.label == reading.label else 0
        count = earlier + 1 if is_sure(reading, thresholds) else 0
        found[name] = replace(reading, agreeing=count)
    return found


def queue(
    order: Sequence[str],
    readings: Mapping[str, Reading],
    thresholds: Mapping[str, float],
    stands: Callable[[Reading], bool],
    adapter_sha256: str,
    read_share: float = 1.0,
    known_first: bool = False,
) -> list[str]:
    """The texts to read now, the most informative first.

    Texts never read come before those that were read, or after them; of these neither come those
    whose label is sure by a reading that stands, nor what this very adapter has read.

    Args:
        order: All ids, see `smidgen.edge_client.labelling.label_work`.
        readings: What was read before.
        thresholds: Least confidence by label.
        stands: Whether a reading is taken for what the text would be told now.
        adapter_sha256: The adapter to read with.
        read_share: Most of all texts that are read, rounded up.
        known_first: Whether those that were read come first.
    """
    unread, stale = [], []
    for name in order:
        reading = readings.get(name)
        if reading is None:
            unread.append(name)
            continue
        is_done = reading.adapter_sha256 == adapter_sha256
        if not is_done and not (is_sure(reading, thresholds) and stands(reading)):
            stale.append(name)
    wanted = [*stale, *unread] if known_first else [*unread, *stale]
    return wanted[: math.ceil(read_share * len(order))]


def affordable(
    compute_share: float, spent_labelling: int, spent_training: int, planned_training: int
) -> float:
    """Layer-forwards that labelling may still take, so that it stays below its share of all.

    Args:
        compute_share: Largest share of the device's layer-forwards, above 0; 1 for no limit.
        spent_labelling: Layer-forwards of labelling so far.
        spent_training: Layer-forwards of training so far.
        planned_training: Layer-forwards of training in the round that follows.
    """
    if compute_share >= 1.0:
        return math.inf
    allowed = compute_share / (1.0 - compute_share) * (spent_training + planned_training)
    return max(0.0, allowed - spent_labelling)


def calibrated(
    log_probabilities: np.ndarray, prior: Sequence[float] = (), temperature: float = 1.0
) -> np.ndarray:
    """Label probabilities, (texts, labels), with the prior and the temperature applied.

    Args:
        log_probabilities: The model's answers, (texts, labels).
        prior: Mean log-probability of each label over many texts, which is taken off: what is left
            says how much more a text speaks for a label than texts do anyway. Empty: nothing is.
        temperature: Above 1 makes answers less sure, below 1 surer.
    """
    scores = log_probabilities.astype(np.float64)
    if len(prior):
        scores = scores - np.asarray(prior)
    scores = scores / temperature
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: np.ndarray = odds / odds.sum(axis=1, keepdims=True)
    return found


def temperature_of(
    log_probabilities: np.ndarray, gold: np.ndarray, prior: Sequence[float] = ()
) -> float:
    """The temperature at which confidence on labelled texts matches accuracy.

    Guo et al. 2017 (arXiv:1706.04599): the least cross-entropy, which is convex in 1 / temperature.
    Where there are fewer than 8 texts, or all of one label, it is 1: they would say nothing.

    Args:
        log_probabilities: The model's answers, (texts, labels).
        gold: Index of each text's label, (texts,).
        prior: See `calibrated`.

    Returns:
        A temperature between 0.1 and 10.
    """
    if len(gold) < FEWEST or len(set(gold.tolist())) < 2:
        return 1.0
    rows = np.arange(len(gold))

    def loss(log_temperature: float) -> float:
        answers = calibrated(log_probabilities, prior, math.exp(log_temperature))
        return -float(np.log(np.maximum(answers[rows, gold], 1e-300)).mean())

    low, high, golden = math.log(COLDEST), math.log(HOTTEST), (math.sqrt(5) - 1) / 2
    for _ in range(40):
        first, second = high - golden * (high - low), low + golden * (high - low)
        if loss(first) <= loss(second):
            high = second
        else:
            low = first
    return math.exp((low + high) / 2)
