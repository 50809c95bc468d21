"""A wheelhouse is judged against the board it is for: one line per fault, exit code 1."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jetson.elves import elf
from tests.jetson.wheelhouses import JETSON, digest, seal, wheel

pytest.importorskip("packaging")
pytest.importorskip("elftools")
TAGS = "cp311-cp311-manylinux_2_27_aarch64"


def check(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-B", str(JETSON / "check_wheelhouse"), *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def lock(house: Path) -> Path:
    """Lock all wheels but ours as they are, and seal it."""
    lines = []
    for path in sorted((house / "wheels").glob("*.whl")):
        name, version = path.name.split("-")[:2]
        if name != "smidgen":
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{digest(path)}\n")
    (house / "base.lock").write_text("# of a test\n" + "".join(lines))
    return seal(house)


def member(path: Path, name: str, body: bytes) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, body)


def house(
    folder: Path, target: str = "jetpack4", version: str = "2.5", needs: str = "2.27"
) -> Path:
    """A good wheelhouse of two tiny wheels, one of them with a shared object."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    (folder / "target").write_text(f"{target}\n")
    wheel(wheels, "smidgen", "1.0.0", "py3-none-any", "")
    native = wheel(wheels, "tinydep", version, TAGS, "")
    body = elf("aarch64", {"libc.so.6": ["GLIBC_2.17", f"GLIBC_{needs}"]})
    member(native, "tinydep/fast.so", body)
    return lock(folder)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return house(tmp_path / "house")


def faults(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr.splitlines()


def one_fault(done: "subprocess.CompletedProcess[str]", expected: str) -> None:
    (line,) = faults(done)
    assert re.search(expected, line), line


def test_a_good_wheelhouse_is_said_to_be_good(good: Path) -> None:
    done = check(good)
    assert (done.returncode, done.stderr) == (0, "")
    assert "good for jetpack4: 2 wheels; 1 shared objects need GLIBC 2.27" in done.stdout


def test_a_shared_object_that_needs_a_newer_c_library_is_named(tmp_path: Path) -> None:
    done = check(house(tmp_path / "house", needs="2.28"))
    one_fault(done, "tinydep/fast.so needs GLIBC_2.28, jetpack4 has 2.27; pin an older")


@pytest.mark.few(1)
@pytest.mark.parametrize("needs", ["GLIBCXX_3.4.26", "CXXABI_1.3.12", "GLIBC_ABI_DT_RELR"])
def test_newer_libraries_of_c_plus_plus_are_faults_too(good: Path, needs: str) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    body = elf("aarch64", {"libc.so.6": ["GLIBC_2.17"], "libstdc++.so.6": [needs]})
    member(path, "tinydep/more.so", body)
    one_fault(check(lock(good)), f"tinydep/more.so needs {needs}, jetpack4 has")


def test_a_library_that_the_wheel_brings_may_be_as_new_as_it_likes(good: Path) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    member(path, "tinydep.libs/libfast-1a2b.so", elf("aarch64", {"libc.so.6": ["GLIBC_2.17"]}))
    body = elf("aarch64", {"libfast-1a2b.so": ["GLIBCXX_3.4.99"]})
    member(path, "tinydep/more.so", body)
    assert check(lock(good)).returncode == 0


def test_another_architecture_is_a_fault_whatever_the_tag_says(good: Path) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    member(path, "tinydep/more.so", elf("x86_64", {"libc.so.6": ["GLIBC_2.17"]}))
    one_fault(check(lock(good)), "more.so is for x86_64, aarch64 is expected")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "tags",
    [
        "cp311-cp311-manylinux_2_28_aarch64",
        "cp311-cp311-manylinux_2_17_x86_64",
        "cp310-cp310-manylinux_2_17_aarch64",
        "cp312-abi3-manylinux_2_17_aarch64",
        "cp311-cp311-musllinux_1_2_aarch64",
        "cp311-cp311-linux_aarch64",
    ],
)
def test_tags_that_do_not_fit_the_board_are_a_fault(good: Path, tags: str) -> None:
    wheel(good / "wheels", "other", "1", tags, "")
    one_fault(check(lock(good)), f"other-1-{tags}.whl: its tags do not fit jetpack4")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "version", "target", "is_harmed"),
    [
        ("torch", "2.10.0", "jetpack4", True),
        ("torch", "2.10.0", "jetpack5", False),
        ("onnxruntime", "1.21.0", "jetpack4", True),
        ("onnxruntime", "1.21.0", "jetpack6", False),
        ("torch", "2.11.0", "jetpack6", True),
        ("torch", "2.5.1", "jetpack4", False),
    ],
)
def test_wheels_that_do_harm_are_refused_by_name(
    good: Path, name: str, version: str, target: str, is_harmed: bool
) -> None:
    wheel(good / "wheels", name, version, "py3-none-any", "")
    (good / "wheels" / f"tinydep-2.5-{TAGS}.whl").unlink()
    done = check(lock(good), "--target", target)
    assert done.returncode == is_harmed
    assert (f"{name}-{version}-py3-none-any.whl" in done.stderr) == is_harmed


def test_a_wheel_that_requires_what_is_not_here_is_named(good: Path) -> None:
    other = wheel(good / "wheels", "other", "1", "py3-none-any", "")
    meta = "Metadata-Version: 2.1\nName: other\nVersion: 1\nRequires-Dist: absent>=2\n"
    meta += "Requires-Dist: tinydep<2\nRequires-Dist: hf-xet\nRequires-Dist: x; extra == 'y'\n"
    meta += "Requires-Dist: z; platform_machine == 'x86_64'\n"
    other.unlink()
    member(other, "other-1.dist-info/METADATA", meta.encode())
    absent, old = faults(check(lock(good)))
    assert "requires absent>=2, which is not here" in absent
    assert "requires tinydep<2, 2.5 is here" in old


def test_a_corrupt_wheel_is_a_line_of_its_own(good: Path) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    path.write_bytes(path.read_bytes()[:-60])
    lines = faults(check(lock(good)))
    assert [line for line in lines if "is damaged: not a whole wheel" in line] == lines


def test_a_wheel_with_other_bytes_is_not_the_locks(good: Path) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    member(path, "tinydep/new.py", b"")
    damaged, other, without = faults(check(good))
    assert "is damaged: its SHA-256 is not the one in SHA256SUMS" in damaged
    assert "its SHA-256 is in no lock" in other
    assert "tinydep 2.5 is in a lock, and no wheel here has its SHA-256" in without


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", ["SHA256SUMS", "base.lock", "wheels/smidgen-1.0.0-py3-none-any.whl"]
)
def test_what_is_missing_is_named(good: Path, name: str) -> None:
    (good / name).unlink()
    assert any(name in line and "is missing" in line for line in faults(check(good)))


def test_what_no_checksum_covers_is_named(good: Path) -> None:
    (good / "note").write_text("")
    one_fault(check(good), "note is not named in SHA256SUMS")


def tarball(at: Path, name: str, body: bytes) -> Path:
    file = at.parent / "program"
    file.write_bytes(body)
    with tarfile.open(at / "cpython.tar.gz", "w:gz") as archive:
        archive.add(file, name)
    return seal(at)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("machine", "version", "needs", "expected"),
    [
        ("aarch64", "3.11", "GLIBC_2.17", ""),
        ("aarch64", "3.11", "GLIBC_2.34", "python3.11 needs GLIBC_2.34"),
        ("x86_64", "3.11", "GLIBC_2.17", "is for x86_64, aarch64 is expected"),
        ("aarch64", "3.12", "GLIBC_2.17", "has no python/bin/python3.11"),
    ],
)
def test_a_cpython_is_held_against_the_board_too(
    good: Path, machine: str, version: str, needs: str, expected: str
) -> None:
    body = elf(machine, {"libc.so.6": [needs]})
    done = check(tarball(good, f"python/bin/python{version}", body))
    if expected:
        one_fault(done, expected)
    else:
        assert done.returncode == 0, done.stderr


def test_a_shared_object_cut_anywhere_is_a_fault_or_whole(good: Path) -> None:
    (path,) = (good / "wheels").glob("tinydep*")
    body = elf("aarch64", {"libc.so.6": ["GLIBC_2.17"]})
    for length in range(4, len(body), 23):
        member(path, f"tinydep/cut{length}.so", body[:length])
    lines = faults(check(lock(good)))
    assert lines
    for line in lines:
        assert re.search(r"cut\d+\.so is (an|not an) ELF file", line), line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["absent"], "absent is not a folder"),
        (["house", "--target", "jetpack3"], "'jetpack3' is not a target; there are jetpack4"),
        (["bare"], "has no file `target`; name one of jetpack4"),
    ],
)
def test_a_wrong_word_is_one_line(tmp_path: Path, words: list[str], expected: str) -> None:
    house(tmp_path / "house")
    (tmp_path / "bare").mkdir()
    done = check(tmp_path / words[0], *words[1:])
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_versions_are_those_that_readelf_finds(good: Path, find: Callable[[Path], str]) -> None:
    """On this interpreter's own shared objects."""
    folder = Path(sysconfig.get_config_var("DESTSHARED"))
    real = next(iter(sorted(folder.glob("_ssl*.so")) or sorted(folder.glob("*.so"))), None)
    if real is None:
        pytest.skip("this CPython has no shared objects of its own")
    (path,) = (good / "wheels").glob("tinydep*")
    path.unlink()
    tags = "cp311-cp311-manylinux_2_17_x86_64"
    member(wheel(good / "wheels", "tinydep", "3", tags, ""), "tinydep/real.so", real.read_bytes())
    done = check(lock(good), "--target", "amd64")
    assert find(real) in done.stdout + done.stderr


@pytest.fixture
def find() -> Callable[[Path], str]:
    """What readelf says is the newest GLIBC that a file needs."""
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")

    def newest(path: Path) -> str:
        line = ["readelf", "--version-info", "--wide", str(path)]
        said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        if (
            "x86-64"
            not in subprocess.run(
                ["readelf", "-h", str(path)], capture_output=True, text=True, check=True
            ).stdout.lower()
        ):
            pytest.skip("amd64's wheels are judged here; this machine has others")
        versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)\b", said)
        highest = max((int(a), int(b)) for a, b in versions)
        dotted = f"{highest[0]}.{highest[1]}"
        return f"GLIBC {dotted}" if highest <= (2, 28) else f"needs GLIBC_{dotted}"

    return newest
