"""Processes killed for real, mid-round; the run finishes as if nothing had happened."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.coordinator.rounds.extensions import apart
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.adapters.peft_folder import RIDGE_WEIGHTS
from smidgen.edge_client.updates.ridge import WEIGHT
from smidgen.edge_client.wire.tensors import decode_adapter
from tests.breadth import first_fast
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for

SGD = ("--scaffold", "--optimizer", "sgd", "--lr", "0.05")  # the last --lr counts


def begun(scene: Scene, engine: str) -> str:
    """Three rounds with control variates, on their way; the coordinator's address."""
    scene.create(3, len(CLIENTS), EPOCHS, *SGD, scene.fixed_deadlines())
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url, "--engine", engine)
    return url


GOOD = """
from smidgen.coordinator.rounds.learning.registry import WeightedMean
MEANS = {"mine": WeightedMean}
"""
BAD = """
class Mine:
    def mean(self, updates, adapter):
        raise RuntimeError("not yet")
MEANS = {"mine": Mine}
"""
ENDLESS = BAD.replace(
    'raise RuntimeError("not yet")',
    """
        while True:
            pass""",
)


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("engine", first_fast(["onnx", "torch"]))
def test_kill_9_changes_no_byte_of_a_run_with_control_variates(
    scene: Scene, other_scene: Scene, engine: str
) -> None:
    begun(other_scene, engine)
    other_scene.finish()
    url = begun(scene, engine)
    for round_index, victim in ((2, "a"), (3, "b")):
        said = f"round {round_index} of 3: train"
        wait_for(partial(lambda name, said: said in scene.log(name), victim, said))
        kept = scene.folder / "state" / victim / "updates" / scene.run_id
        assert (kept / f"{round_index - 1}.st").is_file()
        scene.kill(victim)
        scene.client(victim, url, "--engine", engine)
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_where_ridge_regression_is_fitted_changes_no_byte(
    scene: Scene, other_scene: Scene
) -> None:
    """In the round of its moments, and in the one that calibrates it."""

    def has_heard(of: str) -> bool:
        return of in scene.log("a")

    for one in (other_scene, scene):
        said = ("--adapter", "lora:4+ridge", one.fixed_deadlines())
        one.create(2, len(CLIENTS), EPOCHS, *said)
        url = one.serve()
        for name in CLIENTS:
            one.client(name, url, "--engine", "onnx")
        if one is scene:
            for told in ("round 1 of 2: ridge", "round 2 of 2: calib"):
                wait_for(partial(has_heard, told), scene.fleet.check)
                for victim in ("a", "b"):
                    scene.kill(victim)
                    scene.client(victim, url, "--engine", "onnx")
                scene.kill("coordinator")
                scene.serve(int(url.rsplit(":", 1)[1]))
        one.finish()
    assert scene.adapter() == other_scene.adapter()
    solved = [(one.folder / "adapter" / RIDGE_WEIGHTS).read_bytes() for one in (scene, other_scene)]
    assert solved[0] == solved[1] and decode_adapter(solved[0])[WEIGHT].any()


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


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_between_rounds_loses_nothing_that_fedadam_remembers(
    scene: Scene, other_scene: Scene
) -> None:
    """The coordinator dies once its second round is closed; what it remembers is in the journal."""
    for place, is_killed in ((other_scene, False), (scene, True)):
        file = place.folder / "fedadam.toml"
        learning = 'optimizer = "fedadam"\nlr = 0.01\ndecay = "linear"\n'
        file.write_text(f"adaptive_deadline = false\n[learning]\n{learning}")
        place.create(3, len(CLIENTS), EPOCHS, str(file))
        url = place.serve()
        for name in CLIENTS:
            place.client(name, url, "--engine", "onnx")
        if is_killed:
            wait_for(lambda: "round 3 of 3: train" in scene.log("b"), scene.fleet.check)
            place.kill("coordinator")
            place.serve(int(url.rsplit(":", 1)[1]))
        place.finish()
    assert scene.adapter() == other_scene.adapter()


def with_mean(scene: Scene, code: str) -> tuple[Path, tuple[str, str]]:
    """A run of one round whose mean is in a file of that code; the file, and how it is named."""
    ideas = scene.folder / "ideas"
    ideas.mkdir(mode=0o755)
    (ideas / "mine.py").write_text(code)
    file = scene.folder / "mine.toml"
    file.write_text("adaptive_deadline = false\n[learning]\nmean = 'mine'\n")
    plugins = ("--plugins", str(ideas))
    with apart():
        scene.create(1, len(CLIENTS), 4, *plugins, str(file))
    return ideas / "mine.py", plugins


@pytest.mark.slow
def test_a_round_outlives_a_broken_plugin_and_the_coordinator_that_it_was_in(
    scene: Scene, other_scene: Scene
) -> None:
    """The run pauses; with the file mended and the coordinator restarted, no text is lost."""
    for place, first in ((other_scene, GOOD), (scene, BAD)):
        mine, plugins = with_mean(place, first)
        url = place.serve(0, *plugins)
        for name in CLIENTS:
            place.client(name, url, "--engine", "onnx")
        if first is BAD:
            wait_for(
                lambda: scene.coordinator_json("status")["phase"] == "paused", scene.fleet.check
            )
            assert "mean 'mine' of " in scene.coordinator_json("status")["trouble"]
            scene.kill("coordinator")
            mine.write_text(GOOD)
            scene.serve(int(url.rsplit(":", 1)[1]), *plugins)
            scene.coordinator_json("resume")
        place.finish()
    assert scene.adapter() == other_scene.adapter()


@pytest.mark.slow
def test_sigterm_ends_a_coordinator_whose_plugin_never_returns_and_its_round_is_kept(
    scene: Scene, other_scene: Scene
) -> None:
    """Once while it is waited for, and once when it has been given up and still spins."""
    for place, first in ((other_scene, GOOD), (scene, ENDLESS)):
        mine, plugins = with_mean(place, first)
        url = place.serve(0, *plugins)
        port = int(url.rsplit(":", 1)[1])
        for name in CLIENTS:
            place.client(name, url, "--engine", "onnx")
        if first is ENDLESS:
            wait_for(
                lambda: (
                    "mine.py has been at it for 10 s (now at mine.py" in scene.log("coordinator")
                ),
                scene.fleet.check,
            )
            assert scene.end("coordinator") == 0
            assert scene.coordinator_json("status")["phase"] != "paused"
            scene.serve(port, *plugins, "--plugin-limit", "1")
            wait_for(
                lambda: scene.coordinator_json("status")["phase"] == "paused", scene.fleet.check
            )
            trouble = scene.coordinator_json("status")["trouble"]
            assert "mine.py did not return within 1 s (now at mine.py, line " in trouble
            scene.coordinator_json("resume")
            wait_for(lambda: "mend it and start" in scene.coordinator_json("status")["trouble"])
            assert scene.end("coordinator") == 0
            mine.write_text(GOOD)
            scene.serve(port, *plugins)
            scene.coordinator_json("resume")
        place.finish()
    assert scene.adapter() == other_scene.adapter()


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_changes_no_byte_of_a_run_of_mixed_ranks(scene: Scene, other_scene: Scene) -> None:
    """The coordinator dies while devices of ranks 4 and 8 train in a run of rank 16."""
    for place, is_killed in ((other_scene, False), (scene, True)):
        file = place.folder / "ranks.toml"
        learning = '[learning]\nlora_mean = "product"\n'
        file.write_text(f"adaptive_deadline = false\n{learning}")
        place.create(2, len(CLIENTS), EPOCHS, str(file), "--adapter", "lora:16")
        url = place.serve()
        for name, rank in zip(CLIENTS, (4, 8), strict=True):
            place.client(name, url, "--limits", f"rank={rank}")
        if is_killed:
            wait_for(lambda: "round 2 of 2: train" in scene.log("b"), scene.fleet.check)
            place.kill("coordinator")
            place.serve(int(url.rsplit(":", 1)[1]))
        place.finish()
    assert scene.adapter() == other_scene.adapter()
    status = scene.coordinator_json("status")
    assert set(status["lost_by_round"]) == {"1", "2"}
    with closing(Store(scene.folder / "store")) as store:
        opened = [one for one in store.journal(scene.run_id) if isinstance(one, StepOpened)]
    assert all(sorted(rank for _, rank in one.ranks) == [4, 8] for one in opened)
