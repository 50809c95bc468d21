"""install.sh into a made-up root: twice, an upgrade, one that fails, one that is killed, away."""

import os
import pty
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jetson.wheelhouses import (
    JETSON,
    as_root,
    cpython,
    digest,
    empty_root,
    install,
    refused,
    seal,
    smidgen_in,
    tree,
    wheelhouse,
)

pytestmark = as_root
SETTINGS = "SMIDGEN_COORDINATOR=https://fleet.example.org:8700\nSMIDGEN_CA=sha256:00\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheelhouse(tmp_path_factory.mktemp("house") / "house")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, house: Path) -> Path:
    """A root with an install; tests change copies of it."""
    root = empty_root(tmp_path_factory.mktemp("first") / "root")
    installed(root, house)
    return root


@pytest.fixture
def root(tmp_path: Path, first: Path) -> Path:
    subprocess.run(["cp", "-a", str(first), str(tmp_path / "root")], check=True)
    return tmp_path / "root"


def installed(root: Path, house: Path, *words: str | Path) -> str:
    done = install(house, "--root", root, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.slow
def test_a_second_run_changes_nothing(house: Path, tmp_path: Path) -> None:
    root, token = empty_root(tmp_path / "root"), tmp_path / "token"
    token.write_text("T0KEN\n")
    token.chmod(0o600)
    (tmp_path / "env").write_text(SETTINGS)
    given = ("--env", tmp_path / "env", "--token-file", token)
    assert "1.0.0" in installed(root, house, *given)
    before = tree(root)
    assert "already" in installed(root, house, *given)
    assert tree(root) == before
    assert smidgen_in(root, "--version") == "1.0.0"


@pytest.mark.slow
def test_who_waits_at_a_terminal_is_told_what_for(house: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    line = [str(JETSON / "install.sh"), str(house), "--root", str(empty_root(tmp_path / "root"))]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=theirs, text=True, check=False)
    os.close(theirs)
    told = os.read(ours, 4096).decode().splitlines()
    os.close(ours)
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    assert told[0] == f"checking every file of {house} ..." and "installing 2 wheels ..." in told


def test_what_is_installed_has_the_owners_and_modes_that_the_unit_needs(
    root: Path, house: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("T0KEN\n")
    token.chmod(0o600)
    installed(root, house, "--token-file", token)
    (line,) = [one for one in (root / "etc/passwd").read_text().splitlines() if "smidgen" in one]
    uid = int(line.split(":")[2])
    state = root / "var/lib/smidgen"
    places = {state: 0o750, state / "data": 0o770, state / "token": 0o600}
    for path, mode in places.items():
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (uid, mode), path
    assert (state / "token").read_text() == "T0KEN\n"
    assert stat.S_IMODE((root / "etc/smidgen.env").stat().st_mode) == 0o600
    unit = "etc/systemd/system/smidgen-client.service"
    assert (root / unit).read_bytes() == (JETSON / "smidgen-client.service").read_bytes()
    wanted = root / "etc/systemd/system/multi-user.target.wants/smidgen-client.service"
    assert str(wanted.readlink()) == f"/{unit}"
    assert (root / "etc/udev/rules.d/70-smidgen-power.rules").is_file()
    assert str((root / "usr/local/bin/smidgen").readlink()) == "/opt/smidgen/current/bin/smidgen"
    others = [p for p in (root / "opt").rglob("*") if not p.is_symlink() and p.name != "lock"]
    assert [p for p in others if not p.stat().st_mode & 0o004] == []


@pytest.mark.slow
def test_an_upgrade_keeps_settings_and_state_and_can_be_taken_back(
    root: Path, tmp_path: Path
) -> None:
    (root / "etc/smidgen.env").write_text(SETTINGS)
    (root / "var/lib/smidgen/device").mkdir()
    (root / "var/lib/smidgen/device/device.json").write_text('{"device_id":"d1"}')
    assert "after 1.0.0-" in installed(root, wheelhouse(tmp_path / "next", "1.1.0"))
    assert smidgen_in(root, "--version") == "1.1.0"
    assert (root / "etc/smidgen.env").read_text() == SETTINGS
    assert (root / "var/lib/smidgen/device/device.json").exists()
    assert install("--rollback", "--root", root).returncode == 0
    assert smidgen_in(root, "--version") == "1.0.0"
    assert install("--rollback", "--root", root).returncode == 0
    assert smidgen_in(root, "--version") == "1.1.0"


@pytest.mark.slow
def test_two_releases_are_kept_and_no_more(root: Path, tmp_path: Path) -> None:
    for version in ("1.1.0", "1.2.0"):
        installed(root, wheelhouse(tmp_path / version, version))
    names = sorted(path.name[:5] for path in (root / "opt/smidgen/releases").iterdir())
    assert names == ["1.1.0", "1.2.0"]


@pytest.mark.slow
def test_an_upgrade_that_does_not_start_leaves_the_former_release(
    root: Path, tmp_path: Path
) -> None:
    before = tree(root)
    broken = wheelhouse(tmp_path / "broken", "1.1.0", code=1)
    refused(install(broken, "--root", root), "does not start")
    after = tree(root)
    releases = "opt/smidgen/releases"  # its own time changes, as something was made there
    assert after.pop(releases)[0] == before.pop(releases)[0]
    assert after == before and smidgen_in(root, "--version") == "1.0.0"


def test_there_is_nothing_to_roll_back_to_after_one_install(root: Path) -> None:
    refused(install("--rollback", "--root", root), "no former release")


@pytest.mark.slow
@pytest.mark.fault
def test_a_killed_upgrade_leaves_the_former_release_and_the_next_run_ends_it(
    root: Path, tmp_path: Path
) -> None:
    newer = wheelhouse(tmp_path / "next", "1.1.0")
    line = [str(JETSON / "install.sh"), str(newer), "--root", str(root)]
    running = subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL)
    releases, end = root / "opt/smidgen/releases", time.monotonic() + 30
    while not list(releases.glob(".*.part/site")) and running.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert smidgen_in(root, "--version") == "1.0.0"
    installed(root, newer)
    assert smidgen_in(root, "--version") == "1.1.0" and not list(releases.glob(".*"))


@pytest.mark.slow
@pytest.mark.fault
def test_an_install_killed_at_any_moment_leaves_one_release_whole(
    root: Path, house: Path, tmp_path: Path, seed: int
) -> None:
    line = [str(JETSON / "install.sh"), "", "--root", str(root)]
    for number in range(1, 16):
        version = f"1.{number}.0"
        line[1] = str(wheelhouse(tmp_path / version, version))
        running = subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(((seed * 7919 + number * 104729) % 1000) / 1000 * 1.5)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        assert smidgen_in(root, "--version") in (version, "1.0.0")
        if smidgen_in(root, "--version") == version:
            installed(root, house)
        assert smidgen_in(root, "--version") == "1.0.0"


@pytest.mark.slow
def test_uninstalling_leaves_settings_and_state_alone(root: Path) -> None:
    assert install("--uninstall", "--root", root).returncode == 0
    left = {path for path, told in tree(root).items() if not stat.S_ISDIR(int(str(told[0])))}
    users = {f"etc/{name}{end}" for name in ("passwd", "group") for end in ("", "-")}
    assert left - users == {"etc/smidgen.env"}
    assert (root / "var/lib/smidgen/data").is_dir()
    assert install("--uninstall", "--purge", "--root", root).returncode == 0
    assert not (root / "etc/smidgen.env").exists() and not (root / "var/lib/smidgen").exists()


@pytest.mark.slow
def test_two_installs_at_once_do_not_mix(root: Path, house: Path) -> None:
    line = ["flock", "-x", str(root / "opt/smidgen/lock"), str(JETSON / "install.sh"), str(house)]
    done = subprocess.run([*line, "--root", str(root)], capture_output=True, text=True)
    refused(done, "another install runs")


@pytest.mark.slow
def test_a_rebuilt_wheelhouse_of_the_same_version_is_another_release(
    root: Path, tmp_path: Path
) -> None:
    again = wheelhouse(tmp_path / "again")
    (again / "base.lock").write_text("# resolved again\n" + (again / "base.lock").read_text())
    assert "after 1.0.0-" in installed(root, seal(again))


@pytest.mark.slow
def test_our_own_wheels_install_and_start(tmp_path: Path) -> None:
    """Of an index, and resolved for this machine: what a device needs, and nothing else."""
    house, root = tmp_path / "house", empty_root(tmp_path / "root")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    pins = str(JETSON.parents[1] / "constraints" / "constraints.txt")
    line = [*pip, "wheel", "-q", "-c", pins, "-w", str(house / "wheels"), str(JETSON.parents[1])]
    built = subprocess.run(line, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"no index answers: {built.stderr.strip().splitlines()[-1]}")
    lock = ""
    for path in sorted((house / "wheels").glob("*.whl")):
        name, version = path.name.split("-")[:2]
        if name != "smidgen":
            lock += f"{name}=={version} --hash=sha256:{digest(path)}\n"
    (house / "base.lock").write_text(lock)
    cpython(house)
    installed(root, seal(house))
    before = tree(root)
    installed(root, house)
    assert tree(root) == before
    assert re.fullmatch(r"[\d.]+", smidgen_in(root, "--version"))
    assert "run" in smidgen_in(root, "client", "--help")
    texts = root / "var/lib/smidgen/data/labelled.csv"
    texts.write_text("text,label\n" + "the cup final,sports\nthe bank lost money,business\n" * 4)
    given = (
        "--data",
        str(texts.parent),
        "--out",
        str(texts.parent / "adapter"),
        "--task",
        "agnews",
    )
    smidgen_in(root, "client", "train", *given, "--rounds", "1")
    assert list(texts.parent.glob("adapter/*.safetensors"))
