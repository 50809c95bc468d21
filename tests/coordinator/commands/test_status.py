"""What `status` says of a real coordinator with devices that enrol, answer, fail and stay away."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.commands.status import devices_table, news_of, next_step
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.dialects.sqlite import SERVE, FileLocks
from smidgen.coordinator.storage.runs import add_order
from smidgen.edge_client.tasks.counts import Entities
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Report
from tests.command_line import shown, smidgen
from tests.coordinator.conftest import Live
from tests.coordinator.devices import Device, enrol, wait_for

Start = Callable[..., Live]


def status(folder: Path, *options: str) -> str:
    done = smidgen("coordinator", "status", "--store", str(folder / "store"), *options)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def on_80_columns(folder: Path, command: str) -> str:
    said = shown("coordinator", command, "--store", str(folder / "store"))
    return re.sub("(?m)^next  .*", "", said)  # a command for the shell is not broken


def plain(folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(status(folder, "--json").splitlines()[-1])
    return answer


def test_a_run_says_how_many_devices_it_waits_for(start: Start, tmp_path: Path) -> None:
    live = start(min_clients=3)
    assert "waiting for 3 more devices (--min-clients 3); here: none" in status(tmp_path)
    live.join("kitchen", "hall")
    said = status(tmp_path)
    assert "waiting for 1 more device (--min-clients 3); here: hall, kitchen" in said


def test_each_state_says_what_to_do_next(start: Start, tmp_path: Path) -> None:
    live, store = start(rounds=1), shlex.quote(str(tmp_path / "store"))

    def following() -> str:
        with FileLocks(tmp_path / "store").alone(SERVE):  # as the process that serves does
            return status(tmp_path).splitlines()[-1]

    assert following().startswith("next  start 2 devices by the line that `create` printed; ")
    assert following().endswith(f"smidgen coordinator tokens new --store {store} prints another")
    devices = live.join("kitchen", "hall")
    wait = f"next  wait; smidgen coordinator status --store {store} --follow shows each change"
    assert following() == wait
    for place in range(6):
        devices[place % 2].do(devices[place % 2].work())
    wait_for(lambda: plain(tmp_path)["phase"] == "finished")
    assert following().endswith(f"export --store {store} --run mail --out adapter")


def test_where_nobody_serves_or_there_is_no_run_that_is_next(start: Start, tmp_path: Path) -> None:
    start()
    newest, place = plain(tmp_path), StorePlace(tmp_path)
    assert " serve " in next_step(place, newest, False, time.time())
    assert " create " in next_step(place, None, True, time.time())
    assert " resume " in next_step(place, {**newest, "phase": "paused"}, True, time.time())


def opened(live: Live) -> list[Device]:
    """Two devices of which one has answered the first evaluation."""
    devices = live.join("kitchen", "hall")
    devices[0].do(devices[0].work())
    return devices


def test_an_open_step_says_who_has_answered_and_who_is_missing(
    start: Start, tmp_path: Path
) -> None:
    live = start()
    opened(live)
    said = status(tmp_path)
    assert re.search(r"evaluate, round 0, opened \d+ s ago, closes in 10 min at the latest", said)
    assert re.search(r"hall +working +under a minute ago +-\n", said)
    assert re.search(r"kitchen +answered +under a minute ago +evaluate, round 0: done", said)


FOUND = Entities((4, 0), (3, 1), (2, 0), 3, 5)


def evaluated(live: Live, **told: Any) -> None:
    (device,) = live.join("hall")
    device.report(Report(device.work().work_id, "done", 50, 2.0, 0.9, labelled=8, **told))
    wait_for(lambda: live.service.run(live.run_id).state.phase == "train")


def test_a_run_that_tags_shows_f1_and_tells_it_by_type(start: Start, tmp_path: Path) -> None:
    task = Task("drugs", ("Drug", "Dose"), kind="tagging")
    evaluated(start(task=task, adapter="lora:2+head", min_clients=1), entities=FOUND)
    told = plain(tmp_path)
    assert told["kind"] == "tagging" and told["f1_by_round"] == {"0": 0.5}
    assert told["accuracy_by_round"] == told["perplexity_by_round"] == {}
    assert told["entities_by_round"]["0"]["by_type"] == {"Drug": 4 / 7, "Dose": 0.0}
    for command in ("status", "list", "figures"):
        said = on_80_columns(tmp_path, command)
        assert "F1" in said and "50.0 %" in said and "accuracy" not in said, command


def test_a_run_of_masked_words_shows_accuracy_and_perplexity(start: Start, tmp_path: Path) -> None:
    evaluated(start(task=Task("notes", kind="mlm"), min_clients=1))
    told = plain(tmp_path)
    assert told["accuracy_by_round"] == {"0": 0.9} and told["f1_by_round"] == {}
    assert 7.38 < told["perplexity_by_round"]["0"] < 7.39
    for command in ("status", "figures"):
        said = on_80_columns(tmp_path, command)
        assert "perplexity" in said and "7.39" in said and "90.0 %" in said, command


def test_a_file_of_figures_says_what_kind_of_task_its_rows_are_of(
    start: Start, tmp_path: Path
) -> None:
    evaluated(start(task=Task("notes", kind="mlm"), min_clients=1))
    out = tmp_path / "rounds.jsonl"
    store = ("--store", str(tmp_path / "store"))
    assert smidgen("coordinator", "figures", *store, "--out", str(out)).exit_code == 0
    assert "7.39" in smidgen("profile", "rounds", str(out)).stdout


def followed(live: Live, folder: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "smidgen", "coordinator", "status", "--follow", *options]
    pipe = subprocess.PIPE
    words = [*command, "--store", str(folder / "store")]
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True)


def test_a_run_that_is_followed_tells_each_change_once_until_its_end(
    start: Start, tmp_path: Path
) -> None:
    live = start(rounds=2)
    with followed(live, tmp_path, "--json") as process:
        assert process.stdout and "waiting for 2 more devices" in process.stdout.readline()
        devices = live.join("kitchen", "hall")
        for place in range(10):
            devices[place % 2].do(devices[place % 2].work())
        said, complaint = process.communicate(timeout=60)
    *lines, last = said.splitlines()
    told = [line[10:] for line in lines]
    assert process.returncode == 0 and complaint == "" and len(told) == len(set(told))
    assert [f"after round {index}" in said for index in range(4)] == [True] * 3 + [False]
    assert told[-1].startswith(f"mail ({live.run_id}): finished, round 2 of 2")
    assert json.loads(last)["phase"] == "finished"


def test_ctrl_c_ends_the_following_and_not_the_run(start: Start, tmp_path: Path) -> None:
    live = start()
    with followed(live, tmp_path) as process:
        assert process.stdout and "waiting for" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130 and complaint == "smidgen coordinator: stopped\n"
    assert plain(tmp_path)["phase"] == "waiting"


def test_news_of_a_run_do_not_change_with_the_clock(start: Start, tmp_path: Path) -> None:
    opened(live := start())
    told = plain(tmp_path)
    first = f"mail ({live.run_id}): evaluate, round 0, 1 of 2 answered"
    assert [*news_of(told, 0.0)] == [first] == [*news_of(told, 1e10)]
    known = told | {"accuracy_by_round": {"0": 0.25, "1": 0.5}, "trouble": "paused by itself"}
    line = f"mail ({live.run_id}): accuracy 50.0 % after round 1"
    assert [*news_of(known, 0.0)] == [line, first, known["trouble"]]


def test_who_is_over_its_usual_time_or_was_not_there_is_silent() -> None:
    step = {"opened_at_s": 1000.0, "closes_at_s": 1600.0, "usual_s": 90.0, "kind": "train"}
    one = {"name": "hall", "open_work": "missing", "left": None, "misses": 0, "last": None}

    def said(now_s: float, seen_s: float | None, misses: int = 0) -> str:
        item = one | {"last_seen_s": seen_s, "misses": misses}
        return devices_table({"devices": [item], "step": step}, now_s).rows[0][1]

    assert said(1080.0, 1001.0) == "working"  # computes, and says nothing meanwhile
    assert said(1080.0, 990.0) == "working"  # its poll began before the step opened
    assert said(1095.0, 1001.0) == "silent" == said(1080.0, None) == said(1080.0, 800.0)
    assert said(1080.0, 1001.0, misses=1) == "silent 1"  # killed in the step before, perhaps
    assert said(1095.0, 1001.0, misses=2) == "silent 2" and said(1601.0, 1001.0) == "late"


def test_json_tells_every_device_in_unix_time(start: Start, tmp_path: Path) -> None:
    live = start()
    opened(live)
    told = plain(tmp_path)
    hall, kitchen = told["devices"]
    assert hall["open_work"] == "missing" and hall["last"] is None
    assert abs(hall["last_seen_s"] - time.time()) < 60
    assert kitchen["open_work"] == "done" and kitchen["last"]["outcome"] == "done"
    assert told["step"]["closes_at_s"] - told["step"]["opened_at_s"] == 600.0
    of_store = ("runs", "is_full")
    assert told["runs"] == [{key: told[key] for key in told if key not in of_store}]


def test_a_run_that_stands_still_or_goes_on_for_longer_says_so(
    start: Start, tmp_path: Path
) -> None:
    live = start()
    opened(live)
    run = live.service.run(live.run_id).run
    add_order(live.store, run, "extend", 9, time.time())
    add_order(live.store, run, "pause", None, time.time())
    wait_for(lambda: plain(tmp_path)["phase"] == "paused")
    said = status(tmp_path)
    assert "paused in evaluate, round 0, 1 of 2 have answered; `smidgen coordinator" in said
    assert "closes in" not in said and plain(tmp_path)["rounds"] == 9 and "0 of 9" in said


@pytest.mark.slow
def test_who_has_not_answered_in_time_is_late(start: Start, tmp_path: Path) -> None:
    """The journal of a coordinator that stopped while a step was open."""
    live = start(deadline_s=2.0)
    devices = live.join("kitchen", "hall")
    work = devices[0].work()
    devices[1].do(devices[1].work())  # one that nobody answers would be asked for again
    wait_for(lambda: plain(tmp_path)["round_index"] == 0 and plain(tmp_path)["phase"] == "train")
    devices[0].report(Report(work.work_id, "done", 4, accuracy=0.5))
    assert "evaluate, round 0: done, too late to count" in status(tmp_path)
    assert re.search("kitchen .*, slow 1 ", status(tmp_path))
    assert {one["misses"] for one in plain(tmp_path)["devices"] if one["name"] == "kitchen"} == {1}


@pytest.mark.slow
def test_a_run_that_fails_on_every_device_says_so(start: Start, tmp_path: Path) -> None:
    live = start(deadline_s=600.0)
    devices = opened(live)
    devices[1].do(devices[1].work())
    for device in devices:
        device.report(Report(device.work().work_id, "failed", failure="memory"))
    said = status(tmp_path)
    assert "every device has failed at it: train, round 1 (hall, kitchen); the device ran" in said
    assert re.search(r"hall +failed .* train, round 1: failed \(memory\)\n", said)
    assert plain(tmp_path)["failing"]["devices"] == ["hall", "kitchen"]
    wait_for(lambda: plain(tmp_path)["step"]["attempt"] == 2)
    assert "every device has failed at it" in status(tmp_path)
    devices[0].do(devices[0].work())
    assert plain(tmp_path)["failing"] is None


def test_one_failure_of_two_is_no_failing_run(start: Start, tmp_path: Path) -> None:
    devices = opened(start())
    devices[1].do(devices[1].work())
    devices[0].report(Report(devices[0].work().work_id, "failed", failure="disk"))
    said = status(tmp_path)
    assert "every device" not in said and re.search(r"kitchen +failed", said)


def test_a_device_that_has_left_says_why(start: Start, tmp_path: Path) -> None:
    devices = opened(start())
    gone = Report(devices[1].work().work_id, "failed", failure="texts", is_leaving=True)
    devices[1].report(gone)
    said = status(tmp_path)
    assert re.search(r"hall +left \(texts\) .* evaluate, round 0: failed \(texts\)\n", said)
    assert "texts: the device's texts cannot be used for this task" in said
    assert plain(tmp_path)["devices"][0]["left"] == "texts"


def test_a_device_that_declines_says_why(start: Start, tmp_path: Path) -> None:
    live = start()
    device = enrol(live.http, live.token, "hall")
    assert device.next().terms is not None
    device.tell(live.run_id, Membership("declined", "base"))
    said = status(tmp_path)
    assert re.search(r"hall +declined \(base\) +under a minute ago", said)
    assert "base: the device holds another base" in said
    assert "declined: takes no part until it is started again" in said


@pytest.mark.slow
def test_ids_and_figures_are_whole_on_80_columns_and_in_a_pipe(
    start: Start, tmp_path: Path
) -> None:
    live = start(rounds=1, name="a run whose name is as long as it may be, 64 letters, x yz 0123")
    live.join("kitchen", "hall-of-the-first-floor")
    for command in ("status", "figures"):
        piped = smidgen("coordinator", command, "--store", str(tmp_path / "store")).stdout
        screen = on_80_columns(tmp_path, command)
        assert live.run_id in piped and live.run_id in screen
        assert max(map(len, screen.splitlines())) <= 80 and "…" not in piped + screen


def test_a_screen_of_a_whole_run_fits(start: Start, tmp_path: Path) -> None:
    live = start(rounds=2)
    devices = live.join("kitchen", "hall")
    for place in range(10):
        devices[place % 2].do(devices[place % 2].work())
    wait_for(lambda: plain(tmp_path)["phase"] == "finished")
    screen, figures = on_80_columns(tmp_path, "status"), on_80_columns(tmp_path, "figures")
    assert max(map(len, (screen + figures).splitlines())) <= 80
    assert f"{live.run_id}  mail  finished  2 of 2" in screen and "50.0 %" in screen
    assert re.search(r"^    2    50\.0 %  50\.0 %  1\.000 +- +4 +0 +200 B +0 B$", figures, re.M)
    file = tmp_path / "rounds.jsonl"
    assert (
        "written"
        in smidgen(
            "coordinator", "figures", "--store", str(tmp_path / "store"), "--out", str(file)
        ).stdout
    )
    assert len(file.read_text().splitlines()) == 10
