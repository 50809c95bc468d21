"""What `devices` says of a real coordinator's devices: who misses steps, and which live twice."""

import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.devices import devices, note_cloned, tag
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.wire.fleet import MOST_TAGS
from smidgen.edge_client.wire.messages import Report
from tests.command_line import shown, smidgen
from tests.coordinator.conftest import Live, served, serving
from tests.coordinator.devices import Device, enrol, wait_for

Start = Callable[..., Live]
LONG = "raspberry-pi-of-the-hall"


def listed(folder: Path, *options: str) -> str:
    done = smidgen("coordinator", "devices", *options, "--store", str(folder / "store"))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def round_closed(live: Live, index: int) -> bool:
    return live.service.run(live.run_id).state.evaluated >= index


def one_misses(start: Start) -> tuple[Live, Device, str]:
    """Two devices, one of which has not answered the first evaluation; it, and its work."""
    live = start(deadline_s=0.6, rounds=4)
    tags = {"site": "ground floor of the house", "lamp": "on"}
    late, good = (enrol(live.http, live.token, name, tags=tags) for name in (LONG, "kitchen"))
    late.join()
    good.join()
    work = late.work()
    good.do(good.work())
    wait_for(lambda: round_closed(live, 0))
    return live, late, work.work_id


def test_a_list_names_who_misses_steps_and_who_lives_twice(start: Start, tmp_path: Path) -> None:
    live, late, work_id = one_misses(start)
    said = listed(tmp_path, "list")
    assert "trouble" in said and re.search(r"silent \d in mail", said)
    late.report(Report(work_id, "done", 4, accuracy=0.5))
    note_cloned(live.store.database, late.device_id, time.time())
    said = listed(tmp_path, "list")
    assert re.search(r"two lives; slow \d in mail", said) and "too late to count" in said
    assert "two clients ran with copies of its state folder" in said
    assert re.search(r"joined, slow \d", listed(tmp_path, "show", LONG))
    (told, _) = sorted(
        json.loads(listed(tmp_path, "list", "--json"))["devices"],
        key=lambda one: one["name"] != LONG,
    )
    assert [(run["misses"] > 0, run["is_slow"]) for run in told["runs"]] == [(True, True)]


def test_a_list_with_all_of_it_fits_80_columns(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, late, _ = one_misses(start)
    note_cloned(live.store.database, late.device_id, time.time())
    monkeypatch.setenv("COLUMNS", "80")
    said = shown("coordinator", "devices", "list", "--store", str(tmp_path / "store"))
    assert max(map(len, said.splitlines())) <= 80
    head = said.splitlines()[0].split()
    assert head[:5] == ["device", "last", "seen", "trouble", "runs"] and "two lives" in said


def test_nobody_in_trouble_takes_no_column(start: Start, tmp_path: Path) -> None:
    start().join("kitchen")
    assert "trouble" not in listed(tmp_path, "list")


def test_tags_that_come_one_after_another_are_bounded_too(start: Start, tmp_path: Path) -> None:
    live = start()
    (kitchen,) = live.enrol("kitchen")
    tags = [f"tag-{number}=on" for number in range(MOST_TAGS)]
    line = ("coordinator", "devices", "tag", "--store", str(tmp_path / "store"), "kitchen")
    assert smidgen(*line, *tags).exit_code == 0
    refused = smidgen(*line, "one=more")
    assert refused.exit_code == 2 and f"tags: at most {MOST_TAGS}" in refused.stderr
    assert smidgen(*line, "tag-0=off").exit_code == 0
    assert smidgen(*line, "tag-0=", "one=more").exit_code == 0
    # What an older smidgen let in can be taken away.
    many = {f"tag-{number}": "on" for number in range(3 * MOST_TAGS)}
    tag(live.store.database, kitchen.device_id, many)
    assert smidgen(*line, "tag-0=").exit_code == 0
    assert smidgen(*line, "two=more").exit_code == 2


def test_tags_that_are_set_at_the_same_moment_are_all_there(start: Start) -> None:
    live = start()
    (device,) = live.enrol("hub")
    wanted = {f"t{number}": "on" for number in range(24)}
    with ExitStack() as stack:  # as several commands: a lock of one process is not enough
        opened = [stack.enter_context(closing(Store(live.store.folder))) for _ in range(4)]
        threads = stack.enter_context(ThreadPoolExecutor(len(opened)))
        asked = [
            threads.submit(tag, opened[index % 4].database, device.device_id, {one: "on"})
            for index, one in enumerate(wanted)
        ]
        assert max(len(one.result()) for one in asked) == len(wanted)
    assert devices(live.store.database)[0].tags == wanted
    assert tag(live.store.database, device.device_id, {"t0": ""}).keys() == wanted.keys() - {"t0"}


def test_a_device_is_forgotten_by_a_command_once_the_store_is_served(
    start: Start, tmp_path: Path
) -> None:
    live = start(rounds=9)
    both = live.evaluated("kitchen", "hall")
    for device in both:
        device.do(device.work())
    line = ("coordinator", "forget", "--store", str(tmp_path / "store"))
    unknown = smidgen(*line, "attic")
    assert unknown.exit_code == 2 and "no device 'attic' in the store" in unknown.stderr
    with live.store.serving_alone():
        done = smidgen(*line, "hall")
    assert done.exit_code == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == "device hall is forgotten"
    assert second == f"run mail ({live.run_id}) has round 0 of 9 without it"
    assert third.startswith("backups, exported adapters, trackers, logs")
    assert smidgen(*line, "hall").exit_code == 2
    assert "hall" not in listed(tmp_path, "list")


def test_a_run_that_started_from_an_adapter_with_the_share_is_named(
    start: Start, tmp_path: Path
) -> None:
    live = start(rounds=9)
    both = live.evaluated("kitchen", "hall")
    for device in both:
        device.do(device.work())
    wait_for(lambda: live.service.run(live.run_id).state.round_index == 1)
    store = ("--store", str(tmp_path / "store"))
    task = ("--task", "agnews", "--base", live.service.run(live.run_id).config.base)
    for name, start_from in (("heir", "mail@1"), ("grandchild", "heir@0"), ("clean", "mail@0")):
        made = smidgen("coordinator", "create", *store, *task, "--name", name, "--from", start_from)
        assert made.exit_code == 0, made.stderr
    told = smidgen("coordinator", "forget", *store, "hall", "--json")
    assert json.loads(told.stdout)["heirs"] == ["heir", "grandchild"]


def test_a_device_is_forgotten_where_nobody_serves_and_the_next_serve_takes_its_share_out(
    config: RunConfig, tmp_path: Path
) -> None:
    with closing(Store(tmp_path / "store")) as store:
        with serving(store, replace(config, rounds=9)) as live:
            both = live.evaluated("kitchen", "hall")
            for device in both:
                device.do(device.work())
        line = ("coordinator", "forget", "--store", str(tmp_path / "store"), "--json")
        told = json.loads(smidgen(*line, "hall").stdout)
        assert (told["name"], len(told["runs"])) == ("hall", 1)
        assert told["runs"][0]["done_at_s"] is None
        with served(store) as (service, _):
            wait_for(lambda: service.run(live.run_id).state.forgets == 1)
            assert service.run(live.run_id).state.round_index == 0
