"""A tick goes on past what fails: other runs, who is there, and what may be removed."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import sqlalchemy as sql

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.fleet.presence import SAVE_S, Presence
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.rounds.events import Answered, Extended, StepOpened
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.credentials import insert_token
from smidgen.coordinator.storage.devices import Device, devices
from smidgen.coordinator.storage.runs import add_order
from smidgen.coordinator.storage.store import Run, Store
from smidgen.edge_client.wire.fleet import Enrol, Membership
from smidgen.edge_client.wire.messages import PROTOCOL, encode
from tests.coordinator.devices import FACTS, key_of
from tests.coordinator.upkeep.stores import TASK, filled, names

TOKEN = "s" * 30
LATER_S = 700.0  # past the deadline of a step that is open from 0 on


def evaluating(store: Store, name: str) -> str:
    """A run whose first evaluation is open, and answered by one of two; its id."""
    config = RunConfig(name, TASK, rounds=1, min_clients=1)
    adapter = store.put(f"{name} adapter 0".encode())
    store.add_run(Run(f"r-{name}", 1.0, encode(config).decode(), "b", "b", "bert", adapter, "s"))
    opened = StepOpened("evaluate", 0, 1, adapter, (("0" * 32, "a"), ("1" * 32, "b")), 0.0)
    store.append(f"r-{name}", 0, opened)
    store.append(f"r-{name}", 1, Answered("0" * 32, "done", None, 4))
    return f"r-{name}"


def enrolled(service: Service, name: str) -> Device:
    _, added = insert_token(TOKEN + name, 0.0)
    service.store.database.write(added)
    service.enrol(Enrol(PROTOCOL, name, FACTS, TOKEN + name), key_of(name), 0.0)
    return service.device_of(key_of(name))


def test_a_run_that_cannot_go_on_holds_up_no_other_and_is_told_once(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = filled(store, "broken", 0, 3, open_updates=3)  # no update of it can be read
    run_id = evaluating(store, "mail")
    service = Service(store, 0.0)
    orphan = store.put(b"nobody needs this")
    for second in range(3):
        service.tick(LATER_S + second)
    assert service.run(run_id).state.evaluated == 0
    assert service.run(broken.run_id).state.step is not None
    assert orphan not in names(tmp_path / "store")
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert said == ["broken: stands still; trying again each second"]


def test_updates_of_a_stopped_run_are_removed_at_once(store: Store, tmp_path: Path) -> None:
    run = filled(store, "mail", 1, 3, open_updates=2)
    service = Service(store, 0.0)
    service.tick(0.0)
    service.tick(1.0)
    assert set(run.updates[-2:]) <= names(tmp_path / "store")
    add_order(store, service.run(run.run_id).run, "stop", None, 2.0)
    service.tick(2.0)
    assert not set(run.updates) & names(tmp_path / "store")


def test_updates_of_an_attempt_that_failed_are_removed_at_once(
    store: Store, tmp_path: Path
) -> None:
    config = RunConfig("mail", TASK, rounds=1, min_clients=2, min_updates=2, deadline_s=9.0)
    config = replace(config, norm_bound=0.0)  # the adapter is not one
    first = store.put(b"adapter")
    store.add_run(Run("r", 0.0, encode(config).decode(), "b", "b", "bert", first, "s"))
    service = Service(store, 0.0)
    for name in ("a", "b"):
        service.membership(enrolled(service, name), "r", Membership("joined"), 0.0)
    service.tick(0.0)
    step = service.run("r").state.step
    assert step is not None
    service._ledger.answer("r", Answered(next(iter(step.members)), "done", None, 4))
    service.tick(10.0)
    step = service.run("r").state.step
    assert step is not None and step.opened.kind == "train"
    update = store.put(b"an update")
    service._ledger.answer("r", Answered(next(iter(step.members)), "done", update, 5))
    service.tick(20.0)
    step = service.run("r").state.step
    assert step is not None and step.opened.attempt == 2
    assert update not in names(tmp_path / "store")


def test_a_device_that_rests_and_is_asked_again_is_told_once_each(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="smidgen.coordinator")
    config = RunConfig("mail", TASK, rounds=9, min_clients=2, deadline_s=9.0, norm_bound=0.0)
    store.add_run(
        Run("r", 0.0, encode(config).decode(), "b", "b", "bert", store.put(b"adapter"), "s")
    )
    service = Service(store, 0.0)
    ids = {name: enrolled(service, name).device_id for name in ("a", "b")}
    for name in ids:
        service.membership(service.device_of(key_of(name)), "r", Membership("joined"), 0.0)
    asked_of_b = []
    for second in range(0, 100, 10):  # b answers nothing before its third piece of work
        for device_id in ids.values():
            service.presence.saw(device_id, float(second))
        service.tick(float(second))
        step = service.run("r").state.step
        assert step is not None
        asked_of_b += [second] if ids["b"] in step.members.values() else []
        for work_id, device_id in step.members.items():
            if device_id == ids["a"] or len(asked_of_b) >= 3:
                is_trained = step.opened.kind == "train"
                outcome: Literal["done", "failed"] = "failed" if is_trained else "done"
                service._ledger.answer("r", Answered(work_id, outcome, None, 4))
    told = [text for text in caplog.messages if text.startswith("mail: b: ")]
    assert told == [
        "mail: b: no answer in time; asked again after a rest of 1 step",
        "mail: b: asked again after 1 step without an answer",
        "mail: b: asked again after 2 steps without an answer",
        "mail: b: answered again; asked as often as others",
    ]


def test_what_could_not_be_written_of_who_is_there_is_written_later(store: Store) -> None:
    device = enrolled(Service(store, 0.0), "a")
    presence = Presence(store, 0.0)
    presence.saw(device.device_id, 5.0)
    store.database.write(sql.text("ALTER TABLE devices RENAME TO gone"))
    with pytest.raises(Exception, match="no such table"):
        presence.save(SAVE_S)
    store.database.write(sql.text("ALTER TABLE gone RENAME TO devices"))
    presence.save(2 * SAVE_S)
    assert [one.last_seen_s for one in devices(store.database)] == [5.0]


def test_an_end_that_was_told_before_a_run_was_extended_is_told_anew(store: Store) -> None:
    run = filled(store, "mail", 2, 1)
    service = Service(store, 0.0)
    over = service._over(service.run(run.run_id))
    assert over.accuracies == {0: 0.0, 1: 0.001, 2: 0.002} and over.ended == "rounds"
    before = service.run(run.run_id)
    service._ledger.append(before, Extended(3, 0.0))
    assert service._over(before) == over  # a poll that was on its way
    add_order(store, before.run, "stop", None, 2.0)
    service.tick(1.0)
    assert service._over(service.run(run.run_id)).ended == "stopped"


def test_a_clock_that_was_set_back_makes_nobody_later_than_who_comes_after(store: Store) -> None:
    old = Service(store, 10_000.0)
    gone, here = (enrolled(old, name).device_id for name in ("a", "b"))
    old.presence.saw(gone, 10_000.0)
    old.presence.saw(here, 10_000.0)
    old.presence.save(10_000.0, is_last=True)
    second = Presence(store, 2_800.0)  # two hours earlier, by a clock that is right or wrong
    assert second.is_here(gone, 2_800.0) and not second.is_here(gone, 3_000.0)
    second.saw(here, 3_000.0)
    second.save(3_000.0, is_last=True)
    third = Presence(store, 3_010.0)
    assert third.is_here(here, 3_010.0) and not third.is_here(gone, 3_010.0)


def test_who_declined_is_asked_in_its_next_life_though_the_clock_was_set_back(store: Store) -> None:
    config = RunConfig("mail", TASK, rounds=1, min_clients=2)
    adapter = store.put(b"adapter")
    store.add_run(Run("r", 0.0, encode(config).decode(), "b", "b", "bert", adapter, "s"))
    device = enrolled(Service(store, 0.0), "a")
    first = Service(store, 10_000.0)
    first.membership(device, "r", Membership("declined", "budget"), 10_000.0)
    again = Service(store, 2_800.0)
    again.enrol(Enrol(PROTOCOL, "a", FACTS), key_of("a"), 2_800.0)
    assert again.next(again.device_of(key_of("a")), 2_801.0).terms is not None


def test_a_token_expires_by_the_wall_clock(store: Store) -> None:
    _, added = insert_token(TOKEN, 0.0, expires_at_s=10_000.0)
    store.database.write(added)
    service = Service(store, 0.0)
    message = Enrol(PROTOCOL, "a", FACTS, TOKEN)
    with pytest.raises(Refusal, match="expired"):
        service.enrol(message, key_of("a"), 2_800.0, wall_s=10_000.0)
    assert service.enrol(message, key_of("a"), 12_800.0, wall_s=9_999.0).name == "a"
