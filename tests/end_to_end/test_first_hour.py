"""What a newcomer meets: real processes, and what each side says while it waits and at the end."""

import json
import re
import subprocess
import sys

import pytest

from tests.command_line import smidgen
from tests.end_to_end.conftest import Scene, wait_for
from tests.processes import ENTER, memory_group


def test_each_side_says_what_it_waits_for_and_every_device_is_left_with_the_adapter(
    scene: Scene,
) -> None:
    scene.create(1, 2, 1)
    url = scene.serve()
    out = scene.folder / "mine"
    scene.client("a", url, "--engine", "onnx")
    wait_for(lambda: "waiting for 1 more device" in scene.log("a"), scene.fleet.check)
    assert "waiting for 1 more device before round 1 of 1; 2 needed" in scene.log("a")
    said = "hub: waiting for 1 more device (--min-clients 2); here: a"
    wait_for(lambda: said in scene.log("coordinator"), scene.fleet.check)
    scene.client("b", url, "--engine", "onnx", "--out", str(out))
    scene.finish()
    (plan,) = [line for line in scene.log("a").splitlines() if "plan:" in line]
    assert "texts of a batch at once" in plan and plan[:4].isdigit() and plan[4] == "-"
    assert re.search("round 1 of 1, training: a (had )?answered after", scene.log("coordinator"))
    assert "2 of 2 done, accuracy" in scene.log("coordinator")
    expected = scene.adapter()
    for name, folder in (("a", scene.folder / "state" / "a" / "adapter"), ("b", out)):
        assert (folder / "adapter_model.safetensors").read_bytes() == expected
        assert f"finished adapter: {folder}" in scene.log(name)
        base = ("--base", str(scene.base.folder), "--engine", "onnx")
        done = smidgen("client", "predict", "--adapter", str(folder), *base, "--json", "rain today")
        labels = json.loads(done.stdout.splitlines()[-1])["labels"]
        assert done.exit_code == 0 and labels[0] in ("security", "weather", "family")


def standing(scene: Scene) -> list[tuple[str, str]]:
    """How the devices of the fleet stand to the run, and why."""
    devices = scene.coordinator_json("status")["devices"]
    return [(device["membership"], device["left"]) for device in devices]


@pytest.mark.slow
def test_a_device_with_too_small_a_budget_never_joins(scene: Scene) -> None:
    scene.create(1, 1, 1)
    url = scene.serve()
    where = ("--coordinator", url, "--token", scene.token, "--data", str(scene.data("x")))
    base, state = str(scene.base.folder), str(scene.folder / "state" / "x")
    what = ("--base", base, "--state", state, "--engine", "onnx", "--until", "finished")
    done = scene.smidgen("client", "run", *where, *what, "--memory-budget", "8M", check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("smidgen ")]
    assert done.returncode == 2 and len(lines) == 1 and "--memory-budget" in lines[0]
    assert standing(scene) == [("declined", "budget")]


@pytest.mark.slow
def test_a_device_restarted_on_useless_files_is_refused_until_they_are_mended(
    scene: Scene,
) -> None:
    scene.create(3, 2, 1, "--deadline", "300")
    url = scene.serve()
    for name in ("a", "b"):
        scene.client(name, url, "--engine", "onnx")
    wait_for(lambda: "round 1 of 3, training closed" in scene.log("coordinator"))
    scene.kill("b")
    scene.coordinator_json("pause")  # it would go on without b
    labelled = scene.data("b") / "labelled.csv"
    good = labelled.read_text()
    labelled.write_text("text,label\nrain,rein\n")
    state = str(scene.folder / "state" / "b")
    until = ("--until", "finished", "--data", str(scene.folder / "data" / "b"))
    line = ("client", "run", "--coordinator", url, *until)
    options = ("--base", str(scene.base.folder), "--name", "b", "--state", state)
    refused = scene.smidgen(*line, *options, "--engine", "onnx", check=False)
    assert refused.returncode == 2 and "labelled.csv, line 2" in refused.stderr
    labelled.write_text(good)
    scene.fleet.start("b", [*line, *options, "--engine", "onnx"])
    wait_for(lambda: scene.log("b").count("joined run") == 2)
    scene.coordinator_json("resume")
    scene.finish()
    assert scene.coordinator_json("status")["phase"] == "finished"


@pytest.mark.slow
def test_memory_that_is_short_for_now_is_no_wrong_input(scene: Scene) -> None:
    """Without a budget there may be more of it in an hour: systemd has to start it again."""
    scene.create(1, 1, 1)
    url = scene.serve()
    where = ("--coordinator", url, "--token", scene.token, "--data", str(scene.data("x")))
    what = ("--base", str(scene.base.folder), "--state", str(scene.folder / "state" / "x"))
    until = ("--engine", "onnx", "--until", "finished")
    line = [sys.executable, "-m", "smidgen", "client", "run", *where, *what, *until]
    with memory_group(96 << 20) as group:
        done = subprocess.run([*ENTER, str(group), *line], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "start the client again when more memory is free" in done.stderr
    assert [state for state, _ in standing(scene)] == ["declined"]
