"""A copied state folder beside the original, and lives that only look like it: real processes."""

import json
import random
import shutil
import time
from typing import Any

import pytest

from tests import command_line
from tests.end_to_end.conftest import CLIENTS, Scene, wait_for

COPIED = "its state folder was copied"


def devices_of(scene: Scene) -> list[dict[str, Any]]:
    line = ("coordinator", "devices", "list", "--store", str(scene.folder / "store"), "--json")
    found: list[dict[str, Any]] = json.loads(command_line.smidgen(*line).stdout)["devices"]
    return found


def restarted(scene: Scene, port: int) -> None:
    scene.kill("coordinator")
    scene.serve(port)


@pytest.mark.slow
def test_of_two_clients_on_copies_of_a_folder_the_older_ends_and_the_newer_goes_on(
    scene: Scene,
) -> None:
    scene.create(1, len(CLIENTS), 1)
    url = scene.serve()
    scene.client("a", url)
    wait_for(lambda: "joined run" in scene.log("a"), scene.fleet.check)
    time.sleep(1)  # it waits for the other device
    shutil.copytree(scene.folder / "state" / "a", scene.folder / "state" / "copy")
    scene.client("copy", url)
    wait_for(lambda: COPIED in scene.log("a"), within_s=180)
    original = scene.fleet.processes.pop("a")
    assert original.wait(120) == 2  # a supervisor that spares what was set up wrongly lets it be
    assert scene.log("a").strip().splitlines()[-1].count(COPIED) == 1
    assert COPIED not in scene.log("copy")
    assert scene.log("coordinator").count("two lives") == 1
    (told,) = devices_of(scene)
    assert told["cloned_at_s"] is not None
    scene.client("b", url)
    scene.finish()  # the copy is the device, and the run ends with it


@pytest.mark.slow
@pytest.mark.fault
def test_kills_of_either_side_never_look_like_a_clone(scene: Scene) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    scene.create(2, len(CLIENTS) + 1, 1)  # it waits for one device more
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    said = dict.fromkeys(CLIENTS, "")
    for name in CLIENTS:
        scene.client(name, url)
    for _ in range(20):
        time.sleep(drawn.uniform(0.2, 3.0))
        name = drawn.choice([*CLIENTS, "coordinator"])
        if name == "coordinator":
            said[name] = said.get(name, "") + scene.log(name)
            restarted(scene, port)
        else:
            said[name] += scene.log(name)
            scene.kill(name)
            scene.client(name, url)
    scene.client("c", url)
    scene.finish()
    whole = "".join(said.values()) + "".join(map(scene.log, [*CLIENTS, "c", "coordinator"]))
    assert COPIED not in whole and "two lives" not in whole
    told = devices_of(scene)
    assert [one["cloned_at_s"] for one in told] == [None] * 3
