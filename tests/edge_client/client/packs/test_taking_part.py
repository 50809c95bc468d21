"""What a client does about another base and about being too old: a real one, scripted answers."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.client.connection import Unreachable
from smidgen.edge_client.client.failures import OtherBase, TooOld
from smidgen.edge_client.client.loop import Client
from smidgen.edge_client.client.packs.fetch import Fetching, NotFetched
from smidgen.edge_client.client.packs.shelf import NoRoom, Shelf
from smidgen.edge_client.client.packs.sources import Folder
from smidgen.edge_client.client.runs.joining import Joining, Standings
from smidgen.edge_client.client.state import FinishedWork as Kept
from smidgen.edge_client.client.transport import Coordinator
from smidgen.edge_client.client.worker import Worker
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.guest.guest import Guest
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import Outdated
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Receipt, Report, Work, encode
from smidgen.edge_client.wire.tensors import encode_adapter, sha256
from smidgen.edge_client.wire.training import Training
from tests.edge_client.client.packs.packs import ROOM, Script, announced, contents, make_pack
from tests.edge_client.client.servers import Answer, http_server
from tests.edge_client.client.terms import IDLE, Door, over, terms_for
from tests.edge_client.client.test_enrolment import Gate, Home
from tests.edge_client.client.test_loop import Turns

Made = tuple[str, Path]


class Late(Gate):
    """A coordinator whose run is over once somebody has joined it, whatever was said before."""

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        is_joined = bool(self.door.said) and self.door.said[-1][1] == "joined"
        if path.startswith("/v1/work?") and is_joined:
            return 200, encode(Next(over=over("0" * 64)))
        return super().answer(method, path, body)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_pack(tmp_path_factory.mktemp("made"), seed=5)


@pytest.fixture
def home(tmp_path: Path, tiny_base: Base, hub_task: Task, made: Made) -> Home:
    """A device whose base is not the run's."""
    terms = terms_for(tiny_base, hub_task)
    home = Home(tmp_path, tiny_base, replace(terms, base_id=made[0], pack=announced(made[1])))
    home.write("labelled", ["text,label", "the front door opened,security"])
    return home


def test_a_run_with_another_base_is_joined_once_its_pack_is_here(
    home: Home, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shelf = Shelf(home.folder / "packs", ROOM)
    said = home.join(Late(home.terms), packs=shelf, mirrors=(Folder(made[1].parent),))
    assert [told[1:] for told in said[:2]] == [("declined", "fetching"), ("joined", None)]
    assert contents(shelf.folder / made[0]) == contents(made[1])
    assert "licence: mit" in caplog.text


def test_a_device_whose_owner_allows_no_fetching_says_how_it_would(home: Home) -> None:
    with pytest.raises(OtherBase, match="or with `--packs FOLDER` to fetch it"):
        home.join(Gate(home.terms))
    assert not (home.folder / "packs").exists()


def test_a_pack_that_does_not_fit_is_declined_and_told(home: Home, made: Made) -> None:
    shelf, gate = Shelf(home.folder / "packs", 1000), Gate(home.terms)
    with pytest.raises(NoRoom, match="--packs-size allows"):
        home.join(gate, packs=shelf, mirrors=(Folder(made[1]),))
    assert gate.door.said == [("run", "declined", "fetching"), ("run", "declined", "disk")]
    assert list(shelf.folder.iterdir()) == []


def test_a_pack_that_nobody_has_is_declined_and_told(home: Home) -> None:
    shelf, gate = Shelf(home.folder / "packs", ROOM), Gate(home.terms)
    with pytest.raises(NotFetched, match="nobody is known who has the pack"):
        home.join(gate, packs=shelf)
    assert gate.door.said[-1] == ("run", "declined", "base")


@pytest.mark.parametrize(
    "mirror", ["https:///x", "https://h:port/x", "https://a..b/x", "https://xn--zzzzzzz99999/"]
)
def test_a_mirror_that_is_no_address_is_left_out(
    home: Home, made: Made, mirror: str, caplog: pytest.LogCaptureFixture
) -> None:
    home.terms = replace(home.terms, pack=announced(made[1], mirrors=(mirror,)))
    shelf = Shelf(home.folder / "packs", ROOM)
    said = home.join(Late(home.terms), packs=shelf, mirrors=(Folder(made[1].parent),))
    assert said[-1][1] == "home" or ("run", "joined", None) in said
    assert "mirror 1 of pack" in caplog.text and "it is left out" in caplog.text


@pytest.mark.parametrize("base_id", ["./outside", "../outside", "0" * 63, ""])
def test_a_base_id_that_is_no_hash_touches_no_folder(home: Home, made: Made, base_id: str) -> None:
    outside = home.folder / "outside.fetching"
    outside.mkdir()
    (outside / "mine").write_text("kept")
    home.terms = replace(home.terms, base_id=base_id)
    shelf = Shelf(home.folder / "packs", ROOM)
    with pytest.raises(NotFetched, match="not a SHA-256"):
        home.join(Gate(home.terms), packs=shelf, mirrors=(Folder(made[1].parent),))
    assert (outside / "mine").read_text() == "kept" and list(shelf.folder.iterdir()) == []


class Newer:
    """A coordinator that gives work to newer clients alone, for so many questions."""

    def __init__(self, times: int, *minima: str) -> None:
        self.door, self.left, self._minima = Door(), times, list(minima)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        if known := self.door.answer(path, body):
            return known
        if path.startswith("/v1/work?") and self.left:
            self.left -= 1
            minimum = self._minima.pop(0) if self._minima else "9.0"
            return 200, encode(Next(outdated=Outdated(minimum))) if minimum else IDLE
        return 401, b'{"detail": "who"}'


def test_a_client_that_is_too_old_says_what_to_install_and_keeps_its_state(home: Home) -> None:
    state = home.state
    with http_server(Newer(1).answer) as url, pytest.raises(TooOld) as raised:
        Client(home.settings(url, version="0.1"), state).run()
    assert "\n" not in str(raised.value) and raised.value.exit_code == 2
    said = "this client is smidgen 0.1, its coordinator gives work to 9.0 or newer: install that"
    assert str(raised.value).startswith(said)
    identity = state.identity()
    assert identity is not None and identity.name == "hub"


def test_what_is_not_sent_yet_stays_where_the_coordinator_speaks_a_newer_protocol(
    home: Home,
) -> None:
    home.state.keep_finished(Kept(Report("w", "done"), b"update"))

    def newer(method: str, path: str, body: bytes) -> Answer:
        return 422, b'{"detail": "protocol 13; this coordinator speaks 14: install the same"}'

    with http_server(newer) as url, pytest.raises(ValueError, match="this coordinator speaks 14"):
        Client(home.settings(url), home.state).run()
    assert [kept.update for kept in home.state.finished()] == [b"update"]


def test_a_client_that_serves_for_ever_waits_and_says_it_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    newer = Newer(3)
    wait(newer, home)
    assert newer.left == 0 and caplog.text.count("gives work to 9.0 or newer") == 1


def wait(newer: Newer, home: Home) -> None:
    """Serve for ever, until the coordinator knows the device no more."""
    settings = {"is_until_finished": False, "parting_s": 0.01, "version": "0.1"}
    with http_server(newer.answer) as url, pytest.raises(ValueError, match="does not know"):
        Client(replace(home.settings(url), **settings), home.state).run()  # type: ignore[arg-type]


def test_a_minimum_that_is_raised_again_is_said_again(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    wait(Newer(6, "8.0", "8.0", "9.0", "9.0", "", "9.0"), home)
    lines = [one.getMessage() for one in caplog.records if one.name.endswith("client.loop")]
    said = [line.split("work to ")[1][:3] for line in lines]
    assert said == ["8.0", "9.0", "9.0"]


@pytest.mark.slow
def test_a_client_that_is_too_old_holds_no_engine_meanwhile(
    home: Home, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    terms = terms_for(home.base, home.terms.task)
    weights = encode_adapter(initial_adapter(parse_adapter("lora:2"), home.base, 3, seed=3))
    work = Work(
        *(PROTOCOL, "work-1", "train", "run", 1, home.base.base_id, "lora:2"),
        *(sha256(weights), len(weights), terms.task, Training()),
        seed=7,
    )
    turns = [Next(terms=terms), Next(work=work), Next(outdated=Outdated("9.0"))]
    said, engines = Turns(turns, (200, weights)), list[int]()

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.startswith("/v1/work?"):
            gc.collect()
            engines.append(sum(type(one) is Engine for one in gc.get_objects()))
        return said.answer(method, path, body)

    waits = {"is_until_finished": False, "parting_s": 0.01, "version": "0.1"}
    with http_server(answer) as url, pytest.raises(ValueError, match="does not know"):
        Client(replace(home.settings(url), **waits), home.state).run()  # type: ignore[arg-type]
    before, _, after_work, when_outdated = engines
    assert (after_work - before, when_outdated - before) == (1, 0)


def test_a_run_that_ends_while_its_pack_is_fetched_is_fetched_no_more(
    home: Home, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    now_s, accepts, state = [1000.0], [True, False], home.state

    def answer(method: str, path: str, body: bytes) -> Answer:
        return 200, encode(Receipt(accepts.pop(0)))

    def cut(file: str, first: int) -> Iterator[bytes]:
        raise Unreachable("nobody there")

    source, standings = Script(cut), Standings(state)
    with http_server(answer) as url:
        settings = home.settings(url)
        coordinator = Coordinator(url, "key")
        shelf = Shelf(home.folder / "packs", ROOM)
        fetching = Fetching(shelf, [source], source, state.base_ids)
        worker = Worker(settings, state, Guest(settings.rules))
        joining = Joining(coordinator, worker, fetching, standings, state, clock=lambda: now_s[0])
        joining.invited(home.terms)
        assert fetching.runs == [home.terms]
        now_s[0] += 61.0
        joining.fetch()
        coordinator.close()
    assert not fetching.is_under_way and not accepts and not source.asked
    assert caplog.text.count("was over before its pack was here") == 1
    assert standings.is_done
    with pytest.raises(NotFetched, match="was over before its pack was here"):
        standings.check()
    now_s[0] += 1e6
    joining.look_again()  # asks nobody: it is over
    assert not fetching.is_under_way
