"""bake.sh: the same into the root file system of an image, of another machine than this."""

import platform
import struct
import sys
from pathlib import Path

import pytest

from tests.jetson.wheelhouses import (
    as_root,
    cpython,
    empty_root,
    install,
    refused,
    seal,
    tree,
    wheelhouse,
)

pytestmark = as_root
OTHER, NUMBER = ("aarch64", 183) if platform.machine() != "aarch64" else ("x86_64", 62)
PYTHON = "usr/bin/python3.11"


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    """A root file system whose programs are another machine's."""
    root = empty_root(tmp_path / "Linux_for_Tegra" / "rootfs")
    (root / "usr/bin").mkdir(parents=True)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, NUMBER)
    for name in ("usr/bin/env", PYTHON):
        (root / name).write_bytes(head)
        (root / name).chmod(0o755)
    return root


@pytest.fixture
def env(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.env"
    path.write_text("SMIDGEN_COORDINATOR=https://fleet.example.org:8700\nSMIDGEN_CA=sha256:00\n")
    return path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheelhouse(tmp_path_factory.mktemp("other") / "house", machine=OTHER)


def bake(house: Path, *words: str | Path) -> object:
    done = install(house, *words, script="bake.sh")
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.slow
def test_an_install_whose_python_a_newer_system_took_away_is_told(
    rootfs: Path, env: Path, tmp_path: Path
) -> None:
    bare = wheelhouse(tmp_path / "bare", machine=OTHER, bring=False)
    ours = rootfs / f"usr/bin/python3.{sys.version_info.minor}"
    (rootfs / PYTHON).rename(ours)
    bake(bare, rootfs, "--env", env)
    bake(bare, rootfs, "--env", env)
    ours.rename(rootfs / "usr/bin/python3.99")
    refused(install(bare, rootfs, "--env", env, script="bake.sh"), "has no CPython 3")


@pytest.mark.slow
def test_an_image_of_another_machine_gets_wheels_of_that_machine(
    house: Path, rootfs: Path, env: Path
) -> None:
    bake(house, rootfs, "--env", env)
    site = rootfs / "opt/smidgen/current/site"
    assert (site / "tinydep").is_dir() and (site / "smidgen").is_dir()
    (meta,) = site.glob("tinydep-*.dist-info/WHEEL")
    assert OTHER in meta.read_text()
    assert (rootfs / "etc/smidgen.env").read_bytes() == env.read_bytes()
    before = tree(rootfs)
    bake(house, rootfs, "--env", env)
    assert tree(rootfs) == before


@pytest.mark.slow
def test_an_image_holds_nothing_of_where_it_was_made_and_no_secret(
    house: Path, rootfs: Path, env: Path, tmp_path: Path
) -> None:
    bake(house, rootfs, "--env", env)
    files = [path for path in rootfs.rglob("*") if path.is_file() and not path.is_symlink()]
    links = [path for path in rootfs.rglob("*") if path.is_symlink()]
    assert [path for path in files if str(tmp_path).encode() in path.read_bytes()] == []
    assert [path for path in links if str(tmp_path) in str(path.readlink())] == []
    state = rootfs / "var/lib/smidgen"
    assert [path.name for path in state.rglob("*")] == ["data"]


def test_a_token_or_an_identity_in_an_image_is_refused(
    house: Path, rootfs: Path, env: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("T0KEN\n")
    token.chmod(0o600)
    given = (house, rootfs, "--env", env)
    refused(install(*given, "--token-file", token, script="bake.sh"), "an image holds no token")
    device = rootfs / "var/lib/smidgen/device"
    device.mkdir(parents=True)
    (device / "device.json").write_text("{}")
    refused(install(*given, script="bake.sh"), "each board draws its own")
    (device / "device.json").unlink()
    (rootfs / "etc/smidgen.env").write_text("SMIDGEN_COORDINATOR=x\nSMIDGEN_TOKEN=T0KEN\n")
    refused(install(house, rootfs, script="bake.sh"), "holds a token; take it out")
    assert not (rootfs / "opt/smidgen").exists()


@pytest.mark.slow
def test_wheels_of_this_machine_do_not_get_into_an_image_of_another(
    rootfs: Path, env: Path, tmp_path: Path
) -> None:
    mine = wheelhouse(tmp_path / "mine")
    told = f"are for {platform.machine()}, .* is {OTHER}"
    refused(install(mine, rootfs, "--env", env, script="bake.sh"), told)


@pytest.mark.slow
def test_an_image_without_the_wheels_python_is_refused_or_gets_one(
    house: Path, rootfs: Path, env: Path, tmp_path: Path
) -> None:
    (rootfs / PYTHON).unlink()
    bare = wheelhouse(tmp_path / "bare", machine=OTHER, bring=False)
    refused(install(bare, rootfs, "--env", env, script="bake.sh"), "has no CPython")
    cpython(bare)
    bake(seal(bare), rootfs, "--env", env)
    assert (rootfs / "opt/smidgen/current/python/bin/python3").is_file()


def test_bake_without_its_words_says_how_it_is_called() -> None:
    done = install(script="bake.sh")
    assert done.returncode != 0 and "bake.sh WHEELHOUSE ROOTFS" in done.stderr
