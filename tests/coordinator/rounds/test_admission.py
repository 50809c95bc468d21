"""Figures of a report, checked without a server."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smidgen.coordinator.rounds.admission import COUNTS, FLOAT32_MAX, Refusal, check_report
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.reports import BINS, Confidences, counted

REPORT = Report("w", "done", 5)


def task_of(labels: int) -> Task:
    names = tuple("abcd"[:labels])
    return Task("t", names, ("[MASK] {text}",), {name: name for name in names})


TWO = task_of(2)
TAGGING, MASKED = Task("t", ("Drug", "Dose"), kind="tagging"), Task("t", kind="mlm")
EVALUATED = replace(REPORT, accuracy=0.5, loss=1.0)


@given(st.integers(2, 4), st.lists(st.floats(-9.0, 0.0) | st.floats(), max_size=5))
def test_means_are_one_number_a_label_or_none(labels: int, means: list[float]) -> None:
    report = replace(REPORT, mean_log_probabilities=tuple(means))
    if not means or (len(means) == labels and all(abs(mean) <= FLOAT32_MAX for mean in means)):
        check_report(report, task_of(labels))
    else:
        with pytest.raises(Refusal, match=f"mean_log_probabilities: {labels} numbers, or none"):
            check_report(report, task_of(labels))


@pytest.mark.parametrize("mean", [nan, inf, -inf, 1e308, -1e308])
def test_a_mean_that_would_spoil_the_prior_is_refused(mean: float) -> None:
    with pytest.raises(Refusal, match="mean_log_probabilities: 2 numbers") as refused:
        check_report(replace(REPORT, mean_log_probabilities=(-1.0, mean)), TWO)
    assert refused.value.status == 422


@given(st.integers(2, 4), st.integers(0, 5))
def test_counts_are_those_of_every_label(labels: int, told: int) -> None:
    report = replace(REPORT, confidences=Confidences(9, ((0,) * BINS,) * told))
    if told == labels:
        check_report(report, task_of(labels))
    else:
        with pytest.raises(Refusal, match=f"confidences: counts of {labels} labels expected"):
            check_report(report, task_of(labels))


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_cannot_be_is_named(name: str) -> None:
    fields: dict[str, Any] = {name: 2**53}
    with pytest.raises(Refusal, match=f"{name} is not between 0 and 2\\^53") as refused:
        check_report(replace(REPORT, **fields), TWO)
    assert refused.value.status == 422


@pytest.mark.parametrize("accuracy", [-0.1, 1.1, nan, inf])
def test_an_accuracy_that_cannot_be_is_named(accuracy: float) -> None:
    with pytest.raises(Refusal, match=r"accuracy .* is not between 0 and 1"):
        check_report(replace(REPORT, accuracy=accuracy), TWO)


@pytest.mark.parametrize("loss", [nan, inf, -inf, 1e308, -1e39])
def test_a_loss_that_no_float32_is_cannot_spoil_a_sum(loss: float) -> None:
    with pytest.raises(Refusal, match=r"loss .* is not within float32's range"):
        check_report(replace(REPORT, loss=loss, num_examples=2**52), TWO)


def test_what_a_device_may_say_is_let_in() -> None:
    told = counted(5, [0, 1], [0.9, 0.6], 2)
    said = replace(REPORT, accuracy=0.5, labelled=3, pseudo_labels=2, confidences=told)
    check_report(replace(said, mean_log_probabilities=(-0.5, -1.5)), TWO)


def test_entities_are_those_of_every_type_of_tagging() -> None:
    told = Entities((1, 2), (3, 2), (1, 0), 1, 2)
    check_report(replace(EVALUATED, entities=told), TAGGING)
    check_report(replace(EVALUATED, entities=Entities((9, 9), (5, 0), (5, 0))), TAGGING)
    three = (1, 2, 3)
    for wrong in (Entities((1,), (3,), (1,)), Entities((), (), ()), Entities(three, three, three)):
        with pytest.raises(Refusal, match="entities: counts of 2 types expected"):
            check_report(replace(EVALUATED, entities=wrong), TAGGING)


def test_no_more_entities_are_found_than_words_are_read() -> None:
    with pytest.raises(Refusal, match="entities: 5 entities found at most expected"):
        check_report(replace(EVALUATED, entities=Entities((0, 0), (5, 1), (0, 0))), TAGGING)


def test_a_run_of_several_labels_is_refused_in_its_own_words() -> None:
    several, many = replace(TWO, kind="multilabel"), Entities((0, 0), (99, 99), (0, 0))
    for told, said in ((None, "counts of labels expected"), (many, "10 labels found at most")):
        with pytest.raises(Refusal, match=f"entities: {said}"):
            check_report(replace(EVALUATED, entities=told), several)


@pytest.mark.parametrize("task", [TWO, MASKED])
def test_entities_of_another_kind_of_task_are_refused(task: Task) -> None:
    with pytest.raises(Refusal, match=f"entities: none expected of a task of kind {task.kind}"):
        check_report(replace(EVALUATED, entities=Entities((1,), (1,), (1,))), task)


def test_an_evaluation_of_tagging_tells_of_entities_and_nothing_else_does() -> None:
    check_report(REPORT, TAGGING)
    with pytest.raises(Refusal, match="entities: counts of entities expected with an accuracy"):
        check_report(EVALUATED, TAGGING)
    with pytest.raises(Refusal, match="entities: expected of an evaluation alone"):
        check_report(replace(REPORT, entities=Entities((0, 0), (0, 0), (0, 0))), TAGGING)


@pytest.mark.parametrize("task", [TAGGING, MASKED])
def test_what_goes_by_labels_of_texts_is_told_of_labels_alone(task: Task) -> None:
    with pytest.raises(Refusal, match="mean_log_probabilities: 0 numbers, or none"):
        check_report(replace(REPORT, mean_log_probabilities=(-1.0, -1.0)), task)
    with pytest.raises(Refusal, match="confidences: counts of 0 labels expected"):
        check_report(replace(REPORT, confidences=counted(5, [0, 1], [0.9, 0.6], 2)), task)
