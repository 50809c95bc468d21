"""Devices, tokens and operators, as the operator's API shows and changes them."""

import threading
import time
from collections.abc import Callable

import sqlalchemy as sql

from smidgen.coordinator.serving.device_routes import LONGEST_POLL_S
from smidgen.coordinator.storage.devices import revoke
from smidgen.coordinator.storage.schema import DEVICES
from tests.coordinator.conftest import Live
from tests.coordinator.devices import ask_to_enrol, enrol, key_of, wait_for
from tests.coordinator.operator.operators import person

Start = Callable[..., Live]


def test_a_device_is_shown_with_its_facts_tags_and_runs(start: Start) -> None:
    live = start()
    device = enrol(live.http, live.token, "pi", tags={"site": "hall", "lamp": "on"})
    device.join()
    boss = person(live.http, live.store)
    told = boss.post(f"/devices/{device.device_id}/tags", {"tags": {"site": "kitchen"}}, "PUT")
    assert told["tags"] == {"site": "kitchen", "lamp": "on"}
    assert told["own_tags"] == {"site": "hall", "lamp": "on"}
    assert told["facts"]["memory_bytes"] == 1 << 30 and told["is_here"]
    assert [(run["run_name"], run["state"]) for run in told["runs"]] == [("mail", "joined")]
    assert boss.get("/devices?tag=site=kitchen")["devices"] == [told]
    assert boss.get("/devices?tag=site=kitchen&tag=lamp=off")["devices"] == []
    assert boss.get(f"/devices/{device.device_id}")["answers"] == []
    odd = boss.tell(f"/devices/{device.device_id}/tags", {"tags": {"a=b": "c"}}, "PUT")
    assert odd.status_code == 422 and "without `=`" in odd.json()["detail"]


def test_a_device_of_an_old_store_may_have_a_slash_in_its_id(start: Start) -> None:
    live = start()
    device = enrol(live.http, live.token, "pi")
    renamed = sql.update(DEVICES).where(DEVICES.c.device_id == device.device_id)
    live.store.database.write(renamed.values(device_id="a/b", revision=DEVICES.c.revision + 1))
    boss = person(live.http, live.store)
    wait_for(lambda: boss.ask("/devices/a%2Fb").status_code == 200)
    assert boss.get("/devices/a/b")["device_id"] == "a/b"
    assert boss.post("/devices/a%2Fb/tags", {"tags": {"site": "hall"}}, "PUT")["tags"]
    assert boss.post("/devices/a%2Fb/revoke")["device_id"] == "a/b"


def test_a_revoked_device_hears_401_within_its_poll_and_nobody_waits_for_it(start: Start) -> None:
    live = start(min_clients=2)
    stays, goes = live.join("a", "b")
    stays.do(stays.work())
    goes.work()
    heard: list[tuple[int, float]] = []

    def poll() -> None:
        code = 200
        while code == 200:
            began = time.monotonic()
            code = goes.poll(LONGEST_POLL_S).status_code
        heard.append((code, time.monotonic() - began))

    thread = threading.Thread(target=poll)
    thread.start()
    person(live.http, live.store).post(f"/devices/{goes.device_id}/revoke")
    thread.join(2 * LONGEST_POLL_S)
    assert heard[0][0] == 401 and heard[0][1] < 20
    assert stays.work().kind == "train"  # the evaluation closed without it
    state = live.service.run(live.run_id).state
    assert state.left == {goes.device_id: "revoked"}
    assert ask_to_enrol(live.http, live.token, "b", goes.key).status_code == 401


def test_a_device_that_a_command_revokes_is_dismissed_by_the_next_tick(start: Start) -> None:
    live = start(min_clients=1)
    (device,) = live.join("a")
    device.work()
    revoke(live.store.database, device.device_id, time.time())
    wait_for(lambda: device.device_id in live.service.run(live.run_id).state.left)
    assert device.poll(25.0).status_code == 401


def test_a_token_lets_so_many_devices_in_and_no_more(start: Start) -> None:
    live = start()
    boss = person(live.http, live.store)
    token = boss.post("/tokens", {"uses": 1, "expires_in_s": 60.0, "tags": {"site": "hall"}})
    assert token["is_valid"] and token["used"] == 0
    device = enrol(live.http, token["token"], "x")
    assert boss.get(f"/devices/{device.device_id}")["tags"] == {"site": "hall"}
    refused = ask_to_enrol(live.http, token["token"], "y", key_of("y"))
    assert refused.status_code == 401 and "let in its 1 device" in refused.json()["detail"]
    newest = boss.get("/tokens?limit=1")["tokens"][0]
    assert (newest["token_id"], newest["used"], newest["is_valid"]) == (token["token_id"], 1, False)


def test_a_revoked_or_expired_token_lets_nobody_in(start: Start) -> None:
    live = start()
    boss = person(live.http, live.store)
    one, two = boss.post("/tokens", {}), boss.post("/tokens", {"expires_in_s": 0.05})
    boss.post(f"/tokens/{one['token_id']}/revoke")
    time.sleep(0.1)
    for token, said in ((one, "was revoked"), (two, "has expired")):
        refused = ask_to_enrol(live.http, token["token"], "z", key_of("z"))
        assert refused.status_code == 401 and said in refused.json()["detail"]
    assert boss.tell("/tokens/t0/revoke").status_code == 404


def test_a_viewer_may_look_until_revoked(start: Start) -> None:
    live = start()
    boss = person(live.http, live.store)
    let_in = boss.post("/operators", {"role": "viewer"})
    viewer = type(boss)(live.http, let_in["token"])
    assert viewer.get("/runs")["runs"] and viewer.tell("/tokens", {}).status_code == 403
    boss.post(f"/operators/{let_in['operator_id']}/revoke")
    refused = viewer.ask("/runs")
    assert refused.status_code == 401 and "token" in refused.json()["detail"]
    assert boss.tell("/operators/o0/revoke").status_code == 404
