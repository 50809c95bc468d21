"""Label work on the real engines: what is read, at what price, and what comes of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.labelling.label_journal import (
    FileNotes,
    MemoryNotes,
    Revoked,
    TrainingDone,
)
from smidgen.edge_client.labelling.label_work import CHUNK, pseudo_texts, terms_of
from smidgen.edge_client.labelling.pseudo_labels import text_id
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.updates.ridge import WEIGHT
from tests.edge_client.engine.engines import KINDS
from tests.edge_client.labelling.two_topics import (
    ALL,
    DATA,
    TASK,
    TRAINING,
    label,
    own,
    straight,
    texts_of,
    trained,
    work_of,
)

pytestmark = pytest.mark.few

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("early_exit", [False, True])
def test_cached_and_uncached_give_the_same_labels(
    tiny_base: Base, tmp_path: Path, kind: str, early_exit: bool
) -> None:
    work = work_of(replace(ALL, early_exit=early_exit), adapter_spec="lora:4/top1")
    engine, books, costs = trained(kind, tiny_base, "lora:4/top1"), [], []
    some = ActivationCache(tmp_path / "some", 1 << 20, "base")
    for cache in (None, ActivationCache(tmp_path / "none", 0, "base"), some, some):
        engine.remember(cache)
        book, cost = straight(engine, work)
        books.append(book.readings)
        costs.append(cost)
    plain, none, empty, full = books
    assert none == empty == full and costs[3] == costs[2] - len(full)
    assert {name: one.label for name, one in plain.items()} == {
        name: one.label for name, one in full.items()
    }
    for name, one in plain.items():
        assert full[name].confidence == pytest.approx(one.confidence, abs=2e-3)


@pytest.mark.few(1)
@each_kind
def test_exits_agree_on_labels_that_the_prior_decides(tiny_base: Base, kind: str) -> None:
    """Nearly every answer is the same label; without the prior it is easy to agree on that one."""
    engine, labels = trained(kind, tiny_base, "prompt:4"), []
    prior = tuple(engine.predict(DATA.unlabelled).mean(axis=0).tolist())
    assert prior[0] - prior[1] > 3.0
    for early_exit in (True, False):
        said = replace(ALL, early_exit=early_exit)
        book, _ = straight(engine, work_of(said, adapter_spec="prompt:4", prior=prior))
        labels.append([book.readings[text_id(text)].label for text in DATA.unlabelled])
    assert np.mean([early == full for early, full in zip(*labels, strict=True)]) >= 0.99


@each_kind
def test_reading_stops_as_soon_as_enough_is_clear(tiny_base: Base, kind: str) -> None:
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    work = work_of(replace(ALL, confidence=0.5, class_floor=0.5), keep=0.1)
    found = label(engine, DATA, work, notes)
    assert found.num_examples == CHUNK == notes.book.done and found.pseudo_labels == 8
    before = engine.layer_forwards
    assert label(engine, DATA, replace(work, work_id="work-2"), notes).num_examples == 0
    assert engine.layer_forwards == before


@pytest.mark.few(1)
@each_kind
def test_reading_goes_on_after_enough_is_clear_where_the_run_says_so(
    tiny_base: Base, kind: str
) -> None:
    said = replace(ALL, confidence=0.5, class_floor=0.5, stops_when_found=False, read_share=0.5)
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    found = label(engine, DATA, work_of(said, keep=0.1), notes)
    assert (found.num_examples, found.pseudo_labels) == (36, 8)


@pytest.mark.few(1)
@each_kind
def test_no_text_is_read_twice_with_one_adapter(tiny_base: Base, kind: str) -> None:
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    label(engine, DATA, work_of(), notes)
    assert label(engine, DATA, work_of(work_id="work-2"), notes).num_examples == 0
    moved = work_of(work_id="work-3", adapter_sha256="b" * 64)
    assert label(engine, DATA, moved, notes).num_examples == len(DATA.unlabelled)  # none was sure


@pytest.mark.few(1)
@each_kind
def test_a_sure_text_is_read_again_only_when_the_adapter_has_moved(
    tiny_base: Base, kind: str
) -> None:
    said = replace(ALL, confidence=0.5, class_floor=0.5)
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    label(engine, DATA, work_of(said), notes)
    state = engine.adapter()
    engine.load_adapter({name: 1.01 * tensor for name, tensor in state.items()})
    near = work_of(said, work_id="work-2", adapter_sha256="b" * 64)
    assert label(engine, DATA, near, notes).num_examples == 0
    engine.load_adapter({name: 1.5 * tensor for name, tensor in state.items()})
    far = work_of(said, work_id="work-3", adapter_sha256="c" * 64)
    assert label(engine, DATA, far, notes).num_examples == len(DATA.unlabelled)


@pytest.mark.few(1)
@each_kind
def test_a_settled_text_is_not_read_again_however_far_the_adapter_has_moved(
    tiny_base: Base, kind: str
) -> None:
    said = replace(ALL, confidence=0.5, class_floor=0.5, settled_after=2)
    engine, notes, read = trained(kind, tiny_base), MemoryNotes(), []
    state = engine.adapter()
    for number in range(4):
        engine.load_adapter({name: 1.5**number * tensor for name, tensor in state.items()})
        work = work_of(said, work_id=f"work-{number}", adapter_sha256=f"{number:064x}")
        read.append(label(engine, DATA, work, notes).num_examples)
    changed = sum(one.agreeing < 4 for one in notes.book.readings.values())
    assert read[:2] == [72, 72] and 72 > read[2] >= read[3]
    assert changed == 72  # none was read a third time after it had agreed twice
    higher = replace(work, work_id="higher", adapter_sha256="f" * 64, thresholds=(0.99, 0.99))
    unsure = sum(one.confidence < 0.99 for one in notes.book.readings.values())
    assert label(engine, DATA, higher, notes).num_examples == unsure > 0


@pytest.mark.few(1)
@each_kind
def test_who_holds_enough_settled_labels_reads_nothing(tiny_base: Base, kind: str) -> None:
    said = replace(ALL, confidence=0.5, class_floor=0.5, settled_after=1)
    engine, notes = trained(kind, tiny_base), MemoryNotes()
    label(engine, DATA, work_of(said, keep=0.1), notes)
    engine.load_adapter({name: 1.5 * tensor for name, tensor in engine.adapter().items()})
    far = work_of(said, keep=0.1, work_id="work-2", adapter_sha256="b" * 64)
    before = engine.layer_forwards
    found = label(engine, DATA, far, notes)
    assert (found.num_examples, found.pseudo_labels, engine.layer_forwards) == (0, 8, before)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(4))
def test_labelling_never_takes_more_than_its_share(tiny_base: Base, seed: int) -> None:
    """Where training takes what was planned for it: as many texts as may be held."""
    generator, engine = np.random.Generator(np.random.PCG64(seed)), trained("onnx", tiny_base)
    share, notes = float(generator.uniform(0.05, 0.6)), MemoryNotes()
    said = replace(ALL, compute_share=share)
    for number in range(12):
        work = work_of(
            said,
            work_id=f"work-{number}",
            adapter_sha256=f"{number:064x}",
            keep=float(generator.uniform(0.01, 0.4)),
            training=replace(TRAINING, epochs=int(generator.integers(1, 3))),
        )
        label(engine, DATA, work, notes)
        texts = int(np.ceil(work.keep * len(DATA.unlabelled)))
        notes.add(TrainingDone(work.work_id, work.training.epochs * texts * 3 * engine.layers))
        spent = notes.book.labelling_forwards
        assert spent <= share * (spent + notes.book.training_forwards) + 1e-6
    assert spent > 0


def test_an_ensembles_texts_cost_as_much_as_its_patterns(tiny_base: Base) -> None:
    patterns = ("{text} . this is about [MASK] .", "[MASK] : {text}", "{text} ( [MASK] )")
    task = replace(TASK, patterns=(*TASK.patterns, *patterns[1:]), ensemble=True)
    spec, notes = parse_adapter("lora:4"), MemoryNotes()
    engine = open_engine("onnx", tiny_base, task, spec, TRAINING)
    said, training = replace(ALL, compute_share=0.25), replace(TRAINING, epochs=1)
    label(engine, DATA, work_of(said, task=task, training=training, keep=0.2), notes)
    planned = 15 * 3 * engine.layers
    assert 0 < notes.book.labelling_forwards <= planned / 3
    assert notes.book.labelling_forwards == notes.book.done * 3 * engine.layers


def test_with_ridge_regression_a_text_costs_two_passes(tiny_base: Base) -> None:
    spec, name, notes = parse_adapter("lora:4+ridge"), "lora:4+ridge", MemoryNotes()
    engine = open_engine("onnx", tiny_base, TASK, spec, TRAINING)
    start = engine.adapter()
    engine.load_adapter(start | {WEIGHT: np.ones_like(start[WEIGHT])})
    before = engine.layer_forwards
    label(engine, DATA, work_of(replace(ALL, read_share=0.5), adapter_spec=name), notes)
    assert notes.book.labelling_forwards == notes.book.done * 2 * engine.layers
    assert engine.layer_forwards - before == notes.book.labelling_forwards > 0


@pytest.mark.few(1)
@each_kind
def test_a_text_whose_answer_is_no_number_is_sure_of_nothing(
    tiny_base: Base, tmp_path: Path, kind: str
) -> None:
    engine = trained(kind, tiny_base)
    state = {name: np.full_like(tensor, 1e25) for name, tensor in engine.adapter().items()}
    engine.load_adapter(state)
    assert np.isnan(engine.predict(DATA.unlabelled[:1])).all()
    found = label(engine, DATA, work_of(), FileNotes(tmp_path / "labels.jsonl"))
    assert found.num_examples == 72 and found.pseudo_labels == 0
    assert found.confidences and not np.array(found.confidences.counts).any()
    assert FileNotes(tmp_path / "labels.jsonl").book.done == 72


def test_a_device_without_unlabelled_texts_has_nothing_to_read(tiny_base: Base) -> None:
    engine, notes = trained("onnx", tiny_base), MemoryNotes()
    before = engine.layer_forwards
    found = label(engine, ClientData(texts_of(4, 1), (), ()), work_of(), notes)
    assert (found.num_examples, found.pseudo_labels, engine.layer_forwards) == (0, 0, before)
    assert found.confidences and found.confidences.texts == 0


@pytest.fixture
def labelled(tiny_base: Base) -> tuple[Engine, MemoryNotes]:
    """A device that has labelled all its texts."""
    engine, notes = trained("onnx", tiny_base), MemoryNotes()
    label(engine, DATA, work_of(replace(ALL, confidence=0.5, class_floor=0.5)), notes)
    return engine, notes


def test_pseudo_labelled_texts_carry_label_and_weight(
    labelled: tuple[Engine, MemoryNotes],
) -> None:
    engine, notes = labelled
    said = replace(ALL, confidence=0.5, class_floor=0.5, weight=0.25)
    terms, device = terms_of(work_of(said, kind="train", keep=0.5)), own(engine, DATA)
    texts, weights = pseudo_texts(device, terms, notes)
    assert len(texts) == 36 and weights == [0.25] * 36
    assert all(text.label == notes.book.readings[text_id(text)].label for text in texts)
    assert pseudo_texts(device, None, notes) == ([], [])


def test_gold_labels_win_and_taken_back_ones_stay_away(
    labelled: tuple[Engine, MemoryNotes],
) -> None:
    engine, notes = labelled
    gold, revoked = DATA.unlabelled[0], DATA.unlabelled[1]
    notes.add(Revoked(text_id(revoked)))
    data = replace(DATA, labelled=(replace(gold, text=f" {gold.text} ", label="mail"),))
    work = work_of(replace(ALL, confidence=0.5, class_floor=0.5), kind="train")
    texts, _ = pseudo_texts(own(engine, data), terms_of(work), notes)
    names = {text_id(text) for text in texts}
    assert len(names) == 70 and not names & {text_id(gold), text_id(revoked)}
    assert set(own(engine, data).to_label(notes.book.revoked)) == names
