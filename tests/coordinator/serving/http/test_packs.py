"""Packs that a coordinator tells devices of, gives them, and clients that are too old for it."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.fleet.devices import check_minimum, is_too_old
from smidgen.coordinator.serving.packs import LOOK_AGAIN_S, Packs, Turns
from smidgen.coordinator.storage.runs import add_order
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import Membership, Outdated
from smidgen.edge_client.wire.messages import Next, decode
from smidgen.edge_client.wire.reports import Failure
from tests.coordinator.conftest import Live, served, serving
from tests.coordinator.devices import Device, wait_for
from tests.edge_client.client.packs.packs import announced, make_pack

WEIGHTS = "weights.safetensors"
FETCHING, JOINED = Membership("declined", "fetching"), Membership("joined")
MIRROR = "https://mirror.example/packs"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return make_pack(tmp_path_factory.mktemp("made"))


@contextmanager
def live(folder: Path, config: RunConfig, **told: Any) -> Iterator[Live]:
    with (
        closing(Store(folder / "store")) as store,
        serving(store, config, **told) as served,
    ):
        yield served


def ask(served: Live, device: Device, path: str, **headers: str) -> Any:
    return served.http.get(f"/v1/packs/{path}", headers=device.headers | headers)


def test_a_device_is_told_of_a_run_s_pack_and_gets_its_files_where_they_are_served(
    made: tuple[str, Path], config: RunConfig, tmp_path: Path
) -> None:
    base_id, folder = made
    mine = replace(config, base=str(folder), pack_mirrors=(MIRROR,))
    with live(tmp_path, mine, packs=Packs(is_serving=True)) as served:
        (device,) = served.enrol("a")
        terms = device.next().terms
        assert terms is not None
        assert terms.pack == announced(folder, (MIRROR,), is_served=True)
        for name in terms.pack.files:
            answer = ask(served, device, f"{base_id}/{name}")
            assert answer.content == (folder / name).read_bytes()
        body = (folder / WEIGHTS).read_bytes()
        part = ask(served, device, f"{base_id}/{WEIGHTS}", Range="bytes=1000-")
        assert part.status_code == 206 and part.content == body[1000:]
        past = ask(served, device, f"{base_id}/{WEIGHTS}", Range=f"bytes={len(body)}-")
        assert past.status_code == 416
        for path in (f"{'0' * 64}/{WEIGHTS}", f"{base_id}/run.sh", f"{base_id}/..%2Fx", "x/y"):
            assert ask(served, device, path).status_code == 404
        nobody = served.http.get(f"/v1/packs/{base_id}/{WEIGHTS}")
        assert nobody.status_code == 401


def test_one_device_takes_two_turns_of_all_at_most() -> None:
    turns = Turns(most=3, each=2)
    assert [turns.take("a"), turns.take("a"), turns.take("a")] == [True, True, False]
    assert [turns.take("b"), turns.take("c")] == [True, False]
    turns.give_back("a")
    assert [turns.take("c"), turns.take("a")] == [True, False]


def test_files_are_not_served_unless_the_operator_says_so(
    made: tuple[str, Path], config: RunConfig, tmp_path: Path
) -> None:
    with live(tmp_path, replace(config, base=str(made[1]))) as served:
        (device,) = served.enrol("a")
        terms = device.next().terms
        assert terms is not None and terms.pack == announced(made[1])
        assert ask(served, device, f"{made[0]}/{WEIGHTS}").status_code == 404


def test_a_base_that_is_no_pack_is_announced_to_nobody(config: RunConfig, tmp_path: Path) -> None:
    with live(tmp_path, config, packs=Packs(is_serving=True)) as served:
        (device,) = served.enrol("a")
        terms = device.next().terms
        assert terms is not None and terms.pack is None


def test_a_pack_that_was_changed_is_announced_to_nobody(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder = make_pack(tmp_path)
    with live(tmp_path, replace(config, base=str(folder))) as served:
        manifest = folder / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"mit"', '"gpl"'))
        (device,) = served.enrol("a")
        terms = device.next().terms
        assert terms is not None and terms.pack is None
    assert "is another one by now" in caplog.text


def test_a_pack_that_was_not_there_at_first_is_announced_once_it_is(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, folder = make_pack(tmp_path)
    now_s, away = [0.0], folder.with_name("away")
    packs = Packs(is_serving=True, clock=lambda: now_s[0])
    with live(tmp_path, replace(config, base=str(folder)), packs=packs) as served:
        folder.rename(away)
        (device,) = served.enrol("a")

        def told() -> bool:
            terms = device.next().terms
            return terms is not None and terms.pack is not None

        assert not told()
        now_s[0] += LOOK_AGAIN_S
        assert not told() and caplog.text.count("no pack lies at") == 1
        away.rename(folder)
        assert not told()  # nobody looks at each question
        now_s[0] += LOOK_AGAIN_S
        assert told()
        folder.rename(away)
        assert told()  # what was read once is known


@pytest.mark.few(1)
@pytest.mark.parametrize("answer", [Membership("declined", "base"), FETCHING, JOINED])
def test_who_was_asked_before_a_pack_was_there_is_asked_again_once_it_is(
    config: RunConfig, tmp_path: Path, answer: Membership
) -> None:
    _, folder = make_pack(tmp_path)
    now_s, away = [0.0], folder.with_name("away")
    packs = Packs(is_serving=True, clock=lambda: now_s[0])
    with live(tmp_path, replace(config, base=str(folder)), packs=packs) as served:
        folder.rename(away)
        device, held = served.enrol("a", "b")
        for one in (device, held):
            terms = one.next().terms
            assert terms is not None and terms.pack is None
        device.tell(served.run_id, Membership("declined", "base"))
        held.tell(served.run_id, JOINED)  # it has the base already
        away.rename(folder)
        assert device.next().terms is None
        now_s[0] += LOOK_AGAIN_S
        for _ in range(2):  # until it is answered
            terms = device.next().terms
            assert terms is not None and terms.pack is not None
        device.tell(served.run_id, answer)
        assert device.next().terms is None and held.next().terms is None


def test_who_lacked_a_pack_is_asked_again_also_by_a_coordinator_that_was_started_anew(
    config: RunConfig, tmp_path: Path
) -> None:
    _, folder = make_pack(tmp_path)
    with closing(Store(tmp_path / "store")) as store:
        with serving(store, replace(config, base=str(folder)), packs=Packs(True)) as running:
            away = folder.rename(folder.with_name("away"))
            (device,) = running.enrol("a")
            assert device.next().terms is not None
            device.tell(running.run_id, Membership("declined", "base"))
        away.rename(folder)
        with served(store, packs=Packs(True)) as (_, http):
            device.http = http
            terms = device.next().terms
            assert terms is not None and terms.pack is not None
            device.tell(terms.run_id, Membership("declined", "base"))
            assert device.next().terms is None  # it has heard of the pack by now


def test_a_pack_s_file_comes_from_the_run_that_knows_where_it_lies(
    config: RunConfig, tmp_path: Path
) -> None:
    pack_id, folder = make_pack(tmp_path)
    moved = tmp_path / "moved"
    with closing(Store(tmp_path / "store")) as store:
        with serving(store, replace(config, base=str(folder)), packs=Packs(True)):
            folder.rename(moved)
        other = replace(config, base=str(moved), name="second")
        with serving(store, other, packs=Packs(True)) as second:
            (device,) = second.enrol("a")
            assert ask(second, device, f"{pack_id}/{WEIGHTS}").status_code == 200


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_link_in_a_pack_is_followed_within_the_pack_alone(
    config: RunConfig, tmp_path: Path, is_inside: bool
) -> None:
    base_id, folder = make_pack(tmp_path)
    body = (folder / WEIGHTS).read_bytes()
    elsewhere = folder / "real" if is_inside else tmp_path / "secret"
    (folder / WEIGHTS).rename(elsewhere)
    (folder / WEIGHTS).symlink_to(elsewhere)
    linked = tmp_path / "link"  # to the pack itself, as an operator gives it
    linked.symlink_to(folder)
    mine = replace(config, base=str(linked))
    with live(tmp_path, mine, packs=Packs(is_serving=True)) as served:
        (device,) = served.enrol("a")
        answer = ask(served, device, f"{base_id}/{WEIGHTS}")
        assert answer.status_code == (200 if is_inside else 404)
        assert (answer.content == body) is is_inside
        assert ask(served, device, f"{base_id}/manifest.json").status_code == 200


def test_a_client_that_is_too_old_gets_no_work_and_is_waited_for_by_nobody(
    config: RunConfig, tmp_path: Path
) -> None:
    with live(tmp_path, config, minimum_client="0.0.1") as served:
        old, new = served.enrol("old", "new")  # both say 0
        assert old.next() == Next(outdated=Outdated("0.0.1"))
        assert decode(new.poll(5.0).content, Next).outdated is not None
        assert served.service.alive(served.run_id, time.time()) == set()


def test_who_fetches_for_a_run_that_is_over_is_told_so(config: RunConfig, tmp_path: Path) -> None:
    with live(tmp_path, config) as served:
        (device,) = served.enrol("a")
        assert device.tell(served.run_id, FETCHING).json()["accepted"]
        add_order(served.store, served.service.run(served.run_id).run, "stop", None, time.time())
        wait_for(lambda: served.service.run(served.run_id).state.is_finished)
        told = device.tell(served.run_id, FETCHING).json()
        assert told == {"accepted": False, "reason": "it is over"}


def test_who_says_each_minute_that_it_fetches_fills_no_log(
    config: RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with live(tmp_path, config) as served:
        (device,) = served.enrol("a")
        codes: list[Failure] = ["fetching", "fetching", "base", "fetching"]
        for code in codes:
            device.tell(served.run_id, Membership("declined", code))
    assert caplog.text.count("a takes no part: the device is fetching") == 2


@pytest.mark.parametrize(
    ("version", "minimum", "is_old"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2", "0.2.0", False),
        ("0.10.0", "0.9.3", False),
        ("0.2.0rc1", "0.2.0", False),
        ("1", "1.0.1", True),
        ("0.1.0", "", False),
        ("unknown", "9", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, minimum: str, is_old: bool) -> None:
    assert is_too_old(version, minimum) is is_old


def test_a_minimum_that_is_no_version_is_refused() -> None:
    check_minimum("")
    with pytest.raises(WrongInput, match=r"--minimum-client 'new': a version such as 0\.2\.0"):
        check_minimum("new")


def test_a_mirror_that_is_not_https_is_refused_in_a_run(config: RunConfig) -> None:
    with pytest.raises((ConfigError, WrongInput), match="pack_mirrors: https://HOST/PATH"):
        replace(config, pack_mirrors=("http://mirror.example",))
