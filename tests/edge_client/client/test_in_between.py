"""Something between device and coordinator answers: nothing is lost, nothing is trained in vain."""

import configparser
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.connection import Unreachable, patiently
from smidgen.edge_client.client.outbox import (
    LONGEST_GAP,
    MOST_413,
    STUCK_S,
    STUCK_TRIES,
    Barriers,
    NotThrough,
    Tries,
)
from smidgen.edge_client.client.transport import FEWEST_ANSWERED, Coordinator
from smidgen.edge_client.client.trust import _shown
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Receipt, Report, Work, decode, encode
from smidgen.edge_client.wire.tensors import sha256
from smidgen.edge_client.wire.training import Training
from tests import command_line
from tests.breadth import first_fast
from tests.edge_client.client.servers import Answer, Foreign, http_server
from tests.edge_client.client.terms import IDLE
from tests.edge_client.client.test_new_texts import Script, mine, nothing, task

__all__ = ["mine", "task"]  # fixtures
PAGE = Foreign(b"<html>413 Request Entity Too Large</html>")
NO = Foreign(b'{"detail":"Not Found"}')  # in a coordinator's own form
UNIT = Path(__file__).parents[3] / "scripts" / "jetson" / "smidgen-client.service"


@dataclass
class Between(Script):
    """A scripted coordinator behind something that answers some uploads itself.

    Attributes:
        said: Answers to uploads that are not the coordinator's, as they come.
        tried: Work whose update came as far as that.
        to_heads: Answers to questions how much has arrived, as they come.
    """

    said: list[Answer] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    to_heads: list[Answer] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if method == "HEAD" and self.to_heads:
            return self.to_heads.pop(0)
        if method == "PUT":
            self.tried.append(path.split("/")[3])
            if self.said:
                return self.said.pop(0)
        return super().answer(method, path, body)


class Onward(Script):
    """A scripted coordinator whose receipts of reports bring what is next."""

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        given = super().answer(method, path, body)
        if "/report?" not in path:
            return given
        return 200, encode(Receipt(True, next=decode(self.next_work()[1], Next)))


def test_a_device_polls_once_for_its_first_work_and_for_no_other(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path
) -> None:
    script = Onward(tiny_base, task, [("train", nothing)] * 4)
    assert [one.outcome for one in script.run(tmp_path)] == ["done"] * 4
    asked = [path for path in script.paths if path.startswith("/v1/work?")]
    assert len(asked) == 3  # for an invitation, for work, and once the adapter is at home
    assert sum("/report?wait_s=25&life=" in path for path in script.paths) == 4


def work_of(place: int) -> Work:
    task = Task("t", ("a", "b"), ("[MASK] {text}",), {"a": "a", "b": "b"})
    return Work(
        *(PROTOCOL, f"w{place}", "train", "run", place, "0" * 64, "lora:2", "0" * 64, 10, task),
        Training(),
        seed=7,
    )


def test_a_proxy_that_refuses_updates_as_too_large_is_told_of_and_trained_for_less(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    always: list[Answer] = [(413, PAGE)] * (2 * MOST_413)  # then somebody mends the proxy
    script = Between(tiny_base, task, [("train", nothing)] * 5, said=always)
    reports = script.run(tmp_path)
    tried = [f"work-{place}" for place in (1, 2) for _ in range(MOST_413)] + ["work-4", "work-5"]
    assert script.tried == tried  # the third is not even trained for
    told = [(one.outcome, one.failure, one.is_leaving) for one in reports]
    assert told == [("failed", "too_large", False)] * 3 + [("done", None, False)] * 2
    assert {one.refused_bytes for one in reports[:3]} == {len(script.updates[0])}
    assert "client_max_body_size" in caplog.text and str(len(script.updates[0])) in caplog.text


@pytest.mark.parametrize(
    "status", first_fast([404, 400, 401, 403, 408, 413, 421, 422, 429, 500, 302, 200])
)
def test_no_answer_of_something_in_between_loses_an_update(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, status: int
) -> None:
    script = Between(tiny_base, task, [("train", nothing)], said=[(status, NO), (status, PAGE)])
    assert [one.outcome for one in script.run(tmp_path)] == ["done"]
    assert script.tried == ["work-1"] * 3 and len(script.updates) == 1


@pytest.mark.parametrize("status", first_fast([403, 400, 404, 405, 501]))
def test_a_filter_that_lets_no_head_through_stops_no_update(
    tiny_base: Base, task: Task, mine: Path, tmp_path: Path, status: int
) -> None:
    cut: list[Answer] = [(502, PAGE)]
    refused: list[Answer] = [(status, PAGE)]
    script = Between(tiny_base, task, [("train", nothing)], said=cut, to_heads=refused)
    assert [one.outcome for one in script.run(tmp_path)] == ["done"]
    assert script.tried == ["work-1"] * 2 and script.to_heads == []


def test_an_update_that_does_not_get_through_where_small_messages_do_is_given_up() -> None:
    def stuck(is_further: bool = False, is_body_alone: bool = True) -> Unreachable:
        error = Unreachable("reset")
        error.is_further, error.is_body_alone = is_further, is_body_alone
        return error

    tries = Tries("https://hub", 3_000_000)
    for place in range(9 * STUCK_TRIES):
        tries.failed(stuck(is_further=place % 9 == 0), STUCK_S * place)
        tries.failed(stuck(is_body_alone=place % 7 == 0), STUCK_S * place)
    tries = Tries("https://hub", 3_000_000)
    for _ in range(99):
        tries.failed(stuck(), 1000.0)  # too soon
    with pytest.raises(NotThrough, match="lets small messages through") as caught:
        tries.failed(stuck(), 1000.0 + STUCK_S)
    assert caught.value.code == "transfer"


def test_what_is_left_out_grows_and_is_forgotten_once_one_gets_through() -> None:
    barriers, tried = Barriers(), []
    report = Report("w", "failed", failure="too_large", refused_bytes=2_000_000)
    for place in range(1, 200):
        if (answer := barriers.in_vain(work_of(place))) is None:
            tried.append(place)
            barriers.met("run", report)
        else:
            assert answer.report.refused_bytes == 2_000_000
    gaps = [after - before - 1 for before, after in pairwise(tried)]
    assert gaps[:7] == [0, 1, 3, 7, 15, LONGEST_GAP, LONGEST_GAP]
    barriers.passed("run")
    assert barriers.in_vain(work_of(200)) is None


def test_a_poll_that_a_proxy_does_not_wait_for_is_shorter_the_next_time() -> None:
    asked: list[float] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        asked.append(float(path.split("wait_s=")[1].split("&")[0]))
        time.sleep(1.2)
        return 504, PAGE

    with http_server(answer) as url, closing(Coordinator(url)) as coordinator:
        for _ in range(2):
            with pytest.raises(Unreachable, match="504"):
                coordinator.next_work(25.0, WorkMeter())
    assert asked == [25.0, 1.0]


def test_a_poll_grows_again_once_polls_are_answered_and_more_slowly_after_each_cut() -> None:
    """An outage cuts polls as short as a proxy does; which it was, only trying tells."""
    asked: list[float] = []
    is_out = [True]

    def answer(method: str, path: str, body: bytes) -> Answer:
        wait_s = float(path.split("wait_s=")[1].split("&")[0])
        asked.append(wait_s)
        if is_out[0] or wait_s > 3.0:
            time.sleep(1.2)
            return 504, PAGE
        return 200, IDLE

    with http_server(answer) as url, closing(Coordinator(url)) as coordinator:

        def poll() -> None:
            with suppress(Unreachable):
                coordinator.next_work(25.0, WorkMeter())

        poll()
        is_out[0] = False
        for _ in range(3 * FEWEST_ANSWERED):
            poll()
        grown = [25.0, *[1.0] * FEWEST_ANSWERED, *[2.0] * FEWEST_ANSWERED, 4.0]
        assert asked[: len(grown)] == grown
        del asked[:]
        for _ in range(2 * FEWEST_ANSWERED + 1):
            poll()
        assert asked.count(1.0) >= FEWEST_ANSWERED and 4.0 not in asked


@pytest.mark.parametrize("status", [408, 502, 504, 524])
def test_a_report_whose_receipt_something_cuts_short_is_sent_again_without_waiting(
    status: int,
) -> None:
    asked: list[str] = []

    def answer(method: str, path: str, body: bytes) -> Answer:
        asked.append(path.partition("/v1/work/")[2])
        if "wait_s=" not in path:
            return 200, encode(Receipt(True))
        time.sleep(1.2)
        return status, PAGE

    with http_server(answer) as url, closing(Coordinator(url)) as coordinator:
        for work_id in ("v", "w"):
            report = Report(work_id, "done")
            send = partial(coordinator.report, report, WorkMeter(), 25.0)
            assert patiently(send, 30.0) == Receipt(True)
    shorter = "25" if status == 502 else "1"  # nobody's patience: nobody was there
    assert asked == ["v/report?wait_s=25", "v/report", f"w/report?wait_s={shorter}", "w/report"]


def test_an_adapter_that_arrives_damaged_is_fetched_once_more() -> None:
    body, left = b"an adapter", [b"damaged", b"an adapter"]
    with http_server(lambda *_: (200, left.pop(0))) as url, closing(Coordinator(url)) as device:
        assert device.adapter(sha256(body), WorkMeter()) == body


@pytest.mark.parametrize("status", [200, 302, 404, 429, 503])
def test_a_login_page_at_the_first_start_is_nobody_who_answers(
    tmp_path: Path, status: int, mine: Path
) -> None:
    with http_server(lambda *_: (status, PAGE)) as url:
        with pytest.raises(Unreachable, match="not as a coordinator"):
            _shown(url)
        done = command_line.smidgen(
            *("client", "run", "--coordinator", url, "--token", "t", "--data", str(mine)),
            *("--state", str(tmp_path / "state"), "--patience", "0.1"),
        )
    assert done.exit_code == 1 and "something in between" in done.stderr


def test_the_unit_starts_a_client_again_for_as_long_as_nobody_answers() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Service"]["RestartPreventExitStatus"] == "2"


def test_a_receipt_of_something_in_between_is_no_receipt() -> None:
    forged = Foreign(encode(Receipt(True)))
    with http_server(lambda *_: (200, forged)) as url, closing(Coordinator(url)) as device:
        with pytest.raises(Unreachable):
            device.upload("w", b"body", WorkMeter())
        with pytest.raises(Unreachable):
            device.report(Report("w", "done"), WorkMeter())
