import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import Answered, StepOpened
from smidgen.coordinator.rounds.scoring import judged as noted
from smidgen.coordinator.rounds.scoring import scored
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.answers import answer
from smidgen.edge_client.engine.opening import open_engine
from smidgen.edge_client.engine.scoring import evaluate
from smidgen.edge_client.labelling.label_journal import MemoryNotes
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.wire.messages import PROTOCOL, Work
from smidgen.edge_client.wire.training import Training
from smidgen.simulation.experiments.federation.devices import told_of
from smidgen.simulation.experiments.scoring import Score, Tally, judged, pooled, score, together

ANSWERS = np.log(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]))
TALLIES = st.integers(1, 50).flatmap(
    lambda asked: st.builds(Tally, st.integers(0, asked), st.just(asked))
)


def test_right_answers_are_counted_by_language_and_client() -> None:
    owned = {"a": np.array([0, 2]), "b": np.array([1]), "c": np.array([], int)}
    found = score(ANSWERS, np.array([0, 1, 1]), ["en", "de", "en"], owned)
    assert found.total == Tally(2, 3) and found.accuracy == 2 / 3
    assert found.by_language == {"de": Tally(1, 1), "en": Tally(1, 2)}
    assert found.by_client == {"a": Tally(1, 2), "b": Tally(1, 1)}
    assert found.loss == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())


def test_an_answer_that_is_no_number_is_wrong() -> None:
    found = score(np.full((3, 2), np.nan), np.array([0, 0, 1]), [""] * 3, {})
    assert found.total == Tally(0, 3) and found.loss is None and not found.by_language


def test_a_lopsided_adapter_is_right_again_once_the_prior_is_taken_off() -> None:
    """Every answer leans to the first label; who leans least is of the second."""
    lopsided = np.log(np.array([[0.99, 0.01], [0.98, 0.02], [0.7, 0.3], [0.6, 0.4]]))
    found = score(lopsided, np.array([0, 0, 1, 1]), [""] * 4, {})
    assert found.total == Tally(2, 4) and found.balanced == Tally(4, 4)
    # Each language has a prior of its own: two alone say nothing of each other.
    assert score(lopsided, np.array([0, 0, 1, 1]), list("aabb"), {}).balanced == Tally(2, 4)


@given(st.lists(st.lists(st.floats(-9, 0), min_size=3, max_size=3), min_size=2, max_size=9))
def test_the_prior_takes_off_what_is_added_to_all(rows: list[list[float]]) -> None:
    """Law: a bias for a label, the same for all texts, changes no balanced answer."""
    answers = np.array(rows)
    gold = np.zeros(len(rows), int)
    biased = score(answers + np.array([5.0, 0.0, -3.0]), gold, [""] * len(rows), {})
    centred = answers - answers.mean(axis=0)
    margins = np.sort(centred, axis=1)
    if (margins[:, -1] - margins[:, -2] > 1e-9).all():
        assert biased.balanced == score(answers, gold, [""] * len(rows), {}).balanced


def test_answers_that_are_no_numbers_spoil_no_prior() -> None:
    answers = np.log(np.array([[0.99, 0.01], [0.7, 0.3]]))
    found = score(np.vstack([answers, [[math.nan, 0.0]]]), np.array([0, 1, 0]), [""] * 3, {})
    assert found.balanced == Tally(2, 3)


def test_no_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="no labelled test texts"):
        score(np.empty((0, 2)), np.empty(0, int), [], {})


@given(st.lists(TALLIES, min_size=1, max_size=5))
def test_pooled_counts_add_up(tallies: list[Tally]) -> None:
    parts = [Score(tally, 1.0, {"en": tally}, {}) for tally in tallies]
    found = pooled(parts)
    assert found.total.right == sum(tally.right for tally in tallies)
    assert found.by_language["en"] == found.total
    assert found.loss == pytest.approx(1.0)


def test_an_unknown_loss_stays_unknown() -> None:
    parts = [Score(Tally(1, 1), loss, {}, {}) for loss in (0.5, None)]
    assert pooled(parts).loss is None
    assert math.isnan(Tally(0, 0).share)


WORDS = ("the", "power", "family", "mail")
TAGGED = tuple(
    Example(
        " ".join(WORDS), language=("en", "de")[n % 2], words=WORDS, tags=("O", "B-X", "I-X", "O")
    )
    for n in range(4)
)
OWNED = {"a": np.array([0, 1]), "b": np.array([2, 3])}
ENTITIES = st.integers(0, 9).flatmap(
    lambda most: st.builds(
        Entities, *(st.just((most, 9)),) * 2, st.tuples(st.integers(0, most), st.just(3))
    )
)


@pytest.mark.parametrize("task", [Task("w", kind="mlm"), Task("x", ("X",), kind="tagging")])
def test_answers_of_words_add_up_over_languages_and_clients(tiny_base: Base, task: Task) -> None:
    spec = parse_adapter("lora:2+head" if task.kind == "tagging" else "lora:2")
    engine = open_engine("torch", tiny_base, task, spec, Training(tokens=32))
    found = judged(engine, TAGGED, OWNED)
    assert set(found.by_client) == {"a", "b"} and set(found.losses) == {"en", "de"}
    assert found.total == sum(found.by_language.values(), Tally(0, 0))
    alone = judged(engine, TAGGED[:2], {"a": OWNED["a"]})
    assert alone.by_client == {"a": found.by_client["a"]}  # whoever else is asked
    assert set(found.entities) == ({"en", "de"} if task.kind == "tagging" else set())
    whole = evaluate(engine, TAGGED)
    assert found.total.asked == whole.num_examples
    if whole.entities is not None:
        assert together(list(found.entities.values())) == whole.entities


@pytest.mark.parametrize("task", [Task("w", kind="mlm"), Task("x", ("X",), kind="tagging")])
def test_a_coordinator_makes_of_a_score_what_it_makes_of_devices_reports(
    tiny_base: Base, task: Task
) -> None:
    """Clients of two languages: what is masked hangs on a text's place among all of them."""
    spec = "lora:2+head" if task.kind == "tagging" else "lora:2"
    engine = open_engine("torch", tiny_base, task, parse_adapter(spec), Training(tokens=32))
    members = tuple((name, name) for name in OWNED)
    opened, start = StepOpened("evaluate", 1, 1, "0" * 64, members, 0.0), engine.adapter()
    known = ("small", 1, "base", spec, "own", 0, task, Training(), 0)
    told, unknown = [], engine.encoder.unknown_share
    for name, rows in OWNED.items():
        work = Work(PROTOCOL, name, "evaluate", *known)
        own = OwnTexts(ClientData((), (), tuple(TAGGED[row] for row in rows)), unknown)
        report = answer(engine, start, own, work, name, MemoryNotes()).report
        told.append(noted(Answered(name, "done", None, report.num_examples), report, task))
    assert told_of(opened, judged(engine, TAGGED, OWNED), task) == scored(opened, told)


@given(st.lists(ENTITIES, min_size=1), st.lists(ENTITIES, min_size=1))
def test_entities_add_up_in_any_parts(some: list[Entities], more: list[Entities]) -> None:
    assert together([together(some), together(more)]) == together([*more, *some])


def test_losses_by_language_weigh_answers() -> None:
    few, many = (
        Score(Tally(0, asked), loss, {"en": Tally(0, asked)}, {}, losses={"en": loss})
        for asked, loss in ((1, 4.0), (3, 2.0))
    )
    found = pooled([few, many])
    assert found.losses == {"en": pytest.approx(2.5)} and found.loss == pytest.approx(2.5)
