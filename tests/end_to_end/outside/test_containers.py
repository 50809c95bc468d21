"""compose.yaml by its own words: images built by buildah, each service run in its container.

No daemon: `buildah run` with chroot isolation, in the machine's own network. Needs root, buildah,
debootstrap and a Debian mirror; the base image is a bare Debian with its Python.
"""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.jetson.test_build_wheelhouse import index_or_skip
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
    debian = folder / "debian"
    words = ["--variant=minbase", "--include=python3,python3-venv", "bookworm", str(debian)]
    if subprocess.run(["debootstrap", *words], capture_output=True).returncode:
        pytest.skip("no Debian mirror answers")
    container = run(*command, "from", "scratch").strip()
    place = run(*command, "mount", container).strip()
    run("cp", "-a", f"{debian}/.", place)  # devices among them
    run(*command, "umount", container)
    run(*command, "commit", "--rm", container, "bare-python")
    shutil.rmtree(debian)
    yield command
    run(*command, "rm", "--all")
    run(*command, "rmi", "--all", "--force")


@pytest.fixture(scope="module")
def images(buildah: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Both images, of packages that were fetched out here."""
    folder = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(folder / "house")]
    run(*pip, "--require-hashes", "-r", ROOT / "constraints/demo.txt")
    run(*pip, "hatchling")
    (folder / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /house\n")
    fetched = ["-v", f"{folder}/house:/house:ro", "-v", f"{folder}/pip.conf:/etc/pip.conf:ro"]
    built = {}
    for service in COMPOSE["services"].values():
        if build := service.get("build"):
            built[service["image"]] = build
    for image, build in built.items():
        words = ["--isolation=chroot", "--build-arg=BASE=localhost/bare-python", *fetched]
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
