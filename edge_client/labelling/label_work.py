"""A device's label work: read its own texts in a telling order until enough of them are clear.

Texts are read a few at a time and every answer is noted before the next are read, so work that is
cut short goes on where it was. What is noted are answers; which of them are trained on is decided
when training comes, by the thresholds that go with that work (`pseudo_texts`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from edge_client.adapters.spec import frozen_layers, parse_adapter
from edge_client.engine.engine import Engine
from edge_client.labelling.book import Notes, Opened, Read, moved, sketch_of
from edge_client.labelling.calibration import calibrated, temperature_of
from edge_client.labelling.early_exit import WORTH, EarlyExit, layers_to_try, learnt_first
from edge_client.labelling.pseudo_labels import (
    FEWEST as FEWEST_LABELLED,
)
from edge_client.labelling.pseudo_labels import (
    Reading,
    affordable,
    chosen,
    queue,
    readable,
    text_id,
)
from edge_client.labelling.vote_k import vote_k
from edge_client.texts.examples import ClientData, Example
from edge_client.wire.confidences import Confidences, as_bin, counted
from edge_client.wire.labelling import Labelling, keep_of
from edge_client.wire.messages import Work

CHUNK = 8  # texts between two looks at whether there are enough


@dataclass(frozen=True)
class LabelResult:
    """What label work gave.

    Attributes:
        texts_read: In this work, those before it was cut short included.
        pseudo_labels: Held now.
        confidences: How sure the device is, for the population's thresholds.
        layer_forwards: Of this work since it was last begun.
    """

    texts_read: int
    pseudo_labels: int
    confidences: Confidences
    layer_forwards: int


def label(engine: Engine, data: ClientData, work: Work, notes: Notes) -> LabelResult:
    """Do label work with the engine's adapter.

    The same work on the same notes gives the same labels, whether it was cut short or not.

    Args:
        engine: Holds the adapter to label with.
        data: The device's texts.
        work: With `labelling`.
        notes: What is known of the texts; what is read now is added.
    """
    said, start = _labelling(work), engine.layer_forwards
    texts = texts_to_label(engine, data, notes)
    thresholds = thresholds_of(work)
    limit = keep_of(said, work.keep, len(texts))
    opened = _opened(engine, texts, work, notes)
    planned = training_forwards(engine, work, len(data.labelled) + limit)
    reader, price = None, engine.layers * len(engine.encoder.views())  # of a text, at most
    while notes.book.done < len(opened.queue):
        if len(chosen(_fresh(notes, said), thresholds, limit, said.class_share)) >= limit:
            break
        spent = notes.book.labelling_forwards, notes.book.training_forwards
        left = affordable(said.compute_share, *spent, planned)
        most = int(min(left, CHUNK * price)) // price
        names = opened.queue[notes.book.done :][:most]
        if not names:
            break
        if reader is None:
            reader = _Reader(engine, data, work, len(opened.queue))
            known = [texts[name] for name in opened.queue[: notes.book.done]]
            reader.learn_again(known, notes.book.reads)
        readings = reader.read([texts[name] for name in names], names)
        notes.add(Read(readings, _reading_forwards(engine, work, readings, notes)))
    return _told(notes, texts, work, thresholds, limit, engine.layer_forwards - start)


def pseudo_texts(
    engine: Engine, data: ClientData, work: Work, notes: Notes
) -> tuple[list[Example], list[float]]:
    """The device's pseudo-labelled texts to train on, with their weights in the loss.

    None where the run does not label.
    """
    if work.labelling is None or not notes.book.readings:
        return [], []
    texts = texts_to_label(engine, data, notes)
    limit = keep_of(work.labelling, work.keep, len(texts))
    held = chosen(
        _of(notes.book.readings, texts), thresholds_of(work), limit, work.labelling.class_share
    )
    found = [replace(texts[name], label=held[name].label) for name in texts if name in held]
    return found, [work.labelling.weight] * len(found)


def texts_to_label(engine: Engine, data: ClientData, notes: Notes) -> dict[str, Example]:
    """The unlabelled texts that may get a pseudo-label, by id."""
    share = engine.encoder.unknown_share
    return readable(data.unlabelled, data.labelled, notes.book.revoked, share)


def thresholds_of(work: Work) -> dict[str, float]:
    """Least confidence by label: what the work says, or else the run's settings."""
    said, labels = _labelling(work), work.task.labels
    least = work.thresholds or [as_bin(said.least(label)) for label in labels]
    return dict(zip(labels, least, strict=True))


def _labelling(work: Work) -> Labelling:
    assert work.labelling is not None, "label work carries its settings"
    return work.labelling


def _of(readings: Mapping[str, Reading], texts: Mapping[str, Example]) -> dict[str, Reading]:
    """Readings of texts that are still there."""
    return {name: reading for name, reading in readings.items() if name in texts}


def _fresh(notes: Notes, said: Labelling) -> dict[str, Reading]:
    """Readings by adapters that have hardly moved since."""
    book = notes.book
    now = book.opened.sketch if book.opened else ()
    is_near = {
        name: moved(sketch, now) <= said.hardly_moved for name, sketch in book.sketches.items()
    }
    return {name: one for name, one in book.readings.items() if is_near.get(one.adapter_sha256)}


def _opened(engine: Engine, texts: Mapping[str, Example], work: Work, notes: Notes) -> Opened:
    """This work's queue: as it was when the work was first begun, unless texts of it are gone."""
    book, said, known = notes.book, _labelling(work), tuple[str, ...]()
    if book.opened is not None:
        if book.opened.work_id == work.work_id and texts.keys() >= set(book.opened.queue):
            return book.opened
        known = book.opened.order
    order = known if set(known) == set(texts) else _ordered(engine, texts)
    sketch = sketch_of(engine.adapter())
    sketches = book.sketches | {work.adapter_sha256: sketch}

    def is_fresh(sha256: str) -> bool:
        return sha256 in sketches and moved(sketches[sha256], sketch) <= said.hardly_moved

    adapter, least = work.adapter_sha256, thresholds_of(work)
    names = queue(order, book.readings, least, is_fresh, adapter, said.read_share)
    if _exits_early(work):
        names = learnt_first(names)
    opened = Opened(work.work_id, adapter, tuple(names), tuple(order), sketch)
    notes.add(opened)
    return opened


def _ordered(engine: Engine, texts: Mapping[str, Example]) -> tuple[str, ...]:
    """Vote-k over mean word embeddings: the base's own, and no layer is computed for them."""
    names = list(texts)
    if len(names) < 2:
        return tuple(names)
    return tuple(names[row] for row in vote_k(engine.features(list(texts.values()), 0)))


def _reading_forwards(
    engine: Engine, work: Work, readings: Mapping[str, Reading], notes: Notes
) -> int:
    """Layer-forwards of readings, by rule: what a cache holds after a kill must change no label.

    The frozen layers of a text that was read before cost nothing.
    """
    frozen = frozen_layers(parse_adapter(work.adapter_spec), engine.layers)
    known = sum(name in notes.book.readings for name in readings)
    through = sum(reading.layers for reading in readings.values()) - frozen * known
    return through * len(engine.encoder.views())


def training_forwards(engine: Engine, work: Work, num_examples: int) -> int:
    """Layer-forwards of a training, by rule: the same in every plan, whatever a cache holds."""
    spec = parse_adapter(work.adapter_spec)
    trained = engine.layers - frozen_layers(spec, engine.layers)
    passes = 3 * trained if spec.is_in_layers else engine.layers
    return work.training.epochs * num_examples * passes


def _exits_early(work: Work) -> bool:
    """Whether texts may be read no further than needed; an ensemble's patterns are read in full."""
    return _labelling(work).early_exit and not work.task.ensemble


class _Reader:
    """Reads texts; the first ones in full, to learn where others may leave."""

    def __init__(self, engine: Engine, data: ClientData, work: Work, texts: int) -> None:
        self._engine, self._work = engine, work
        frozen = frozen_layers(parse_adapter(work.adapter_spec), engine.layers)
        is_worth = _exits_early(work) and texts >= WORTH
        ways = layers_to_try(frozen, engine.layers) if is_worth else ()
        self._exits = EarlyExit(ways) if ways else None
        self._temperature = self._fitted(data)

    def _fitted(self, data: ClientData) -> float:
        """The temperature; texts kept aside tell more than those trained on."""
        aside = data.test if len(data.test) >= FEWEST_LABELLED else data.labelled
        gold = np.array(self._engine.encoder.labels(aside))
        if len(gold) < FEWEST_LABELLED or len(set(gold.tolist())) < 2:
            return 1.0
        return temperature_of(self._engine.predict(aside), gold, self._work.prior)

    def learn_again(self, examples: Sequence[Example], reads: Sequence[int]) -> None:
        """Learn from what was read before the work was cut short, as many at once as then."""
        for end, count in zip(accumulate(reads), reads, strict=True):
            if self._exits is None or not self._exits.is_learning:
                return
            self._rows(examples[end - count : end])

    def _rows(self, examples: Sequence[Example]) -> tuple[np.ndarray, list[int]]:
        """Log-probabilities without the prior: exits must agree on labels, which are told so."""
        layers, prior = self._engine.layers, np.array(self._work.prior or 0.0)
        if self._exits is None:
            return self._engine.predict(examples) - prior, [layers] * len(examples)
        return self._exits.settle(self._engine.read(examples, self._exits) - prior, layers)

    def read(self, examples: Sequence[Example], names: Sequence[str]) -> dict[str, Reading]:
        """Read some texts; one whose answer is no number is sure of nothing."""
        rows, went = self._rows(examples)
        answers = np.nan_to_num(calibrated(rows, (), self._temperature))
        return {
            name: Reading(
                self._work.task.labels[int(answer.argmax())],
                float(answer.max()),
                self._work.round_index,
                self._work.adapter_sha256,
                through,
            )
            for name, answer, through in zip(names, answers, went, strict=True)
        }


def _told(
    notes: Notes,
    texts: Mapping[str, Example],
    work: Work,
    thresholds: Mapping[str, float],
    limit: int,
    layer_forwards: int,
) -> LabelResult:
    readings = _of(notes.book.readings, texts)
    held = chosen(readings, thresholds, limit, _labelling(work).class_share)
    index = {name: row for row, name in enumerate(work.task.labels)}
    known = [one for one in readings.values() if one.label in index]
    labels, confidences = [index[one.label] for one in known], [one.confidence for one in known]
    return LabelResult(
        texts_read=notes.book.done,
        pseudo_labels=len(held),
        confidences=counted(len(texts), labels, confidences, len(index)),
        layer_forwards=layer_forwards,
    )


def not_read(engine: Engine, data: ClientData, notes: Notes) -> str:
    """How many of a device's unlabelled texts are never read, and why; empty if all are."""
    names = [text_id(example) for example in data.unlabelled]
    once, gold = set(names), {text_id(example) for example in data.labelled}
    readable = texts_to_label(engine, data, notes)
    revoked = (once - gold) & notes.book.revoked
    counts = {
        "there more than once": len(names) - len(once),
        "labelled by hand": len(once & gold),
        "whose label was taken back": len(revoked),
        "mostly of tokens the base does not know": len(once - gold - revoked) - len(readable),
    }
    return ", ".join(f"{count} {why}" for why, count in counts.items() if count)
