"""Killed devices and coordinators change no byte of a run with coded updates."""

from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")

from tests.end_to_end.conftest import CLIENTS, EPOCHS, Scene, wait_for


def begun(scene: Scene) -> str:
    """Three rounds with updates of four bits, on their way; the coordinator's address."""
    file = scene.folder / "coded.toml"
    file.write_text('adaptive_deadline = false\n[updates]\nup = "int4"\n')
    scene.create(3, len(CLIENTS), EPOCHS, str(file))
    url = scene.serve()
    for name in CLIENTS:
        scene.client(name, url, "--engine", "torch")
    return url


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
        kept = scene.folder / "state" / victim / "residuals" / scene.run_id
        assert (kept / f"{round_index - 1}.st").is_file()
        scene.kill(victim)
        scene.client(victim, url, "--engine", "torch")
    scene.kill("coordinator")
    scene.serve(int(url.rsplit(":", 1)[1]))
    scene.finish()
    assert scene.adapter() == other_scene.adapter()
