"""A device is forgotten: what it gave is in no adapter any more, to the last bit."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.operator.routes import add_operator_routes
from smidgen.coordinator.rounds.events import Folded, Left, encode_event
from smidgen.coordinator.rounds.schedule import Learning
from smidgen.coordinator.serving.server import Part
from smidgen.coordinator.storage.database import DATABASE, Conflict
from smidgen.coordinator.storage.devices import held
from smidgen.coordinator.storage.reports import add_report
from smidgen.coordinator.storage.runs import open_orders, status_of
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report, Work, encode
from smidgen.edge_client.wire.tensors import decode_update, encode_update, shapes_of
from smidgen.edge_client.wire.training import Training
from tests.coordinator.conftest import Live, serving
from tests.coordinator.devices import Device, joined, wait_for
from tests.coordinator.operator.operators import person

PARTS: tuple[Part, ...] = (add_operator_routes,)


class Learner(Device):
    """Its update hangs on the adapter that it starts from, as a real one's does."""

    def update(self, work: Work) -> bytes:
        adapter = self.adapter(work)
        drawn = decode_update(super().update(work), shapes_of(adapter))
        delta = {
            name: (one - 0.5 * adapter[name]).astype(np.float32)
            for name, one in drawn.delta.items()
        }
        return encode_update(replace(drawn, delta=delta))


def learner(live: Live, name: str) -> Learner:
    known = joined(live.http, live.token, name)
    return Learner(known.http, known.key, known.enrolled)


@contextmanager
def run(folder: Path, config: RunConfig, **settings: Any) -> Iterator[Live]:
    known = replace(config, **settings)
    with closing(Store(folder)) as store, serving(store, known, parts=PARTS) as live:
        yield live


def work_until(devices: list[Learner], is_there: Callable[[], bool]) -> None:
    """Let devices do what they are asked, until a run has come so far."""

    def is_over() -> bool:
        for device in () if is_there() else devices:
            given = device.next()
            if given.terms is not None:
                device.join()
            if given.work is not None:
                device.do(given.work)
        return is_there()

    wait_for(is_over)


def state_of(live: Live) -> Any:
    return live.service.run(live.run_id).state


def opened(live: Live) -> tuple[str, int]:
    step = state_of(live).step
    return (step.opened.kind, step.opened.round_index) if step else ("", 0)


def to_round(live: Live, devices: list[Learner], index: int) -> None:
    """Work until a round has closed and is evaluated."""
    work_until(devices, lambda: state_of(live).evaluated >= index)


def to_end(live: Live, devices: list[Learner]) -> str:
    work_until(devices, lambda: state_of(live).is_finished)
    return str(state_of(live).adapter_sha256)


def forget(live: Live, device: Device) -> None:
    boss = person(live.http, live.store)
    orders = boss.post(f"/devices/{device.device_id}/forget")["orders"]
    assert [one["kind"] for one in orders] == ["forget"]
    wait_for(lambda: not open_orders(live.store))


def never_there(folder: Path, config: RunConfig, **settings: Any) -> str:
    """The adapter of the same run where `c` never was."""
    with run(folder, config, **settings) as live:
        return to_end(live, [learner(live, name) for name in ("a", "b")])


def traces(store: Store, device: Device) -> list[str]:
    """Where a store still tells of a device by name or id."""
    found = [f"event {event}" for event in store.events(store.runs()[0].run_id)]
    for table in ("reports", "memberships", "devices", "orders"):
        for row in store.database.rows(_all(table)):
            known = {key: str(one) for key, one in row.items() if key != "key_sha256"}
            found.append(f"{table} {json.dumps(known)}")
    return [one for one in found if device.device_id in one or f'"{device.name}"' in one]


def _all(table: str) -> Any:
    from smidgen.coordinator.storage.schema import METADATA

    return METADATA.tables[table].select()


SETTINGS: dict[str, Any] = {"rounds": 4, "min_clients": 2, "evaluate_every": 1}


def test_a_run_goes_on_to_the_bytes_of_one_in_which_the_device_never_was(
    tmp_path: Path, config: RunConfig
) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b, c = (learner(live, name) for name in ("a", "b", "c"))
        to_round(live, [a, b, c], 2)
        before = state_of(live).adapter_sha256
        forget(live, c)
        assert state_of(live).round_index == 0
        assert state_of(live).trouble == "back to round 0: a device was forgotten"
        assert c.poll().status_code == 401
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **SETTINGS)
        wait_for(lambda: before not in live.store.blobs.present())
        assert traces(live.store, c) == [_row(live.store, c)]


def _row(store: Store, device: Device) -> str:
    """All that is left of a device: its id, so that its key is let in no more."""
    rows = [dict(one) for one in store.database.rows(_all("devices"))]
    (row,) = (one for one in rows if one["device_id"] == device.device_id)
    assert (row["name"], row["facts"], row["tags"]) == (device.device_id, {}, {})
    assert (row["own_tags"], row["life"], row["last_seen_s"]) == ({}, "", None)
    known = {key: str(one) for key, one in row.items() if key != "key_sha256"}
    return f"devices {json.dumps(known)}"


def test_the_scores_are_those_of_a_run_in_which_the_device_never_was(
    tmp_path: Path, config: RunConfig
) -> None:
    """Patience and the best adapter go by them, and by how sure they are."""
    told = SETTINGS | {"patience": 3, "keep": "best"}
    with run(tmp_path / "with", config, **told) as live:
        a, b, c = (learner(live, name) for name in "abc")
        to_round(live, [a, b, c], 1)
        forget(live, c)
        to_end(live, [a, b])
        found = state_of(live)
    with run(tmp_path / "never", config, **told) as live:
        to_end(live, [learner(live, name) for name in "ab"])
        other = state_of(live)
    assert (found.scores, found.patience, found.good) == (other.scores, other.patience, other.good)


def test_rounds_before_the_device_came_stay(tmp_path: Path, config: RunConfig) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b = learner(live, "a"), learner(live, "b")
        to_round(live, [a, b], 1)
        c = learner(live, "c")  # round 2 has begun by now
        to_round(live, [a, b, c], 2)
        second = state_of(live).adapter_sha256
        to_round(live, [a, b, c], 3)
        assert c.device_id in state_of(live).heard
        forget(live, c)
        assert (state_of(live).round_index, state_of(live).adapter_sha256) == (2, second)
        assert c.device_id not in state_of(live).heard
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **SETTINGS)


def test_a_finished_run_has_the_adapter_before_the_device_and_may_be_extended(
    tmp_path: Path, config: RunConfig
) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b = learner(live, "a"), learner(live, "b")
        to_round(live, [a, b], 2)
        c = learner(live, "c")
        to_round(live, [a, b, c], 3)
        third = state_of(live).adapter_sha256
        to_end(live, [a, b, c])
        forget(live, c)
        assert state_of(live).phase == "finished"
        assert (state_of(live).round_index, state_of(live).adapter_sha256) == (3, third)
        assert a.over().adapter_sha256 == third
        person(live.http, live.store).post(f"/runs/{live.run_id}/extend", {"rounds": 4})
        wait_for(lambda: not state_of(live).is_finished)
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **SETTINGS)


def test_an_answer_to_a_round_that_was_given_up_counts_in_no_other(
    tmp_path: Path, config: RunConfig
) -> None:
    """The round that comes again has the old one's number, and another adapter to start from."""
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b, c = (learner(live, name) for name in ("a", "b", "c"))
        work_until([a, b, c], lambda: opened(live) == ("train", 2))
        old = a.work()
        late = a.update(old)
        forget(live, c)
        assert not a.put(old.work_id, late).json()["accepted"]
        work_until([a, b], lambda: opened(live) == ("train", 2))
        assert a.work().work_id != old.work_id
        assert not a.put(old.work_id, late).json()["accepted"]
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **SETTINGS)


def test_figures_of_the_device_and_of_rounds_that_come_again_are_gone(
    tmp_path: Path, config: RunConfig
) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b, c = (learner(live, name) for name in ("a", "b", "c"))
        to_round(live, [a, b, c], 2)
        boss = person(live.http, live.store)
        path = f"/runs/{live.run_id}"
        told = {one["round_index"] for one in boss.get(f"{path}/rounds")["rounds"]}
        assert told >= {0, 1, 2}
        forget(live, c)
        assert [one["round_index"] for one in boss.get(f"{path}/rounds")["rounds"]] == [0]
        answers = boss.get(f"{path}/answers")["answers"]
        assert {(one["device"], one["round_index"]) for one in answers} == {("a", 0), ("b", 0)}
        names = [one["name"] for one in boss.get(f"{path}/devices")["devices"]]
        assert names == [one["name"] for one in boss.get("/devices")["devices"]] == ["a", "b"]
        assert boss.ask(f"/devices/{c.device_id}").status_code == 404
        status = status_of(live.store, live.store.runs()[0])
        assert [one["name"] for one in status["devices"]] == ["a", "b"]
        assert not {c.name, c.device_id} & status["texts"].keys()


def test_no_file_of_the_store_names_the_device_while_it_is_served(
    tmp_path: Path, config: RunConfig
) -> None:
    folder = tmp_path / "with"
    with run(folder, config, **SETTINGS) as live:
        a, b, c = (learner(live, name) for name in ("a", "b", "somebodys-phone"))
        to_round(live, [a, b, c], 2)
        files = [path for path in folder.iterdir() if path.name.startswith(DATABASE)]
        assert len(files) >= 2
        assert any(b"somebodys-phone" in path.read_bytes() for path in files)
        forget(live, c)
        wait_for(lambda: not any(b"somebodys-phone" in path.read_bytes() for path in files))
        journals = list(live.store.events(live.run_id))
        assert not any(c.device_id in encode_event(event) for event in journals)
        to_end(live, [a, b])


def test_a_second_device_can_be_forgotten_once_the_journal_is_folded(
    tmp_path: Path, config: RunConfig
) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b, c, d = (learner(live, name) for name in ("a", "b", "c", "d"))
        to_round(live, [a, b, c, d], 1)
        forget(live, d)
        to_round(live, [a, b, c], 2)
        forget(live, c)
        assert state_of(live).round_index == 0
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **SETTINGS)


def test_an_optimizer_that_remembers_lets_a_run_go_back_to_where_it_knows_nothing(
    tmp_path: Path, config: RunConfig
) -> None:
    """Of its memory the newest is kept alone, and that of round 2 is gone by round 3."""
    settings = SETTINGS | {"learning": Learning(optimizer="fedadam")}
    with run(tmp_path / "with", config, **settings) as live:
        a, b = learner(live, "a"), learner(live, "b")
        to_round(live, [a, b], 1)
        c = learner(live, "c")
        to_round(live, [a, b, c], 3)
        forget(live, c)
        assert state_of(live).round_index == 0
        assert to_end(live, [a, b]) == never_there(tmp_path / "without", config, **settings)


def test_a_device_that_took_no_part_is_forgotten_and_nothing_else(
    tmp_path: Path, config: RunConfig
) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, b = learner(live, "a"), learner(live, "b")
        to_round(live, [a, b], 1)
        (c,) = live.enrol("c")
        boss = person(live.http, live.store)
        assert boss.post(f"/devices/{c.device_id}/forget")["orders"] == []
        assert not any(isinstance(one, Folded) for one in live.store.events(live.run_id))
        assert [one["name"] for one in boss.get("/devices")["devices"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"training": Training(scaffold=True, optimizer="sgd")}, "control variates"),
        ({"asynchronous": {}}, "is asynchronous"),
    ],
)
def test_a_share_that_cannot_be_taken_out_exactly_stays_and_says_so(
    tmp_path: Path, config: RunConfig, settings: dict[str, Any], said: str
) -> None:
    if "asynchronous" in settings:
        from smidgen.coordinator.rounds.scheduling.step import Asynchronous

        settings = {"asynchronous": Asynchronous()}
    with run(tmp_path / "with", config, **(SETTINGS | settings)) as live:
        a, b = learner(live, "a"), learner(live, "b")
        for device in (a, b):
            device.do(device.work())
        boss = person(live.http, live.store)
        refused: httpx.Response = boss.tell(f"/devices/{a.device_id}/forget")
        assert refused.status_code == 409
        assert said in refused.json()["detail"] and "devices revoke" in refused.json()["detail"]
        assert a.poll().status_code == 200


@contextmanager
def half_sent(live: Live, device: Device, path: str, body: bytes) -> Iterator[Callable[[], str]]:
    """A request whose device the coordinator knows by now, and whose body has half come.

    Yields:
        Sends the rest; the answer's first line.
    """
    url = live.http.base_url
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {device.key}\r\n"
    head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=60) as wire:
        wire.sendall(head.encode() + body[:5])
        time.sleep(0.3)  # it waits for the body

        def rest() -> str:
            wire.sendall(body[5:])
            return b"".join(iter(partial(wire.recv, 4096), b"")).decode().partition("\r\n")[0]

        yield rest


@pytest.mark.parametrize("what", ["membership", "leaving", "report", "last report"])
def test_a_request_under_way_while_its_device_is_forgotten_leaves_nothing_of_it(
    tmp_path: Path, config: RunConfig, what: str
) -> None:
    with run(tmp_path / "with", config, **(SETTINGS | {"min_clients": 3})) as live:
        a, b, c = (learner(live, name) for name in "abc")
        work = c.work()
        path = f"/v1/runs/{live.run_id}/membership"
        if "report" in what:
            path = f"/v1/work/{work.work_id}/report"
        failed = Report(work.work_id, "failed", failure="internal")
        told = {
            "membership": Membership("joined"),
            "leaving": Membership("declined", "engine"),
            "report": failed,
            "last report": replace(failed, is_leaving=True),
        }
        with half_sent(live, c, path, encode(told[what])) as rest:
            c.poll()
            forget(live, c)
            assert rest().split()[1] in ("200", "401")
        live.service.presence.save(live.service.now_s(), is_last=True)
        to_end(live, [a, b])
        assert traces(live.store, c) == [_row(live.store, c)]


def test_a_report_that_comes_to_be_written_late_is_not(tmp_path: Path, config: RunConfig) -> None:
    with run(tmp_path / "with", config, **SETTINGS) as live:
        a, c = live.join("a", "c")
        told = {"work_id": "x", "run_id": live.run_id, "round_index": 1, "attempt": 1}
        told |= {"kind": "train", "is_late": False, "report": {"outcome": "done"}}
        forget(live, c)
        assert add_report(live.store.database, told | {"device_id": a.device_id})
        told["work_id"] = "y"
        assert not add_report(live.store.database, told | {"device_id": c.device_id})
        with pytest.raises(Conflict):
            live.store.append("r", 0, Left(c.device_id, "engine", 1.0), held(c.device_id))
