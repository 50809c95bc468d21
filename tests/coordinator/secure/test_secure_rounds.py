"""Runs with secure aggregation over HTTP: sums to the bit, and who is told what."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.coordinator.config import ConfigError, RunConfig
from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.rounds.orders import OrderKind
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.serving.executor import aggregate
from smidgen.coordinator.serving.ledger import Live as LiveRun
from smidgen.coordinator.storage.database import StoreError
from smidgen.coordinator.storage.devices import revoke
from smidgen.coordinator.storage.runs import add_order, config_of, find_run
from smidgen.coordinator.upkeep.forgetting import ask_to_forget
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.masks import public_key
from smidgen.edge_client.updates.secure_sum import SHARES
from smidgen.edge_client.updates.settings import Updates
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import Update, decode_adapter, decode_update, encode_update
from smidgen.edge_client.wire.training import Training
from tests.command_line import smidgen as command
from tests.coordinator.conftest import Live
from tests.coordinator.devices import enrol, wait_for
from tests.coordinator.secure.members import MaskedDevice, members_of, plain_mean
from tests.edge_client.updates.masked import spoiled

Start = Callable[..., Live]
SECURE = {"updates": Updates(secure_aggregation="int8"), "min_updates": 3, "min_clients": 5}
NAMES = ("a", "b", "c", "d", "e")


def through(live: Live, members: Sequence[MaskedDevice]) -> None:
    for one in members:
        one.join()
    to_the_end(members)


def to_the_end(members: Sequence[MaskedDevice]) -> None:
    threads = [threading.Thread(target=one.until_finished) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rounds_of(live: Live) -> list[tuple[State, StepClosed]]:
    """Each unmasking's end, and the state before it."""
    state, found = State(find_run(live.store, live.run_id).adapter_sha256), []
    for event in live.store.events(live.run_id):
        if isinstance(event, StepClosed) and state.masked is not None:
            found.append((state, event))
        state = evolve(state, event)
    return found


def test_each_round_is_the_sum_of_those_who_sent_to_the_bit(start: Start) -> None:
    live = start(rounds=3, **SECURE)
    members = members_of(live.enrol(*NAMES))
    members[1].ends_at, members[2].ends_after = (2,), (3,)
    through(live, members)
    ends = rounds_of(live)
    assert [event.refused for _, event in ends] == ["", "", ""]
    by_id = {one.device_id: one for one in members}
    for (state, event), sent in zip(ends, (5, 4, 5), strict=True):
        assert state.masked is not None and state.step is not None
        included = [by_id[name] for name, _ in state.masked.updates()]
        assert len(included) == sent
        index, opened = state.step.opened.round_index, state.masked.opened
        mean = plain_mean(included, index, opened.updates[-1])
        before, after = (
            decode_adapter(live.store.read(name))
            for name in (opened.adapter_sha256, event.adapter_sha256 or "")
        )
        for name in mean:
            assert np.array_equal(after[name], before[name] + mean[name])
    bodies = [body for one in members for body in one.bodies.values()]
    assert all(not decode_update(body).delta for body in bodies)


def test_the_same_bytes_again_after_a_crash(start: Start) -> None:
    live = start(rounds=1, **SECURE)
    members = members_of(live.enrol(*NAMES))
    members[0].ends_at = (1,)
    through(live, members)
    run = find_run(live.store, live.run_id)
    [(state, event)] = rounds_of(live)
    for one in members:
        for body in one.bodies.values():
            live.store.put(body)  # a store drops updates once a round is closed
    again = aggregate(live.store, LiveRun(run, config_of(run), state), state.step, 0.0)  # type: ignore[arg-type]
    assert again == replace(event, closed_at_s=0.0)


def test_masks_come_off_in_a_thread_beside_the_event_loop(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = start(rounds=1, **SECURE)
    through(live, members_of(live.enrol(*NAMES)))
    threads = dict[str, set[int | None]]()
    for one in caplog.records:
        threads.setdefault(one.name.rpartition(".")[2], set()).add(one.thread)
    assert threads["executor"] and not threads["executor"] & threads["server"]


def test_a_round_in_which_too_few_unmask_is_not_taken_and_the_run_goes_on(start: Start) -> None:
    live = start(rounds=2, **SECURE)
    members = members_of(live.enrol(*NAMES))
    for one in members[:3]:
        one.ends_after = (1,)
    through(live, members)
    (_, first), (_, second) = rounds_of(live)
    assert (
        "2 of 5 devices answered the unmasking; each needs the answers of 2 others" in first.refused
    )
    assert first.blamed == () and second.refused == ""
    said = command("coordinator", "status", "--store", str(live.store.folder))
    assert "finished" in said.stdout


def test_who_deals_inconsistent_shares_is_asked_no_more(start: Start) -> None:
    live = start(rounds=3, **(SECURE | {"min_clients": 6}))
    members = members_of(live.enrol(*NAMES, "f"))
    members[4] = Wrong(members[4].http, members[4].key, members[4].enrolled)
    through(live, members)
    ends = rounds_of(live)
    assert ends[0][1].refused == "a device dealt inconsistent shares"
    assert ends[0][1].blamed == (members[4].device_id,)
    asked = [state.masked.members.values() for state, _ in ends if state.masked]
    assert all(members[4].device_id not in one for one in asked[1:])
    assert [event.refused for _, event in ends[1:]] == ["", ""]


class Wrong(MaskedDevice):
    """Deals other shares than its update's."""

    def masked(self, work: Work) -> bytes:
        update = decode_update(super().masked(work))
        return encode_update(spoiled(update, SHARES, range(5)))


def test_devices_hear_in_a_line_what_is_wrong(start: Start) -> None:
    live = start(rounds=1, **SECURE)
    one, *others = members_of(live.enrol(*NAMES))
    terms = one.next().terms
    assert terms is not None and terms.steps == ("secure:int8",)
    told = one.tell(live.run_id, Membership("joined")).json()
    assert not told["accepted"] and "this device told no mask_key" in told["reason"]
    for each in (one, *others):
        each.join()
        assert each.tell(live.run_id, each.membership()).json()["accepted"]
    for each in (one, *others):
        each.do(each.work())  # the first adapter
    work = one.work()
    assert work.kind == "train" and [order.name for order in work.updates] == ["secure"]
    body = one.masked(work)
    update = decode_update(body)
    plain = encode_update(Update(work.work_id, 3, one.plain[1][1]))
    short = encode_update(
        replace(update, coded={**(update.coded or {}), "y": np.zeros(3, np.uint8)})
    )
    for wrong in (plain, short):
        refused = one.put(work.work_id, wrong)
        assert refused.status_code == 422 and "a masked update: uint8 of" in refused.text
    theirs = encode_update(replace(update, work_id=others[0].work().work_id))
    assert "is for work" in one.put(work.work_id, theirs).text
    for each in (one, *others):
        each.do(each.work())
    asked = one.work()
    assert asked.kind == "unmask"
    late = one.put(work.work_id, body)  # the same again counts once, and is no other
    assert late.json()["accepted"]
    shares = one.unmasking(asked)
    cut = replace(decode_update(shares), coded={"shares": np.zeros(17, np.uint8)})
    refused = one.put(asked.work_id, encode_update(cut))
    assert refused.status_code == 422 and "an unmasking: uint8 of" in refused.text
    assert others[0].put(asked.work_id, shares).status_code == 403
    for _ in range(2):
        assert one.put(asked.work_id, shares).json()["accepted"]
    other = decode_update(shares)
    coded = {"shares": np.ascontiguousarray((other.coded or {})["shares"][::-1])}
    told = one.put(asked.work_id, encode_update(replace(other, coded=coded))).json()
    assert not told["accepted"] and told["reason"] == "answered already: done"
    one.report(Report(asked.work_id, "done"))
    for each in others:
        each.do(each.work())
    to_the_end([one, *others])
    assert [event.refused for _, event in rounds_of(live)] == [""]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_updates": 2}, "min_updates = 3 or more is expected, so that no sum is of two"),
        ({"learning": Learning(mean="median")}, "leave out mean = median"),
        ({"learning": Learning(lora_mean="product")}, "leave out lora_mean = product"),
        ({"training": Training(optimizer="sgd", scaffold=True)}, "leave out scaffold"),
        (
            {"training": Training(optimizer="sgd")},
            "no setting bounds single numbers of training by",
        ),
        ({"asynchronous": Asynchronous()}, r"leave the table \[asynchronous\] out"),
        ({"over_selection": 2.0}, "who is late drops out of the sum; leave over_selection out"),
        ({"norm_bound": 1.0}, "devices bound their updates themselves; leave norm_bound out"),
    ],
)
def test_what_needs_single_updates_is_refused_in_a_line(
    config: RunConfig, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        replace(config, **{**SECURE, **settings})


def test_a_codec_beside_it_is_refused() -> None:
    with pytest.raises(WrongInput, match="leave up out: secure_aggregation says"):
        Updates(up="int8", secure_aggregation="int8")


def test_create_says_what_it_comes_to(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(
        'task = "agnews"\nmin_clients = 50\nmin_updates = 10\n'
        '[updates]\nsecure_aggregation = "int8"\n'
    )
    done = command("coordinator", "create", "--store", str(tmp_path / "store"), str(run_file))
    assert done.exit_code == 0, done.stderr
    assert (
        "secure aggregation: of 50 devices asked the coordinator learns the sum of 21 updates or "
        "more, 14 bits a number and" in done.stdout
    )


def test_no_key_is_taken_twice_or_hides_nothing(start: Start) -> None:
    live = start(rounds=1, **SECURE)
    one, other, *_ = members_of(live.enrol(*NAMES))
    one.join()
    for key in (public_key(one.secret), bytes(32)):
        told = other.tell(live.run_id, Membership("joined", mask_key=key.hex())).json()
        assert not told["accepted"]
        assert told["reason"] == "run mail: mask_key is another device's, or hides nothing"
    other.join()


def test_who_was_shut_out_does_not_come_back(start: Start) -> None:
    live = start(rounds=2, **(SECURE | {"min_clients": 6}))
    members = members_of(live.enrol(*NAMES, "f"))
    members[4] = Wrong(members[4].http, members[4].key, members[4].enrolled)
    for one in members:
        one.join()
    for _ in ("evaluate", "train", "unmask"):
        for one in members:
            one.do(one.work())
    wait_for(lambda: bool(live.service.run(live.run_id).state.shut_out))
    told = members[4].tell(live.run_id, members[4].membership()).json()
    assert not told["accepted"]
    assert told["reason"] == "run mail asks this device no more: it dealt inconsistent shares"
    again = enrol(live.http, live.token, "e", key=members[4].key)  # its client starts again
    terms = again.next().terms
    assert terms is not None
    assert not again.tell(live.run_id, members[4].membership()).json()["accepted"]
    assert again.next().terms is None  # and is not invited for ever
    to_the_end(members)
    assert [event.refused == "" for _, event in rounds_of(live)] == [False, True]


def test_numbers_that_are_none_pause_a_run_that_makes_no_sum(start: Start) -> None:
    live = start(rounds=9, **SECURE)
    members = members_of(live.enrol(*NAMES))
    members[0] = Garbage(members[0].http, members[0].key, members[0].enrolled)
    for one in members:
        one.join()
    live_run = partial(live.service.run, live.run_id)
    threads = [threading.Thread(target=works_until, args=(one, live_run)) for one in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = live_run().state
    assert state.is_paused and state.round_index == 3 and state.shut_out == frozenset()
    assert state.trouble.startswith("3 rounds in a row gave no sum: round 3 was not taken: the sum")


def works_until(device: MaskedDevice, run: Callable[[], LiveRun]) -> None:
    while not run().state.is_paused:
        if (work := device.next(0.5).work) is not None:
            device.do(work)


class Garbage(MaskedDevice):
    """Sends numbers that no update masks."""

    def masked(self, work: Work) -> bytes:
        update = decode_update(super().masked(work))
        coded = dict(update.coded or {})
        coded["y"] = np.random.default_rng(work.round_index).integers(
            0, 256, coded["y"].size, np.uint8
        )
        return encode_update(replace(update, coded=coded))


def in_unmasking(start: Start) -> tuple[Live, list[MaskedDevice]]:
    """A run whose first sum is being unmasked."""
    live = start(rounds=2, **SECURE)
    members = members_of(live.enrol(*NAMES))
    for one in members:
        one.join()
    for _ in ("evaluate", "train"):
        for one in members:
            one.do(one.work())
    assert members[0].work().kind == "unmask"
    return live, members


def ordered(live: Live, kind: OrderKind, rounds: int | None = None) -> None:
    run = find_run(live.store, live.run_id)
    add_order(live.store, run, kind, rounds, live.service.now_s())


def test_a_round_whose_sum_was_asked_for_is_not_asked_for_again(start: Start) -> None:
    """Two sums of one round over different devices would tell the updates they differ in."""
    live, members = in_unmasking(start)
    members[0].do(members[0].work())
    ordered(live, "stop")
    wait_for(lambda: live.service.run(live.run_id).state.is_finished)
    ordered(live, "extend", 3)
    wait_for(lambda: not live.service.run(live.run_id).state.is_finished)
    state = live.service.run(live.run_id).state
    assert state.round_index == 1 and state.masked is None
    to_the_end(members)
    trained = {
        state.masked.opened.round_index for state, _ in rounds_of(live) if state.masked is not None
    }
    assert trained == {2, 3}


def test_the_update_of_a_device_that_is_revoked_is_in_no_sum(start: Start) -> None:
    live, members = in_unmasking(start)
    for one in members[:3]:
        one.do(one.work())
    revoke(live.store.database, members[4].device_id, live.service.now_s())
    wait_for(lambda: bool(live.service.run(live.run_id).state.left))
    members[3].do(members[3].work())
    to_the_end(members[:4])
    ends = [event.refused for _, event in rounds_of(live)]
    assert ends[0] == "a device whose update is in the sum was revoked" and ends[1:] == [""]


def test_a_device_is_not_forgotten_where_its_share_was_hidden(start: Start) -> None:
    live = start(rounds=1, **SECURE)
    members = members_of(live.enrol(*NAMES))
    through(live, members)
    device = live.service.fleet.get(members[0].device_id)
    assert device is not None
    with pytest.raises(StoreError, match="has secure aggregation: a second sum without it"):
        ask_to_forget(live.store, device, live.service.now_s())
