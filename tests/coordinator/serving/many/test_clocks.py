"""A coordinator whose clock is not that of the others does not begin, or says so."""

import os
import re
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from smidgen.coordinator.serving import log
from smidgen.coordinator.serving.log import Clocks
from smidgen.coordinator.serving.service import Service
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.bases.base import Base
from tests.coordinator.test_cli import SMIDGEN, created
from tests.end_to_end.disturbed.wall_clock import WallClock

OFF = "s {} the database server's, and clocks of one fleet may be 10 s apart"


@pytest.mark.slow
@pytest.mark.parametrize(("ahead_s", "where"), [(60, "ahead of"), (-3600, "behind")])
def test_a_coordinator_with_another_clock_does_not_begin(
    tmp_path: Path, place: StorePlace, tiny_base: Base, ahead_s: int, where: str
) -> None:
    shared = ("--database", place.database, "--blobs", place.blobs)
    created(tmp_path, tiny_base, 1, *shared)
    wall = WallClock(tmp_path)
    wall.set(ahead_s)
    line = [*SMIDGEN, "serve", "--store", str(tmp_path / "store"), *shared, "--port", "0"]
    environment = {**os.environ, **wall.environment}
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    said = re.search(rf"this machine's clock is (\d+) {OFF.format(where)}", done.stderr)
    assert said and abs(int(said[1]) - abs(ahead_s)) < 10
    assert "set both by the network (NTP) and start it again" in done.stderr


@pytest.mark.slow
def test_a_clock_that_goes_wrong_meanwhile_is_told_once(
    place: StorePlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "EVERY_S", 0.0)
    with closing(Store(place)) as store:
        service = Service(store, time.time() - 60)  # as after an hour in which it did not run
        for _ in range(2):
            service.tick(service.now_s())
    assert caplog.text.count("the clock that this coordinator goes by is") == 1
    assert f"60 {OFF.format('behind')}: devices are taken for gone" in caplog.text


def test_a_clock_that_is_right_again_is_told(
    place: StorePlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "EVERY_S", 0.0)
    caplog.set_level("INFO")
    off_s = [0.0, 9.0, 3600.0, 3600.0, -9.0]
    with closing(Store(place)) as store:
        watch = Clocks(store.database, lambda: time.time() + off_s[0])
        while off_s:
            watch.look()
            del off_s[0]
    told = [record.getMessage() for record in caplog.records if "clock" in record.getMessage()]
    assert [("3600 s ahead of" in line, "again" in line[-6:]) for line in told] == [
        (True, True),
        (False, True),
    ]


def test_a_store_of_one_machine_has_one_clock(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        assert store.database.apart_s(lambda: 0.0) == 0.0
