"""Rounds of a real run, logged to real trackers and read back by what they bring to read."""

import csv
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.track import open_tracker, track
from coordinator.watch.trackers import Figures, TrackedRun, TrackerError
from edge_client.errors import WrongInput
from tests.command_line import smidgen
from tests.coordinator.conftest import Live
from tests.coordinator.devices import wait_for

pytestmark = [  # what libraries do among themselves
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(300),
]
Start = Callable[..., Live]
RUN = TrackedRun("4f00", "mail", {"rounds": 3, "training.lr": 0.01})
ROUNDS: Mapping[int, Figures] = {
    index: {"accuracy": 0.5 + index / 8, "loss": 2.0 - index / 4} for index in range(4)
}


def finished(start: Start) -> Live:
    live = start(min_clients=2)
    devices = live.join("hall", "kitchen")
    others = [threading.Thread(target=one.until_finished) for one in devices]
    for one in others:
        one.start()
    for one in others:
        one.join()
    return live


def in_two_lives(to: str, folder: Path) -> None:
    """Log two rounds, and the rest with files after a new start."""
    for given in ({0, 1}, {0, 1, 2, 3}):
        tracker = open_tracker(to, RUN)
        for index in sorted(given):
            if index > tracker.last_round():
                tracker.log_round(index, ROUNDS[index])
        if len(given) == len(ROUNDS):
            tracker.log_folder(folder)
        tracker.close()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow keeps artifacts of a database in the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "README.md").write_text("a card\n")
    (folder / "devices.csv").write_text("device,answers\n")
    return folder


def test_a_csv_file_has_a_row_per_round_and_goes_on(tmp_path: Path, files: Path) -> None:
    path = tmp_path / "rounds.csv"
    in_two_lives(f"csv:{path}", files)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["round_index"]): float(row["accuracy"]) for row in rows} == {
        index: one["accuracy"] for index, one in ROUNDS.items()
    }
    with pytest.raises(WrongInput, match="it is of run 4f00"):
        open_tracker(f"csv:{path}", TrackedRun("5a", "other", {}))


def test_tensorboard_reads_it_back(tmp_path: Path, files: Path) -> None:
    name = "tensorboard.backend.event_processing.event_accumulator"
    reading: Any = pytest.importorskip(name)
    in_two_lives(f"tensorboard:{tmp_path / 'logs'}", files)
    events = reading.EventAccumulator(str(tmp_path / "logs" / "mail-4f00")).Reload()
    steps = [(one.step, one.tensor_proto.float_val[0]) for one in events.Tensors("accuracy")]
    assert steps == [(index, one["accuracy"]) for index, one in ROUNDS.items()]


def test_mlflow_reads_it_back(tmp_path: Path, files: Path) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    in_two_lives(f"mlflow:{uri}", files)
    client = mlflow.MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("smidgen").experiment_id
    (run,) = client.search_runs([place])
    assert run.info.status == "FINISHED" and run.data.params["training.lr"] == "0.01"
    told = [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")]
    assert sorted(told) == [(index, one["loss"]) for index, one in ROUNDS.items()]
    assert {one.path for one in client.list_artifacts(run.info.run_id)} >= {"devices.csv"}


def test_wandb_keeps_it_for_a_later_sync(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    tracker = open_tracker("wandb:homes", RUN)
    assert tracker.last_round() == -1
    for index, figures in ROUNDS.items():
        tracker.log_round(index, figures)
    tracker.log_folder(files)
    tracker.close()
    (path,) = tmp_path.rglob("*.wandb")
    records: Any = import_module("wandb.proto.wandb_internal_pb2")
    told = {}
    for body in logged(path.read_bytes()):
        items = records.Record.FromString(body).history.item
        told_now = {one.key or one.nested_key[0]: one.value_json for one in items}
        if "loss" in told_now:
            told[int(told_now["_step"])] = float(told_now["loss"])
    assert told == {index: one["loss"] for index, one in ROUNDS.items()}


def logged(data: bytes) -> Iterator[bytes]:
    """Records of a file in LevelDB's log format: blocks of 32 KiB, headers of 7 bytes."""
    at, body = 7, b""
    while at + 7 <= len(data):
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        body += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield body
            body = b""
        if (left := -at % 32768) < 7:
            at += left


def test_trackio_reads_it_back(
    tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio")
    in_two_lives("trackio:homes", files)
    storage: Any = import_module("trackio.sqlite_storage").SQLiteStorage
    told = {one["step"]: one["loss"] for one in storage.get_logs("homes", "mail-4f00")}
    assert told == {index: one["loss"] for index, one in ROUNDS.items()}


def test_a_run_is_logged_while_it_is_served_and_ends_the_command(
    start: Start, tmp_path: Path
) -> None:
    live, path = start(min_clients=2), tmp_path / "rounds.csv"
    line = [sys.executable, "-m", "smidgen", "coordinator", "track", "--store"]
    line += [str(tmp_path / "store"), "--to", f"csv:{path}"]
    devices = live.join("hall", "kitchen")
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as first:
        devices[0].do(devices[0].work())
        devices[1].do(devices[1].work())
        wait_for(path.is_file)
        first.send_signal(signal.SIGKILL)
    assert path.read_text().count("\n") == 2  # a head, and the evaluation before any training
    others = [threading.Thread(target=one.until_finished) for one in devices]
    for one in others:
        one.start()
    again = subprocess.run(line, capture_output=True, text=True, env=os.environ)
    for one in others:
        one.join()
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-1].startswith("the run is finished; 2 rounds logged")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round_index"] for row in rows] == ["0", "1", "2"]
    assert all(int(float(row["answers"])) >= 2 for row in rows)


def test_files_of_the_end_hold_the_adapter_and_what_each_device_cost(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow: Any = pytest.importorskip("mlflow")
    finished(start)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert track(tmp_path / "store", f"mlflow:{uri}") == 3
    assert track(tmp_path / "store", f"mlflow:{uri}") == 0
    client = mlflow.MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("smidgen").experiment_id
    (run,) = client.search_runs([place])
    kept = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path)))
    assert (kept / "adapter" / "adapter_model.safetensors").is_file()
    with (kept / "devices.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["device"] for row in rows] == ["hall", "kitchen"]
    assert all(int(row["answers"]) >= 3 and int(row["failed"]) == 0 for row in rows)


def test_what_is_wrong_is_one_line(start: Start, tmp_path: Path) -> None:
    start()
    store = ("--store", str(tmp_path / "store"))
    done = smidgen("coordinator", "track", *store, "--to", "comet:x")
    assert done.exit_code == 2
    assert "--to 'comet': csv, mlflow, tensorboard, trackio, wandb expected" in done.stderr
    done = smidgen("coordinator", "track", *store, "--to", f"csv:{tmp_path}")
    assert done.exit_code == 2 and "is a folder" in done.stderr


def test_a_server_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackerError, match="tracker mlflow cannot be opened") as raised:
        open_tracker("mlflow:http://127.0.0.1:9", RUN)
    assert "\n" not in str(raised.value)
