"""The doctor as a user calls it, with one engine and small bases."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

import smidgen as module
from smidgen.edge_client.bases.base import Base
from tests.command_line import Done, smidgen

STATES = {"ok", "unknown", "warning", "error"}
FIRST = ["board", "JetPack", "glibc", "kernel", "python", "processor", "memory", "swap"]


def doctor(base: Base, state: Path, *more: str) -> Done:
    given = ("--engine", "onnx", "--state", f"{state}", "--base", f"{base.folder}")
    return smidgen("client", "doctor", *given, *more)


def last_object(done: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_people_read_a_table(tiny_base: Base, tmp_path: Path) -> None:
    told = doctor(tiny_base, tmp_path / "state")
    assert told.exit_code == 0 and told.stdout.split()[:5] == [
        *("check", "state", "found", "what", "to"),
    ]
    assert "onnx self-test  ok" in told.stdout and told.stdout.count("\n") > 20
    assert not (tmp_path / "state").exists()


def test_what_is_wrong_is_named_and_ends_with_exit_code_1(tiny_base: Base, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    more = ("--base", f"{tmp_path}/none", "--json", "--coordinator", "http://127.0.0.1:9")
    done = doctor(tiny_base, tmp_path, *more)  # where something else lies
    told = last_object(done)
    assert not told["works"] and 0 < told["elapsed_s"] < 120
    assert [one["check"] for one in told["findings"]][: len(FIRST)] == FIRST
    assert {one["state"] for one in told["findings"]} <= STATES
    assert all(one["found"] and one["todo"] for one in told["findings"])
    found = {one["check"]: one for one in told["findings"]}
    assert found["coordinator"]["state"] == "error" and found["onnx self-test"]["state"] == "ok"
    good, bad = told["findings"][-2:]
    assert good["state"] == "ok" and good["found"].startswith(f"{tiny_base.folder}: all 8 texts")
    assert bad["state"] == "error" and "none lacks config.json" in bad["found"]
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 1 and "not work yet: state folder, coordinator, base; what" in line
    assert found["state folder"]["found"].endswith(f"{tmp_path} holds other things, such as none")
    assert found["state folder"]["todo"].startswith("give --state a new or an empty folder, or one")


@pytest.mark.slow
def test_a_budget_that_no_plan_fits_is_an_error(tiny_base: Base, tmp_path: Path) -> None:
    done = doctor(tiny_base, tmp_path, "--memory-budget", "1M")
    assert done.exit_code == 1 and "is below the smallest plan" in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ("--memory-budget", "x"),
        ("--engine", "tensorflow"),
        ("--coordinator", "ftp://x"),
        ("--nonsense", "x"),
    ],
)
def test_wrong_use_is_exit_code_2(tiny_base: Base, tmp_path: Path, wrong: tuple[str, str]) -> None:
    done = doctor(tiny_base, tmp_path, *wrong)
    assert done.exit_code == 2 and done.stdout == ""


@pytest.mark.slow
def test_a_real_coordinator_is_believed_and_enrols_nobody(tiny_base: Base, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("cryptography")
    store = f"{tmp_path}/store"
    made = smidgen("coordinator", "init", "--store", store, "--host", "127.0.0.1", "--json")
    assert made.exit_code == 0, made.output
    task = tmp_path / "task.toml"
    task.write_text('name = "t"\nlabels = ["security", "weather"]\npatterns = ["{text} [MASK]"]\n')
    module.create_run(store, task=task, base=tiny_base.folder)
    with module.serve(store, port=0) as server:
        reach = ("--coordinator", server.url, "--ca", last_object(made)["ca"], "--json")
        done = doctor(tiny_base, tmp_path / "state", *reach)
        devices = server.runs()[0].devices
    found = {one["check"]: one for one in last_object(done)["findings"]}
    assert "its certificate is believed until 20" in found["coordinator"]["found"]
    assert found["coordinator's clock"]["state"] == "ok"
    assert devices == () and not (tmp_path / "state").exists()


@pytest.mark.slow
def test_in_python_it_is_an_object(tiny_base: Base, tmp_path: Path) -> None:
    told: list[str] = []
    given: dict[str, Any] = {"bases": [tiny_base.folder], "engine": "onnx", "state": tmp_path}
    found = module.doctor(**given, tell=told.append)
    assert told[0] == "loading the onnx engine" and len(told) == 4
    assert found.works and found.errors == () and isinstance(found.findings[0], module.Finding)
