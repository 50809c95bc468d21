"""compose.yaml by its own words: images built by buildah, each service run in its container.

No daemon: `buildah run` with chroot isolation, in the machine's own network. Needs root, buildah,
debootstrap and a Debian mirror; the base image is a bare Debian with its Python. The device's image
is built for arm64 too and trains there under qemu-user, which knows nothing of a board's speed.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from smidgen.simulation.demo.messages import HOMES, write_client_folders
from tests.jetson import emulation
from tests.jetson.test_build_wheelhouse import index_or_skip
from tests.jetson.test_emulated_board import debian
from tests.jetson.wheelhouses import as_root

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
USER = 10001
PARTS = {"labelled.csv", "unlabelled.csv", "test.csv", "task.toml"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), as_root]


def run(*line: str | Path) -> str:
    done = subprocess.run([str(word) for word in line], capture_output=True, text=True)
    assert done.returncode == 0, f"{line}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command with a storage of its own, and in that storage the base image."""
    for name in ("buildah", "debootstrap"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    index_or_skip()
    folder = tmp_path_factory.mktemp("containers")
    command = [
        "buildah",
        "--storage-driver=vfs",
        f"--root={folder}/root",
        f"--runroot={folder}/run",
    ]
    root = folder / "debian"
    words = ["--variant=minbase", "--include=python3,python3-venv", "bookworm", str(root)]
    if subprocess.run(["debootstrap", *words], capture_output=True).returncode:
        pytest.skip("no Debian mirror answers")
    base_image(command, root, "bare-python")
    yield command
    run(*command, "rm", "--all")
    run(*command, "rmi", "--all", "--force")


def base_image(buildah: list[str], root: Path, name: str, *options: str) -> None:
    """An image of a folder, which goes."""
    container = run(*buildah, "from", *options, "scratch").strip()
    run(*buildah, "config", *options, container)
    place = run(*buildah, "mount", container).strip()
    run("cp", "-a", f"{root}/.", place)  # devices among them
    run(*buildah, "umount", container)
    run(*buildah, "commit", "--rm", container, name)
    shutil.rmtree(root)


def fetched(folder: Path, pins: str, *options: str) -> list[str]:
    """Packages for a build without a network, as volumes of it."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(folder / "house"), *options]
    run(*pip, "--require-hashes", "-r", ROOT / pins)
    run(*pip, "hatchling")
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /house\n")
    return ["-v", f"{folder}/house:/house:ro", "-v", f"{folder}/pip.conf:/etc/pip.conf:ro"]


@pytest.fixture(scope="module")
def images(buildah: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Both images, of packages that were fetched out here."""
    packages = fetched(tmp_path_factory.mktemp("packages"), "constraints/demo.txt")
    built = {}
    for service in COMPOSE["services"].values():
        if build := service.get("build"):
            built[service["image"]] = build
    for image, build in built.items():
        words = ["--isolation=chroot", "--build-arg=BASE=localhost/bare-python", *packages]
        words += [f"--target={build['target']}", "-f", build["dockerfile"], "-t", image]
        run(*buildah, "bud", *words, ROOT / build["context"])
    return list(built)


class Service:
    """A service of compose.yaml in a container of its own; its volumes are folders out here."""

    def __init__(self, buildah: Sequence[str], name: str, volumes: Path, values: dict[str, str]):
        said: dict[str, Any] = COMPOSE["services"][name]
        self.buildah = buildah
        host = "--add-host=server:127.0.0.1"
        self.container = run(*buildah, "from", "--pull-never", host, said["image"]).strip()
        line = ["run", "--isolation=chroot", *(f"--cap-drop={one}" for one in said["cap_drop"])]
        for volume in said["volumes"]:
            outside, inside = volume.replace("${SMIDGEN_TEXTS:-texts}", "texts").split(":", 1)
            folder = volumes / outside
            if not folder.exists():
                folder.mkdir(mode=0o700)  # as the image has it
                shutil.chown(folder, USER, USER)
            line += ["-v", f"{folder}:{inside}"]
        for key, value in (said.get("environment", {}) | values).items():
            line += [f"--env={key}={value}"]
        words = [*said.get("entrypoint", ["smidgen"]), *said.get("command", [])]
        self.is_read_only = said["read_only"]
        self.log = (volumes / f"{name}.log").open("w+")
        (volumes / f"{name}.began").touch()
        self.process = subprocess.Popen(
            [*buildah, *line, self.container, "--", *words], stdout=self.log, stderr=self.log
        )

    def said(self) -> str:
        return Path(self.log.name).read_text()

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        if self.is_read_only:  # what buildah cannot ask for: nothing was written but to volumes
            place = run(*self.buildah, "mount", self.container).strip()
            files = ("-type", "f", "-newer", self.log.name.replace(".log", ".began"))
            assert run("find", place, "-xdev", *files, "!", "-path", f"{place}/tmp/*") == ""
            run(*self.buildah, "umount", self.container)
        run(*self.buildah, "rm", self.container)
        self.log.close()


def test_a_device_sees_its_own_texts_alone() -> None:
    for name in "abc":
        volumes = COMPOSE["services"][name]["volumes"]
        assert [one for one in volumes if "texts" in one] == [f"texts-{name}:/texts:ro"]


def test_three_devices_train_in_containers_and_keep_the_adapter(
    buildah: list[str], images: list[str], tmp_path: Path
) -> None:
    assert sorted(images) == ["smidgen-device", "smidgen-server"]
    tmp_path.chmod(0o755)
    with ExitStack() as stack:

        def start(name: str, **values: str) -> Service:
            service = Service(buildah, name, tmp_path, values)
            stack.callback(service.end)
            return service

        prepared = start("prepare", ROUNDS="2")
        assert prepared.process.wait(120) == 0, prepared.said()
        assert start("prepare").process.wait(60) == 0  # again: nothing to do but to copy texts
        homes = {(tmp_path / f"texts-{name}" / "labelled.csv").read_bytes() for name in "abc"}
        assert len(homes) == 3 and {one.name for one in tmp_path.glob("texts-?/*")} <= PARTS
        with socket.create_server(("0.0.0.0", 8700)):
            busy = start("server")
            assert busy.process.wait(60) == 2 and "8700" in busy.said()
            assert busy.said().count("smidgen coordinator: ") == 1
        server = start("server")
        wait_for(lambda: "https://" in server.said(), server)
        devices = {name: start(name) for name in "abc"}
        for name, device in devices.items():
            assert device.process.wait(300) == 0, device.said()
            kept = list((tmp_path / name).glob("**/adapter_model.safetensors"))
            assert kept and all(file.stat().st_uid == USER for file in kept)
        assert len({file.read_bytes() for name in "abc" for file in adapters(tmp_path / name)}) == 1
        assert "Traceback" not in server.said()


def adapters(folder: Path) -> list[Path]:
    return list(folder.glob("adapter/adapter_model.safetensors"))


def wait_for(is_so: Callable[[], bool], service: Service, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert service.process.poll() is None and time.monotonic() < until, service.said()
        time.sleep(0.1)


MOST_APART = 1e-4  # |adapter - x86's| / |x86's|; 3e-6 was measured
WHEELS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
ARM64 = [f"--platform={one}_aarch64" for one in WHEELS] + ["--only-binary=:all:"]
ARM64 += ["--python-version=3.11"]  # Debian 12's


def test_the_image_of_a_device_trains_on_emulated_arm64(buildah: list[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    base_image(buildah, debian(tmp_path, "python3-venv"), "bare-arm64", "--arch=arm64")
    build = COMPOSE["services"]["a"]["build"]
    words = ["--arch=arm64", "--isolation=chroot", "--build-arg=BASE=localhost/bare-arm64"]
    words += [f"--target={build['target']}", "-f", build["dockerfile"], "-t", "arm64"]
    words += fetched(tmp_path, "constraints/demo.txt", *ARM64)
    emulated, seconds = [sys.executable, "-B", emulation.__file__, "/", *buildah], {}

    def timed(name: str, *line: str | Path) -> str:
        began = time.monotonic()
        said = run(*emulated, *line)
        seconds[name] = round(time.monotonic() - began, 1)
        return said

    timed("build", "bud", *words, ROOT / build["context"])
    container = run(*buildah, "from", "--pull-never", "--arch=arm64", "localhost/arm64").strip()
    state, texts = tmp_path / "state", some_texts(tmp_path / "state")
    inside = ["run", "--isolation=chroot", f"--volume={state}:/state", "--env=HOME=/state"]
    inside += [container, "--"]
    timed("extras", *inside, "python3", "-c", "import cryptography, jinja2")
    inside += ["smidgen", "client"]
    train = ["train", "--engine=onnx", "--epochs=1", "--tokens=64", "--seed=7"]
    assert "personalize" in timed("help", *inside, "--help")
    found = json.loads(timed("doctor", *inside, "doctor", "--json").splitlines()[-1])
    assert found["works"] and "aarch64" in str(found["findings"])
    timed("plan", *inside, "plan", "--json")
    timed("train", *inside, *train, f"--data=/state/{texts.name}", "--out=/state/arm")
    installed = Path(run(*buildah, "mount", container).strip()) / "opt/smidgen"
    size = sum(file.lstat().st_size for file in installed.rglob("*"))
    run(*buildah, "umount", container)
    here = ["-m", "smidgen", "client", *train, f"--data={texts}", f"--out={state / 'x86'}"]
    run(sys.executable, *here)
    x86, arm = (trained(state / name) for name in ("x86", "arm"))
    apart = float(np.linalg.norm(x86 - arm) / np.linalg.norm(x86))
    print(f"arm64: {seconds} s, {size / 1e6:.0f} MB; adapter {apart:.1e} from x86's,", end=" ")
    print(f"{np.abs(x86 - arm).max():.1e} at most, of {np.abs(x86).max():.1e}")
    assert apart <= MOST_APART


def some_texts(state: Path) -> Path:
    """A home of forty labelled messages, which the image's user may read."""
    (home,) = write_client_folders(state, dict(list(HOMES.items())[:1]))
    (home / "test.csv").unlink()
    rows = (home / "labelled.csv").read_text().splitlines(keepends=True)[:41]
    (home / "labelled.csv").write_text("".join(rows))
    for path in (state, home, *home.iterdir()):
        shutil.chown(path, USER, USER)
    return home


def trained(folder: Path) -> np.ndarray:
    tensors = load_file(folder / "adapter_model.safetensors")
    return np.concatenate([tensors[name].ravel() for name in sorted(tensors)]).astype(np.float64)
