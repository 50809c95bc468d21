"""Killed devices and coordinators change no byte of a run with coded updates, or coded steps."""

from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from smidgen.coordinator.rounds.events import StepClosed
from smidgen.coordinator.storage.store import Store
from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for

BOTH_WAYS = 'evaluate_every = 0\n[updates]\nup = "int4"\ndown = "int4"\n'  # training alone fetches


def begun(scene: Scene, more: str = '[updates]\nup = "int4"\n') -> str:
    """Three rounds with updates of four bits, on their way; the coordinator's address."""
    file = scene.folder / "coded.toml"
    file.write_text(f"adaptive_deadline = false\n{more}")
    scene.create(3, len(CLIENTS), EPOCHS, str(file))
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url, "--engine", "torch")
    return url


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_changes_no_byte_of_a_run_with_coded_updates(
    scene: Scene, other_scene: Scene
) -> None:
    begun(other_scene)
    other_scene.finish()
    url = begun(scene)
    for round_index, victim in ((2, "a"), (3, "b")):
        said = f"round {round_index} of 3: train"
        wait_for(partial(lambda name, said: said in scene.log(name), victim, said))
        kept = scene.folder / "state" / victim / "updates" / scene.run_id
        assert (kept / f"{round_index - 1}.st").is_file()
        scene.kill(victim)
        scene.client(victim, url, "--engine", "torch")
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()


def made(scene: Scene) -> list[StepClosed]:
    """How the training rounds closed that gave a coded step."""
    with closing(Store(scene.folder / "store")) as store:
        events = list(store.journal(scene.run_id))
    return [one for one in events if isinstance(one, StepClosed) and one.step_sha256]


def has_fetched(scene: Scene, name: str, rounds: int) -> bool:
    """Whether a device keeps the adapter that so many rounds have led to."""
    steps, kept = made(scene), scene.folder / "state" / name / "adapters"
    return len(steps) == rounds and (kept / f"{steps[-1].adapter_sha256}.st").is_file()


@pytest.mark.slow
@pytest.mark.fault
def test_kill_9_changes_no_byte_of_a_run_with_coded_steps(scene: Scene, other_scene: Scene) -> None:
    begun(other_scene, BOTH_WAYS)
    other_scene.finish()
    url = begun(scene, BOTH_WAYS)
    for round_index, victim in ((2, "a"), (3, "b")):
        wait_for(partial(has_fetched, scene, victim, round_index - 1))  # and not yet trained on it
        scene.kill(victim)
        scene.client(victim, url, "--engine", "torch")
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()
    steps = [[one.step_sha256 for one in made(each)] for each in (scene, other_scene)]
    assert steps[0] == steps[1] and len(set(steps[0])) == 3
    for name in CLIENTS:
        assert "is fetched whole" not in scene.log(name)
