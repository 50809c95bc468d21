"""Answers of a device in a run that labels: what they weigh, and what they say of themselves."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.coordinator.rounds.admission import check_report
from smidgen.edge_client.adapters.initial import first_adapter, initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client import answers
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.engine.trainer import train
from smidgen.edge_client.labelling.label_journal import (
    FileNotes,
    MemoryNotes,
    Notes,
    OpenedJournal,
    Read,
)
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts, Reading, sampled, text_id
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import PROTOCOL, Work
from smidgen.edge_client.wire.tensors import Update, decode_update, derive_seed, encode_update
from smidgen.edge_client.wire.training import Labelling, Training
from tests.edge_client.engine.engines import KINDS, TEXTS

TRAINING = Training(epochs=2, batch=4, lr=0.01, tokens=48)
SAID = Labelling(confidence=0.9, compute_share=1.0, weight=0.25, keep_last=1.0)
UNLABELLED = (
    Example("the back door opened"),
    Example("two parcels at the gate"),
    Example("rain at noon"),
)
DATA = ClientData(tuple(TEXTS[:3]), UNLABELLED, tuple(TEXTS[3:]))
pytestmark = pytest.mark.parametrize("kind", KINDS)


def engine_of(kind: str, base: Base, task: Task) -> Engine:
    spec = parse_adapter("lora:4")
    engine = open_engine(kind, base, task, spec, TRAINING)
    engine.load_adapter(initial_adapter(spec, base, len(task.labels), seed=3))
    return engine


def answer(
    engine: Engine, data: ClientData, work: Work, device_id: str, notes: Notes
) -> FinishedWork:
    """An answer on texts that were read just now."""
    own = OwnTexts(data, engine.encoder.unknown_share)
    return answers.answer(engine, engine.adapter(), own, work, device_id, notes)


def work_of(kind: str, task: Task, labelling: Labelling | None = SAID) -> Work:
    return Work(
        *(PROTOCOL, "work", kind, "run", 2, "base", "lora:4", "a" * 64, 1),  # type: ignore[arg-type]
        task,
        TRAINING,
        seed=7,
        labelling=labelling,
        keep=1.0,
    )


def notes_of(*told: tuple[Example, str, float]) -> MemoryNotes:
    """Notes of a device that has read some texts."""
    notes = MemoryNotes()
    found = {text_id(text): Reading(label, sure, 1, "a" * 64, 2) for text, label, sure in told}
    notes.add(OpenedJournal("before", "a" * 64, tuple(found), tuple(found), (1.0,)))
    notes.add(Read(found, 2 * len(found)))
    return notes


NOTES = (
    (UNLABELLED[0], "security", 0.97),
    (UNLABELLED[1], "mail", 0.95),
    (UNLABELLED[2], "mail", 0.6),
)


def test_training_weighs_pseudo_labels(tiny_base: Base, hub_task: Task, kind: str) -> None:
    engine, notes = engine_of(kind, tiny_base, hub_task), notes_of(*NOTES)
    start = engine.adapter()
    found = answer(engine, DATA, work_of("train", hub_task), "hub-1", notes)
    engine.load_adapter(start)
    texts = [
        *DATA.labelled,
        replace(UNLABELLED[0], label="security"),
        replace(UNLABELLED[1], label="mail"),
    ]
    seed = derive_seed(7, "train", "hub-1", 2)
    expected = train(engine, texts, TRAINING, seed, [1.0, 1.0, 1.0, 0.25, 0.25])
    assert found.update == encode_update(Update("work", 4, expected.delta))
    report = found.report
    assert (report.num_examples, report.pseudo_labels, report.loss) == (4, 2, expected.loss)
    assert 0 < notes.book.training_forwards <= report.layer_forwards == 2 * 5 * 3 * 2


def test_without_pseudo_labels_training_is_what_it_was(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task)
    start, updates = engine.adapter(), []
    for notes, said in (
        (notes_of(NOTES[2]), SAID),
        (notes_of(*NOTES), None),
        (MemoryNotes(), None),
    ):
        engine.load_adapter(start)
        found = answer(engine, DATA, work_of("train", hub_task, said), "hub-1", notes)
        assert found.report.pseudo_labels == 0 and found.report.num_examples == 3
        updates.append(found.update)
        assert notes.book.training_forwards == (found.report.layer_forwards if said else 0)
    assert updates[0] == updates[1] == updates[2]


def test_a_training_counts_though_the_disk_has_no_room_for_its_note(
    tiny_base: Base, hub_task: Task, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, notes = engine_of(kind, tiny_base, hub_task), FileNotes(tmp_path / "gone" / "labels")
    found = answer(engine, DATA, work_of("train", hub_task), "hub-1", notes)
    assert found.update is not None and notes.book.trained == "work"
    assert notes.book.training_forwards == found.report.layer_forwards
    assert caplog.messages == [
        "what the training of work took is not kept: No such file or directory"
    ]


def test_a_gold_label_wins_over_a_pseudo_label_of_the_same_text(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, gold = engine_of(kind, tiny_base, hub_task), replace(UNLABELLED[0], label="family")
    data = replace(DATA, labelled=(*DATA.labelled, gold))
    start = engine.adapter()
    found = answer(engine, data, work_of("train", hub_task), "hub-1", notes_of(NOTES[0]))
    engine.load_adapter(start)
    plain = work_of("train", hub_task, None)
    expected = answer(engine, data, plain, "hub-1", MemoryNotes())
    assert found.update == expected.update and found.report.num_examples == 4


def test_a_device_may_train_on_pseudo_labels_alone(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, data = engine_of(kind, tiny_base, hub_task), replace(DATA, labelled=())
    found = answer(engine, data, work_of("train", hub_task), "hub-1", notes_of(NOTES[0]))
    assert found.report.num_examples == found.report.pseudo_labels == 1
    assert found.update is not None
    assert any(tensor.any() for tensor in decode_update(found.update).delta.values())
    with pytest.raises(TrainingError, match="no labelled texts"):
        answer(engine, data, work_of("train", hub_task), "hub-1", notes_of(NOTES[2]))


def test_a_round_that_draws_trains_on_the_draw_and_weighs_all_texts(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task)
    start, training = engine.adapter(), replace(TRAINING, least_samples=7)
    work = replace(work_of("train", hub_task, None), training=training)
    found = answer(engine, DATA, work, "hub-1", MemoryNotes())
    engine.load_adapter(start)
    seed = derive_seed(7, "train", "hub-1", 2)
    texts = [DATA.labelled[row] for row in sampled(3, training, seed)]
    expected = train(engine, texts, TRAINING, seed)
    assert len(texts) == expected.num_examples == 7
    assert found.update == encode_update(Update("work", 3, expected.delta))
    assert found.report.num_examples == 3


def test_pseudo_labels_are_drawn_with_the_others_and_keep_their_weight(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, notes = engine_of(kind, tiny_base, hub_task), notes_of(*NOTES)
    start, training = engine.adapter(), replace(TRAINING, least_samples=9)
    work = replace(work_of("train", hub_task), training=training)
    found = answer(engine, DATA, work, "hub-1", notes)
    engine.load_adapter(start)
    told = [replace(UNLABELLED[0], label="security"), replace(UNLABELLED[1], label="mail")]
    seed = derive_seed(7, "train", "hub-1", 2)
    rows = sampled(5, training, seed)
    texts, weights = [*DATA.labelled, *told], [1.0, 1.0, 1.0, 0.25, 0.25]
    weighed = [weights[row] for row in rows]
    expected = train(engine, [texts[row] for row in rows], TRAINING, seed, weighed)
    assert found.update == encode_update(Update("work", 4, expected.delta))  # round(3.5)
    assert found.report.pseudo_labels == 2 and 0.25 in weighed and 1.0 in weighed


def test_evaluation_may_ask_for_a_share_of_the_texts(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, work = engine_of(kind, tiny_base, hub_task), work_of("evaluate", hub_task, None)
    data = replace(DATA, test=tuple(TEXTS))
    part = replace(work, test_share=0.5)
    found = [
        answer(engine, data, replace(part, round_index=index), "hub-1", MemoryNotes()).report
        for index in range(6)
    ]
    assert {one.num_examples for one in found} == {round(0.5 * len(TEXTS))}
    assert len({one.loss for one in found}) > 1  # other texts in other rounds
    assert found[2] == answer(engine, data, part, "hub-1", MemoryNotes()).report


def test_texts_are_tokenized_once_however_much_work_comes(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    """But for training and reading, which need the ids themselves."""
    engine, notes, asked = engine_of(kind, tiny_base, hub_task), MemoryNotes(), list[Example]()

    def unknown_share(example: Example) -> float:
        asked.append(example)
        return engine.encoder.unknown_share(example)

    own = OwnTexts(DATA, unknown_share)
    for work in ("evaluate", "label", "train", "label", "train"):
        start = engine.adapter()
        answers.answer(engine, start, own, work_of(work, hub_task), "hub-1", notes)
        assert asked == ([] if work == "evaluate" else list(UNLABELLED))


def test_labelling_reports_what_was_read_and_is_held(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, notes = engine_of(kind, tiny_base, hub_task), MemoryNotes()
    found = answer(engine, DATA, work_of("label", hub_task), "hub-1", notes)
    report = found.report
    assert found.update is None and report.num_examples == notes.book.done == 3
    assert report.labelled == 3 and report.confidences is not None
    assert report.confidences.texts == 3 and len(report.confidences.counts) == 6
    assert report.layer_forwards == notes.book.labelling_forwards == 3 * 2
    assert report.pseudo_labels == sum(
        one.confidence >= 0.9 for one in notes.book.readings.values()
    )


def test_evaluation_tells_the_prior_only_in_a_run_that_labels(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine = engine_of(kind, tiny_base, hub_task)
    told = answer(engine, DATA, work_of("evaluate", hub_task), "hub-1", MemoryNotes()).report
    means = engine.predict(DATA.test).mean(axis=0)
    np.testing.assert_allclose(told.mean_log_probabilities, means, rtol=1e-5)
    assert told.labelled == 3 and told.num_examples == 3
    plain = answer(engine, DATA, work_of("evaluate", hub_task, None), "hub-1", MemoryNotes()).report
    assert plain.mean_log_probabilities == () and plain.labelled == 3
    assert plain == replace(told, mean_log_probabilities=())


def test_who_keeps_no_texts_aside_tells_no_prior(
    tiny_base: Base, hub_task: Task, kind: str
) -> None:
    engine, data = engine_of(kind, tiny_base, hub_task), replace(DATA, test=())
    report = answer(engine, data, work_of("evaluate", hub_task), "hub-1", MemoryNotes()).report
    assert report.num_examples == 0 and report.mean_log_probabilities == ()
    assert report.labelled == 3 and report.layer_forwards == 0


TAGGED = tuple(
    Example(" ".join(words), words=words, tags=("O", "B-Drug", "I-Drug")[: len(words)])
    for words in (("take", "two", "pills"), ("no", "aspirin"), ("nothing",))
)


@pytest.mark.parametrize("adapter", ["lora:2+head", "head"])
def test_a_device_that_tags_tells_how_many_entities_it_has_and_finds(
    tiny_base: Base, kind: str, adapter: str
) -> None:
    task, spec = Task("drugs", ("Drug", "Dose"), kind="tagging"), parse_adapter(adapter)
    engine = open_engine(kind, tiny_base, task, spec, TRAINING)
    engine.load_adapter(first_adapter(tiny_base, spec, task, "", 3, TRAINING.tokens))
    data = ClientData(TAGGED, (), TAGGED)
    report = answer(engine, data, work_of("evaluate", task, None), "d", MemoryNotes()).report
    assert report.entities is not None and report.entities == evaluate(engine, TAGGED).entities
    assert report.entities.there == (2, 0) and report.num_examples == 6
    check_report(report, task)


def test_a_device_that_masks_words_tells_of_them_and_of_no_entities(
    tiny_base: Base, kind: str
) -> None:
    task, spec = Task("notes", kind="mlm"), parse_adapter("lora:2")
    engine = open_engine(kind, tiny_base, task, spec, TRAINING)
    engine.load_adapter(first_adapter(tiny_base, spec, task, "", 3, TRAINING.tokens))
    data = ClientData(UNLABELLED, (), UNLABELLED)
    report = answer(engine, data, work_of("evaluate", task, None), "d", MemoryNotes()).report
    assert report.entities is None and report.labelled == 3
    assert report.num_examples >= 3 and report.loss is not None and report.loss > 0
    check_report(report, task)
