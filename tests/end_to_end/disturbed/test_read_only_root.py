"""A client on a system of which nothing but its state folder can be written, as boards have it."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.breadth import first_fast
from tests.end_to_end.conftest import Scene, wait_for
from tests.end_to_end.disturbed.test_stopped_clients import end

# Own mounts, all of them read-only but $1; then the rest of the line, in this process.
READ_ONLY = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
sed 's/^[^ ]* [^ ]* [^ ]* [^ ]* \\([^ ]*\\) .*/\\1/' /proc/self/mountinfo | while read -r place; do
    case "$place" in
        "$1" | /proc | /proc/* | /sys | /sys/*) ;;
        *) mount -o remount,bind,ro "$place" 2> /dev/null || true ;;
    esac
done
for place in "${1%/*}" /tmp /var/tmp /dev/shm /root /etc; do
    if touch "$place/.smidgen-probe" 2> /dev/null; then
        rm -f "$place/.smidgen-probe"
        echo "$place can be written" >&2
        exit 75
    fi
done
touch "$1/.probe" && rm "$1/.probe"
shift
exec "$@"
"""
ALONE = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh"]


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    """The one folder that the clients may write to; skips where a system cannot be shut so."""
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    try:
        tried = subprocess.run(
            [*ALONE, str(folder), "true"], capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as error:
        pytest.skip(f"nobody can mount anew here: {error}")
    if tried.returncode:
        pytest.skip(f"nobody can make all else read-only here: {tried.stderr.strip()}")
    return folder


def start(scene: Scene, writable: Path, url: str, state: Path, *more: str) -> None:
    where = ("--coordinator", url, "--token", scene.token, "--data", str(scene.data("a")))
    what = ("--base", str(scene.base.folder), "--name", "a", "--state", str(state))
    line = [sys.executable, "-m", "smidgen", "client", "run", *where, *what, "--engine", "onnx"]
    env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": "/nonexistent"}
    scene.fleet.own.start("a", [*ALONE, str(writable), *line, *more], env)


@pytest.mark.slow
@pytest.mark.fault
def test_with_all_else_read_only_a_client_serves_a_run_to_its_end(
    scene: Scene, writable: Path
) -> None:
    scene.create(1, 1, 2, "--labelling", "--confidence", "0.5")
    (scene.data("a") / "unlabelled.csv").write_text("text\nrain\nthe gate\n")
    state = writable / "state"
    start(scene, writable, scene.serve(), state, "--until", "finished")
    scene.finish()
    assert (state / "adapter" / "adapter_model.safetensors").is_file()
    assert "Read-only" not in scene.log("a") and "Traceback" not in scene.log("a")
    assert [path.name for path in writable.iterdir()] == ["state"]


@pytest.mark.slow
def test_with_all_else_read_only_it_ends_when_told_and_goes_on_in_its_training(
    scene: Scene, writable: Path
) -> None:
    scene.create(1, 1, 4000, "--deadline", "3600", scene.fixed_deadlines())
    url, state, long = scene.serve(), writable / "state", ("--limits", "epochs=10000")
    start(scene, writable, url, state, *long)
    wait_for(lambda: "plan: " in scene.log("a"), scene.fleet.check)
    time.sleep(0.5)  # some steps
    end(scene, "a")
    assert list((state / "steps").glob("*.st"))
    start(scene, writable, url, state, *long)
    wait_for(lambda: "going on with epoch" in scene.log("a"), scene.fleet.check)
    end(scene, "a")
    assert "Read-only" not in scene.log("a")


@pytest.mark.slow
@pytest.mark.parametrize("place", first_fast(["state", "packs", "out"]))
def test_a_folder_that_lies_elsewhere_is_refused_in_one_line(
    scene: Scene, writable: Path, place: str
) -> None:
    scene.create(1, 1, 2)
    url, elsewhere = scene.serve(), scene.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    state = elsewhere if place == "state" else writable / "state"
    more = () if place == "state" else (f"--{place}", str(elsewhere / "own"))
    start(scene, writable, url, state, "--until", "finished", *more)
    process = scene.fleet.processes["a"]
    assert process.wait(60) == 2, scene.log("a")
    (line,) = scene.log("a").strip().splitlines()
    why = "cannot be written to" if place == "out" else "Read-only file system"
    assert str(elsewhere) in line and why in line
    del scene.fleet.processes["a"]
