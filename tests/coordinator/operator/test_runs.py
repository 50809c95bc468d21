"""Runs, as the operator's API shows them."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import sqlalchemy as sql

from smidgen.coordinator.api.export import export
from smidgen.coordinator.api.stores import runs_told
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.operator.run_schemas import NewRun
from smidgen.coordinator.page.board import PageState
from smidgen.coordinator.rounds.scheduling.step import Asynchronous
from smidgen.coordinator.storage.schema import RUNS
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.messages import Report
from tests.command_line import smidgen as command
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for
from tests.coordinator.operator.operators import person
from tests.coordinator.secure.members import members_of
from tests.coordinator.secure.test_noised_rounds import NOISED
from tests.coordinator.secure.test_secure_rounds import NAMES, through

Start = Callable[..., Live]


def test_a_run_says_where_it_stands_and_what_it_gave(start: Start) -> None:
    live = start(min_clients=1, rounds=1)
    (device,) = live.join("a")
    viewer = person(live.http, live.store, "viewer")
    assert viewer.get("/runs")["runs"][0]["accuracy"] is None
    device.until_finished()
    told = viewer.get(f"/runs/{live.run_id}")
    assert (told["phase"], told["round_index"], told["rounds"]) == ("finished", 1, 1)
    assert (told["accuracy"], told["accuracy_round"], told["loss"]) == (0.25, 1, 1.0)
    assert told["totals"]["answers"] == 3 and told["totals"]["up_bytes"] > 0
    rounds = viewer.get(f"/runs/{live.run_id}/rounds")["rounds"]
    assert [one["round_index"] for one in rounds] == [1, 0]
    assert rounds[0] | {"phases_s": {}} == rounds[0] and rounds[0]["loss"] == 1.0
    (member,) = viewer.get(f"/runs/{live.run_id}/devices")["devices"]
    assert (member["name"], member["membership"]) == ("a", "home")
    assert (member["last"]["kind"], member["last"]["round_index"]) == ("evaluate", 1)


def test_a_run_says_that_updates_are_masked_and_how_much_epsilon_is_spent(start: Start) -> None:
    live = start(rounds=1, **NOISED)
    through(live, members_of(live.enrol(*NAMES)))
    told = person(live.http, live.store, "viewer").get(f"/runs/{live.run_id}")
    assert told["secure_aggregation"] == "int16"
    privacy = told["privacy"]
    assert (privacy["unit"], privacy["is_distributed"]) == ("device", True)
    assert privacy["epsilon"] == pytest.approx(8.0, abs=1e-3) and privacy["budget"] == 8.0
    board = PageState(live.service)
    board.update(live.service.now_s())
    assert '"secure_aggregation":"int16"' in board.since(0, 0.0)[0].replace('": "', '":"')
    by_file = command("coordinator", "status", "--store", str(live.store.folder), "--json").stdout
    known = json.loads(by_file)
    assert (known["secure_aggregation"], known["privacy"]["unit"]) == ("int16", "device")


def test_the_list_tells_the_accuracy_of_the_rounds_and_not_what_decisions_go_by(
    start: Start,
) -> None:
    live = start(min_clients=4, rounds=4, evaluate_every=4)
    devices = live.join(*"abcd")
    for device, accuracy in zip(devices, (0.0, 0.5, 0.5, 0.75), strict=True):
        device.report(Report(device.work().work_id, "done", 4, accuracy=accuracy))
    viewer = person(live.http, live.store, "viewer")

    def has_closed(rounds: int) -> bool:
        state = live.service.run(live.run_id).state
        return bool(state.scores) and state.round_index == rounds

    for closed in range(4):  # rounds since that evaluation
        wait_for(partial(has_closed, closed))
        (listed,) = viewer.get("/runs")["runs"]
        (read,) = runs_told(live.store, time.time())
        assert listed["accuracy"] == read["accuracy"] == 7 / 16
        for device in devices if closed < 3 else ():
            device.do(device.work())
    assert live.service.run(live.run_id).state.scores[0].accuracy == 0.5


def test_a_run_s_adapter_is_downloaded_as_the_folder_that_export_writes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    live = start(min_clients=1, rounds=1)
    live.join("a")[0].until_finished()
    viewer = person(live.http, live.store, "viewer")
    for asked, index in (("", 1), ("?round=last", 1), ("?round=best", 1)):
        answer = viewer.ask(f"/runs/{live.run_id}/adapter{asked}")
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/zip"
        assert f'"{live.run_id}-round-{index}.zip"' in answer.headers["content-disposition"]
        with ZipFile(BytesIO(answer.content)) as found:
            found.extractall(tmp_path / f"{asked}-got")
        export(live.store.folder, tmp_path / f"{asked}-made", round_index=index)
        got, made = (contents(tmp_path / f"{asked}-{name}") for name in ("got/adapter", "made"))
        assert got == made and "adapter_config.json" in made
    assert not list((tmp_path / "temporary").iterdir())


def test_no_hub_is_asked_and_a_full_disk_is_said_where_an_adapter_is_downloaded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(min_clients=1)
    viewer = person(live.http, live.store, "viewer")
    seen = list[str]()

    def opened(name: str) -> None:
        seen.append(name)
        raise WrongInput("not here")

    monkeypatch.setattr("smidgen.coordinator.upkeep.export.open_base", opened)
    live.store.database.write(sql.update(RUNS).values(base_reference="embedded"))
    assert viewer.ask(f"/runs/{live.run_id}/adapter").status_code == 200 and len(seen) == 1
    live.store.database.write(sql.update(RUNS).values(base_reference="org/base"))
    assert viewer.ask(f"/runs/{live.run_id}/adapter").status_code == 200 and len(seen) == 1
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full/nowhere")
    answer = viewer.ask(f"/runs/{live.run_id}/adapter")
    assert answer.status_code == 507 and "cannot be written" in answer.json()["detail"]
    assert "/" not in answer.json()["detail"]  # no folder of the coordinator's machine


def test_a_best_adapter_before_any_evaluation_is_refused(start: Start) -> None:
    live = start(min_clients=1)
    viewer = person(live.http, live.store, "viewer")
    answer = viewer.ask(f"/runs/{live.run_id}/adapter?round=best")
    assert answer.status_code == 409 and "no round was evaluated" in answer.json()["detail"]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_an_accuracy_by_a_cohort_has_its_error(start: Start) -> None:
    live = start(min_clients=3, evaluate_cohort=2)
    devices = live.join("a", "b", "c")
    wait_for(lambda: live.service.run(live.run_id).state.phase == "evaluate")
    asked = [one for one in devices if one.next().work]
    viewer = person(live.http, live.store, "viewer")
    for device, accuracy in zip(asked, (0.25, 0.75), strict=True):
        assert viewer.get(f"/runs/{live.run_id}")["accuracy_error"] is None
        device.report(Report(device.work().work_id, "done", 4, accuracy=accuracy))
    wait_for(lambda: live.service.run(live.run_id).state.phase == "train")
    error = (1 / 3 * 2 * 2) ** 0.5 / 8  # scoring.pooled: two of three devices, off by one text each
    told = viewer.get(f"/runs/{live.run_id}")
    (newest,) = viewer.get(f"/runs/{live.run_id}/rounds")["rounds"]
    for one in (told, told["totals"], newest, viewer.get("/runs")["runs"][0]):
        assert (one["accuracy"], one["accuracy_error"]) == (0.5, pytest.approx(error))


FOUND = Entities((4, 0), (3, 1), (2, 0), 3, 5)


def test_a_run_that_tags_says_its_f1_in_every_way_and_by_type(start: Start) -> None:
    task = Task("drugs", ("Drug", "Dose"), kind="tagging")
    live = start(task=task, adapter="lora:2+head", min_clients=1)
    (device,) = live.join("a")
    report = Report(device.work().work_id, "done", 50, 1.0, 0.9, labelled=8, entities=FOUND)
    device.report(report)
    wait_for(lambda: live.service.run(live.run_id).state.phase == "train")
    viewer = person(live.http, live.store, "viewer")
    told, (newest,) = (
        viewer.get(f"/runs/{live.run_id}"),
        viewer.get(f"/runs/{live.run_id}/rounds")["rounds"],
    )
    assert (told["kind"], told["labels"]) == ("tagging", ["Drug", "Dose"])
    for one in (told, told["totals"], newest):
        assert (one["f1"], one["f1_error"], one["f1_median"]) == (0.5, 0.0, 0.5)
        assert one["accuracy"] is one["accuracy_median"] is one["perplexity"] is None
    assert newest["entities"]["by_type"] == {"Drug": 4 / 7, "Dose": 0.0}
    assert newest["entities"]["typed"] == 6 / 8 and newest["entities"]["partial"] == 5 / 8


def test_a_run_of_masked_words_says_their_perplexity(start: Start) -> None:
    live = start(task=Task("notes", kind="mlm"), min_clients=1)
    (device,) = live.join("a")
    device.report(Report(device.work().work_id, "done", 50, 2.0, 0.5, labelled=8))
    wait_for(lambda: live.service.run(live.run_id).state.phase == "train")
    viewer = person(live.http, live.store, "viewer")
    told = viewer.get(f"/runs/{live.run_id}")
    for one in (told, told["totals"]):
        assert (one["accuracy"], one["f1"]) == (0.5, None)
        assert one["perplexity"] == pytest.approx(7.389056)


def test_who_is_late_and_what_failed_is_said(start: Start) -> None:
    live = start(min_clients=2)
    quick, slow = live.join("a", "b")
    slow.work()
    work = quick.work()
    quick.report(Report(work.work_id, "failed", failure="memory"))
    viewer = person(live.http, live.store, "viewer")
    told = viewer.get(f"/runs/{live.run_id}/devices")["devices"]
    assert {one["name"]: one["now"] for one in told} == {"a": "failed", "b": "late"}
    step = viewer.get(f"/runs/{live.run_id}")["step"]
    assert (step["asked"], step["answers"], step["failed"]) == (2, 1, 1)
    (failed,) = viewer.get(f"/runs/{live.run_id}/answers?outcome=failed")["answers"]
    assert (failed["device"], failed["failure"]) == ("a", "memory")
    assert viewer.get(f"/runs/{live.run_id}/rounds")["rounds"][0]["failures"] == {"memory": 1}


def paged(viewer: Any, path: str, name: str, limit: int) -> list[Any]:
    found: list[Any] = []
    after: str | None = ""
    while after is not None:
        page = viewer.get(path, params={"limit": limit} | ({"after": after} if after else {}))
        assert len(page[name]) <= limit
        found, after = found + page[name], page["next"]
    return found


def test_pages_of_a_list_are_the_list(start: Start) -> None:
    live = start(min_clients=3, rounds=2)
    devices = live.join("pi", "pi-10", "pi-2")
    for _ in range(4):
        for device in devices:
            device.do(device.work())
    # Nothing changes any more until somebody answers the last step.
    wait_for(lambda: live.service.run(live.run_id).state.phase == "evaluate")
    viewer = person(live.http, live.store, "viewer")
    lists = [
        ("/devices", "devices"),
        (f"/runs/{live.run_id}/devices", "devices"),
        (f"/runs/{live.run_id}/answers", "answers"),
        (f"/runs/{live.run_id}/rounds", "rounds"),
        ("/tokens", "tokens"),
    ]
    for path, name in lists:
        whole = viewer.get(path, params={"limit": 200})
        assert whole["next"] is None and len(whole[name]) > 0
        assert paged(viewer, path, name, 2) == whole[name]
        refused = viewer.ask(path, params={"after": "nothing of this"})
        assert refused.status_code == 422 and "after" in refused.json()["detail"]


def test_an_answer_to_a_much_older_version_is_told_in_its_round(start: Start) -> None:
    rule = Asynchronous(buffer=1, most_staleness=8)
    live = start(asynchronous=rule, rounds=12, min_clients=2, evaluate_every=0, deadline_s=300.0)
    quick, slow = live.join("quick", "slow")
    for device in (quick, slow):
        device.do(device.work())
    viewer, board = person(live.http, live.store, "viewer"), PageState(live.service)
    work = slow.work()
    first = work.round_index

    def told() -> tuple[int, int]:
        """Answers in the round that the slow one was asked in, by the API and on the page."""
        board.update(live.service.now_s())
        rounds = viewer.get(f"/runs/{live.run_id}/rounds")["rounds"]
        by_api = {one["round_index"]: one["answers"] for one in rounds}
        news = [line[6:] for line in board.since(0, 0.0)[0].splitlines() if line[:6] == "data: "]
        (shown,) = [one["rounds"] for one in map(json.loads, news) if "rounds" in one]
        on_page = {one["round_index"]: one["answers"] for one in shown}
        assert max(by_api) == max(on_page)
        return by_api[first], on_page[first]

    while live.service.run(live.run_id).state.round_index < first + 6:
        quick.do(quick.work())
        assert told() == (1, 1)
    assert slow.put(work.work_id, slow.update(work)).json()["accepted"]
    assert slow.report(Report(work.work_id, "done", 8, loss=1.0)).accepted
    assert told() == (2, 2)


def test_a_run_is_created_from_json_and_trained(start: Start) -> None:
    live = start(min_clients=1)
    boss = person(live.http, live.store)
    asked = {"task": "agnews", "name": "news", "adapter": "lora:2", "rounds": 3, "min_clients": 1}
    created = boss.post("/runs", asked)
    assert created["name"] == "news" and created["token"]
    wait_for(lambda: len(live.service.runs()) == 2)
    told = boss.get(f"/runs/{created['run_id']}")
    assert (told["name"], told["rounds"], told["base"]) == ("news", 3, "embedded")
    again = boss.tell("/runs", asked)
    assert again.status_code == 409 and "a run called news is there" in again.json()["detail"]


def test_every_key_of_a_run_file_can_be_asked_for(start: Start) -> None:
    assert set(NewRun.model_fields) == {field.name for field in fields(RunConfig)} | {"preset"}
    boss = person((live := start()).http, live.store)
    guards = {"norm_bound": 1.5, "max_examples": 10, "adaptive_deadline": False}
    mirrors = ["https://mirror.example/packs"]
    created = boss.post("/runs", {"task": "agnews", **guards, "pack_mirrors": mirrors})
    wait_for(lambda: len(live.service.runs()) == 2)
    config = live.service.run(created["run_id"]).config
    assert {name: getattr(config, name) for name in guards} == guards
    assert config.pack_mirrors == tuple(mirrors)


def test_a_preset_can_be_asked_for(start: Start) -> None:
    boss = person((live := start()).http, live.store)
    rate = {"training": {"lr": 0.1}}
    created = boss.post("/runs", {"task": "agnews", "name": "s", "preset": "silos", **rate})
    wait_for(lambda: len(live.service.runs()) == 2)
    config = live.service.run(created["run_id"]).config
    assert (config.keep, config.training.lr, config.training.least_samples) == ("best", 0.1, 500)


def test_a_run_that_makes_no_sense_is_refused(start: Start) -> None:
    boss = person((live := start()).http, live.store)
    cases = {
        "rounds: 1 to": {"task": "agnews", "rounds": 0},
        "not ready-made": {"task": "/etc/passwd"},
        "not on this coordinator": {"task": "agnews", "base": "/etc"},
        "unknown key 'epoch'": {"task": "agnews", "training": {"epoch": 1}},
        "adapter 'x' is unknown": {"task": "agnews", "adapter": "x"},
        "extra": {"task": "agnews", "nonsense": 1},
        "one of silos is expected": {"task": "agnews", "preset": "silo"},
        "not Unicode": {"task": {"name": "x", "labels": ["\ud800", "b"], "patterns": ["{text}"]}},
    }
    for said, asked in cases.items():
        refused = boss.tell("/runs", asked)
        assert refused.status_code == 422, said
        assert said.lower() in refused.json()["detail"].lower(), refused.text


def test_nobody_makes_the_coordinator_read_a_long_body(start: Start) -> None:
    refused = start().http.post("/v1/operator/runs", content=b" " * 600_000)
    assert refused.status_code == 413 and "over 262144 bytes" in refused.json()["detail"]
