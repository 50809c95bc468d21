"""The demo as a newcomer runs it, smaller, and what it leaves behind."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from smidgen.edge_client.personal.choice import chosen_in
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import Example, read_file
from tests.breadth import first_fast
from tests.command_line import smidgen
from tests.conftest import shared
from tests.edge_client.tasks.tiny_decoder import write_tiny_decoder

pytest.importorskip("torch")
pytest.importorskip("fastapi")

ROOT = Path(__file__).parents[2]
HUB = ROOT / "simulation" / "data"
SMIDGEN = [sys.executable, "-m", "smidgen"]
TEXT = "somebody is at the front door"
KEYS = {
    "accuracy_zero_shot",
    "accuracy_final",
    "accuracy_alone",
    "rounds",
    "clients",
    "engines",
    "bytes_up_per_client_round",
    "bytes_down_per_client_round",
    "peak_rss_bytes",
    "seconds",
}


def demo(out: Path, *options: str) -> dict[str, Any]:
    line = [*SMIDGEN, "demo", "--out", str(out), "--json", *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def write_texts(file: Path, texts: Sequence[Example]) -> str:
    with file.open("w", newline="", encoding="utf-8") as opened:
        rows = [(example.text, example.label) for example in texts]
        csv.writer(opened).writerows([("text", "label"), *rows])
    return str(file)


# adapter, engines, rounds, and how many of the messages; 0: the demo's own homes
WAYS = [
    ("lora:8", "torch,onnx", 2, 240),
    ("lora:8", "torch,onnx", 2, 0),
    ("prompt:8", "auto", 3, 0),
]


@pytest.fixture(scope="module", params=first_fast(WAYS))
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A demo of few rounds: its adapter, their number, its folder, its JSON."""
    folder = tmp_path_factory.mktemp("demo")
    adapter, engine, rounds, messages = request.param
    said = ["--rounds", str(rounds), "--adapter", adapter, "--engine", engine]
    said += ["--personal"]
    if messages:
        task = read_task(HUB / "task.toml")
        texts = read_file(HUB / "hub_messages.csv", task, labelled=True)[: messages * 5 : 5]
        said += ["--data", write_texts(folder / "own.csv", texts), "--labels", str(messages // 2)]
        said += ["--task", str(HUB / "task.toml"), "--epochs", "3"]
    return adapter, rounds, folder / "out", demo(folder / "out", *said)


@pytest.mark.slow
def test_the_demo_ends_with_one_json_object_and_a_chart(finished: Any) -> None:
    adapter, rounds, out, result = finished
    assert set(result) >= KEYS
    assert result["clients"] == 4 and result["rounds"] == rounds
    engines = ["torch", "onnx"] * 2 if adapter == "lora:8" else ["torch"] * 4
    assert list(result["engines"].values()) == engines
    assert result["accuracy_final"] > result["accuracy_zero_shot"]
    assert 50_000 < result["bytes_down_per_client_round"] < 250_000 or adapter != "lora:8"
    for picture in ("rounds.png", "personal.png"):
        assert (out / picture).read_bytes()[:4] == b"\x89PNG"
    for name in result["engines"]:
        folder, choice = chosen_in(out / "state" / name)
        assert folder and (folder / "adapter_config.json").is_file()
        assert result["personal"][name]["accuracy"] == choice.accuracy
        assert choice.accuracy is not None and choice.accuracy_shared is not None
        assert (choice.use == "personal") == (choice.accuracy > choice.accuracy_shared)


@pytest.mark.slow
@pytest.mark.fault
def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*SMIDGEN, "demo", "--clients", "2", "--json", "--out", str(tmp_path / "demo")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    end = time.monotonic() + 90
    while len(children := psutil.Process(process.pid).children(recursive=True)) < 3:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=90)
    # CPython remembers an interrupt inside code that was compiled from a string (a dataclass made
    # while a module is imported, say), and `python -m` then ends by the signal: a shell shows 130.
    assert process.returncode in (130, -signal.SIGINT) and "no process is left behind" in said
    assert "together: starting the devices, 0/10 rounds" in said  # no terminal: a line per stage
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends children with their parent")
def test_a_kill_of_the_demo_alone_leaves_no_process(tmp_path: Path) -> None:
    line = [*SMIDGEN, "demo", "--out", str(tmp_path / "demo")]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 90
    while len(children := psutil.Process(process.pid).children(recursive=True)) < 5:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = smidgen("demo", "--out", str(tmp_path))
    assert done.exit_code == 2 and "name a new folder" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_unknown_engine_is_named_before_anything_is_deleted(tmp_path: Path) -> None:
    (tmp_path / ".smidgen-demo").touch()
    done = smidgen("demo", "--out", str(tmp_path), "--engine", "torch,tensorflow")
    assert done.exit_code == 2
    said = "smidgen demo: --engine tensorflow is not known; auto, torch or onnx"
    assert done.stderr.splitlines() == [said]
    assert list(tmp_path.iterdir()) == [tmp_path / ".smidgen-demo"]


@pytest.mark.slow
def test_a_federated_run_on_real_news_learns(tmp_path: Path) -> None:
    data, base = shared("data", "ag_news"), shared("models", "bert-tiny-mlm")
    agnews = ROOT / "docs" / "examples" / "agnews.toml"
    tests = read_file(data / "test.csv.gz", read_task(agnews), labelled=True)[::10]
    test = write_texts(tmp_path / "test.csv", tests)
    own = ("--data", str(data / "train.csv.gz"), "--test", test)
    task = ("--task", str(agnews), "--base", str(base))
    size = ("--clients", "2", "--labels", "64", "--rounds", "4")
    result = demo(tmp_path / "demo", *own, *task, *size)
    assert result["accuracy_final"] > result["accuracy_zero_shot"] + 0.05


@pytest.mark.slow
def test_homes_teach_a_causal_language_model_their_commands(tmp_path: Path) -> None:
    base = write_tiny_decoder(tmp_path / "base")
    said = ("--base", str(base), "--rounds", "1", "--tokens", "256", "--engine", "onnx")
    result = demo(tmp_path / "out", "--chat", "--personal", *said)
    compared = ("zero_shot", "final", "alone", "alone_own")
    assert {key for key in result if "match" in key} == {f"exact_match_{one}" for one in compared}
    assert (result["clients"], result["rounds"], result["test_texts"]) == (4, 1, 64)
    for picture in ("rounds.png", "personal.png"):
        assert (tmp_path / "out" / picture).read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "out" / "adapter" / "adapter.gguf").is_file()
    for own in result["personal"].values():
        assert (own["measure"], own["failure"]) == ("perplexity", "")
        assert (own["use"] == "personal") == (own["score"] < own["score_shared"])


@pytest.mark.slow
@pytest.mark.fault
def test_a_chat_demo_cut_off_in_a_round_and_started_again_ends_in_the_same_bytes(
    tmp_path: Path,
) -> None:
    base = write_tiny_decoder(tmp_path / "base")
    said = ("--chat", "--base", str(base), "--rounds", "2", "--tokens", "256", "--engine", "onnx")
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    demo(undisturbed, *said)
    log = out / "logs" / "coordinator.log"
    process = subprocess.Popen(
        [*SMIDGEN, "demo", "--out", str(out), *said],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    while not (log.is_file() and "round 1 of 2, training closed" in log.read_text()):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    cut = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for one in cut:  # as when the power goes
        one.kill()
    process.wait()
    psutil.wait_procs(cut, timeout=30)
    assert not (out / "adapter").exists()
    demo(out, *said)
    name = Path("adapter") / "adapter_model.safetensors"
    assert (out / name).read_bytes() == (undisturbed / name).read_bytes()


@pytest.mark.parametrize(
    ("template", "options", "said"),
    [
        ("x", (), "asked with a mask between words; add --chat, or --data FILE with --task"),
        ("x", ("--chat", "--data", "x.csv"), "--chat has texts of its own; leave out --data"),
        ("", ("--chat",), "has no chat template; take the model's instruction-tuned form"),
    ],
)
def test_what_does_not_go_with_a_chat_is_said_before_anything_is_deleted(
    template: str, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    base, out = write_tiny_decoder(tmp_path / "base", template), tmp_path / "out"
    out.mkdir()
    (out / ".smidgen-demo").touch()
    done = smidgen("demo", "--out", str(out), "--base", str(base), *options)
    (told,) = done.stderr.splitlines()
    assert done.exit_code == 2 and told.startswith("smidgen demo: ") and said in told
    assert list(out.iterdir()) == [out / ".smidgen-demo"]
