"""A fleet's state measured on real rows, and the command that tells of it."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sql

from coordinator.serving.service import Service
from coordinator.storage.schema import DEVICES, MEMBERSHIPS
from coordinator.storage.store import Store
from simulation.reach.filling import fill, key_of
from simulation.reach.measured import heard_in, measure
from simulation.reach.taken import Asked
from tests.command_line import smidgen


def test_a_filled_store_is_served_as_one_that_devices_came_to(tmp_path: Path) -> None:
    fill(tmp_path / "store", 50, 10, 1_000.0)
    with closing(Store(tmp_path / "store")) as store:
        service = Service(store, 1_000.0)
        (live,) = service.runs()
        device = service.device_of(key_of(7))
        assert (device.name, device.tags) == ("pi-7", {})
        assert len(service.alive(live.run.run_id, 1_000.0)) == 50
        assert service.next(device, 1_000.0).terms is None  # it has joined
        with store.database.reading() as connection:
            for table in (DEVICES, MEMBERSHIPS):
                newest = sql.select(sql.func.count(), sql.func.max(table.c.revision))
                assert tuple(connection.execute(newest).one()) == (50, 50)


def test_every_figure_of_a_small_fleet_is_taken(tmp_path: Path) -> None:
    fill(tmp_path / "store", 60, 20, 1_000.0)
    taken = measure(tmp_path / "store", Asked(60, 20), 1_000.0)
    assert (taken.devices, taken.cohort) == (60, 20)
    assert 0.0 < taken.next_p50_s <= taken.next_p99_s < 1.0
    assert taken.database_bytes > 60 * 500 and 50 < taken.reply_bytes < 1_000
    assert taken.step_cpu_s > 0.0 and taken.open_s > 0.0 and taken.answer_s > 0.0


def test_in_half_a_minute_everyone_polls() -> None:
    assert [heard_in(seconds, 1_000) for seconds in (2.0, 12.0, 30.0)] == [80, 480, 1_000]


@pytest.mark.slow
def test_the_command_tells_of_a_million_from_a_few(tmp_path: Path) -> None:
    done = smidgen("simulate", "reach", "--devices", "50", "--devices", "100", "--json")
    assert done.exit_code == 0, done.stderr
    plain = json.loads(done.stdout.splitlines()[-1])
    assert [one["devices"] for one in plain["sizes"]] == [50, 100, 1_000_000]
    assert plain["sizes"][1]["measured"]["devices"] == 100
    assert all(place["breaks"] for place in plain["places"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--devices", "1"], "--devices 1: 10 to 1000000"),
        (["--cohort", "0"], "--cohort 0: 1 to"),
        (["--round-s", "nan"], "--round-s nan: 1 to 86400 seconds"),
        (["--cores", "0.5"], "--cores 0.5: 1 to"),
        (["--memory", "much"], "--memory 'much' is not a size"),
        (["--fleet", "none.jsonl"], "none.jsonl cannot be read as records"),
    ],
)
def test_wrong_input_is_told_in_one_line(options: list[str], said: str) -> None:
    done = smidgen("simulate", "reach", *options)
    assert (
        done.exit_code == 2 and said in done.stderr and len(done.stderr.strip().splitlines()) == 1
    )
