"""Which board this is, and which of NVIDIA's systems runs on it.

A Jetson's model line is free text that may name another module; its part number in `compatible`
is what counts. Boards and releases: NVIDIA's numbers as public tools list them; none was here.
"""

import re
from pathlib import Path

from edge_client.doctor.finding import NOTHING, OK, UNKNOWN, WARNING, Finding, unreadable
from edge_client.doctor.host import Host
from edge_client.metering.board import board as model_of
from edge_client.metering.sysfs import text

TREE, DTS = "proc/device-tree", "nvidia,dtsfilename"
RELEASE, PACKAGES = "etc/nv_tegra_release", "var/lib/dpkg/status"
MODULES = {  # by part number, or its first half
    "p2180": "Jetson TX1",
    "p2888": "Jetson AGX Xavier",
    "p3310": "Jetson TX2 8 GB",
    "p3448-0000": "Jetson Nano 4 GB",
    "p3448-0003": "Jetson Nano 2 GB",
    "p3489-0000": "Jetson TX2i",
    "p3489-0888": "Jetson TX2 4 GB",
    "p3636-0001": "Jetson TX2 NX",
    "p3668": "Jetson Xavier NX",
    "p3701": "Jetson AGX Orin",
    "p3767-0000": "Jetson Orin NX 16 GB",
    "p3767-0001": "Jetson Orin NX 8 GB",
    "p3767-0003": "Jetson Orin Nano 8 GB",
    "p3767-0004": "Jetson Orin Nano 4 GB",
    "p3767-0005": "Jetson Orin Nano 8 GB",
}
SMALL = ("Jetson Nano 2 GB", "Jetson TX2 4 GB", "Jetson TX2 NX")  # too small for torch
UNTRIED = ("Jetson TX1",)
SYSTEMS = {"tegra210": "TX1 or Nano", "tegra186": "TX2", "tegra194": "Xavier", "tegra234": "Orin"}
JETPACKS = {32: 4, 34: 5, 35: 5, 36: 6, 38: 7, 39: 7}  # by the first number of L4T
OLDEST, NEWEST = (32, 6), 6  # L4T of JetPack 4.6; JetPack
GO_ON = "go on if nothing below is an error; nobody has tried smidgen on it"
ONNX_ALONE = "take the onnx engine: there is too little memory for PyTorch beside a base"
UPDATE = "flash the newest release of NVIDIA's that is for this board"


def is_jetson(root: Path) -> bool:
    """Whether the device tree or the system says so."""
    return "nvidia,tegra" in text(root / TREE / "compatible") or bool(text(root / RELEASE))


def read_board(root: Path, host: Host) -> Finding:
    """The board, by its device tree."""
    model, compatible = model_of(root), text(root / TREE / "compatible")
    closed = unreadable("board", root, f"{TREE}/compatible", f"{TREE}/model")
    if closed is not None and not compatible:
        return closed
    if not model and not compatible:
        if host.machine == "x86_64":
            return Finding("board", OK, "no device tree, as on other x86_64 machines")
        return Finding("board", UNKNOWN, f"no device tree on this {host.machine}", GO_ON)
    shown = model or "a board without a model line"
    if (found := _module(compatible) or _module(text(root / TREE / DTS))) is not None:
        part, module = found
        shown = f"{shown}: {module} ({part})"
        if module in UNTRIED:
            return Finding("board", UNKNOWN, shown, GO_ON)
        return Finding("board", OK, shown, ONNX_ALONE if module in SMALL else NOTHING)
    if "raspberrypi," in compatible:
        return Finding("board", OK, shown)
    kind = next((name for tegra, name in SYSTEMS.items() if tegra in compatible), "")
    told = f"of the {kind} kind, with a part number that is not known here" if kind else ""
    return Finding("board", UNKNOWN, f"{shown}, {told or 'which is not known here'}", GO_ON)


def _module(names: str) -> tuple[str, str] | None:
    """The first part number with a known module, and the module."""
    for part in re.findall(r"p\d{4}-\d{4}", names):
        if module := MODULES.get(part) or MODULES.get(part[:5]):
            return part, module
    return None


def read_release(root: Path) -> Finding:
    """The release of L4T, NVIDIA's system for Jetsons, and the JetPack it belongs to."""
    closed = unreadable("JetPack", root, RELEASE)
    if closed is not None:
        return closed
    if (found := _release(root)) is None:
        if is_jetson(root):
            told = f"a Jetson, but neither /{RELEASE} nor dpkg says which release"
            return Finding("JetPack", UNKNOWN, told, "see NVIDIA's page of the image that it runs")
        return Finding("JetPack", OK, "not a Jetson: no L4T")
    major, rest = found
    shown, jetpack = f"L4T {major}.{rest}", JETPACKS.get(major)
    if jetpack is None:
        return Finding("JetPack", UNKNOWN, f"{shown}, which is not known here", GO_ON)
    shown = f"{shown} (JetPack {jetpack})"
    if jetpack > NEWEST:
        return Finding("JetPack", UNKNOWN, shown, GO_ON)
    if (major, int(rest.split(".")[0])) < OLDEST:
        return Finding("JetPack", WARNING, f"{shown}, older than JetPack 4.6", UPDATE)
    return Finding("JetPack", OK, shown)


def _release(root: Path) -> tuple[int, str] | None:
    """Its first number and the rest; from dpkg where NVIDIA's file is not there."""
    said = re.search(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text(root / RELEASE))
    if said is None:
        package = r"^Package: nvidia-l4t-core\n(?:\S.*\n)*?Version: (\d+)\.(\d[\d.]*)"
        said = re.search(package, text(root / PACKAGES), re.MULTILINE)
    return None if said is None else (int(said[1]), said[2].strip("."))
