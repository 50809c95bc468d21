"""A device's labelling work: its own texts, most informative first, until enough are clear.

Texts are read a few at a time, and every answer is recorded before the next ones, so interrupted
work resumes where it was. Answers are recorded, not labels: which become pseudo-labels is decided
at training time, by the thresholds that come with that work (`pseudo_texts`).

The order is vote-k (Su et al. 2022, arXiv:2209.01975, section 3.1, its fast form), which FeS runs
over a second model's embeddings; here the base's own early hidden states are compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from smidgen.edge_client.adapters.spec import AdapterSpec, frozen_layers, parse_adapter
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.labelling.early_exit import WORTH, EarlyExit, layers_to_try, learnt_first
from smidgen.edge_client.labelling.label_journal import (
    LabelJournal,
    Notes,
    OpenedJournal,
    Read,
    moved,
    sketch_of,
)
from smidgen.edge_client.labelling.pseudo_labels import FEWEST as FEWEST_LABELLED
from smidgen.edge_client.labelling.pseudo_labels import (
    OwnTexts,
    Reading,
    affordable,
    agreed,
    calibrated,
    chosen,
    queue,
    temperature_of,
)
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.reports import as_bin, counted
from smidgen.edge_client.wire.training import Labelling, keep_of

NEIGHBOURS = 150  # of the paper
DISCOUNT = 10.0  # rho: a text's vote counts a tenth for each neighbour that is chosen already
BLOCK = 512  # rows compared at once, at most
BLOCK_BYTES = 8 << 20  # of what is found out about them


def vote_k(features: np.ndarray) -> list[int]:
    """Order texts: every next one has the most votes of texts that nobody stands for yet.

    Every text votes for its nearest neighbours by cosine, 150 of them or a quarter of the texts if
    they are few. Ties go to the earlier text; equal features give an equal order.

    Args:
        features: (texts, hidden).

    Returns:
        Every index once.
    """
    texts = len(features)
    near = neighbours_of(features, min(NEIGHBOURS, max(1, texts // 4), max(0, texts - 1)))
    votes = np.bincount(near.ravel(), minlength=texts).astype(np.float64)
    (voters, starts), chosen_near = _voters(near), np.zeros(texts, np.int64)
    left, order = np.ones(texts, bool), []
    for _ in range(texts):
        best = int(np.where(left, votes, -np.inf).argmax())
        order.append(best)
        left[best] = False
        # Each of its voters has one more neighbour that is chosen.
        for voter in voters[starts[best] : starts[best + 1]].tolist():
            before = DISCOUNT ** -chosen_near[voter].astype(float)
            votes[near[voter].astype(np.intp)] += before / DISCOUNT - before
            chosen_near[voter] += 1
        own = DISCOUNT ** -chosen_near[best].astype(float)
        votes[near[best]] -= own  # a chosen text no longer votes
        near[best] = best
    return order


def neighbours_of(features: np.ndarray, count: int) -> np.ndarray:
    """Indices of each text's nearest others, int32, (texts, count), in no order."""
    unit = _directions(features)
    texts = len(unit)
    found = np.empty((texts, count), np.int32)
    together = _together(texts)
    room = np.empty((min(together, texts), texts), np.float32)  # of all blocks, one by one
    for start in range(0, texts, together):
        some = unit[start : start + together]
        apart = np.matmul(some, unit.T, out=room[: len(some)])
        np.negative(apart, out=apart)
        for row, one in enumerate(apart, start):
            one[row] = np.inf  # no text votes for itself
            found[row] = _smallest(one, count)
    return found


def _together(texts: int) -> int:
    """Rows that are compared with all texts at once: a power of two where it is not all of them."""
    room = max(1, BLOCK_BYTES // (4 * max(1, texts)))
    return min(BLOCK, 1 << (room.bit_length() - 1))


def _directions(features: np.ndarray) -> np.ndarray:
    """Features of length 1, float32; those without a direction stay zeros."""
    unit = np.empty(features.shape, np.float32)
    for start in range(0, len(unit), BLOCK):
        some = features[start : start + BLOCK]
        norms = np.linalg.norm(some, axis=1, keepdims=True)
        unit[start : start + BLOCK] = some / np.where(norms > 0, norms, 1.0)
    return unit


def _smallest(row: np.ndarray, count: int) -> np.ndarray:
    """Indices of the smallest numbers; of equal ones the first, and what is none comes last."""
    last = np.partition(row, count - 1)[count - 1]
    if np.isnan(last):
        return np.argsort(row, kind="stable")[:count]
    below = np.flatnonzero(row < last)
    return np.concatenate((below, np.flatnonzero(row == last)[: count - len(below)]))


def _voters(near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The texts that vote for each text, one text after the other, and where each one's begin."""
    texts = len(near)
    starts = np.zeros(texts + 1, np.int64)
    np.cumsum(np.bincount(near.ravel(), minlength=texts), out=starts[1:])
    voters, free = np.empty(near.size, np.int32), starts[:-1].copy()
    for voter, elected in enumerate(near):
        voters[free[elected]] = voter
        free[elected] += 1
    return voters, starts


@dataclass(frozen=True)
class LabelTerms:
    """A piece of work of a run that labels, and what follows from it.

    Attributes:
        work: The work.
        spec: The kind of adapter.
        labelling: The run's settings.
        thresholds: Least confidence of a pseudo-label, by label.
        exits_early: Whether a text is read no further than needed.
    """

    work: Work
    spec: AdapterSpec
    labelling: Labelling
    thresholds: Mapping[str, float]
    exits_early: bool

    def limit(self, texts: int) -> int:
        """Most pseudo-labels that a device with so many unlabelled texts may hold."""
        return keep_of(self.labelling, self.work.keep, texts)


def terms_of(work: Work) -> LabelTerms:
    """The terms of a piece of work of a run that labels.

    Thresholds are those the work brings, or else the run's settings. An ensemble's patterns are
    always read in full, and so are texts that may have several labels or get a second reading.
    """
    said, labels, spec = work.labelling, work.task.labels, parse_adapter(work.adapter_spec)
    assert said is not None, "a run that labels sends its settings with all its work"
    least = work.thresholds or [as_bin(said.least(label)) for label in labels]
    is_one_read = not (work.task.ensemble or spec.ridge) and kind_of(work.task).is_one_label
    return LabelTerms(
        work,
        spec,
        said,
        dict(zip(labels, least, strict=True)),
        exits_early=said.early_exit and is_one_read,
    )


CHUNK = 8  # texts between two looks at whether there are enough


def label(engine: Engine, own: OwnTexts, terms: LabelTerms, notes: Notes) -> Report:
    """Do label work with the engine's adapter; its report, costs not filled in.

    The same work on the same notes gives the same labels, whether it was cut short or not; its
    examples are all texts that were read, before a cut, too.

    Args:
        engine: Holds the adapter to label with.
        own: The device's texts.
        terms: How many labels, how sure, at what price.
        notes: What is known of the texts; what is read now is added.
    """
    said, texts = terms.labelling, own.to_label(notes.book.revoked)
    limit = terms.limit(len(texts))
    opened = _opened(engine, texts, terms, notes)
    held = terms.work.training.samples_of(len(own.data.labelled) + limit)
    planned = training_forwards(engine, terms, held)
    stands = _standing(notes.book, said, opened.sketch)
    # The base alone reads a text, too, for ridge regression.
    passes = len(engine.encoder.views()) * (1 + terms.spec.ridge)
    reader, price = None, engine.layers * passes  # per text, at most
    while notes.book.done < len(opened.queue):
        if said.stops_when_found and _has_found(notes, stands, terms, limit):
            break
        left = affordable(
            said.compute_share, notes.book.labelling_forwards, notes.book.training_forwards, planned
        )
        most = int(min(left, CHUNK * price)) // price
        names = opened.queue[notes.book.done :][:most]
        if not names:
            break
        if reader is None:
            reader = _Reader(engine, own.data, terms, len(opened.queue))
            done = [texts[name] for name in opened.queue[: notes.book.done]]
            reader.learn_again(done, notes.book.reads)
        found = reader.read([texts[name] for name in names], names)
        readings = agreed(found, notes.book.readings, terms.thresholds)
        notes.add(Read(readings, passes * _layers_through(engine, terms, readings, notes)))
    return _report(notes, texts, terms, len(own.data.labelled))


def pseudo_texts(
    own: OwnTexts, terms: LabelTerms | None, notes: Notes
) -> tuple[list[Example], list[float]]:
    """The device's pseudo-labelled texts to train on, with their weights in the loss.

    None where the run does not label.
    """
    if terms is None or not notes.book.readings:
        return [], []
    texts, said = own.to_label(notes.book.revoked), terms.labelling
    readings = _of(notes.book.readings, texts)
    held = chosen(readings, terms.thresholds, terms.limit(len(texts)), said.class_share)
    found = [replace(texts[name], label=held[name].label) for name in texts if name in held]
    return found, [said.weight] * len(found)


def _of(readings: Mapping[str, Reading], texts: Mapping[str, Example]) -> dict[str, Reading]:
    """The readings whose texts still exist."""
    return {name: reading for name, reading in readings.items() if name in texts}


def _standing(
    book: LabelJournal, said: Labelling, sketch: tuple[float, ...]
) -> Callable[[Reading], bool]:
    """Which readings are taken for what texts would be told now.

    Those of adapters that have hardly moved since, and those that are settled.

    Args:
        book: What is known of the texts.
        said: From when on an adapter has moved, and a label is settled.
        sketch: The adapter to label with.
    """
    known = book.sketches.items()
    near = {name for name, row in known if moved(row, sketch) <= said.hardly_moved}

    def stands(reading: Reading) -> bool:
        is_settled = 0 < said.settled_after <= reading.agreeing
        return is_settled or reading.adapter_sha256 in near

    return stands


def _has_found(
    notes: Notes, stands: Callable[[Reading], bool], terms: LabelTerms, limit: int
) -> bool:
    """Whether enough labels are sure by readings that stand."""
    known = {name: one for name, one in notes.book.readings.items() if stands(one)}
    return len(chosen(known, terms.thresholds, limit, terms.labelling.class_share)) >= limit


def _opened(
    engine: Engine, texts: Mapping[str, Example], terms: LabelTerms, notes: Notes
) -> OpenedJournal:
    """This work's queue: as it was when the work was first begun, unless texts of it are gone."""
    book, said, known = notes.book, terms.labelling, tuple[str, ...]()
    if book.opened is not None:
        if book.opened.work_id == terms.work.work_id and texts.keys() >= set(book.opened.queue):
            return book.opened
        known = book.opened.order
    order = known if set(known) == set(texts) else _ordered(engine, texts)
    sketch = sketch_of(engine.adapter())
    adapter, least = terms.work.adapter_sha256, terms.thresholds
    stands = _standing(book, said, sketch)
    names = queue(order, book.readings, least, stands, adapter, said.read_share, said.known_first)
    if terms.exits_early:
        names = learnt_first(names)
    opened = OpenedJournal(terms.work.work_id, adapter, tuple(names), tuple(order), sketch)
    notes.add(opened)
    return opened


def _ordered(engine: Engine, texts: Mapping[str, Example]) -> tuple[str, ...]:
    """Vote-k over mean word embeddings: the base's own, and no layer is computed for them."""
    names = list(texts)
    if len(names) < 2:
        return tuple(names)
    return tuple(names[row] for row in vote_k(engine.features(list(texts.values()), 0)))


def _layers_through(
    engine: Engine, terms: LabelTerms, readings: Mapping[str, Reading], notes: Notes
) -> int:
    """Layer-forwards of one pass, by rule: what a cache holds after a kill must change no label.

    The frozen layers of a text that was read before cost nothing.
    """
    frozen = frozen_layers(terms.spec, engine.layers)
    known = sum(name in notes.book.readings for name in readings)
    return sum(reading.layers for reading in readings.values()) - frozen * known


def training_forwards(engine: Engine, terms: LabelTerms, num_examples: int) -> int:
    """Layer-forwards of a training, by rule: the same in every plan, whatever a cache holds."""
    trained = engine.layers - frozen_layers(terms.spec, engine.layers)
    passes = 3 * trained if terms.spec.is_in_layers else engine.layers
    return terms.work.training.epochs * num_examples * passes


class _Reader:
    """Reads texts; the first ones in full, to learn where others may leave."""

    def __init__(self, engine: Engine, data: ClientData, terms: LabelTerms, texts: int) -> None:
        self._engine, self._terms = engine, terms
        frozen = frozen_layers(terms.spec, engine.layers)
        is_worth = terms.exits_early and texts >= WORTH
        ways = layers_to_try(frozen, engine.layers) if is_worth else ()
        self._exits = EarlyExit(ways) if ways else None
        self._temperature = self._fitted(data)

    def _fitted(self, data: ClientData) -> float:
        """Fit the temperature, preferably on texts kept aside rather than trained on."""
        aside = data.test if len(data.test) >= FEWEST_LABELLED else data.labelled
        if not kind_of(self._engine.encoder.task).is_one_label:
            return 1.0
        gold = np.array(self._engine.encoder.labels(aside))
        if len(gold) < FEWEST_LABELLED or len(set(gold.tolist())) < 2:
            return 1.0
        return temperature_of(self._engine.predict(aside), gold, self._terms.work.prior)

    def learn_again(self, examples: Sequence[Example], reads: Sequence[int]) -> None:
        """Learn from what was read before the work was cut short, as many at once as then."""
        for end, count in zip(accumulate(reads), reads, strict=True):
            if self._exits is None or not self._exits.is_learning:
                return
            self._rows(examples[end - count : end])

    def _rows(self, examples: Sequence[Example]) -> tuple[np.ndarray, list[int]]:
        """Log-probabilities without the prior: exits must agree on labels, which are told so."""
        layers, prior = self._engine.layers, np.array(self._terms.work.prior or 0.0)
        if self._exits is None:
            return self._engine.predict(examples) - prior, [layers] * len(examples)
        return self._exits.settle(self._engine.read(examples, self._exits) - prior, layers)

    def read(self, examples: Sequence[Example], names: Sequence[str]) -> dict[str, Reading]:
        """Read some texts; an answer that is not a number counts as no confidence."""
        rows, went = self._rows(examples)
        task, work = self._engine.encoder.task, self._terms.work
        labels, when = work.task.labels, (work.round_index, work.adapter_sha256)
        if not kind_of(task).is_one_label:
            decisions = [
                kind_of(task).decide(task, row) for row in np.nan_to_num(rows, nan=np.log(0.5))
            ]
            return {
                name: Reading(one.label, one.confidence, *when, through, by=labels[one.of])
                for name, one, through in zip(names, decisions, went, strict=True)
            }
        answers = np.nan_to_num(calibrated(rows, (), self._temperature))
        return {
            name: Reading(labels[int(answer.argmax())], float(answer.max()), *when, through)
            for name, answer, through in zip(names, answers, went, strict=True)
        }


def _report(notes: Notes, texts: Mapping[str, Example], terms: LabelTerms, labelled: int) -> Report:
    readings, limit = _of(notes.book.readings, texts), terms.limit(len(texts))
    held = chosen(readings, terms.thresholds, limit, terms.labelling.class_share)
    index = {name: row for row, name in enumerate(terms.work.task.labels)}
    known = [one for one in readings.values() if one.threshold_label in index]
    labels = [index[one.threshold_label] for one in known]
    confidences = [one.confidence for one in known]
    return Report(
        terms.work.work_id,
        "done",
        notes.book.done,
        labelled=labelled,
        pseudo_labels=len(held),
        confidences=counted(len(texts), labels, confidences, len(index)),
    )
