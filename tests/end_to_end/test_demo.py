"""The demo as a newcomer runs it, smaller; and what is left when it is interrupted."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import shared

pytest.importorskip("torch")
pytest.importorskip("fastapi")

DEMO = [sys.executable, "-m", "smidgen", "demo"]
KEYS = {
    "accuracy_zero_shot",
    "accuracy_final",
    "accuracy_alone",
    "rounds",
    "clients",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "peak_rss_bytes",
    "seconds",
}


def test_the_demo_ends_with_one_json_object_and_a_usable_adapter(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    line = [*DEMO, "--rounds", "3", "--out", str(out), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(result) >= KEYS
    assert result["clients"] == 4 and result["rounds"] == 3
    assert result["accuracy_final"] > result["accuracy_zero_shot"]
    assert result["requests_per_client_round"] <= 4
    assert (out / "rounds.png").read_bytes()[:4] == b"\x89PNG"
    predict = ["client", "predict", "--adapter", str(out / "adapter"), "--json"]
    line = [sys.executable, "-m", "smidgen", *predict, "somebody is at the front door"]
    answer = subprocess.run(line, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(answer.stdout)["labels"][0] in ("security", "delivery", "family")


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [*DEMO, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 90
    while len(psutil.Process(process.pid).children(recursive=True)) < 5:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "no process is left behind" in said
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    line = [*DEMO, "--out", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "name a new folder" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_federated_run_on_real_news_learns(tmp_path: Path) -> None:
    data, base = shared("data", "ag_news"), shared("models", "bert-tiny-mlm")
    task = Path(__file__).parents[2] / "docs" / "examples" / "agnews.toml"
    own = ["--data", str(data / "train.csv.gz"), "--test", str(data / "test.csv.gz")]
    what = ["--task", str(task), "--base", str(base), "--clients", "2", "--rounds", "4"]
    line = [*DEMO, *own, *what, "--labels", "64", "--out", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert result["accuracy_final"] > result["accuracy_zero_shot"] + 0.05
