"""`export --round`: the last, the best, a number, and rounds that are gone."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.api.export import export
from smidgen.coordinator.api.keeping import prune
from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.events import Answered, RolledBack, StepClosed
from smidgen.coordinator.rounds.history import history_of
from smidgen.coordinator.rounds.machine import decide
from smidgen.coordinator.rounds.state import State, evolve
from smidgen.coordinator.storage.reports import add_report
from smidgen.coordinator.storage.runs import adapters_there, create_run, find_run
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.export import ranges
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.messages import Report
from smidgen.edge_client.wire.tensors import decode_adapter, encode_adapter
from tests.command_line import smidgen

RIGHT = [1, 2, 8, 3, 4, 5, 6]  # of ten, after each round: up and down, but no collapse


@pytest.fixture
def folder(tmp_path: Path, config: RunConfig) -> Path:
    """A finished run of six rounds, the second of which was the best."""
    return finished(tmp_path / "store", replace(config, rounds=6, min_clients=1))


def finished(place: Path, config: RunConfig, rights: Sequence[int] = RIGHT) -> Path:
    """A run that went on until nothing was left to decide, in a store of its own."""
    with closing(Store(place)) as store:
        run = find_run(store, create_run(store, config, time.time()).run_id)
        first = decode_adapter(store.read(run.adapter_sha256))
        state, seq = State(run.adapter_sha256), 0
        while event := decide(config, state, ["d"], run.secret, 0.0):
            if isinstance(event, StepClosed) and event.adapter_sha256 is None:
                moved = {key: one + state.round_index + 1 for key, one in first.items()}
                event = replace(event, adapter_sha256=store.put(encode_adapter(moved)))
            told = [event]
            step = evolve(state, event).step
            for work_id in step.members if step else ():
                right = rights[step.opened.round_index] if step else 0
                told.append(Answered(work_id, "done", "u", 10, right=right))
            for one in told:
                store.append(run.run_id, seq, one)
                state, seq = evolve(state, one), seq + 1
    return place


def evaluated(run_id: str, attempt: int, accuracy: float) -> dict[str, Any]:
    """The row of a device's report on the second round."""
    report = Report(f"w{attempt}", "done", 10, accuracy=accuracy, loss=1.0)
    return {
        "work_id": report.work_id,
        "run_id": run_id,
        "device_id": "d",
        "round_index": 2,
        "attempt": attempt,
        "kind": "evaluate",
        "is_late": False,
        "report": asdict(report),
    }


def test_the_last_the_best_and_any_round_can_be_taken(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(folder, out).round_index == 6
    assert export(folder, out, round_index="best").round_index == 2
    names = {export(folder, out, round_index=index).adapter_sha256 for index in range(7)}
    assert len(names) == 7
    export(folder, out, round_index=2)  # with the scores that chose the best, as on the devices
    assert "| 0 | 0.100 |\n| 1 | 0.200 |\n| 2 | 0.800 |\n" in (out / "README.md").read_text()


def test_a_run_that_stopped_early_has_its_best_round(tmp_path: Path, config: RunConfig) -> None:
    impatient = replace(config, rounds=6, min_clients=1, patience=2)
    folder = finished(tmp_path / "store", impatient)
    last = export(folder, tmp_path / "last")
    assert last.round_index == 4  # two evaluations after the second round were no better
    best = export(folder, tmp_path / "best", round_index="best")
    assert best.round_index == 2 and best.adapter_sha256 != last.adapter_sha256
    done = smidgen("coordinator", "status", "--store", str(folder), "--json")
    assert '"round_index": 4' in done.stdout and "no improvement" in done.stdout


def test_a_run_that_keeps_its_best_adapter_exports_and_names_that(
    tmp_path: Path, config: RunConfig
) -> None:
    best = replace(config, rounds=6, min_clients=1, keep="best")
    folder, out = finished(tmp_path / "store", best), tmp_path / "out"
    prune(folder, keep_rounds=1)
    kept = export(folder, out)
    assert kept.round_index == 2 and kept == export(folder, out, round_index="best")
    assert export(folder, out, round_index="last").round_index == 6
    told = smidgen("coordinator", "status", "--store", str(folder), "--run", "mail")
    said = "finished, round 6 of 6: all its rounds are done; the adapter of round 2 is kept"
    assert said in " ".join(told.stdout.split()), told.stdout
    assert "6 of 6, 2 kept" in smidgen("coordinator", "status", "--store", str(folder)).stdout
    plain = json.loads(smidgen("coordinator", "status", "--store", str(folder), "--json").stdout)
    assert plain["kept"] == {"round_index": 2, "adapter_sha256": kept.adapter_sha256}
    line = ("coordinator", "export", "--store", str(folder), "--out", str(out))
    assert "adapter of round 2" in smidgen(*line).stdout


def test_the_best_round_from_which_a_run_went_back_keeps_its_adapter(
    tmp_path: Path, config: RunConfig
) -> None:
    folder, out = finished(tmp_path / "store", replace(config, min_clients=1)), tmp_path / "out"
    best = export(folder, out, round_index="best")
    assert best.round_index == 2
    first = export(folder, out, round_index=1).adapter_sha256
    with closing(Store(folder)) as store:
        run = find_run(store, None)
        seq = len(list(store.events(run.run_id)))
        store.append(run.run_id, seq, RolledBack(1, first, "asked", 0.0, is_ordered=True))
        assert adapters_there(store, run)[2] == best.adapter_sha256
        for attempt, accuracy in ((1, 0.8), (2, 0.1)):  # the second of what it went back to
            add_report(store.database, evaluated(run.run_id, attempt, accuracy))
    assert export(folder, out, round_index="best") == best == export(folder, out, round_index=2)
    assert "0.800" in (out / "README.md").read_text()
    last = export(folder, out, round_index="last")
    assert (last.round_index, last.adapter_sha256) == (2, first)
    assert "0.100" in (out / "README.md").read_text()
    what = ("--store", str(folder), "--task", "agnews", "--base", config.base)
    for said, sha256 in (
        ("best", best.adapter_sha256),
        ("last", first),
        ("2", best.adapter_sha256),
    ):
        done = smidgen("coordinator", "create", *what, "--name", said, "--from", f"mail@{said}")
        assert done.exit_code == 0, done.stderr
        with closing(Store(folder)) as store:
            assert find_run(store, said).adapter_sha256 == sha256


def test_a_kept_adapter_that_is_gone_is_one_line(tmp_path: Path, config: RunConfig) -> None:
    best = replace(config, rounds=6, min_clients=1, keep="best")
    folder = finished(tmp_path / "store", best)
    with closing(Store(folder)) as store:
        store.blobs.path(export(folder, tmp_path / "out").adapter_sha256).unlink()
    with pytest.raises(WrongInput, match=r"the adapter of round 2 is gone; `--round N` takes"):
        export(folder, tmp_path / "out")


def test_a_round_that_was_pruned_is_named_with_those_that_are_there(
    folder: Path, tmp_path: Path
) -> None:
    prune(folder, keep_rounds=3)
    with pytest.raises(WrongInput, match=r"--round 3: its adapter was pruned; .* 0, 2, 4 to 6$"):
        export(folder, tmp_path / "out", round_index=3)
    with pytest.raises(WrongInput, match=r"--round 9: no such round has closed; .* 0, 2, 4 to 6$"):
        export(folder, tmp_path / "out", round_index=9)
    line = ("coordinator", "export", "--store", str(folder), "--out", str(tmp_path / "out"))
    done = smidgen(*line, "--round", "best")
    assert done.exit_code == 0 and "adapter of round 2" in done.stdout
    wrong = smidgen(*line, "--round", "-1")
    assert wrong.exit_code == 2 and "a round's number, best or last" in wrong.stderr


def test_an_adapter_that_is_gone_is_one_line(folder: Path, tmp_path: Path) -> None:
    with closing(Store(folder)) as store:
        run = find_run(store, None)
        _, past = history_of(run.adapter_sha256, store.journal(run.run_id))
        store.blobs.path(past.adapters[2]).unlink()
        with pytest.raises(WrongInput, match=r"--round best: its adapter was pruned; .* 0, 1, 3 t"):
            export(folder, tmp_path / "out", round_index="best")


def test_numbers_are_told_as_ranges() -> None:
    assert ranges([0, 5, 6, 7, 9, 10]) == "0, 5 to 7, 9, 10" and ranges([]) == ""
