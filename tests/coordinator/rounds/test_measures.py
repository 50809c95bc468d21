"""What runs of each kind of task go by, and that no device outweighs the others in it."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.events import Answered, StepOpened, decode_event, encode_event
from smidgen.coordinator.rounds.scoring import (
    FAR_NATS,
    entity_scores,
    heads_of,
    is_collapsed,
    judged,
    mean_loss,
    measures_of,
    ratio_of,
    scored,
)
from smidgen.edge_client.tasks.counts import Entities, scores_of
from smidgen.edge_client.tasks.kind import every_kind, kind_named
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report

TAGGING, MASKED = Task("t", ("Drug", "Dose"), kind="tagging"), Task("t", kind="mlm")
LABELS = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "good", "b": "bad"})
FOUND = Entities((4, 1), (3, 0), (2, 0), 3, 5)
ONE = Task("t", ("Drug",), kind="tagging")
REPORT = Report("w", "done", 50, 2.0, 0.9)
OPENED = StepOpened("evaluate", 1, 1, "sha", (("w", "d"),), 0.0)


def counts(there: int, found: int, strict: int) -> Entities:
    return Entities((there,), (found,), (strict,), strict, 2 * strict)


TOLD = st.tuples(st.integers(0, 30), st.integers(0, 30)).flatmap(
    lambda pair: st.integers(0, min(pair)).map(lambda strict: counts(*pair, strict))
)


def answer_of(report: Report, task: Task) -> Answered:
    return judged(Answered("w", report.outcome, None, report.num_examples), report, task)


def test_tagging_goes_by_the_f1_of_entities_and_not_by_words() -> None:
    answer = answer_of(replace(REPORT, entities=FOUND), TAGGING)
    assert ratio_of(answer) == (4, 8) and answer.right == 45
    assert scored(OPENED, [answer]).accuracy == scores_of(FOUND).strict == 0.5


def test_masked_words_go_by_accuracy_and_have_a_loss() -> None:
    answer = answer_of(REPORT, MASKED)
    assert ratio_of(answer) == (45, 50) and answer.loss == 2.0
    assert scored(OPENED, [answer]).loss == 2.0


def test_a_tagger_that_finds_nothing_yet_and_fits_better_has_come_to_no_harm() -> None:
    """A drawn head finds entities by luck; one that begins to learn says `O` to every word."""
    lucky, learning = counts(100, 100, 60), counts(100, 0, 0)
    first = scored(OPENED, [answer_of(replace(REPORT, loss=1.6, entities=lucky), ONE)])
    for loss, is_harm in ((0.8, False), (1.6, False), (2.0, True)):
        report = replace(REPORT, loss=loss, entities=learning)
        assert is_collapsed(scored(OPENED, [answer_of(report, ONE)]), first) == is_harm


def test_false_losses_of_a_few_hide_no_harm() -> None:
    def told(loss: float, strict: int) -> Answered:
        return answer_of(replace(REPORT, loss=loss, entities=counts(100, 100, strict)), ONE)

    before = scored(OPENED, [told(1.0, 90)] * 5)
    after = scored(OPENED, [*[told(2.0, 10)] * 3, *[told(-100.0, 10)] * 2])
    assert is_collapsed(after, before)


def test_labels_go_by_accuracy_as_ever() -> None:
    answer = answer_of(replace(REPORT, mean_log_probabilities=(-0.5, -1.0)), LABELS)
    assert ratio_of(answer) == (45, 50) and answer.mean_log_probabilities == (-0.5, -1.0)
    assert answer.loss is None and scored(OPENED, [answer]).loss is None


@pytest.mark.parametrize("task", [LABELS, TAGGING, MASKED])
def test_whoever_keeps_no_texts_to_test_on_counts_nothing(task: Task) -> None:
    empty = Answered("w", "done", None, 0)
    assert judged(empty, Report("w", "done"), task) == empty
    assert scored(OPENED, [empty]).texts == 0


def test_a_device_whose_texts_hold_no_entity_still_has_texts() -> None:
    answer = answer_of(replace(REPORT, entities=Entities((0, 0), (0, 0), (0, 0))), TAGGING)
    assert answer.right == 45 and scored(OPENED, [answer]).texts == 0


@pytest.mark.parametrize("task", [TAGGING, MASKED])
def test_what_was_found_is_in_the_journal(task: Task) -> None:
    entities = FOUND if task is TAGGING else None
    answer = answer_of(replace(REPORT, entities=entities), task)
    assert decode_event(encode_event(answer)) == answer


def test_a_journal_of_before_knows_of_no_entities() -> None:
    line = encode_event(answer_of(REPORT, LABELS))
    old = line.replace('"entities": null, ', "").replace('"loss": null, ', "")
    assert len(old) < len(line) and decode_event(old) == decode_event(line)


def test_guessing_is_worth_something_of_labels_alone() -> None:
    assert kind_named("labels").measure.chance(("a", "b")) == 0.5
    for kind in ("tagging", "mlm"):
        assert kind_named(kind).measure.chance(("a", "b")) == 0.0


def test_every_kind_has_a_measure_and_tables_of_several_name_all() -> None:
    assert all(kind.measure.word and kind.measure.note for kind in every_kind())
    assert heads_of(measures_of(["mlm", "labels"])) == "accuracy"
    assert heads_of(measures_of(["tagging"])) == "F1"
    assert heads_of(measures_of(["tagging", "labels"])) == "accuracy or F1"


@given(st.lists(TOLD, max_size=8), st.randoms())
def test_the_order_of_devices_does_not_show_in_the_f1(
    told: list[Entities], order: random.Random
) -> None:
    assert entity_scores(order.sample(told, len(told))) == entity_scores(told)


@given(st.lists(TOLD, min_size=3, max_size=8), st.integers(1, 2**40))
def test_a_device_that_claims_many_entities_weighs_no_more_than_a_few(
    told: list[Entities], times: int
) -> None:
    """It finds all of as many as it likes; the others find none."""
    none = [counts(one.there[0] + 1, one.found[0], 0) for one in told]
    asked = sorted(one.there[0] + one.found[0] for one in none)
    claimed = entity_scores([*none, counts(times, times, times)])
    most = 3 * max(asked)  # at least three of the median
    assert claimed is not None and claimed.strict is not None
    assert claimed.strict <= most / (most + sum(asked)) + 1e-9


@given(TOLD)
def test_one_device_alone_is_the_score(told: Entities) -> None:
    found, own = entity_scores([told]), scores_of(told)
    assert (found.strict if found else None) == own.strict


@given(st.floats(700.0, 3e38), st.integers(1, 2**40))
def test_a_loss_without_end_moves_the_mean_by_a_few_nats(loss: float, many: int) -> None:
    found = mean_loss([(2.0, 10), (2.5, 10), (3.0, 10), (loss, many)])
    assert found is not None and 2.5 <= found <= 3.0 + FAR_NATS


def test_a_mean_loss_is_over_words_not_over_devices() -> None:
    assert mean_loss([(1.0, 30), (2.0, 10)]) == 1.25
    assert mean_loss([]) is mean_loss([(3.0, 0)]) is None
