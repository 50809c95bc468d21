"""Figures of a report, checked without a server."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.rounds.admission import COUNTS, FLOAT32_MAX, Refusal, check_report
from edge_client.wire.confidences import BINS, Confidences, counted
from edge_client.wire.messages import Report

REPORT = Report("w", "done", 5)


@given(st.integers(1, 4), st.lists(st.floats(-9.0, 0.0) | st.floats(), max_size=5))
def test_means_are_one_number_a_label_or_none(labels: int, means: list[float]) -> None:
    report = replace(REPORT, mean_log_probabilities=tuple(means))
    if not means or (len(means) == labels and all(abs(mean) <= FLOAT32_MAX for mean in means)):
        check_report(report, labels)
    else:
        with pytest.raises(Refusal, match=f"mean_log_probabilities: {labels} numbers, or none"):
            check_report(report, labels)


@pytest.mark.parametrize("mean", [nan, inf, -inf, 1e308, -1e308])
def test_a_mean_that_would_spoil_the_prior_is_refused(mean: float) -> None:
    with pytest.raises(Refusal, match="mean_log_probabilities: 2 numbers") as refused:
        check_report(replace(REPORT, mean_log_probabilities=(-1.0, mean)), 2)
    assert refused.value.status == 422


@given(st.integers(1, 4), st.integers(0, 5))
def test_counts_are_those_of_every_label(labels: int, told: int) -> None:
    report = replace(REPORT, confidences=Confidences(9, ((0,) * BINS,) * told))
    if told == labels:
        check_report(report, labels)
    else:
        with pytest.raises(Refusal, match=f"confidences: counts of {labels} labels expected"):
            check_report(report, labels)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_cannot_be_is_named(name: str) -> None:
    fields: dict[str, Any] = {name: 2**53}
    with pytest.raises(Refusal, match=f"{name} is not between 0 and 2\\^53") as refused:
        check_report(replace(REPORT, **fields), 2)
    assert refused.value.status == 422


@pytest.mark.parametrize("accuracy", [-0.1, 1.1, nan, inf])
def test_an_accuracy_that_cannot_be_is_named(accuracy: float) -> None:
    with pytest.raises(Refusal, match=r"accuracy .* is not between 0 and 1"):
        check_report(replace(REPORT, accuracy=accuracy), 2)


@pytest.mark.parametrize("loss", [nan, inf, -inf, 1e308, -1e39])
def test_a_loss_that_no_float32_is_cannot_spoil_a_sum(loss: float) -> None:
    with pytest.raises(Refusal, match=r"loss .* is not within float32's range"):
        check_report(replace(REPORT, loss=loss, num_examples=2**52), 2)


def test_what_a_device_may_say_is_let_in() -> None:
    told = counted(5, [0, 1], [0.9, 0.6], 2)
    said = replace(REPORT, accuracy=0.5, labelled=3, pseudo_labels=2, confidences=told)
    check_report(replace(said, mean_log_probabilities=(-0.5, -1.5)), 2)
