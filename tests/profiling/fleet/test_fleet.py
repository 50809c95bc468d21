"""`smidgen profile fleet`: a small one by real processes, and what it says when it cannot."""

import json
import resource
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.profiling.records.record import read_records
from tests.command_line import smidgen
from tests.coordinator.servers import PASSWORD, Buckets, Postgres

SERVERS = ("database", "object store")
SMALL = ("--devices", "12", "--cohort", "4", "--adapter", "lora:2")


@pytest.mark.slow
def test_a_small_fleet_loses_nothing_and_is_kept_as_a_record(tmp_path: Path) -> None:
    done = smidgen("profile", "fleet", *SMALL, "--rounds", "3", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    [run] = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["outcome"] == "done" and not run["errors"] and run["is_tls"]
    assert run["requests_per_s"] > 0
    assert (run["enrolled"], run["accepted"], run["refused"]) == (12, 12, 0)
    assert run["latencies"]["update"]["count"] == 12 and len(run["rounds_s"]) == 3
    assert run["latencies"]["connect"]["count"] == 12  # one connection each, and no more
    [record] = read_records(tmp_path / "fleet.jsonl").records
    assert record.kind == "fleet" and record.is_done and record.details["samples"]
    better = {name for name, figure in record.figures.items() if figure.better == "higher"}
    assert better == {"requests_per_s"}


@pytest.mark.slow
def test_three_processes_with_a_shared_store_lose_nothing_and_say_who_took_what(
    postgres: Postgres, buckets: Buckets
) -> None:
    shared = ("--database", postgres.create(), "--blobs", f"s3://{buckets.create()}/fleet")
    done = smidgen(
        "profile", "fleet", *SMALL, "--rounds", "3", "--processes", "3", *shared, "--json"
    )
    assert done.exit_code == 0, done.stderr
    [run] = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["outcome"] == "done" and not run["errors"] and run["accepted"] == 12
    assert set(run["shares_s"]) == {*(f"coordinator {n}" for n in (1, 2, 3)), *SERVERS}
    assert run["shares_s"]["database"] > 0 and run["requests_per_s"] > 0
    again = smidgen("profile", "fleet", *SMALL, *shared)
    assert again.exit_code == 2 and "one with a fleet in it" in again.stderr
    assert PASSWORD not in done.stdout + done.stderr + again.stderr


@pytest.mark.slow
def test_a_fleet_that_is_not_through_in_time_says_how_far_it_came() -> None:
    done = smidgen("profile", "fleet", *SMALL, "--rounds", "100000", "--within", "20")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("smidgen profile: 12 devices: ended after")
    assert "12 of 12" in done.stdout


@pytest.mark.slow
def test_a_fleet_that_is_out_of_time_before_it_began_says_so() -> None:
    done = smidgen("profile", "fleet", *SMALL, "--rounds", "100000", "--within", "1")
    assert done.exit_code == 1
    assert "ended after 1 s (--within), in enrolling" in done.stderr.splitlines()[-1]
    assert "0 of 12" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--devices", "0", "--devices 0 is less than 1"),
        ("--cohort", "0", "--cohort 0 is less than 1"),
        ("--rounds", "-1", "--rounds -1 is less than 1"),
        ("--within", "nan", "--within nan: 1 to 604800 seconds"),
        ("--adapter", "lora:x", "lora:x"),
        ("--processes", "0", "--processes 0 is less than 1"),
        ("--processes", "2", "need --database"),
        ("--blobs", "s3://load/x", "need --database"),
    ],
)
def test_what_cannot_be_is_one_line(option: str, value: str, said: str) -> None:
    done = smidgen("profile", "fleet", option, value)
    assert done.exit_code == 2 and said in done.stderr.splitlines()[-1]


def test_too_few_open_files_are_said_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 1024))
    done = smidgen("profile", "fleet", "--devices", "5000")
    assert done.exit_code == 2 and "need 5200 open files" in done.stderr
