"""What install.sh refuses: one line, exit code 2, and nothing half-installed."""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.jetson.wheelhouses import (
    JETSON,
    as_root,
    digest,
    empty_root,
    install,
    refused,
    seal,
    tree,
    wheel,
    wheelhouse,
)

pytestmark = as_root
OTHER = "aarch64" if platform.machine() != "aarch64" else "x86_64"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return empty_root(tmp_path / "root")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheelhouse(tmp_path_factory.mktemp("whole") / "house")


@pytest.fixture
def house(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "house"))


@contextmanager
def untouched(root: Path) -> Iterator[None]:
    """Nothing below a root is another than before; `opt` may have another time of its own."""
    before = {name: told[:3] + told[5:] for name, told in tree(root).items()}
    yield
    assert {name: told[:3] + told[5:] for name, told in tree(root).items()} == before


def the_only(house: Path, pattern: str) -> Path:
    (found,) = house.glob(pattern)
    return found


def torn(house: Path) -> None:
    path = the_only(house, "wheels/tinydep-*")
    path.write_bytes(path.read_bytes()[:-20])


def torn_before_it_was_sealed(house: Path) -> None:
    torn(house)
    seal(house)


def with_a_torn_tarball(house: Path) -> None:
    (house / "cpython.tar.gz").write_bytes((house / "cpython.tar.gz").read_bytes()[:40])
    seal(house)


def with_no_tarball_but_its_name(house: Path) -> None:
    (house / "cpython.tar.gz").write_bytes(b"404 not found")
    seal(house)


def without_a_wheel(house: Path) -> None:
    the_only(house, "wheels/tinydep-*").unlink()


def without_a_wheel_and_its_sum(house: Path) -> None:
    without_a_wheel(house)
    seal(house)


def with_one_more(house: Path) -> None:
    shutil.copy(the_only(house, "wheels/tinydep-*"), house / "wheels" / "more-1-py3-none-any.whl")


def with_two_of_ours(house: Path) -> None:
    ours = the_only(house, "wheels/smidgen-*")
    shutil.copy(ours, house / "wheels" / "smidgen-9.0.0-py3-none-any.whl")
    seal(house)


def with_sums_of_elsewhere(house: Path) -> None:
    (house / "SHA256SUMS").write_text("0" * 64 + "  ../../etc/passwd\n")


def without_a_lock(house: Path) -> None:
    (house / "base.lock").unlink()


def for_another_machine(house: Path) -> None:
    shutil.rmtree(house)
    wheelhouse(house, machine=OTHER)


def for_two_machines(house: Path) -> None:
    shutil.copy(
        the_only(house, "wheels/tinydep*"), house / f"wheels/b-1-py3-none-linux_{OTHER}.whl"
    )
    seal(house)


def without_a_python(house: Path) -> None:
    (house / "cpython.tar.gz").unlink()
    seal(house)


def with_a_tarball_of_something(house: Path) -> None:
    subprocess.run(["tar", "-czf", house / "cpython.tar.gz", "-C", house, "base.lock"], check=True)
    seal(house)


def gone(house: Path) -> None:
    shutil.rmtree(house)


FAULTS: dict[Callable[[Path], None], str] = {
    gone: "is not a folder",
    torn: "tinydep.* is damaged: .*copy it again",
    torn_before_it_was_sealed: "tinydep.* cannot be unpacked",
    with_a_torn_tarball: "cpython.tar.gz cannot be unpacked",
    with_no_tarball_but_its_name: "cpython.tar.gz cannot be unpacked",
    without_a_wheel: "tinydep.* is missing",
    without_a_wheel_and_its_sum: "pip cannot install .*tinydep",
    with_one_more: "more-1.* is not named in SHA256SUMS",
    with_two_of_ours: "2 wheels of smidgen",
    with_sums_of_elsewhere: "no checksum in",
    without_a_lock: "has no base.lock",
    for_another_machine: f"are for {OTHER}, .* is {platform.machine()}; take a wheelhouse",
    for_two_machines: "one wheelhouse is for one kind",
    without_a_python: r"has no CPython 3\.\d+; put cpython.tar.gz into the wheelhouse",
    with_a_tarball_of_something: "lies outside of python/",
}


@pytest.mark.few(5)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_wheelhouse_that_will_not_do_is_refused(
    root: Path, house: Path, fault: Callable[[Path], None]
) -> None:
    fault(house)
    with untouched(root):
        refused(install(house, "--root", root), FAULTS[fault])


def test_a_forged_wheel_is_refused_by_the_locks_hash(root: Path, house: Path) -> None:
    (house / "base.lock").write_text("tinydep==2.5 --hash=sha256:" + "0" * 64 + "\n")
    seal(house)
    with untouched(root):
        refused(install(house, "--root", root), "pip cannot install")


@pytest.mark.slow
def test_a_wheelhouse_of_a_newer_system_is_refused_and_says_its_own(
    root: Path, house: Path
) -> None:
    (old,) = (house / "wheels").glob("tinydep-*.whl")
    old.rename(old.with_name(old.name.replace("manylinux_2_17", "manylinux_2_99")))
    (house / "target").write_text("jetpack9\n")
    seal(house)
    with untouched(root):
        refused(install(house, "--root", root), "which was built for jetpack9: .*tinydep")


@pytest.mark.slow
def test_too_little_disk_is_told_before_anything_is_written(whole: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", str(small)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        root = empty_root(small / "root")
        with untouched(root):
            told = r"has \d MB free, \d+ MB are needed; free some"
            refused(install(whole, "--root", root), told)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.slow
def test_wheels_are_unpacked_beside_the_release_and_not_in_a_small_tmp(
    whole: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house, small = Path(shutil.copytree(whole, tmp_path / "house")), tmp_path / "small"
    the_only(house, "wheels/tinydep-*").unlink()
    body = f"HELP = 'smidgen client'\n{'#' * (1 << 20)}"
    needed = wheel(house / "wheels", "tinydep", "2.5", "py3-none-any", body)
    (house / "base.lock").write_text(f"tinydep==2.5 --hash=sha256:{digest(needed)}\n")
    small.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(line, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        monkeypatch.setenv("TMPDIR", str(small))
        done = install(seal(house), "--root", root)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert (done.returncode, done.stderr) == (0, "")
    (release,) = (root / "opt/smidgen/releases").iterdir()
    assert sorted(path.name for path in release.iterdir()) == ["bin", "python", "site", "system"]


@pytest.mark.slow
def test_a_stick_from_which_nothing_may_be_started_will_do(root: Path, tmp_path: Path) -> None:
    stick = tmp_path / "stick"
    stick.mkdir()
    for line in (["--bind", str(JETSON)], ["-o", "remount,noexec,bind"]):
        if subprocess.run(["mount", *line, str(stick)], capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
    try:
        gone = str(tmp_path / "gone")
        for words in (["install.sh", gone, "--root", str(root)], ["bake.sh", gone, str(root)]):
            line = ["bash", str(stick / words[0]), *words[1:]]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            refused(done, "gone is not a folder")
    finally:
        subprocess.run(["umount", str(stick)], check=True)


def test_a_32_bit_system_is_told_that_there_are_no_wheels_for_it(root: Path, house: Path) -> None:
    for_another_machine(house)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/env").write_bytes(b"\x7fELF\x01" + bytes(13) + (40).to_bytes(2, "little"))
    with untouched(root):
        refused(install(house, "--root", root), "is armv7l; flash a 64-bit system")


def test_who_is_not_root_is_told(whole: Path, root: Path) -> None:
    line = ["setpriv", "--reuid", "65534", "--clear-groups", "--no-new-privs", "sh", "-c"]
    call = f"cat {JETSON}/install.sh > /dev/null && {JETSON}/install.sh {whole} --root /"
    done = subprocess.run([*line, call], capture_output=True, text=True, check=False)
    if "Permission denied" in done.stderr:
        pytest.skip("another user cannot read this checkout")
    refused(done, "needs root's rights; run it with sudo")


def test_a_folder_that_is_no_root_is_refused(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(install(whole, "--root", tmp_path / "empty"), "not a root file system")
    refused(install(whole, "--root", tmp_path / "none"), "is not a folder")


def token(folder: Path, body: str = "T0KEN\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_text(body)
    path.chmod(mode)
    return path


def test_a_token_of_an_enrolled_board_is_refused(whole: Path, root: Path, tmp_path: Path) -> None:
    (root / "var/lib/smidgen/device").mkdir(parents=True)
    (root / "var/lib/smidgen/device/device.json").write_text('{"device_id": "d1"}')
    with untouched(root):
        done = install(whole, "--root", root, "--token-file", token(tmp_path))
        refused(done, "enrolled already, its token was used; leave --token-file out")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("body", "mode", "expected"),
    [("T\n", 0o644, "chmod 600"), ("", 0o600, "one line"), ("two words", 0o600, "one line")],
)
def test_a_token_file_that_will_not_do_is_refused(
    whole: Path, root: Path, tmp_path: Path, body: str, mode: int, expected: str
) -> None:
    with untouched(root):
        given = ("--root", root, "--token-file", token(tmp_path, body, mode))
        refused(install(whole, *given), expected)


@pytest.mark.slow
def test_settings_without_a_coordinator_or_with_a_token_are_refused(
    whole: Path, root: Path, tmp_path: Path
) -> None:
    env = tmp_path / "env"
    for body, expected in (
        ("SMIDGEN_BASE=embedded\n", "does not say SMIDGEN_COORDINATOR"),
        ("SMIDGEN_COORDINATOR=x\nSMIDGEN_TOKEN=T\n", "holds a token; put it into a file"),
        ("SMIDGEN_COORDINATOR=x\nSMIDGEN_OPTIONS=--token T\n", "holds a token; put it into a file"),
        ("SMIDGEN_COORDINATOR=x\nSMIDGEN_OPTIONS='--name a --token=T'\n", "holds a token; put it"),
    ):
        env.write_text(body)
        with untouched(root):
            refused(install(whole, "--root", root, "--env", env), expected)


def test_a_read_only_root_is_told(whole: Path, tmp_path: Path) -> None:
    root = empty_root(tmp_path / "root")
    for line in (["--bind", str(root)], ["-o", "remount,ro,bind"]):
        done = subprocess.run(["mount", *line, str(root)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("nothing can be mounted here")
    try:
        assert not os.access(root, os.W_OK)
        refused(install(whole, "--root", root), "mounted read-only")
    finally:
        subprocess.run(["umount", str(root)], check=True)
