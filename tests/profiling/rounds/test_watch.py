"""A run watched from outside, by the coordinator's own commands."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("torch")
pytest.importorskip("fastapi")

from edge_client.bases.base import Base
from profiling.commands.watch import drawn
from profiling.rounds.live import headline, news, screen
from simulation.demo.processes import fleet
from tests.command_line import shown, smidgen
from tests.end_to_end.conftest import Scene
from tests.processes import children_of, is_computing
from tests.profiling.rounds.test_waterfall import SLOW, TRAIN, row

NOW_S = 1_000_000.0
STEP = {"kind": "train", "round_index": 2, "attempt": 1, "opened_at_s": NOW_S - 12}
STATUS: dict[str, Any] = {
    "run_id": "r1",
    "name": "hub",
    "kind": "labels",
    "phase": "train",
    "ended": None,
    "trouble": "",
    "failing": None,
    "round_index": 2,
    "rounds": 4,
    "needed": 2,
    "step": STEP | {"closes_at_s": NOW_S + 600},
    "answers": 1,
    "asked": 2,
    "accuracy_by_round": {"0": 0.25, "1": 0.5},
    "f1_by_round": {},
    "perplexity_by_round": {},
    "devices": [
        {"device_id": "a", "last_seen_s": NOW_S - 3, "open_work": "done", "left": None},
        {"device_id": "b", "last_seen_s": NOW_S - 30, "open_work": "missing", "left": None},
    ],
}


def test_a_screen_says_where_the_run_stands_and_whom_it_waits_for() -> None:
    said = drawn(screen(STATUS, [row("a", TRAIN), row("b", SLOW)], NOW_S, 80), 80)
    assert said.startswith("hub (r1): train, round 2 of 4\n")
    assert "[=====               ]  1 of 4 closed" in said and "closes in 10 min" in said
    assert "25.0 % (0), 50.0 % (1)" in said
    devices = [line for line in said.splitlines() if re.match(r"[ab] ", line)]
    assert devices[0].split()[:2] == ["b", "working"] and "10.0 s" in devices[0]
    assert "straggler: b" in said and max(map(len, said.splitlines())) <= 80


def test_a_step_that_nobody_serves_is_told() -> None:
    late = STATUS | {"step": STEP | {"closes_at_s": NOW_S - 90}}
    assert "was to close 90 s ago: does" in drawn(screen(late, [], NOW_S, 80), 80)


def test_a_paused_run_says_so_and_what_it_is_for() -> None:
    late = STATUS | {"step": STEP | {"closes_at_s": NOW_S - 90}, "phase": "paused"}
    why = "every device has failed at it"
    failing = {"kind": "train", "round_index": 2, "devices": ["a", "b"]}
    paused = late | {"trouble": "paused by itself", "failing": failing}
    said = drawn(screen(paused, [], NOW_S, 80), 80)
    assert "hub (r1): paused; `smidgen coordinator resume` lets it go on\npaused by itself" in said
    assert why in said and "serve" not in said and "stands still" in said
    told = news(paused, late)
    assert told[0] == "paused by itself" and told[1].startswith(why) and len(told) == 2
    assert news(paused, paused) == []


@pytest.mark.parametrize(
    ("ended", "said"),
    [("stopped", "stopped by an operator after 2"), ("patience", "further improvement after 2")],
)
def test_a_run_that_ended_early_says_why(ended: str, said: str) -> None:
    assert said in headline(STATUS | {"step": None, "phase": "finished", "ended": ended})


@pytest.mark.parametrize("phase", ["waiting", "finished"])
def test_a_run_between_steps_is_one_line(phase: str) -> None:
    over = {"step": None, "phase": phase, "round_index": 4, "ended": "rounds"}
    said = headline(STATUS | over)
    found = {"waiting": "2 joined, 2 needed", "finished": "after 4 rounds; accuracy 50.0 %"}
    assert "\n" not in said and said.endswith(found[phase])


def test_a_line_is_told_once_and_no_round_is_passed_over() -> None:
    begun = STATUS | {"accuracy_by_round": {}}
    assert news(begun, None) == ["hub (r1): train, round 2 of 4; 1 of 2 answered"]
    assert news(STATUS, STATUS) == []
    assert news(STATUS, begun) == [
        "hub: accuracy 25.0 % after round 0",
        "hub: accuracy 50.0 % after round 1",
    ]


def test_a_run_of_tagging_tells_its_f1_and_one_of_masked_words_their_perplexity() -> None:
    f1 = {"accuracy_by_round": {}, "f1_by_round": {"0": 0.25, "1": 0.5}}
    tagging = STATUS | f1 | {"kind": "tagging"}
    assert news(tagging, STATUS | {"kind": "tagging"})[0] == "hub: F1 25.0 % after round 0"
    assert "F1         25.0 % (0), 50.0 % (1)" in drawn(screen(tagging, [], NOW_S, 80), 80)
    masked = STATUS | {"kind": "mlm", "perplexity_by_round": {"0": 90.0, "1": 12.345}}
    said = drawn(screen(masked, [], NOW_S, 80), 80)
    assert "accuracy   25.0 % (0)" in said and "perplexity 90.00 (0), 12.35 (1)" in said


def test_a_name_from_elsewhere_moves_no_cursor() -> None:
    assert "\x1b" not in headline(STATUS | {"name": "\x1b[2Jhub"})


def test_no_store_is_one_line(tmp_path: Path) -> None:
    done = smidgen("profile", "watch", "--store", f"{tmp_path}/none")
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr.startswith("smidgen profile: no store at ") and done.stderr.count("\n") == 1


@pytest.fixture
def scene(tmp_path: Path, tiny_base: Base) -> Iterator[Scene]:
    with fleet(tmp_path / "logs", cores_each=1) as processes:
        yield Scene(tmp_path, tiny_base, processes)


@contextmanager
def piped(scene: Scene) -> "Iterator[subprocess.Popen[str]]":
    store = ("--store", str(scene.folder / "store"))
    command = [sys.executable, "-m", "smidgen", "profile", "watch", *store]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


@pytest.mark.slow
def test_a_real_run_is_watched_to_its_end(scene: Scene) -> None:
    scene.create(2, 2, 1)
    url = scene.serve()
    with piped(scene) as process:
        for name in ("a", "c"):
            scene.client(name, url)
        seen = shown("profile", "watch", "--store", str(scene.folder / "store"))
        scene.finish()
        said, complaint = process.communicate(timeout=60)
    lines = [line[10:] for line in said.splitlines()]
    assert process.returncode == 0 and complaint == ""
    assert len(lines) == len(set(lines)) and "\x1b" not in said
    assert [f"after round {index}" in said for index in range(4)] == [True] * 3 + [False]
    assert "finished after 2 rounds; accuracy" in lines[-1]
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen).splitlines()
    assert max(map(len, last)) <= 80 and "memory peak: " in seen
    assert any("finished after 2 rounds" in line for line in last)
    file = scene.folder / "rounds.jsonl"
    scene.coordinator_json("figures", "--out", str(file))
    waterfall = smidgen("profile", "rounds", str(file), "--round", "1")
    assert waterfall.exit_code == 0 and "train, round 1" in waterfall.stdout
    assert "straggler: " in waterfall.stdout


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_and_leaves_nobody_behind(scene: Scene) -> None:
    scene.create(2, 2, 1)
    with piped(scene) as process:
        assert process.stdout and "waits for devices" in process.stdout.readline()
        below = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=90)
    assert process.returncode == 130 and complaint == "smidgen profile: stopped\n"
    assert below and not any(map(is_computing, below))
