"""A wheelhouse is built from its lock whole, or not at all; the locks are what they claim to be."""

import os
import re
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.jetson.wheelhouses import JETSON, as_root, digest, empty_root, install, wheel

pytest.importorskip("packaging")
pytest.importorskip("elftools")

import elftools
import packaging
from packaging.requirements import Requirement

LOCKS = sorted((JETSON / "locks").glob("*.lock"))
ENTRY = re.compile(r"([a-z0-9][a-z0-9.-]*)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\n")
DEVICE = {"httpx", "msgspec", "numpy", "onnxruntime", "psutil", "rich", "safetensors"}
DEVICE |= {"huggingface-hub", "tokenizers", "typer"}
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


def tool(
    name: str, *words: str | Path, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-B", str(JETSON / name), *map(str, words)]
    here = {**os.environ, **(env or {})}
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=280, env=here)


def locked(path: Path) -> dict[str, str]:
    return dict(ENTRY.findall(path.read_text()))


def refuses(done: "subprocess.CompletedProcess[str]", expected: str, folder: Path) -> None:
    """One line, exit code 2, and nothing is left in a folder but what was there."""
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1, done
    assert re.search(expected, done.stderr), done.stderr
    assert not [path for path in folder.iterdir() if path.is_dir() and path.name != "links"]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_is_pinned_and_hashed_and_names_no_address(path: Path) -> None:
    text = path.read_text()
    head, rest = text.split("\n", 1)
    assert head.startswith("# ") and "://" not in text
    assert "".join(found[0] for found in ENTRY.finditer(rest)) == rest
    assert "hf-xet" not in text  # has no wheel for glibc 2.27


@pytest.mark.parametrize("path", [p for p in LOCKS if ".base." in p.name], ids=lambda p: p.name)
def test_a_base_lock_holds_what_a_device_installs_and_no_torch(path: Path) -> None:
    names = set(locked(path))
    assert names >= DEVICE and "torch" not in names


@pytest.mark.parametrize("path", [p for p in LOCKS if ".base." in p.name], ids=lambda p: p.name)
def test_a_base_lock_holds_what_pyproject_asks_for_today(path: Path) -> None:
    """If not: scripts/jetson/pin_locks."""
    project = (JETSON.parents[1] / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    (python,) = re.findall(r"CPython (\S+),", path.read_text().splitlines()[0])
    held = locked(path)
    for line in re.findall(r'^ +"(.*?)",', listed, re.MULTILINE):
        asked = Requirement(line)
        if asked.marker is None or asked.marker.evaluate({"python_version": python}):
            assert held.get(asked.name, "none") in asked.specifier, asked


def test_the_locks_of_jetpack_4_are_for_its_c_library() -> None:
    version = locked(JETSON / "locks" / "jetpack4.base.lock")["onnxruntime"]
    assert tuple(map(int, version.split("."))) <= (1, 28, 0)
    for path in LOCKS:
        if ".torch." in path.name:
            assert locked(path)["torch"] == "2.5.1"
            base = path.with_name(path.name.replace(".torch.", ".base."))
            assert not set(locked(path)) & set(locked(base))


@pytest.mark.slow
def test_a_tarball_of_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpython.tar.gz").write_bytes(b"not it")
    words: list[str | Path] = [
        "jetpack4",
        tmp_path / "house",
        "--cpython",
        tmp_path / "cpython.tar.gz",
    ]
    done = tool("build_wheelhouse", *words, "--sha256", "0" * 64)
    refuses(done, "SHA-256 0{64} expected, [0-9a-f]{64} came; fetch it again", tmp_path)
    refuses(tool("build_wheelhouse", *words), "needs --sha256 HEX", tmp_path)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["jetpack3", "house"], "'jetpack3' is not a target; there are jetpack4, jetpack5"),
        (["amd64", "house", "--torch"], "no torch lock for amd64; the onnx engine needs none"),
        (["amd64", "file"], "file exists; name a new folder"),
        (["amd64", "house", "--cpython", "absent"], "--cpython absent is not a file"),
        (["amd64", "house", "--smidgen", "file"], "file is not a wheel of smidgen's"),
    ],
)
def test_a_wrong_word_is_one_line(tmp_path: Path, words: list[str], expected: str) -> None:
    (tmp_path / "file").write_text("")
    at = [str(tmp_path / word) if word in ("house", "file") else word for word in words]
    refuses(tool("build_wheelhouse", *at), expected, tmp_path)


def offline(folder: Path) -> "subprocess.CompletedProcess[str]":
    """A build of which only our wheel, and what lies in `links`, can be had."""
    links = folder / "links"
    links.mkdir(exist_ok=True)
    own = wheel(links, "smidgen", "1.0.0", "py3-none-any", "")
    words: list[str | Path] = ["amd64", folder / "house", "--smidgen", own]
    return tool("build_wheelhouse", *words, env={**OFFLINE, "PIP_FIND_LINKS": str(links)})


@pytest.mark.slow
def test_a_wheel_that_no_index_has_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    expected = r"amd64.base.lock cannot be fetched: .*annotated-doc.*does a package index answer\?"
    refuses(offline(tmp_path), expected, tmp_path)


def test_a_wheel_of_another_hash_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    name, version = next(iter(locked(JETSON / "locks" / "amd64.base.lock").items()))
    (tmp_path / "links").mkdir()
    wheel(tmp_path / "links", name.replace("-", "_"), version, "py3-none-any", "")
    expected = f"{name}=={version} from .* has not the SHA-256 of the lock"
    refuses(offline(tmp_path), expected, tmp_path)


def index_or_skip() -> None:
    line = [sys.executable, "-m", "pip", "index", "versions", "pip"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip("no package index answers")


def test_a_python_without_pip_is_told_which_has_one(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    (tmp_path / "links").mkdir()
    for package in (packaging, elftools):
        (tmp_path / "links" / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    line = [str(tmp_path / "bare/bin/python"), "-B", str(JETSON / "build_wheelhouse"), "arm64"]
    here = {**os.environ, "PYTHONPATH": str(tmp_path / "links")}
    done = subprocess.run([*line, str(tmp_path / "h")], capture_output=True, text=True, env=here)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert "No module named pip; take the Python of a `python3 -m venv`" in done.stderr


@pytest.mark.slow
@as_root
def test_a_wheelhouse_from_an_index_is_good_and_installs(tmp_path: Path) -> None:
    index_or_skip()
    house = tmp_path / "house"
    built = tool("build_wheelhouse", "amd64", house)
    assert built.returncode == 0, built.stderr
    checked = tool("check_wheelhouse", house)
    assert (checked.returncode, checked.stderr) == (0, "")
    root = empty_root(tmp_path / "root")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/python3.11").symlink_to("/usr/bin/python3.11")
    done = install(house, "--root", root)
    assert done.returncode == 0, done.stderr
    assert (root / "opt/smidgen/current/site/onnxruntime").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["jetpack4", "jetpack5", "jetpack6", "arm64"])
def test_a_boards_base_wheels_are_good_for_its_c_library(tmp_path: Path, target: str) -> None:
    index_or_skip()
    built = tool("build_wheelhouse", target, tmp_path / "house")
    assert built.returncode == 0, built.stderr
    checked = tool("check_wheelhouse", tmp_path / "house")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"is good for {target}" in checked.stdout


@pytest.mark.slow
def test_a_cpython_that_is_too_new_for_the_board_is_refused(tmp_path: Path) -> None:
    index_or_skip()
    tarball = tmp_path / "cpython.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(Path(sys.executable).resolve(), "python/bin/python3.11")
    words: list[str | Path] = [
        "jetpack4",
        tmp_path / "house",
        "--cpython",
        tarball,
        "--sha256",
        digest(tarball),
    ]
    done = tool("build_wheelhouse", *words)
    refuses(done, "cpython.tar.gz: python/bin/python3.11 (is for|needs)", tmp_path)
