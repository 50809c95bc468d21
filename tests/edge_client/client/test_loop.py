"""What a device does next, whatever its coordinator answers: a real client, scripted answers."""

import json
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from errno import ENOSPC
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.failures import ClientError, GaveUp
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.runs import own
from smidgen.edge_client.client.runs.own import MISSED
from smidgen.edge_client.client.state import FinishedWork as Kept
from smidgen.edge_client.guest import process
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import CLONED, REVOKED
from smidgen.edge_client.wire.messages import (
    ENDED,
    PROTOCOL,
    Ended,
    Next,
    Receipt,
    Report,
    Waiting,
    Work,
    decode,
    encode,
)
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Training
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import Door, over, terms_for
from tests.edge_client.client.test_enrolment import Gate, Home
from tests.edge_client.guest.test_guest import listening

WHOLE = b"an adapter"
GONE = 404, b'{"detail": "no such adapter"}'


@dataclass
class Turns:
    """A coordinator that says one thing after the other, and then knows the device no more."""

    turns: Sequence[Next]
    adapter: Answer = GONE
    accepts: Sequence[bool] = ()  # of memberships, as they come; true from then on
    told: list[Report] = field(default_factory=list)
    fetched: int = 0

    def __post_init__(self) -> None:
        self.door, self._left, self._accepts = Door(), list(self.turns), list(self.accepts)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if known := self.door.answer(path, body):
            is_taken = not path.endswith("/membership") or not self._accepts or self._accepts.pop(0)
            return known if is_taken else (200, encode(Receipt(False, "it is not over")))
        if path.startswith("/v1/work?"):
            return (200, encode(self._left.pop(0))) if self._left else (401, b'{"detail": "who"}')
        if path.startswith("/v1/adapters"):
            self.fetched += 1
            return self.adapter
        if path.endswith("/update"):
            return 200, encode(Receipt(True))
        self.told.append(decode(body, Report))
        return 200, encode(Receipt(True))

    def serve(self, home: Home) -> list[tuple[str, str, str | None]]:
        """Serve a device that waits for ever; how it stood to its runs."""
        with http_server(self.answer) as url, pytest.raises(ClientError, match="does not know"):
            Client(
                replace(home.settings(url), grace_s=0.0, is_until_finished=False), home.state
            ).run()
        return self.door.said


def work_of(home: Home, place: int) -> Next:
    base_id, task = home.base.base_id, home.terms.task
    work = Work(
        *(PROTOCOL, f"work-{place}", "train", "run", place, base_id, "lora:2"),
        *(sha256(WHOLE), len(WHOLE), task, Training()),
        seed=7,
    )
    return Next(work=work)


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task) -> Home:
    home = Home(tmp_path, tiny_base, terms_for(tiny_base, hub_task))
    home.write("labelled", ["text,label", "the front door opened,security"])
    return home


def test_what_made_an_earlier_life_leave_does_not_make_the_next_one_leave(home: Home) -> None:
    home.state.keep_finished(Kept(Report("w", "failed", failure="disk", is_leaving=True), None))
    gate, told = Gate(home.terms), []

    def answer(method: str, path: str, body: bytes) -> Answer:
        if "/report" in path:
            told.append(decode(body, Report))
            return 200, b'{"accepted": true}'
        return gate.answer(method, path, body)

    with http_server(answer) as url, pytest.raises(GaveUp, match=MISSED):
        Client(home.settings(url), home.state).run()
    assert [(one.failure, one.is_leaving) for one in told] == [("disk", False)]


@pytest.mark.parametrize(("ended", "said"), ENDED.items())
def test_the_log_says_why_a_run_ended(
    home: Home, ended: Ended, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    end = replace(over(sha256(weights)), ended=ended)
    with caplog.at_level("INFO"):
        Turns([Next(terms=home.terms), Next(over=end)], (200, weights)).serve(home)
    assert f"run mail is finished after 3 rounds: {said}; its adapter is in " in caplog.text


def test_an_adapter_that_is_not_the_last_is_told_and_carded_by_its_round(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    end = replace(over(sha256(weights)), kept_round=2, accuracies={0: 0.125, 2: 0.75, 3: 0.375})
    with caplog.at_level("INFO"):
        Turns([Next(terms=home.terms), Next(over=end)], (200, weights)).serve(home)
    assert "its best adapter, of round 2, is in " in caplog.text
    card = (home.state.finished_run(home.terms.run_name) / "README.md").read_text()
    assert "| 2 | 0.750 |" in card and "0.375" not in card


def test_an_adapter_of_masked_words_comes_home_with_its_perplexity(home: Home) -> None:
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 0, seed=3))
    terms = replace(home.terms, task=Task("notes", kind="mlm"))
    end = replace(over(sha256(weights)), losses={0: 4.0, 3: 2.0})
    Turns([Next(terms=terms), Next(over=end)], (200, weights)).serve(home)
    card = (home.state.finished_run(terms.run_name) / "README.md").read_text()
    assert "| 0 | 54.598 | 0.250 |" in card and "| 3 | 7.389 | 0.500 |" in card


def test_whoever_invites_again_is_answered_again(home: Home) -> None:
    terms = replace(home.terms, base_id="0" * 64)
    assert Turns([Next(terms=terms)] * 2).serve(home) == [("run", "declined", "base")] * 2


def test_an_adapter_that_arrives_damaged_three_times_is_done_without(home: Home) -> None:
    turns = Turns([Next(terms=home.terms), *[Next(over=over("0" * 64))] * 3], (200, b"damaged"))
    assert turns.serve(home)[1:] == [("run", "declined", "transfer")]


def test_an_adapter_that_cannot_be_written_is_not_at_home(home: Home) -> None:
    turns = Turns([Next(terms=home.terms), *[Next(over=over(sha256(WHOLE)))] * 3], (200, WHOLE))
    assert turns.serve(home)[1:] == [("run", "declined", "transfer")]  # it is no adapter at all
    assert turns.fetched == 1


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_client_that_ends_without_its_runs_adapter_says_so(home: Home, is_damaged: bool) -> None:
    """Its terms are damaged, or its folders of adapters lead to where nobody can write."""
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    home.state.joined.keep(home.terms)
    terms = home.state.joined.folder / "run.json"
    if is_damaged:
        terms.write_bytes(terms.read_bytes().replace(b"mail", b"mall"))
    for name in () if is_damaged else ("adapter", "finished"):
        (home.state.folder / name).symlink_to("/proc/self")
    overs = [Next(over=over(sha256(weights)))] * (1 if is_damaged else 3)
    turns = Turns([*overs, Next(waiting=Waiting("idle"))], (200, weights))
    why = f"{'are damaged or gone' if is_damaged else 'cannot be written to'}; {MISSED}"
    with http_server(turns.answer) as url, pytest.raises(GaveUp, match=why):
        Client(home.settings(url), home.state).run()
    assert [one[1] for one in turns.door.said] == ["declined"] and not terms.exists()


def test_a_client_that_has_one_of_two_adapters_names_the_other(home: Home) -> None:
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    second = replace(home.terms, run_id="2", run_name="second")
    ends = [over(sha256(weights)), over("0" * 64, "2", "second")]
    joins = [Next(terms=home.terms), Next(terms=second)]
    idle = Next(waiting=Waiting("idle"))
    turns = Turns([*joins, *(Next(over=end) for end in ends), idle])

    def answer(method: str, path: str, body: bytes) -> Answer:
        return (
            (200, weights) if path.endswith(sha256(weights)) else turns.answer(method, path, body)
        )

    why = f"^run second is finished, its adapter not to be had: .*; {MISSED}$"
    with http_server(answer) as url, pytest.raises(GaveUp, match=why) as told:
        Client(home.settings(url), home.state).run()
    assert told.value.summary is not None and told.value.summary.runs == ("mail",)
    assert [one[:2] for one in turns.door.said[2:]] == [("run", "home"), ("2", "declined")]
    assert home.state.finished_run("mail").is_dir()


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_adapter_that_is_not_had_is_tried_ever_more_seldom_while_another_run_goes_on(
    home: Home, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone, or its disk is full: six tries, of which the last pauses for 16 s."""
    weights, pauses = b"an adapter", list[float]()
    monkeypatch.setattr(own, "take_home", _no_room)
    clock = SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    monkeypatch.setattr(own, "time", clock)
    joins = [Next(terms=home.terms), Next(terms=replace(home.terms, run_id="2"))]
    ends = [Next(over=over(sha256(weights)))] * 6
    turns = Turns([*joins, *ends], GONE if is_lost else (200, weights))
    with http_server(turns.answer) as url, pytest.raises(ClientError, match="does not know"):
        Client(home.settings(url), home.state).run()
    assert pauses[-3:] == [4.0, 8.0, 16.0]


def _no_room(*_: object) -> str:
    raise OSError(ENOSPC, "No space left on device")


def test_an_adapter_for_which_there_is_no_room_is_fetched_once(home: Home) -> None:
    state = home.state
    (state.folder / "adapters").rmdir()
    (state.folder / "adapters").symlink_to("/proc/self")  # nobody can write there
    turns = Turns([Next(terms=home.terms), *[Next(over=over(sha256(WHOLE)))] * 2], (200, WHOLE))
    assert turns.serve(home) == [("run", "joined", None)] and turns.fetched == 1


def test_work_whose_adapter_is_gone_is_closed_and_the_next_is_asked_for(home: Home) -> None:
    turns = Turns([Next(terms=home.terms), work_of(home, 1), work_of(home, 2)])
    assert turns.serve(home) == [("run", "joined", None)]
    assert turns.fetched == 2 and not turns.told


def test_one_bad_run_does_not_end_a_device_that_waits_for_ever(home: Home) -> None:
    works = [work_of(home, place) for place in range(1, 4)]
    turns = Turns([Next(terms=home.terms), *works], (200, WHOLE))
    turns.serve(home)
    assert [one.is_leaving for one in turns.told] == [False, False, True]


def test_what_is_kept_of_a_training_stays_until_its_answer_is_kept_or_delivered(home: Home) -> None:
    turns = Turns([Next(terms=home.terms), work_of(home, 1)], (200, WHOLE))
    outbox, steps, there = home.state.folder / "outbox", home.state.steps("work-1"), list[bool]()
    outbox.rmdir()
    outbox.symlink_to("/proc/self")  # nobody can write there
    steps.write_bytes(b"of an earlier life")

    def answer(method: str, path: str, body: bytes) -> Answer:
        if "/report" in path:
            there.append(steps.exists())
        return turns.answer(method, path, body)

    with http_server(answer) as url, pytest.raises(ClientError, match="does not know"):
        Client(home.settings(url), home.state).run()
    assert there == [True] and not steps.exists()


@pytest.mark.parametrize("place", ["/enrol", "/membership", "/v1/adapters", "/report"])
def test_each_try_is_a_sign_of_life_whatever_is_asked(
    home: Home, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, fails = Turns([Next(terms=home.terms), work_of(home, 1)], (200, WHOLE)), [2]
    asked, heard = list[str](), list[bytes]()
    monkeypatch.setattr(process, "LEAST_S", 0.0)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "socket"))
    with listening(str(tmp_path / "socket")) as manager:
        manager.setblocking(False)

        def hear() -> None:
            with suppress(BlockingIOError):
                while True:
                    heard.append(manager.recv(4096))

        def answer(method: str, path: str, body: bytes) -> Answer:
            hear()
            asked.append(path)
            if place in path and fails[0]:
                fails[0] -= 1
                return 503, b"an outage"
            return turns.answer(method, path, body)

        with http_server(answer) as url, pytest.raises(ClientError, match="does not know"):
            Client(home.settings(url), home.state).run()
        hear()
    assert heard.count(b"WATCHDOG=1") == len(asked) and fails == [0]


def test_a_run_that_was_extended_while_its_adapter_came_home_goes_on(home: Home) -> None:
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    end = Next(over=over(sha256(weights)))
    turns = Turns([Next(terms=home.terms), end, end], (200, weights), accepts=[True, False])
    said = turns.serve(home)
    assert [state for _, state, _ in said] == ["joined", "home", "home"]
    assert home.state.joined.terms("run") is None
    turns = Turns([Next(terms=home.terms), end], (200, weights), accepts=[True, False])
    turns.serve(home)
    assert home.state.joined.terms("run") == home.terms


@pytest.mark.parametrize("place", ["/v1/work?", "/membership", "/v1/adapters", "/report"])
def test_a_device_that_is_revoked_hears_one_thing_whatever_it_does(home: Home, place: str) -> None:
    turns = Turns([Next(terms=home.terms), work_of(home, 1)], (200, WHOLE))

    def answer(method: str, path: str, body: bytes) -> Answer:
        if place in path:
            return 401, json.dumps({"detail": REVOKED}).encode()
        return turns.answer(method, path, body)

    with http_server(answer) as url, pytest.raises(ClientError) as caught:
        Client(home.settings(url), home.state).run()
    assert str(caught.value) == f"{url}: {REVOKED}"


@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_a_client_that_is_told_of_another_comes_back_twice(home: Home, refusals: int) -> None:
    """Words of a life that has ended may come late; three times they are another client's."""
    turns, left, lives = Turns([Next(terms=home.terms)]), [refusals], list[str]()

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path == "/v1/enrol":
            lives.append(json.loads(body)["life"])
        if path.startswith("/v1/work?"):
            assert path.endswith(f"&life={lives[0]}")
            left[0] -= 1
            if left[0] >= 0:
                return 409, json.dumps({"detail": CLONED}).encode()
        return turns.answer(method, path, body)

    with http_server(answer) as url, pytest.raises(ClientError) as caught:
        Client(home.settings(url, parting_s=0.0), home.state).run()
    assert len(lives) == 1 + min(refusals, 2) and len(set(lives)) == 1
    assert (CLONED in str(caught.value)) == (refusals == 3)
    assert caught.value.exit_code == 2


def test_each_start_is_a_life_of_its_own(home: Home) -> None:
    gate = Gate(home.terms)
    for _ in range(2):
        home.join(gate)
    assert len({one.life for one in gate.enrols}) == 2


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_run_that_its_coordinator_knows_no_more_is_told_once_and_stays(
    home: Home, is_earlier: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is a backup from before the run; a server that lags behind says it once alone."""
    caplog.set_level(logging.INFO)
    idle = Next(waiting=Waiting("idle"))
    first = [] if is_earlier else [Next(terms=home.terms)]
    if is_earlier:
        home.state.joined.keep(home.terms)
    port = 0
    for idles, lines in ((1, 0), (4, 1)):
        turns = Turns([*first, *[idle] * idles])
        with http_server(turns.answer, port=port) as url:
            client = Client(replace(home.settings(url), is_until_finished=False), home.state)
            with pytest.raises(ClientError, match="does not know"):
                client.run()
        port = urlsplit(url).port or 0
        told = f"{url} has nothing of run mail (run) for this device: it was taken out, or the"
        assert caplog.text.count(told) == lines
        assert home.state.joined.terms("run") == home.terms


def test_once_the_run_is_there_again_the_device_takes_part(home: Home) -> None:
    idle, ended = Next(waiting=Waiting("idle")), Next(over=over(sha256(WHOLE)))
    turns = Turns([Next(terms=home.terms), *[idle] * 3, Next(terms=home.terms), ended])
    with http_server(turns.answer) as url, pytest.raises(ClientError, match="does not know"):
        Client(replace(home.settings(url), is_until_finished=False), home.state).run()
    assert [one[1] for one in turns.door.said] == ["joined", "joined", "declined"]
