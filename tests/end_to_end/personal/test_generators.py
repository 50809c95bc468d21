"""A strategy generator trained by real processes: killed, taken home, refused where it is none."""

import json
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.spec import parse_adapter
from tests.command_line import smidgen
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for

SPEC = "lora:4@q,k,v,o,up,down+generator"


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_changes_no_byte_of_a_generator_which_is_exported_as_what_it_is(
    scene: Scene, other_scene: Scene
) -> None:
    for place, is_killed in ((other_scene, False), (scene, True)):
        place.create(2, len(CLIENTS), EPOCHS, "--adapter", SPEC, place.fixed_deadlines())
        url = place.serve()
        for name in CLIENTS:
            place.client(name, url, "--engine", "onnx")
        if is_killed:
            wait_for(lambda: "round 1 of 2: train" in scene.log("a"), scene.fleet.check)
            place.kill("a")
            place.client("a", url, "--engine", "onnx")
            wait_for(lambda: "round 2 of 2: train" in scene.log("b"), scene.fleet.check)
            place.kill("coordinator")
            place.serve(int(url.rsplit(":", 1)[1]))
        place.finish()
    assert scene.adapter() == other_scene.adapter()
    folder = scene.folder / "adapter"
    assert sorted(one.name for one in folder.iterdir()) == [
        "README.md",
        "adapter_model.safetensors",
        "smidgen.json",
    ]
    assert json.loads((folder / "smidgen.json").read_text())["adapter"] == SPEC
    base = ("--base", str(scene.base.folder))
    done = scene.smidgen("client", "predict", "--adapter", str(folder), *base, "x", check=False)
    assert done.returncode == 2 and "client personalize --generator" in done.stderr


def test_a_generator_s_name_is_that_of_lora_and_says_what_it_cannot_be() -> None:
    assert str(parse_adapter(SPEC)) == SPEC
    for wrong in ("lora:4+head+generator", "lora:4/top1+generator", "lora:4/0=2+generator"):
        with pytest.raises(ValueError, match="is for the same rank in all layers"):
            parse_adapter(wrong)
    for wrong in ("head+generator", "generator"):
        with pytest.raises(ValueError, match="is unknown; did you mean"):
            parse_adapter(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--labelling", "--scaffold", "--optimizer", "sgd"), "labelling, optimizer = sgd, scaff"),
        (("--proximal", "0.1"), "proximal"),
    ],
)
def test_what_a_generator_has_no_use_for_is_refused_in_one_line(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    line = ("coordinator", "create", "--task", "agnews", "--adapter", SPEC, *options)
    done = smidgen(*line, "--store", str(tmp_path / "store"))
    assert done.exit_code == 2 and f"adapter +generator: leave out {said}" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
