"""Reports of a run: which of them are kept."""

from contextlib import closing
from pathlib import Path

import pytest

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.storage.reports import add_report, forget_old, reports
from smidgen.coordinator.storage.runs import create_run
from smidgen.coordinator.storage.store import Store


def reported(store: Store, run_id: str, rounds: int) -> None:
    for index in range(rounds):
        row = {
            "work_id": f"{run_id}-{index}",
            "run_id": run_id,
            "device_id": "d",
            "round_index": index,
            "attempt": 1,
            "kind": "train",
            "is_late": False,
            "report": {},
        }
        assert add_report(store.database, row)


def rounds_of(store: Store, run_id: str) -> list[int]:
    return [row["round_index"] for row in reports(store.database, run_id)]


@pytest.mark.parametrize(("at_least", "left"), [(1, 3), (7, 3), (8, 10)])
def test_each_run_keeps_the_reports_of_its_newest_rounds(
    tmp_path: Path, config: RunConfig, at_least: int, left: int
) -> None:
    with closing(Store(tmp_path / "store")) as store:
        long = create_run(store, config, 0.0).run_id
        short = create_run(store, RunConfig("short", config.task, base=config.base), 1.0).run_id
        reported(store, long, 10)
        reported(store, short, 2)
        gone = forget_old(store.database, 3, at_least)
        assert gone == 10 - left
        assert rounds_of(store, long) == list(range(10 - left, 10))
        assert rounds_of(store, short) == [0, 1]
        assert forget_old(store.database, 3, at_least) == 0
