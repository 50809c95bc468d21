"""`smidgen profile soak`: a short one by real processes, and what its figures say."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from smidgen.profiling.fleet.run import Sample
from smidgen.profiling.records.record import read_records
from smidgen.profiling.soak import SoakRun, settled, side
from tests.command_line import smidgen

ROUNDS = 1200


def soaked(growth_bytes: int) -> SoakRun:
    """A run whose coordinator grows by so much in a round, and quickly in the first ones."""
    began_s = tuple(0.5 * index for index in range(ROUNDS + 1))
    samples = [
        Sample(
            at_s=float(at_s),
            rss_bytes=(90 << 20) + min(at_s, 40) * 100_000 + 2 * at_s * growth_bytes,
            cpu_s=0.1 * at_s,
            open_files=9,
            disk_bytes=1 << 20,
        )
        for at_s in range(ROUNDS // 2)
    ]
    return SoakRun(ROUNDS, 1, 9, began_s, (side("coordinator", samples, began_s),), 0.0)


@pytest.mark.parametrize(("growth_bytes", "is_level"), [(0, True), (4000, True), (9000, False)])
def test_growth_counts_once_the_first_rounds_are_over(growth_bytes: int, is_level: bool) -> None:
    run = soaked(growth_bytes)
    assert run.sides[0].rss_slope_bytes == pytest.approx(growth_bytes, abs=1.0)
    assert run.sides[0].disk_slope_bytes == pytest.approx(0, abs=1e-6)
    assert run.is_level is is_level and run.round_s == 0.5


def test_a_short_run_is_not_judged() -> None:
    assert (settled(2000), settled(30)) == (200, 3)


@pytest.mark.parametrize("option", ["--rounds", "--clients"])
def test_what_cannot_be_is_one_line(option: str) -> None:
    done = smidgen("profile", "soak", option, "0")
    assert done.exit_code == 2 and f"{option} 0 is less than" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_short_soak_watches_both_sides_and_is_kept_as_a_record(tmp_path: Path) -> None:
    short = ("--rounds", "12", "--adapter", "lora:2", "--out", str(tmp_path), "--json")
    done = smidgen("profile", "soak", *short)
    assert done.exit_code == 0, done.stderr
    run = json.loads(done.stdout.splitlines()[-1])
    assert run["rounds"] == 12 and run["is_level"]
    assert [one["name"] for one in run["sides"]] == ["coordinator", "client-1", "client-2"]
    assert all(one["peak_rss_bytes"] > 10 << 20 for one in run["sides"])
    [record] = read_records(tmp_path / "soak.jsonl").records
    assert record.kind == "soak" and record.figures["coordinator_peak_disk_bytes"].values[0] > 0
