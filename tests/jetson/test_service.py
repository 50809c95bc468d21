"""install.sh on a running system: an overlay of this one, whose systemctl is a stand-in's."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jetson.wheelhouses import JETSON, as_root, wheelhouse

pytestmark = as_root
# Writes down what it is asked; a release 1.1.0 "fails", all others are active.
SYSTEMCTL = """#!/bin/sh
echo "$@" >> /systemctl.log
case "$1:$(readlink /opt/smidgen/current)" in
  is-active:*1.1.0*) exit 3 ;;
  is-failed:*1.1.0*) exit 0 ;;
  is-failed:*) exit 1 ;;
esac
"""
MOUNTS = """set -e
mount -t tmpfs tmpfs "$1"
mount --make-private "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --bind /dev "$1/root/dev"
mount --make-private "$1/root/dev"
mount -t proc proc "$1/root/proc"
mkdir -p "$1/root/run/systemd/system" "$1/root/usr/local/bin"
"""


class Board:
    """This system's files, as an install sees those of a board."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def install(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        line = ["chroot", str(self.root), str(JETSON / "install.sh"), *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    def asked(self) -> list[str]:
        """What systemctl was asked since the last time."""
        log = self.root / "systemctl.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.write_text("")
        return lines


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    place = tmp_path / "board"
    place.mkdir()
    line = ["sh", "-c", MOUNTS, "sh", str(place)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        if done.returncode:
            pytest.skip(f"no overlay of this system: {done.stderr.strip()}")
        if (place / "root/opt/smidgen").exists():
            pytest.skip("smidgen is installed on this system")
        stand_in = place / "root/usr/local/bin/systemctl"
        stand_in.write_text(SYSTEMCTL)
        stand_in.chmod(0o755)
        yield Board(place / "root")
    finally:
        subprocess.run(["umount", "-R", "-l", str(place)], check=False)


@pytest.fixture
def env(tmp_path: Path) -> Path:
    path = tmp_path / "env"
    path.write_text("SMIDGEN_COORDINATOR=https://fleet.example.org:8700\n")
    return path


def test_a_first_install_starts_the_service_and_a_second_run_leaves_it_alone(
    board: Board, tmp_path: Path, env: Path
) -> None:
    house = wheelhouse(tmp_path / "house")
    done = board.install(house, "--env", env)
    assert done.returncode == 0 and "service started" in done.stdout, done
    assert "restart --no-block smidgen-client.service" in board.asked()
    done = board.install(house, "--env", env)
    assert (done.returncode, board.asked()) == (0, []), done


@pytest.mark.slow
def test_a_board_that_knows_no_coordinator_is_told_what_to_write(
    board: Board, tmp_path: Path
) -> None:
    done = board.install(wheelhouse(tmp_path / "house"))
    assert done.returncode == 0 and "write SMIDGEN_COORDINATOR into /etc/smidgen.env" in done.stdout
    assert "its token into /var/lib/smidgen/token, then `systemctl start" in done.stdout
    assert not [line for line in board.asked() if line.startswith("restart")]


@pytest.mark.slow
def test_a_system_without_systemd_is_told_that_nothing_starts_the_client(
    board: Board, tmp_path: Path, env: Path
) -> None:
    (board.root / "run/systemd/system").rmdir()
    done = board.install(wheelhouse(tmp_path / "house"), "--env", env)
    assert done.returncode == 0 and "systemd does not run here" in done.stdout
    assert board.asked() == []


@pytest.mark.slow
def test_an_upgrade_whose_service_ends_at_once_is_taken_back(
    board: Board, tmp_path: Path, env: Path
) -> None:
    assert board.install(wheelhouse(tmp_path / "house"), "--env", env).returncode == 0
    board.asked()
    done = board.install(wheelhouse(tmp_path / "next", "1.1.0"))
    assert done.returncode == 2 and "is current again, not 1.1.0" in done.stderr, done
    assert done.stderr.count("\n") == 1
    home = board.root / "opt/smidgen"
    (left,) = (home / "releases").iterdir()
    assert left.name.startswith("1.0.0-") and (home / "current").readlink().name == left.name
    assert not (home / "former").is_symlink()
    assert board.asked().count("restart --no-block smidgen-client.service") == 2


@pytest.mark.slow
def test_uninstalling_ends_the_service_first(board: Board, tmp_path: Path, env: Path) -> None:
    assert board.install(wheelhouse(tmp_path / "house"), "--env", env).returncode == 0
    board.asked()
    assert board.install("--uninstall").returncode == 0
    assert board.asked() == ["disable --now smidgen-client.service", "daemon-reload"]
