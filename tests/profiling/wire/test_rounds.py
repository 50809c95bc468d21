"""`smidgen profile wire`: a short run of it by real processes, and what it says when it cannot."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.edge_client.bases.base import Base
from smidgen.profiling.instruments.child import ProcessError
from smidgen.profiling.instruments.made_up_run import ADDED, first_state
from smidgen.profiling.peers import flwr as flwr_simulation
from smidgen.profiling.records.record import read_records
from smidgen.profiling.wire.ours import Rounds, check, measure
from smidgen.profiling.wire.relay import CountError, Exchange, of_training, whole_rounds
from tests.command_line import smidgen
from tests.processes import children_of, is_computing

SHORT = ("--clients", "2", "--rounds", "2", "--rtt", "0", "--adapter", "lora:2")


def exchange(path: str, bytes_up: int, connection: int = 0, key: str = "Bearer a") -> Exchange:
    return Exchange(connection, "GET", path, key, 0.0, 0.0, bytes_up, 0)


def a_round(work: int, connection: int = 0, key: str = "Bearer a") -> list[Exchange]:
    """From one upload up to the next, of a client on a connection."""
    asked = [
        (f"/v1/work/{work}/update", 1000),
        (f"/v1/work/{work}/report?wait_s=25", 100),  # gives the evaluation
        ("/v1/adapters/b", 1),
        (f"/v1/work/{work}-evaluate/report?wait_s=25", 100),  # gives the next training
    ]
    return [exchange(path, bytes_up, connection, key) for path, bytes_up in asked]


def test_whole_rounds_leave_out_what_came_before_and_after() -> None:
    before = [exchange("/v1/work?wait_s=0", 9), exchange("/v1/adapters/a", 9)]
    every = [*before, *a_round(1), *a_round(2), *a_round(3), a_round(4)[0]]
    assert list(whole_rounds(every, rounds=2)) == [*a_round(2), *a_round(3)]


def test_a_client_that_connects_again_is_one_client() -> None:
    lost = exchange("/v1/work/2/update", 400, connection=0)  # and sent again
    first, second = [*a_round(1), lost], [*a_round(2, connection=7), a_round(3, connection=7)[0]]
    other = [
        *a_round(11, 1, "Bearer b"),
        *a_round(12, 1, "Bearer b"),
        a_round(13, 1, "Bearer b")[0],
    ]
    found = list(whole_rounds([*first, *other, *second], rounds=1))
    assert found == [lost, *a_round(2, connection=7), *a_round(12, 1, "Bearer b")]


def test_a_missing_upload_is_one_line() -> None:
    with pytest.raises(CountError, match="1 uploads of a client, 3 expected; run it again"):
        list(whole_rounds(a_round(1), rounds=2))


def test_training_takes_three_requests_of_a_round() -> None:
    found = [one.path.split("?")[0] for one in of_training([*a_round(7), *a_round(8)])]
    assert found == [
        *["/v1/work/7/update", "/v1/work/7/report", "/v1/adapters/b"],
        *["/v1/work/8/update", "/v1/work/8/report", "/v1/adapters/b"],
    ]


@pytest.mark.slow
def test_a_short_run_counts_requests_and_bytes(tiny_base: Base, tmp_path: Path) -> None:
    base = ("--base", str(tiny_base.folder))
    done = smidgen("profile", "wire", *SHORT, *base, "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    [run] = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["whole"]["requests"] == 4 and run["training"]["requests"] == 3
    assert len(run["rounds_s"]) == 2 and run["tensors"] == 8
    assert run["whole"]["bytes_up"] > run["training"]["bytes_up"] > run["payload_bytes"]
    assert min(run["client"]["cpu_s"], run["server"]["peak_pss_bytes"]) > 0
    [record] = read_records(tmp_path / "wire.jsonl").records
    assert record.kind == "wire" and not record.is_peer
    assert record.figures["round_s"].values == tuple(run["rounds_s"])


def test_what_is_no_file_of_records_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "wire.jsonl"
    file.write_text("notes\nof somebody")
    done = smidgen("profile", "wire", "--base", "nowhere", "--out", str(tmp_path))
    assert done.exit_code != 0 and "wire.jsonl, line 1" in done.stderr
    assert file.read_text() == "notes\nof somebody"


@pytest.mark.parametrize("rounds", [2, 4])
def test_work_that_was_not_done_is_one_line(tiny_base: Base, rounds: int) -> None:
    asked = Rounds(tiny_base, "lora:2", clients=2, count=2, rtt_s=0.0)  # and one warms up
    first = first_state(tiny_base, "lora:2")
    check(asked, {name: tensor + 3 * ADDED for name, tensor in first.items()})
    with pytest.raises(ProcessError, match="not that of the answers"):
        check(asked, {name: tensor + rounds * ADDED for name, tensor in first.items()})


@pytest.mark.slow
def test_distance_costs_a_round_some_round_trips_and_no_more(tiny_base: Base) -> None:
    asked = Rounds(tiny_base, "lora:2", clients=2, count=5, rtt_s=0.1)
    run = measure(asked, lambda _said: None)
    assert 0.35 <= run.p50_s <= 2.0  # four requests after each other, and what the machine takes


@pytest.mark.slow
def test_our_figures_come_first_where_the_peer_is_missing(
    tiny_base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(flwr_simulation.VARIABLE, str(tmp_path / "absent"))
    base = ("--base", str(tiny_base.folder))
    done = smidgen("profile", "wire", *SHORT, *base, "--peer", "flwr", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "smidgen, 0 ms" in done.stdout
    assert done.stderr.splitlines()[-1].endswith("scripts/flwr_env makes one")
    assert len(read_records(tmp_path / "wire.jsonl").records) == 1


@pytest.mark.parametrize("rtt", ["nan", "-1", "inf", "99999"])
def test_a_round_trip_that_cannot_be_is_one_line(rtt: str) -> None:
    done = smidgen("profile", "wire", "--rtt", rtt)
    assert done.exit_code == 2 and "0 to 10000 milliseconds" in done.stderr


@pytest.mark.slow
@pytest.mark.fault
def test_an_interrupted_run_leaves_nobody_behind(tiny_base: Base) -> None:
    line = [sys.executable, "-m", "smidgen", "profile", "wire", "--base", str(tiny_base.folder)]
    process = subprocess.Popen([*line, "--rounds", "10000", "--adapter", "lora:2"])
    end = time.monotonic() + 60
    while len(below := children_of(process.pid)) < 4:  # server, relay and two clients
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.wait(90)
    assert not any(is_computing(pid) for pid in below)
