"""Processes killed for real, mid-round; the run finishes as if nothing had happened."""

from collections.abc import Callable

import pytest

from tests.breadth import first_fast
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for


@pytest.mark.fault
@pytest.mark.parametrize("engine", first_fast(["onnx", "torch"]))
def test_kill_9_of_a_client_and_of_the_coordinator_changes_no_byte(
    scene: Scene, undisturbed_with: Callable[[str], bytes], engine: str
) -> None:
    expected = undisturbed_with(engine)
    scene.create(2, len(CLIENTS), EPOCHS, scene.fixed_deadlines())
    url = scene.serve()
    port = int(url.rsplit(":", 1)[1])
    for name in CLIENTS:
        scene.client(name, url, "--engine", engine)
    wait_for(lambda: "round 1 of 2: train" in scene.log("a"), scene.fleet.check)
    scene.kill("a")
    scene.client("a", url, "--engine", engine)
    wait_for(lambda: "round 2 of 2: train" in scene.log("b"), scene.fleet.check)
    scene.kill("coordinator")
    scene.serve(port)
    scene.finish()
    assert scene.adapter() == expected
    status = scene.coordinator_json("status")
    assert status["phase"] == "finished"
    assert list(status["accuracy_by_round"]) == ["0", "1", "2"]  # device a's alone, b has no tests
