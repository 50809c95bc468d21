"""Devices that wait are called one after another, as fast as what is under way lets them."""

import asyncio
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.polls import AT_ONCE, POLLS, Bells, UnderWay
from smidgen.coordinator.serving.http.uploads import Judge, Uploads, _Place, _stem
from smidgen.edge_client.wire.messages import Receipt

CROWD = 60


@pytest.mark.parametrize("each_s", [0.0, 0.02], ids=["nothing to do", "20 ms of work each"])
def test_a_crowd_is_called_in_turns_and_all_of_it(each_s: float) -> None:
    async def story() -> tuple[list[int], int]:
        bells, called = Bells(), list[int]()
        most = busy = 0

        async def device(number: int) -> None:
            nonlocal most, busy
            with bells.request(), bells.bell(f"d{number}") as bell:
                await bells.heard(bell, 20)
                called.append(number)
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(each_s)
                busy -= 1

        devices = [asyncio.create_task(device(number)) for number in range(CROWD)]
        calling = asyncio.create_task(bells.call())
        await asyncio.sleep(0)
        bells.ring(f"d{number}" for number in range(CROWD))
        bells.ring(f"d{number}" for number in range(CROWD))  # twice is as good as once
        await asyncio.wait_for(asyncio.gather(*devices), 20)
        bells.stop()
        await asyncio.wait_for(calling, 20)
        return called, most

    called, most = asyncio.run(story())
    assert called == list(range(CROWD))
    assert most <= AT_ONCE


def test_requests_that_are_under_way_hold_back_who_waits() -> None:
    async def story() -> None:
        bells = Bells()
        calling = asyncio.create_task(bells.call())
        with bells.bell("d") as bell:
            busy = [bells.request() for _ in range(AT_ONCE)]
            for one in busy:
                one.__enter__()
            bells.ring(["d"])
            await asyncio.sleep(0.05)
            assert not bell.is_set()
            busy.pop().__exit__(None, None, None)
            await asyncio.wait_for(bell.wait(), 5)
        bells.stop()
        await calling

    asyncio.run(story())


@pytest.mark.parametrize("stuck", ["body", "answer"])
def test_a_body_that_does_not_come_and_an_answer_nobody_reads_hold_nobody_back(stuck: str) -> None:
    async def story() -> None:
        bells, goes_on, is_over = Bells(), asyncio.Event(), asyncio.Event()

        async def app(_: Scope, receive: Receive, send: Send) -> None:
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200})
            await is_over.wait()  # work of its own

        async def received() -> Message:
            if stuck == "body":
                await goes_on.wait()
            return {"type": "http.request", "body": b"a", "more_body": False}

        async def sent(_: Message) -> None:
            if stuck == "answer":
                await goes_on.wait()

        known = UnderWay(app, bells, ("/v1/",))
        scope = {"type": "http", "path": "/v1/enrol"}
        calling = asyncio.create_task(bells.call())
        slow = [asyncio.create_task(known(scope, received, sent)) for _ in range(AT_ONCE)]
        await asyncio.sleep(0.05)
        with bells.bell("d") as bell:
            bells.ring(["d"])
            await asyncio.wait_for(bell.wait(), 5)
        goes_on.set()
        await asyncio.sleep(0.05)
        with bells.bell("d") as bell:  # all that has come is work now
            bells.ring(["d"])
            await asyncio.sleep(0.05)
            assert not bell.is_set()
            is_over.set()
            await asyncio.wait_for(bell.wait(), 5)
        await asyncio.gather(*slow)
        bells.stop()
        await calling

    asyncio.run(story())


def test_who_asks_again_in_between_is_not_called_for_nothing() -> None:
    async def story() -> None:
        bells = Bells()
        with bells.bell("d"):
            bells.ring(["d"])
        calling = asyncio.create_task(bells.call())
        with bells.bell("d") as bell:
            await asyncio.sleep(0.05)
            assert not bell.is_set()
        bells.stop()
        await calling

    asyncio.run(story())


def test_however_a_call_meets_a_request_it_counts_once() -> None:
    async def story() -> None:
        bells = Bells()
        calling = asyncio.create_task(bells.call())
        for waits in (True, False):
            for number in range(3 * AT_ONCE):  # were a place lost each time, nobody would be called
                with bells.request(), bells.bell(f"d{number}") as bell:
                    bells.ring([f"d{number}"])
                    asyncio.get_running_loop().call_later(0.001, bells.ring, [f"d{number}"])
                    if waits:
                        await bells.heard(bell, 5)
                    else:
                        await asyncio.wait_for(bell.wait(), 5)
        bells.stop()
        await calling

    asyncio.run(story())


def test_all_are_let_go_at_once_when_it_stops() -> None:
    async def story() -> None:
        bells = Bells()
        with bells.bell("d") as bell, bells.bell("e") as other:
            bells.stop()
            assert bell.is_set() and other.is_set()

    asyncio.run(story())


def test_of_one_device_two_polls_wait_and_older_ones_are_answered() -> None:
    bells = Bells()
    with (
        bells.bell("d", POLLS) as first,
        bells.bell("e", POLLS) as other,
        bells.bell("d", POLLS) as second,
    ):
        assert not first.is_set()
        with bells.bell("d", POLLS) as third:
            assert first.is_set() and not second.is_set() and not third.is_set()
        assert not other.is_set()


def test_a_poll_that_runs_out_in_line_is_called_at_its_turn() -> None:
    async def story() -> list[int]:
        bells, called = Bells(), list[int]()

        async def device(number: int, wait_s: float) -> None:
            with bells.request(), bells.bell(f"d{number}") as bell:
                await bells.heard(bell, wait_s)
                called.append(number)

        busy = [bells.request() for _ in range(AT_ONCE)]
        for one in busy:
            one.__enter__()
        # The last ones in line have the shortest time left.
        devices = [asyncio.create_task(device(n, 0.3 - n / 100)) for n in range(20)]
        await asyncio.sleep(0)
        bells.ring(f"d{number}" for number in range(20))
        calling = asyncio.create_task(bells.call())
        await asyncio.sleep(0.5)
        assert not called  # the time of all is over, and nobody's turn has come
        for one in busy:
            one.__exit__(None, None, None)
        await asyncio.wait_for(asyncio.gather(*devices), 20)
        bells.stop()
        await asyncio.wait_for(calling, 20)
        return called

    assert asyncio.run(story()) == list(range(20))


def test_asking_for_an_upload_counts_not_while_it_waits_and_only_one_waits(tmp_path: Path) -> None:
    async def story() -> None:
        bells = Bells()
        uploads = Uploads(tmp_path / "uploads", bells.aside)
        judge = Judge(10, lambda _: None, lambda *_: Receipt(True))
        place = uploads._places.setdefault(_stem("w"), _Place())
        calling = asyncio.create_task(bells.call())

        async def ask() -> int | None:
            with bells.request():
                return await uploads.arrived("w", "a" * 64, judge)

        with place.writing(), bells.bell("honest") as bell:
            asking = [asyncio.create_task(ask()) for _ in range(2 * AT_ONCE)]
            await asyncio.sleep(0)
            with bells.request():
                assert bells._under_way <= 2
            bells.ring(["honest"])
            await asyncio.wait_for(bell.wait(), 5)
            said = await asyncio.gather(*asking, return_exceptions=True)
        assert said[0] == 0
        assert [one.status for one in said[1:] if isinstance(one, Refusal)] == [429] * (
            2 * AT_ONCE - 1
        )
        bells.stop()
        await calling

    asyncio.run(story())
