"""Devices that outlive runs, over real sockets: invitations, several runs, leaving, revoking."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import sqlalchemy as sql

from smidgen.coordinator.rounds.events import Left, Returned
from smidgen.coordinator.rounds.selection import DeviceFilter
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.serving.device_routes import LONGEST_POLL_S
from smidgen.coordinator.serving.service import RETURN_EVERY_S, RETURNS_AT_ONCE, Service
from smidgen.coordinator.storage.devices import devices, revoke, tag
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.schema import DEVICES
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import PROTOCOL, Report, encode
from smidgen.edge_client.wire.training import Labelling
from tests.coordinator.conftest import Live
from tests.coordinator.devices import FACTS, Device, ask_to_enrol, enrol, key_of, wait_for

Start = Callable[..., Live]
JOINED, DECLINED = Membership("joined"), Membership("declined", "memory")


def another(live: Live, name: str, **settings: Any) -> str:
    """Create another run in a store that is served, as a command does; its id."""
    config = live.service.run(live.run_id).config
    wanted = replace(config, name=name, **settings)
    return create_run(live.store, wanted, time.time()).run_id


def test_a_name_that_is_taken_gets_a_number(start: Start) -> None:
    live = start()
    found = [enrol(live.http, live.token, "hub", key_of(str(number))) for number in range(3)]
    assert [device.name for device in found] == ["hub", "hub-2", "hub-3"]
    assert len({device.device_id for device in found}) == 3


def test_a_wrong_token_or_protocol_does_not_enrol(start: Start) -> None:
    live = start()
    assert ask_to_enrol(live.http, "wrong", "hub", key_of("hub")).status_code == 401
    assert ask_to_enrol(live.http, live.token, "hub", "short").status_code == 401
    assert devices(live.store.database) == []


def test_an_answer_that_is_lost_repeats_into_the_same_device(start: Start) -> None:
    live = start()
    first = ask_to_enrol(live.http, live.token, "hub", key_of("hub")).json()
    assert ask_to_enrol(live.http, live.token, "hub", key_of("hub")).json() == first
    assert len(devices(live.store.database)) == 1


ODD = [
    "=HYPERLINK(1)",
    "+1",
    "@sum",
    "-rf",
    "..",
    "a/../b",
    ".ssh",
    " pi",
    "pi\u0441am",
    "\u202epi",
]


def test_no_device_is_let_in_under_a_name_that_is_something_else_elsewhere(start: Start) -> None:
    live = start()
    told = {"protocol": PROTOCOL, "token": live.token, "facts": asdict(FACTS)}
    answers = [
        live.http.post(
            "/v1/enrol",
            json={**told, "name": name},
            headers={"Authorization": f"Bearer {key_of(name)}"},
        )
        for name in ODD
    ]
    print(f"{sum(one.status_code == 422 for one in answers)} of {len(ODD)} odd names are refused")
    assert {one.status_code for one in answers} == {422} and not devices(live.store.database)
    assert all("1 to 64 printable characters" in one.json()["detail"] for one in answers)
    for name in (
        "pi",
        "pi (kitchen)",
        "\u0434\u043e\u043c 2",
        "\u53f0\u6240 pi",
        "b\u00fcro_2.a",
        "7",
    ):
        assert enrol(live.http, live.token, name).name == name


def test_a_run_asks_only_the_devices_that_it_chooses(start: Start) -> None:
    live = start(min_clients=1)
    hall, attic = (enrol(live.http, live.token, name) for name in ("hall", "attic"))
    for device, site in ((hall, "hall"), (attic, "attic")):
        tag(live.store.database, device.device_id, {"site": site})
    choice = replace(live.service.run(live.run_id).config.devices, tags={"site": "hall"})
    chosen = another(live, "of the hall", devices=choice)
    wait_for(lambda: len(live.service.runs()) == 2)
    assert {terms.run_id for terms in hall.join()} == {live.run_id, chosen}
    assert {terms.run_id for terms in attic.join()} == {live.run_id}
    refused = attic.tell(chosen, JOINED)
    assert refused.status_code == 403 and "does not ask this device" in refused.json()["detail"]


def test_what_a_device_says_of_itself_lets_it_into_no_run_that_asks_for_tags(start: Start) -> None:
    live = start(min_clients=1)
    cleared, liar = (
        enrol(live.http, live.token, name, tags={"clearance": said})
        for name, said in (("cleared", "low"), ("liar", "high"))
    )
    tag(live.store.database, cleared.device_id, {"clearance": "high"})
    choice = replace(live.service.run(live.run_id).config.devices, tags={"clearance": "high"})
    chosen = another(live, "cleared", devices=choice)
    wait_for(lambda: len(live.service.runs()) == 2)
    assert {terms.run_id for terms in cleared.join()} == {live.run_id, chosen}
    assert {terms.run_id for terms in liar.join()} == {live.run_id}
    assert liar.tell(chosen, JOINED).status_code == 403
    adapter = f"/v1/adapters/{live.service.run(chosen).run.adapter_sha256}"
    codes = [live.http.get(adapter, headers=one.headers).status_code for one in (cleared, liar)]
    print(f"an adapter of a run for clearance=high: {codes[0]} to a device that the operator gave ")
    print(f"the tag, {codes[1]} to one that says it of itself")


def test_a_poll_that_waits_hears_of_a_new_run_and_of_a_new_tag(start: Start) -> None:
    live = start()
    (device,) = live.join("a")
    choice = replace(live.service.run(live.run_id).config.devices, tags={"site": "hall"})
    tag(live.store.database, device.device_id, {"site": "hall"})
    chosen = another(live, "later", devices=choice)
    terms = device.next(50.0).terms or device.next(50.0).terms  # the tag may wake it first
    assert terms is not None and terms.run_id == chosen


def test_an_invitation_is_said_once_in_each_life(start: Start) -> None:
    live = start()
    (device,) = live.enrol("a")
    first = device.next().terms
    assert first is not None and device.next().terms == first  # until it is answered
    device.tell(live.run_id, JOINED)
    assert device.next().terms is None
    (again,) = live.enrol("a")
    assert again.next().terms == first
    assert live.service.alive(live.run_id, time.time()) == {again.device_id}  # it counts meanwhile


def test_a_restarted_coordinator_does_not_ask_again(start: Start) -> None:
    live = start()
    (device,) = live.join("a")
    again = Service(live.store, time.time())
    assert again.next(again.device_of(device.key), time.time()).terms is None


def test_who_declines_is_not_waited_for_and_may_come_in_its_next_life(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.enrol("a")
    declined = Membership("declined", "budget")
    assert device.tell(live.run_id, declined).json()["accepted"]
    assert device.waiting().phase == "idle"
    assert live.service.run(live.run_id).state.left == {}  # it never was in it
    live.join("a")
    assert device.work().kind == "evaluate"


def test_who_leaves_and_comes_back_all_the_time_fills_no_journal(start: Start) -> None:
    live = start()
    device, other = live.join("a", "b")
    began_s = time.monotonic()
    told = [
        device.tell(live.run_id, one)
        for _ in range(20)
        for one in (Membership("declined", "texts"), JOINED)
    ]
    refused = [response for response in told if response.status_code == 429]
    assert len(refused) == 20 - RETURNS_AT_ONCE
    passed_s = time.monotonic() - began_s
    for again_s in (int(response.headers["retry-after"]) for response in refused):
        assert RETURN_EVERY_S - passed_s <= again_s <= RETURN_EVERY_S
    events = Counter(type(event) for event in live.store.events(live.run_id))
    assert events[Returned] == RETURNS_AT_ONCE and events[Left] == RETURNS_AT_ONCE + 1
    assert other.tell(live.run_id, JOINED).json()["accepted"]  # nobody else waits for it


def test_a_decline_of_one_that_was_in_the_run_frees_its_step(start: Start) -> None:
    live = start()
    a, b = live.join("a", "b")
    a.do(a.work())
    b.work()
    live.enrol("b")  # started again, and its texts are gone
    for _ in range(2):
        assert b.tell(live.run_id, Membership("declined", "texts")).json()["accepted"]
    assert a.work().kind == "train"
    assert live.service.run(live.run_id).state.left == {b.device_id: "texts"}
    live.join("b")
    assert live.service.run(live.run_id).state.left == {}


def test_a_device_serves_run_after_run_and_two_at_once(start: Start) -> None:
    live = start(rounds=1, min_clients=1)
    second = another(live, "second", rounds=1, min_clients=1)
    wait_for(lambda: len(live.service.runs()) == 2)
    (device,) = live.join("a")
    kinds: dict[str, list[str]] = {live.run_id: [], second: []}
    home = 0
    while home < 2:
        given = device.next(50.0)
        if given.work:
            kinds[given.work.run_id].append(given.work.kind)
            device.do(given.work)
        if given.over:
            device.tell(given.over.run_id, Membership("home"))
            home += 1
    assert list(kinds.values()) == [["evaluate", "train", "evaluate"]] * 2
    assert device.waiting().phase == "idle"
    third = another(live, "third", rounds=1, min_clients=1)
    terms = device.next(50.0).terms
    assert terms is not None and terms.run_id == third
    assert device.until_finished() == 3


@pytest.mark.slow
def test_of_two_runs_the_step_that_is_open_longer_comes_first(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    first = device.work()
    second = another(live, "second", min_clients=1)
    wait_for(lambda: bool(device.join()))
    wait_for(lambda: live.service.run(second).state.step is not None)
    assert device.work() == first == device.work()
    device.do(first)
    wait_for(lambda: device.work().run_id == second)  # its step is older than the next one here


def test_a_revoked_device_is_named_in_the_log_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    live = start()
    (device,) = live.enrol("hall")
    for _ in range(2):
        revoke(live.store.database, device.device_id, time.time())
    wait_for(lambda: "device hall was revoked; it is let in no more" in caplog.messages)
    tag(live.store.database, device.device_id, {"room": "hall"})
    assert sum("was revoked" in line for line in caplog.messages) == 1


def test_a_revoked_device_hears_so_within_one_poll(start: Start) -> None:
    live = start(min_clients=2)
    (device,) = live.join("a")
    revoke(live.store.database, device.device_id, time.time())
    began = time.monotonic()
    response = device.poll(LONGEST_POLL_S)
    assert response.status_code == 401 and "has revoked this device" in response.json()["detail"]
    assert time.monotonic() - began < 20.0
    assert ask_to_enrol(live.http, live.token, "a", device.key).status_code == 401
    assert device.tell(live.run_id, JOINED).status_code == 401
    assert live.service.alive(live.run_id, time.time()) == set()


def test_polls_write_nothing(start: Start) -> None:
    live = start(min_clients=3)
    a, b = live.join("a", "b")
    time.sleep(0.3)  # what the last tick wrote
    written: list[str] = []

    def note(*said: object) -> None:
        statement = str(said[2])
        if not statement.startswith(("SELECT", "PRAGMA")):
            written.append(statement)

    sql.event.listen(live.store.database.engine, "before_cursor_execute", note)
    for _ in range(20):
        a.next(0.01)
        b.next()
    assert written == []


def test_who_is_there_is_written_at_once_for_all_every_half_minute(start: Start) -> None:
    live = start(min_clients=4)
    a, b, _ = live.join("a", "b", "c")
    known = {one.device_id: one for one in devices(live.store.database)}
    service, later = live.service, time.time() + 1000
    for device in (a, b):
        service.saw(known[device.device_id], later)
    service.tick(later)
    with live.store.database.engine.connect() as connection:
        rows = connection.execute(sql.select(DEVICES.c.name, DEVICES.c.last_seen_s))
        assert sorted(name for name, at_s in rows if at_s == later) == ["a", "b"]


def test_what_a_device_says_of_itself_is_new_in_each_life(start: Start) -> None:
    live = start()
    enrol(live.http, live.token, "a", tags={"site": "hall"})
    enrol(live.http, "", "a", tags={"site": "attic"}, facts=replace(FACTS, engine="torch"))
    (device,) = live.service.fleet.all()
    assert device.all_tags == {"site": "attic"} and device.facts.engine == "torch"


def test_a_report_that_leaves_is_not_asked_again_in_this_life(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    work = device.work()
    device.report(Report(work.work_id, "failed", failure="memory", is_leaving=True))
    assert device.waiting().phase == "idle"


def state_of(live: Live) -> State:
    return live.service.run(live.run_id).state


def training(live: Live, *names: str) -> list[Device]:
    """Devices that are asked to train, the first of which has."""
    devices = live.join(*names)
    for device in devices:
        device.do(device.work())
    devices[0].do(devices[0].work())
    return devices


def revoked_in(live: Live, device: Device) -> None:
    revoke(live.store.database, device.device_id, time.time())
    wait_for(lambda: state_of(live).left.get(device.device_id) == "revoked")


def counted(live: Live) -> list[str]:
    step = state_of(live).step
    assert step is not None and step.opened.kind == "train"
    return [device_id for device_id, _ in step.updates()]


def test_an_answer_is_taken_back_also_of_a_device_that_declined_before_it_was_revoked(
    start: Start,
) -> None:
    live = start(min_clients=2)
    bad, _ = training(live, "bad", "good")
    assert bad.tell(live.run_id, DECLINED).json()["accepted"]
    assert counted(live) == [bad.device_id]  # who only leaves has answered
    revoked_in(live, bad)
    assert counted(live) == []


def test_what_labelling_goes_by_is_taken_back_too_and_once(start: Start) -> None:
    live = start(min_clients=2, labelling=Labelling())
    devices = live.join("bad", "good")
    for _ in ("evaluate", "label"):
        for device in devices:
            device.do(device.work())
    bad, good = devices
    assert bad.work().kind == "train" and state_of(live).confidences.keys() == {
        bad.device_id,
        good.device_id,
    }
    bad.tell(live.run_id, DECLINED)
    revoked_in(live, bad)
    assert state_of(live).confidences.keys() == {good.device_id}
    length = live.service.run(live.run_id).seq
    for _ in range(3):
        live.service.tick(time.time())
    assert live.service.run(live.run_id).seq == length


def test_a_device_cannot_say_that_it_was_revoked_and_take_its_update_back(start: Start) -> None:
    live = start(min_clients=2)
    liar, good = training(live, "liar", "good")
    refused = liar.tell(live.run_id, Membership("declined", "revoked"))
    assert refused.status_code == 422 and "only the coordinator says" in refused.json()["detail"]
    told = Report(good.work().work_id, "failed", failure="revoked", is_leaving=True)
    path = f"/v1/work/{told.work_id}/report"
    refused = good.http.post(path, content=encode(told), headers=good.headers)
    assert refused.status_code == 422 and "only the coordinator says" in refused.json()["detail"]
    assert counted(live) == [liar.device_id] and state_of(live).left == {}


def test_a_device_that_a_run_asks_no_more_does_not_come_in_by_having_declined(start: Start) -> None:
    live = start(min_clients=2, devices=DeviceFilter(tags={"site": "hall"}))
    out, inside = (enrol(live.http, live.token, name, tags={"site": "hall"}) for name in "ab")
    assert out.tell(live.run_id, DECLINED).status_code == 200
    assert inside.join()
    for device in (out, inside):
        tag(live.store.database, device.device_id, {"site": "attic"})
    fleet = live.service.fleet
    wait_for(lambda: {one.all_tags["site"] for one in fleet.all()} == {"attic"})
    assert out.tell(live.run_id, JOINED).status_code == 403
    adapter = f"/v1/adapters/{state_of(live).adapter_sha256}"
    assert live.http.get(adapter, headers=out.headers).status_code == 404
    assert inside.tell(live.run_id, DECLINED).status_code == 200  # one that is in it may leave
    assert inside.tell(live.run_id, JOINED).status_code == 403
    tag(live.store.database, out.device_id, {"site": "hall"})  # and asked again once it is wanted
    wait_for(lambda: "hall" in {one.all_tags["site"] for one in fleet.all()})
    assert out.next(0).terms is not None and out.join()
