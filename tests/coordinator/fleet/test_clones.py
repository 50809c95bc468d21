"""Two clients on copies of one state folder, over real sockets: one is refused, the owner told."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from smidgen.coordinator.api.stores import devices_told
from smidgen.coordinator.fleet.presence import AGAIN_S, Sessions
from smidgen.coordinator.operator.views import CLONED_S
from smidgen.coordinator.serving.device_routes import LONGEST_POLL_S
from smidgen.coordinator.storage.devices import devices
from smidgen.edge_client.wire.fleet import CLONED, MOST_RETURNS
from tests.coordinator.conftest import Live
from tests.coordinator.devices import ask_to_enrol, enrol, key_of, wait_for

Start = Callable[..., Live]
KEY = {"Authorization": f"Bearer {key_of('hub')}"}


def enrolled(live: Live, life: str) -> None:
    token = live.token if not devices(live.store.database) else ""
    assert ask_to_enrol(live.http, token, "hub", key_of("hub"), life=life).status_code == 200


def polled(live: Live, life: str, wait_s: float = 0.0) -> httpx.Response:
    asked: dict[str, str | float] = {"life": life, "wait_s": wait_s}
    return live.http.get("/v1/work", params=asked, headers=KEY, timeout=120.0)


def test_the_older_of_two_lives_is_refused_in_one_line(start: Start) -> None:
    live = start()
    enrolled(live, "old")
    assert polled(live, "old").status_code == 200
    enrolled(live, "new")
    refused = polled(live, "old")
    assert (refused.status_code, refused.json()) == (409, {"detail": CLONED})
    assert polled(live, "new").status_code == 200


def test_the_older_hears_it_in_the_middle_of_its_long_poll(start: Start) -> None:
    live = start()
    enrolled(live, "old")
    enrol(live.http, live.token, "hub").join()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(polled, live, "old", LONGEST_POLL_S)
        wait_for(lambda: bool(live.service.presence.last_seen_s(live_id(live))))
        began_s = time.monotonic()
        while not waiting.done():  # it may not have begun to wait
            enrolled(live, "new")
            time.sleep(0.05)
        assert waiting.result().status_code == 409 and time.monotonic() - began_s < 20


def live_id(live: Live) -> str:
    return devices(live.store.database)[0].device_id


def test_two_that_chase_each_other_are_noted_and_told_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    live = start()
    with caplog.at_level(logging.WARNING, logger="smidgen.coordinator"):
        enrolled(live, "a")
        for life, other in ("ba", "ab", "ba", "ab", "ba"):
            enrolled(live, life)
            assert polled(live, other).status_code == 409
        wait_for(lambda: devices(live.store.database)[0].cloned_at_s is not None)
    said = [line for line in caplog.messages if "two lives" in line]
    assert said == ["device hub has two lives: two clients run with copies of one state folder"]
    (told,) = devices_told(live.store, time.time())
    assert abs(told["cloned_at_s"] - time.time()) < 60
    (told_later,) = devices_told(live.store, time.time() + CLONED_S)
    assert told_later["cloned_at_s"] is None
    wait_for(lambda: live.service.fleet.get(told["device_id"]).cloned_at_s is not None)  # type: ignore[union-attr]


def test_two_lives_that_go_on_are_noted_again_and_told_once() -> None:
    lives = Sessions()
    for life in ("a", *("b", "a") * MOST_RETURNS, "b"):
        lives.began("d", life)
        lives.refuse("d", "b" if life == "a" else "a", 0.0)
    assert lives.cloned() == {"d": 0.0} and lives.cloned() == {}
    told = [lives.refuse("d", "a", at_s) for at_s in (AGAIN_S - 1, AGAIN_S, AGAIN_S + 1)]
    assert told == [False] * 3 and lives.cloned() == {"d": AGAIN_S}


def test_restarts_and_words_that_come_late_are_no_clone(start: Start) -> None:
    live = start()
    for number in range(20):
        enrolled(live, f"{number}")
        enrolled(live, f"{number}")  # its answer was lost
        if number:
            assert polled(live, f"{number - 1}").status_code == 409  # of the life that was killed
        assert polled(live, f"{number}").status_code == 200
    assert not live.service.lives.cloned()
    assert devices(live.store.database)[0].cloned_at_s is None


def test_a_life_of_any_length_ends_in_an_answer(start: Start) -> None:
    live = start()
    enrolled(live, "a")
    assert polled(live, "x" * 33).status_code == 422
    assert polled(live, "\x1b[31m").status_code == 409
