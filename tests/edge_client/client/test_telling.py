import logging

import numpy as np
import pytest

from smidgen.edge_client.client.progress_log import (
    Progress,
    Teller,
    in_short,
    time_text,
    waiting_text,
)
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import PROTOCOL, Report, Waiting, Work
from smidgen.edge_client.wire.tensors import Update, encode_update
from smidgen.edge_client.wire.training import Training
from tests.edge_client.updates.coded import encode_coded


@pytest.fixture
def work(hub_task: Task) -> Work:
    return Work(
        *(PROTOCOL, "w", "train", "run", 3, "base", "lora:2", "sha", 9, hub_task, Training()), 7
    )


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (
            Waiting("idle"),
            "no run wants this device now (finished runs take nobody in); waiting for one",
        ),
        (Waiting("full"), "the coordinator's disk is full"),
        (Waiting("paused", "mail", 2, 9), "mail: paused, round 2 of 9"),
        (
            Waiting("waiting", "mail", 1, 9, 1, 2),
            "mail: waiting for 1 more device before round 1 of 9; 2 needed",
        ),
        (Waiting("waiting", "mail", 1, 9, 3, 4), "waiting for 3 more devices before round 1"),
        (Waiting("waiting", "mail", 2, 9, 0, 1), "waiting for round 2 of 9 to begin"),
        (
            Waiting("train", "mail", 2, 9, 1, 4, 540.0),
            "round 2 of 9, training: 3 of 4 devices have answered; waiting; it goes on without "
            "them in 9 min",
        ),
        (Waiting("train", "mail", 2, 9, 1, 4, 40.0, ("hall",)), "waiting (hall); it goes on"),
        (Waiting("evaluate", "mail", 2, 9, 0, 4, 40.0), "all 4 devices asked have answered"),
    ],
)
def test_what_a_run_waits_for_is_said_in_words(waiting: Waiting, said: str) -> None:
    assert said in waiting_text(waiting)


def test_it_is_said_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    teller = Teller()
    for seconds in (60.0, 40.0, 20.0):
        teller.waiting(Waiting("train", "mail", 1, 3, 2, 3, seconds))
    teller.waiting(Waiting("train", "mail", 1, 3, 1, 3, 10.0))
    teller.worked()
    teller.waiting(Waiting("train", "mail", 1, 3, 1, 3, 5.0))
    assert len(caplog.records) == 3


def test_long_work_says_how_far_it_is(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = iter([0.0, 4.0, 9.0, 11.0, 15.0, 22.0])
    progress = Progress(work, 96, lambda: next(now))
    for _ in range(5):
        progress(8)
    assert [one.getMessage() for one in caplog.records] == [
        "round 3: training: 24 of 96 texts over 4 epochs, 11 s so far",
        "round 3: training: 40 of 96 texts over 4 epochs, 22 s so far",
    ]


def test_a_failure_is_one_line_with_the_devices_own_words(work: Work) -> None:
    failed = FinishedWork(Report("w", "failed", failure="disk"), None, "OSError: no room")
    assert in_short(work, failed, True) == "round 3: training failed (disk): OSError: no room"


def test_work_that_came_too_late_does_not_read_like_a_success(work: Work) -> None:
    done = FinishedWork(Report("w", "done", 8, loss=0.5), None)
    assert "it came too late and does not count" in in_short(work, done, False)
    assert "too late" not in in_short(work, done, True)


def test_a_coded_update_is_said_with_its_codec(work: Work) -> None:
    update = Update("w", 8, {"a": np.ones((4, 4), np.float32)})
    report = Report("w", "done", 8, loss=0.5)
    body, _, _ = encode_coded(update, "int8", {})
    assert " up as int8, " in in_short(work, FinishedWork(report, body), True)
    assert " up, " in in_short(work, FinishedWork(report, encode_update(update)), True)


def test_spans_of_time_are_said_as_people_say_them() -> None:
    assert [time_text(seconds) for seconds in (-1, 40, 540, 7200)] == [
        "0 s",
        "40 s",
        "9 min",
        "2.0 h",
    ]
