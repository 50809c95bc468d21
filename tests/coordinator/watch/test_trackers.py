"""Rounds of a real run, logged to real trackers and read back by what they bring to read."""

import csv
import json
import os
import signal
import site
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from smidgen.coordinator.api.track import EVERY_S, open_tracker, track
from smidgen.coordinator.watch.trackers import Figures, TrackedRun, TrackerError
from smidgen.edge_client.errors import WrongInput
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
        tracker, is_finished = open_tracker(to, RUN), len(given) == len(ROUNDS)
        for index in range(tracker.last_round() + 1, max(given) + 1):
            tracker.log_round(index, ROUNDS[index])
        if is_finished:
            tracker.log_folder(folder)
        tracker.close(is_finished)


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
    tracker.close(is_finished=True)
    (path,) = tmp_path.rglob("*.wandb")
    wanted = {index: one["loss"] for index, one in ROUNDS.items()}
    wait_for(lambda: losses_in(path) == wanted)  # its service writes on after `finish` returned
    mine = [str(Path(__file__).parent), Path(sys.argv[0]).name]
    assert [word for word in mine if word.encode() in path.read_bytes()] == []
    assert {one.run.host for one in records_in(path)} == {"", "smidgen"}  # not this machine's name


def records_in(path: Path) -> list[Any]:
    records: Any = import_module("wandb.proto.wandb_internal_pb2")
    return [records.Record.FromString(body) for body in logged(path.read_bytes())]


def losses_in(path: Path) -> dict[int, float]:
    told = {}
    for record in records_in(path):
        items = record.history.item
        told_now = {one.key or one.nested_key[0]: one.value_json for one in items}
        if "loss" in told_now:
            told[int(told_now["_step"])] = float(told_now["loss"])
    return told


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
    trackio: Any = pytest.importorskip("trackio")
    in_two_lives("trackio:homes", files)
    (run,) = trackio.Api().runs("homes")
    assert run.name == "mail-4f00" and run.config["training.lr"] == 0.01
    told = {one["step"]: one["loss"] for one in trackio.SQLiteStorage.get_logs("homes", run.name)}
    assert told == {index: one["loss"] for index, one in ROUNDS.items()}
    kept = {one.read_bytes() for one in (tmp_path / "artifacts").rglob("*") if one.is_file()}
    assert {one.read_bytes() for one in files.rglob("*") if one.is_file()} <= kept


@pytest.mark.slow
def test_trackio_itself_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """It needs an older Pillow than ours; everything else is found behind its own packages."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "trackio==0.43.0"]
    if subprocess.run(install, check=False, capture_output=True).returncode:
        pytest.skip("Trackio cannot be installed here")
    (own,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (own / "behind.pth").write_text("\n".join(site.getsitepackages()))
    line = [python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    line += ["-k", "trackio_reads_it_back"]
    done = subprocess.run(line, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout


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
    assert again.stdout.splitlines()[-1] == "the run is finished; rounds logged: 2"
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


PACKAGE = """
import json, os

class Diary:
    def __init__(self, where, run):
        self.path = where
        self.note({"run": run.name, "base": run.settings["base"]})
    def note(self, line):
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + os.linesep)
    def last_round(self):
        return -1
    def log_round(self, round_index, figures):
        self.note({"round": round_index})
    def log_folder(self, folder):
        self.note({"files": sorted(os.listdir(folder))})
    def close(self, is_finished):
        self.note({"is_finished": is_finished})
        if not is_finished:
            raise OSError("nobody" + os.linesep + "answers")
"""


@pytest.fixture
def diary(tmp_path: Path) -> dict[str, str]:
    """An environment with another package's tracker, which does not remember."""
    told = tmp_path / "packages" / "diary-1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1\n")
    (told / "entry_points.txt").write_text("[smidgen.trackers]\ndiary = diary:Diary\n")
    (told.parent / "diary.py").write_text(PACKAGE)
    here = os.environ.get("PYTHONPATH", str(Path(__file__).parents[3]))
    return {**os.environ, "PYTHONPATH": f"{told.parent}{os.pathsep}{here}"}


def test_another_packages_tracker_hears_each_round_once_while_the_run_goes_on(
    start: Start, tmp_path: Path, diary: dict[str, str]
) -> None:
    live, path = start(min_clients=2), tmp_path / "diary.jsonl"
    line = [sys.executable, "-m", "smidgen", "coordinator", "track", "--store"]
    line += [str(tmp_path / "store"), "--to", f"diary:{path}"]
    devices = live.join("hall", "kitchen")

    def heard() -> list[dict[str, Any]]:
        return [json.loads(one) for one in path.read_text().splitlines()] if path.is_file() else []

    with subprocess.Popen(line, env=diary, stdout=subprocess.DEVNULL) as tracking:
        for one in devices:
            one.do(one.work())
        wait_for(lambda: {"round": 0} in heard())
        time.sleep(2 * EVERY_S)  # looks at what it knows
        others = [threading.Thread(target=one.until_finished) for one in devices]
        for thread in others:
            thread.start()
        assert tracking.wait(120) == 0
        for thread in others:
            thread.join()
    base = Path(live.service.run(live.run_id).config.base).name
    assert heard() == [
        {"run": "mail", "base": base},
        *({"round": index} for index in range(3)),
        {"files": ["adapter", "devices.csv"]},
        {"is_finished": True},
    ]


def test_a_tracker_that_fails_as_the_command_is_ended_is_one_line(
    start: Start, tmp_path: Path, diary: dict[str, str]
) -> None:
    start()
    line = [sys.executable, "-m", "smidgen", "coordinator", "track", "--store"]
    line += [str(tmp_path / "store"), "--to", f"diary:{tmp_path / 'diary.jsonl'}"]
    with subprocess.Popen(line, env=diary, stderr=subprocess.PIPE, text=True) as tracking:
        wait_for((tmp_path / "diary.jsonl").is_file)
        tracking.send_signal(signal.SIGINT)
        _, said = tracking.communicate(timeout=60)
    assert said == (
        "smidgen coordinator: tracker diary: OSError: nobody answers; the run goes on\n"
    )


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
    with pytest.raises(TrackerError, match=r"tracker mlflow: .*; the run goes on") as raised:
        open_tracker("mlflow:http://127.0.0.1:9", RUN)
    assert "\n" not in str(raised.value)
