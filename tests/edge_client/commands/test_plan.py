"""The command as a user runs it; a fact that differs between machines is never asserted."""

import json
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.engine.opening import engine_name
from smidgen.edge_client.planning.budget import Corrections, Key
from smidgen.edge_client.planning.plan import Plan
from tests.command_line import Done, homeless, smidgen

NAMES = {"dtype", "micro_batch", "recompute", "depth", "tokens"}


def run(base: Base, state: Path, *arguments: str) -> Done:
    given = ["--base", str(base.folder), "--state", str(state), "--tokens", "32", *arguments]
    return smidgen("client", "plan", *given)


def answer(base: Base, state: Path, *arguments: str) -> dict[str, Any]:
    result = run(base, state, *arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_the_last_line_is_one_object_with_the_chosen_plan(tiny_base: Base, tmp_path: Path) -> None:
    found = answer(tiny_base, tmp_path, "--memory-budget", "2G", "--batch", "4")
    chosen = found["chosen"]
    assert found["budget_bytes"] == 2 << 30 and found["available_bytes"] > 0
    assert "cgroup_limit_bytes" in found
    assert set(chosen) >= NAMES and chosen["micro_batch"] == 4 and chosen["depth"] == 2
    assert sum(chosen["parts"].values()) == chosen["predicted_peak_bytes"] <= 2 << 30
    assert chosen["fits"] and chosen["predicted_step_s"] >= 0
    assert {key: chosen[key] for key in NAMES} in [
        {key: row[key] for key in NAMES} for row in found["options"]
    ]


def test_auto_is_a_share_of_what_is_available(tiny_base: Base, tmp_path: Path) -> None:
    found = answer(tiny_base, tmp_path)
    assert found["budget_bytes"] == found["available_bytes"] * 60 // 100


def test_people_get_a_table_and_a_sentence(tiny_base: Base, tmp_path: Path) -> None:
    result = run(tiny_base, tmp_path, "--memory-budget", "2G", "--batch", "2")
    assert result.exit_code == 0 and "what a step would take in 2.00 GiB" in result.stdout
    assert "Chosen: the preferred plan" in result.stdout
    assert sum(line.lstrip().startswith("* ") for line in result.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("task", "adapter"),
    [('kind = "mlm"', "lora:4"), ('kind = "tagging"\nlabels = ["Drug"]', "lora:4+head")],
)
def test_a_task_that_asks_at_many_places_takes_more(
    tiny_base: Base, tmp_path: Path, task: str, adapter: str
) -> None:
    (tmp_path / "task.toml").write_text(task)
    given = ("--adapter", adapter, "--memory-budget", "2G", "--batch", "8", "--engine", "onnx")
    labels = answer(tiny_base, tmp_path, *given)["chosen"]
    found = answer(tiny_base, tmp_path, *given, "--task", str(tmp_path / "task.toml"))["chosen"]
    assert found["predicted_peak_bytes"] > labels["predicted_peak_bytes"]
    assert found["parts"]["kept"] > labels["parts"]["kept"]


def test_an_adapter_that_cannot_answer_the_task_is_refused(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('kind = "tagging"\nlabels = ["Drug"]')
    result = run(tiny_base, tmp_path, "--task", str(tmp_path / "task.toml"))
    assert result.exit_code == 2 and "which needs a head; lora:8@q,v+head does" in result.stderr


def test_what_the_device_measured_moves_the_prediction(tiny_base: Base, tmp_path: Path) -> None:
    plain = answer(tiny_base, tmp_path, "--memory-budget", "2G")["chosen"]
    made = Plan(**{name: plain[name] for name in NAMES} | {"recompute": tuple(plain["recompute"])})
    key = Key(tiny_base.base_id, engine_name("auto"), "lora:8@q,v", made.dtype)
    size = plain["predicted_peak_bytes"]
    Corrections(tmp_path / "corrections.json").record(key, made, size, size + (50 << 20))
    again = answer(tiny_base, tmp_path, "--memory-budget", "2G")["chosen"]
    moved = again["predicted_peak_bytes"] - sum(again["parts"].values())
    assert moved == 50 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--memory-budget", "lots"), "--memory-budget 'lots' is not a size; expected such as"),
        (("--memory-budget", "20M"), "--memory-budget 20M is below the smallest plan for this"),
        (("--adapter", "lora"), "adapter 'lora' is unknown; did you mean lora:8?"),
        (("--adapter", "prompt:900"), "adapter prompt:900 leaves no room for a text"),
        (("--batch", "0"), "--batch 0: 1 to 4096 is expected"),
        (("--tokens", "1000000"), "--tokens 1000000: 8 to 8192 is expected"),
        (("--bits", "5"), "--bits 5 is not one of 4, 8 and 16"),
        (("--base", "/no/such"), "no base at /no/such"),
    ],
)
def test_wrong_use_is_one_line(
    tiny_base: Base, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(tiny_base, tmp_path, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith(f"smidgen client: {message}")
    assert result.stderr.count("\n") == 1


def test_without_a_home_nothing_was_measured_by_default(tiny_base: Base) -> None:
    with homeless():
        result = smidgen("client", "plan", "--base", str(tiny_base.folder), "--tokens", "32")
    assert result.exit_code == 0 and result.stderr == ""
