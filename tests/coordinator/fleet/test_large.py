"""What is kept in memory of a fleet is found as quickly as a large one needs, and is the same."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from smidgen.coordinator.fleet.devices import Fleet, Members
from smidgen.coordinator.fleet.presence import ALIVE_S, SHARE_S, Presence, rest_after
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.devices import changed, devices, members, revoke, saw, who_joined
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import Membership
from tests.coordinator.fleet.filling import fill

STATES = (Membership("joined"), Membership("declined", "budget"), Membership("home"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    fill(tmp_path / "store", 40, 10, 1_000.0)
    with closing(Store(tmp_path / "store")) as opened:
        yield opened


def test_devices_come_by_name_and_number(store: Store) -> None:
    names = [one.name for one in devices(store.database)]
    assert names == ["pi", *(f"pi-{number}" for number in range(2, 41))]
    assert [one.name for one in changed(store.database, 37)] == ["pi-38", "pi-39", "pi-40"]


def test_members_are_those_of_the_rows_whatever_they_say(store: Store) -> None:
    (run,), generator = store.runs(), random.Random(0)
    here, everyone = Members(store), [one.device_id for one in devices(store.database)]
    here.load(run.run_id, is_finished=False)
    for at_s in range(200):
        here.put(run.run_id, generator.choice(everyone), generator.choice(STATES), float(at_s))
    rows = members(store.database, run.run_id)
    joined = [key for key, one in rows.items() if one.is_joined]
    assert here.of(run.run_id) == rows and here.joined(run.run_id) == joined
    some = set(generator.sample(everyone, 20))
    assert here.joined_of(run.run_id, some) == [key for key in joined if key in some]
    assert not here.joined_of(run.run_id, set()) and not here.joined_of("another", some)
    for key in everyone:
        assert here.runs_of(key) == ({run.run_id} if rows[key].is_joined else set())
    not_declined = {key for key, one in rows.items() if one.membership.state != "declined"}
    assert who_joined(store.database, run.run_id) == not_declined


def test_the_fleet_knows_who_was_revoked(store: Store) -> None:
    fleet = Fleet(store)
    first, second, *_ = fleet.all()
    assert not fleet.revoked()
    revoke(store.database, second.device_id, 2_000.0)
    fleet.refresh()
    assert fleet.revoked() == {second.device_id} == Fleet(store).revoked()
    assert fleet.get(first.device_id) is first


def test_whoever_was_never_heard_of_is_not_there(store: Store) -> None:
    first, second, *_ = devices(store.database)
    saw(store.database, {first.device_id: 1_100.0})
    presence = Presence(store, 1_100.0)
    assert presence.last_seen_s(first.device_id) == 1_100.0
    assert presence.last_seen_s(second.device_id) == 1_000.0
    assert presence.last_seen_s("another") is None


def test_after_a_pause_nobody_counts_as_silent_and_people_see_the_true_contact(
    store: Store,
) -> None:
    first = devices(store.database)[0].device_id
    saw(store.database, {first: 1_100.0})
    presence = Presence(store, 9_100.0)  # nobody served for 8,000 s
    assert presence.is_here(first, 9_100.0) and presence.last_seen_s(first) == 1_100.0
    presence.saw(first, 9_101.0)
    assert presence.last_seen_s(first) == 9_101.0


def test_a_poll_of_many_that_wait_counts_those_who_are_missing(store: Store) -> None:
    service = Service(store, 1_000.0)
    (live,) = service.runs()
    everyone = service.fleet.all()
    waiting = service.next(everyone[0], 1_000.0).waiting
    assert waiting is not None and (waiting.missing, waiting.asked) == (0, 2)
    late_s = 1_000.0 + 500.0  # by then nobody was heard of
    waiting = service.next(everyone[0], late_s).waiting
    assert waiting is not None and (waiting.missing, waiting.asked) == (2, 2)
    assert live.state.step is None


@pytest.mark.parametrize(
    ("took_s", "share"), [(0.01, 1.0), (0.06, 0.1), (3.0, 0.1), (10.0, 0.25), (20.0, 0.4)]
)
def test_looking_at_whom_others_have_heard_leaves_time_for_devices(
    took_s: float, share: float
) -> None:
    rest_s = rest_after(took_s)
    assert took_s / (took_s + rest_s) == pytest.approx(share)
    assert took_s + rest_s + SHARE_S < ALIVE_S / 2
