"""The stream of news: all there is, then what changes; few of them, and nobody waits for one."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from smidgen.coordinator.page import routes
from smidgen.coordinator.page.board import PageState
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.polls import Bells
from smidgen.coordinator.storage.credentials import operator_of_token, revoke_operator
from smidgen.edge_client.client.connection import http_client, nobody
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report
from tests.coordinator.page.conftest import Served

Start = Callable[..., Served]
EVENTS = "/v1/operator/events"


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    kind = ""
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)


def until(told: Iterator[tuple[str, Any]], found: Callable[[str, Any], bool]) -> Any:
    end = time.monotonic() + 120
    for kind, data in told:
        if found(kind, data):
            return data
        assert time.monotonic() < end
    raise AssertionError("the stream ended")


class Page:
    """What an open page holds: news of a kind may come in one message or in several."""

    def __init__(self, answer: httpx.Response) -> None:
        self._told = events(answer)
        self.run: dict[str, Any] = {}
        self.devices: dict[str, dict[str, Any]] = {}
        self.rounds: dict[tuple[str, int], dict[str, Any]] = {}

    def read_until(self, is_told: Callable[["Page"], object]) -> None:
        def found(kind: str, data: Any) -> bool:
            if kind == "state":
                (self.run,) = data["runs"]
            if data.get("is_all"):
                (self.devices if kind == "devices" else self.rounds).clear()
            self.devices |= {one["name"]: one for one in data.get("devices", ())}
            for one in data.get("rounds", ()):
                self.rounds[data["run_id"], one["round_index"]] = one
            return bool(is_told(self))

        until(self._told, found)


def test_a_stream_tells_all_there_is_and_then_what_changes(start: Start) -> None:
    served = start(rounds=1)
    first, second = served.join("kitchen", "hall")
    with served.http.stream("GET", EVENTS, headers=served.bearer(served.viewer)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        page = Page(answer)
        page.read_until(lambda page: page.devices and page.run["phase"] == "evaluate")
        assert page.run["name"] == "mail" and page.run["devices"] == 2
        assert list(page.devices) == ["kitchen", "hall"]
        assert page.devices["kitchen"]["runs"][0]["said"] == "takes part"
        assert served.operator not in json.dumps([page.run, page.devices])
        work = first.work()
        first.report(Report(work.work_id, "failed", failure="memory"))
        page.read_until(lambda page: page.run["trouble"] and page.run["step"]["answers"] == 1)
        trouble = page.run["trouble"][0]
        assert (trouble["name"], trouble["kind"]) == ("kitchen", "evaluate")
        assert trouble["said"] == "the device ran out of memory"
        missing = page.run["step"]["missing"]
        assert [(one["name"], one["is_late"]) for one in missing] == [("hall", True)]
        second.do(second.work())
        first_round = (served.run_id, 0)
        page.read_until(lambda page: page.rounds.get(first_round, {}).get("answers") == 2)
        assert page.rounds[first_round]["failed"] == 1


def test_a_page_that_is_open_shows_no_device_that_was_forgotten(start: Start) -> None:
    served = start(rounds=9)
    first, second = served.join("kitchen", "hall")
    with served.http.stream("GET", EVENTS, headers=served.bearer(served.viewer)) as answer:
        page = Page(answer)
        for device in (first, second, first, second):
            device.do(device.work())
        page.read_until(lambda page: page.rounds.get((served.run_id, 1)) and len(page.devices) == 2)
        path = f"/v1/operator/devices/{second.device_id}/forget"
        assert served.http.post(path, headers=served.bearer(served.operator)).status_code == 202
        page.read_until(lambda page: (page.run["devices"], list(page.devices)) == (1, ["kitchen"]))
        page.read_until(lambda page: (served.run_id, 1) not in page.rounds)


def test_a_device_that_misses_steps_is_named(start: Start) -> None:
    served = start(deadline_s=0.5)
    good, _ = served.join("kitchen", "hall")
    good.do(good.work())
    with served.http.stream("GET", EVENTS, headers=served.bearer(served.viewer)) as answer:
        page = Page(answer)
        page.read_until(
            lambda page: page.devices and "less often" in page.devices["hall"]["runs"][0]["said"]
        )
    said = page.devices["hall"]["runs"][0]["said"]
    assert said.startswith("takes part, but did not answer in the last")


def test_a_device_that_declines_says_why(start: Start) -> None:
    served = start()
    device = served.enrol("small")
    device.tell(served.run_id, Membership("declined", "budget"))
    with served.http.stream("GET", EVENTS, headers=served.bearer(served.viewer)) as answer:
        state = until(events(answer), lambda kind, data: kind == "state")
    trouble = state["runs"][0]["trouble"][0]
    assert trouble["name"] == "small"
    assert trouble["said"] == "takes no part: no plan fits the device's memory budget"


def test_nobody_hears_without_a_token(start: Start) -> None:
    served = start()
    assert served.http.get(EVENTS).status_code == 401
    for token in (served.token, "none"):
        assert served.http.get(EVENTS, headers=served.bearer(token)).status_code == 401


def test_a_stream_too_many_is_refused_and_polls_are_answered(start: Start) -> None:
    served = start()
    device = served.enrol("a")
    told = []  # kept: an iterator that is forgotten closes its connection
    with ExitStack() as stack:
        for _ in range(routes.MOST):
            http = stack.enter_context(http_client(served.url, nobody(), timeout=120))
            headers = served.bearer(served.viewer)
            answer = stack.enter_context(http.stream("GET", EVENTS, headers=headers))
            told.append(events(answer))
            next(told[-1])
        refused = served.http.get(EVENTS, headers=served.bearer(served.viewer))
        assert refused.status_code == 503 and "open already" in refused.json()["detail"]
        assert device.poll().status_code == 200
        again = served.http.get(EVENTS, headers=served.bearer(served.viewer))
        assert again.status_code == 503  # the streams were all open while the poll was answered


def test_a_place_is_taken_before_the_first_word_and_given_back(start: Start) -> None:
    places = routes.Streams(PageState(start().service), Bells())
    for _ in range(routes.MOST):
        places.take()
    with pytest.raises(Refusal, match="open already"):
        places.take()
    places.leave()
    places.take()


def test_a_stream_ends_with_its_operator(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BEAT_S", 0.2)
    served = start()
    operator = operator_of_token(served.store, served.viewer)
    assert operator is not None
    with served.http.stream("GET", EVENTS, headers=served.bearer(served.viewer)) as answer:
        told = events(answer)
        assert until(told, lambda kind, _: kind == "beat")["at_s"] > 0
        revoke_operator(served.store, operator.operator_id, time.time())
        assert {kind for kind, _ in told} <= {"beat", "state", "devices"}  # until its end


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0, 1.0), (0.1, 1.0), (1.0, 9.0), (60.0, 15.0)])
def test_one_slow_look_stills_the_page_for_seconds_and_not_for_minutes(
    took_s: float, rest_s: float
) -> None:
    assert routes.rest_after(took_s) == rest_s
