"""Experiments whose base has the weights that another experiment ended with."""

import fcntl
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from benchmarks.papers.index.kept import NOTHING
from smidgen.edge_client.bases.base import Base, open_base
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.wire.tensors import decode_adapter
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.experiment import Experiment, ExperimentError, read_experiment
from smidgen.simulation.experiments.personal_settings import Personal
from smidgen.simulation.experiments.record import adapter_of, read_rows
from smidgen.simulation.experiments.runner import Place, finished, run, run_all
from smidgen.simulation.experiments.stage import stage, trained
from smidgen.simulation.experiments.virtual.full_backend import open_full
from tests.simulation.experiments.experiments import small, tagging_in
from tests.simulation.experiments.test_runner import place_in

WHOLE = Training(batch=2, lr=1e-3, tokens=32)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)


@pytest.fixture
def teacher(tiny_base: Base) -> Experiment:
    return small(tiny_base, dataset="masakhanews", adapter="full", training=WHOLE, rounds=1)


def test_what_was_trained_is_a_base_that_answers_as_the_run_did(
    tiny_base: Base, tmp_path: Path
) -> None:
    words, training = Task("words", kind="mlm"), Training(lr=1e-3, tokens=32)
    engine = open_full(tiny_base, words, training, False, 0)
    texts = [Example("the power of family mail"), Example("health and weather")]
    engine.train_step(engine.encoder.batch(engine.encoder.prompts(texts)))
    folder = trained(tiny_base, engine.adapter(), tmp_path / "base")
    again = open_full(open_base(str(folder)), words, training, False, 0)
    for ours, theirs in zip(engine.judge(texts), again.judge(texts), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def pupil_of(base: Base, teacher: Experiment | None) -> Experiment:
    return small(base, dataset="masakhanews", rounds=1, taught=teacher)


@pytest.mark.slow
def test_its_teacher_is_run_first_and_its_weights_are_begun_from(
    tiny_base: Base, teacher: Experiment, place: Place
) -> None:
    pupil, plain = pupil_of(tiny_base, teacher), pupil_of(tiny_base, None)
    pupils = [replace(pupil, seed=seed) for seed in (7, 8, 9)]
    found, _, _, other = run_all([*pupils, plain], place, jobs=3)
    taught = place.out / stage(teacher, place.data).key
    assert (taught / "finished").is_file() and not found.parts
    assert not list(place.out.glob("*/base"))
    assert found.rows[0].score != other.rows[0].score or found.rows[-1].loss != other.rows[-1].loss
    # What is trained from a folder with the same weights is the same
    state = decode_adapter(adapter_of(taught, read_rows(taught)[-1]))
    weights = trained(tiny_base, state, place.out.parent / "base")
    (again,) = run_all([replace(plain, base=str(weights))], place)
    assert [row.adapter_sha256 for row in again.rows] == [row.adapter_sha256 for row in found.rows]
    told = json.loads((place.out / stage(pupil, place.data).key / "experiment.json").read_text())
    assert told["weights_sha256"] == read_rows(taught)[-1].adapter_sha256


@pytest.mark.slow
def test_its_key_is_known_before_its_teacher_was_run(
    tiny_base: Base, teacher: Experiment, place: Place
) -> None:
    pupil = pupil_of(tiny_base, teacher)
    before = stage(pupil, place.data)
    others = [pupil_of(tiny_base, one) for one in (None, replace(teacher, seed=8))]
    keys = {before.key, *(stage(other, place.data).key for other in others)}
    assert len(keys) == 3
    assert stage(replace(pupil, taught=replace(teacher, name="x")), place.data).key == before.key
    (result,) = run_all([pupil], place)
    assert finished(stage(pupil, place.data), place) == result
    kept = NOTHING.with_results([(before, result)], place)
    elsewhere = replace(place, out=place.out.parent / "elsewhere")
    told = kept.result(before, elsewhere)
    assert told is not None and told.accuracy == result.accuracy


@pytest.mark.slow
def test_what_is_finished_is_read_without_its_teacher(
    tiny_base: Base, teacher: Experiment, place: Place
) -> None:
    pupil = pupil_of(tiny_base, teacher)
    (result,) = run_all([pupil], place)
    taught = place.out / stage(teacher, place.data).key
    shutil.rmtree(taught)
    assert run_all([pupil], place) == [result]
    assert not taught.exists()


@pytest.mark.slow
def test_a_teacher_that_patience_ended_is_not_run_again(
    tiny_base: Base, teacher: Experiment, place: Place
) -> None:
    still = replace(teacher.training, lr=1e-12)
    patient = replace(teacher, rounds=9, patience=1, training=still)
    (ended,) = run_all([patient], place)
    assert len(ended.rows) < 9
    taught = place.out / stage(patient, place.data).key
    with (taught / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(pupil_of(tiny_base, patient), place)  # as each process does


def test_a_tagger_leaves_no_base_behind(tiny_base: Base, tmp_path: Path, place: Place) -> None:
    tagged = tagging_in(tmp_path / "rooms")
    teacher = small(tiny_base, dataset=tagged, adapter="full", training=WHOLE, rounds=1)
    with pytest.raises(ExperimentError, match="leaves no head of words behind, and no base"):
        run_all([pupil_of(tiny_base, teacher)], place)
    assert not place.out.exists()


@pytest.mark.parametrize(
    "said",
    [
        {"adapter": "lora:2"},
        {"adapter": "full+head"},
        {"rounds": 0},
        {"base": "another"},
        {"paradigm": "local", "cohort": 0},
    ],
    ids=lambda said: next(iter(said)),
)
def test_who_trains_no_base_is_refused(
    tiny_base: Base, teacher: Experiment, said: dict[str, object]
) -> None:
    with pytest.raises(ExperimentError, match="taught: adapter = full of the same base"):
        pupil_of(tiny_base, replace(teacher, **said))  # type: ignore[arg-type]


def test_neither_teachers_of_teachers_nor_a_personal_phase(
    tiny_base: Base, teacher: Experiment
) -> None:
    twice = replace(teacher, taught=teacher)
    with pytest.raises(ExperimentError, match="neither taught nor personal"):
        pupil_of(tiny_base, twice)
    with pytest.raises(ExperimentError, match="and no personal phase after it"):
        replace(pupil_of(tiny_base, teacher), cohort=0, personal=Personal("lora"))


def test_a_file_says_it_in_a_table_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tagger.toml"
    path.write_text(
        'dataset = "ner_panx"\nadapter = "full+head"\n[taught]\n'
        'dataset = "silo_texts"\nadapter = "full"\n[taught.training]\nlr = 0.5\n'
    )
    found, told = read_experiment(path), path.read_text()
    assert found.taught is not None and found.taught.training.lr == 0.5
    path.write_text(f"{told}speed = 1\n")
    with pytest.raises(ExperimentError, match=r"\[taught\]: \[training\]: unknown key 'speed'"):
        read_experiment(path)
    path.write_text(f'{told}[taught.learning]\nmean = "nonsense"\n')
    with pytest.raises(WrongInput, match="nonsense"):
        read_experiment(path)
