"""The udev rule lets the client's group read a power monitor, and nothing be written."""

import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from smidgen.edge_client.metering.power import power_rails
from tests.jetson.wheelhouses import JETSON, as_root

RULES = JETSON / "70-smidgen-power.rules"
GROUP = 12345  # of nobody here; stands for the service's
IIO = {"rail_name_0": "VDD_IN", "in_power0_input": "3000", "in_voltage0_input": "19000"}
HWMON = {"in1_label": "VDD_IN", "in1_input": "5000", "curr1_input": "600", "name": "ina3221"}
BOARDS = {
    "JetPack 4": ("0-0041", "ina3221x", "iio:device1", IIO),
    "JetPack 5": ("1-0040", "ina3221", "hwmon/hwmon3", HWMON),
}


def rule() -> str:
    (line,) = [one for one in RULES.read_text().splitlines() if one and one[0] != "#"]
    return line


def apply(sys: Path, device: str) -> None:
    """What udev does for a device: its substitutions, then the program."""
    (program,) = re.findall(r'RUN\+="([^"]*)"', rule())
    words = shlex.split(program.replace("%S", str(sys)).replace("%p", device))
    words[-1] = words[-1].replace("smidgen", str(GROUP))
    subprocess.run(words, check=True)


@as_root
@pytest.mark.parametrize("board", BOARDS)
def test_the_power_of_a_board_can_be_read_by_the_clients_group(tmp_path: Path, board: str) -> None:
    bus, name, inner, files = BOARDS[board]
    monitor = tmp_path / "sys/bus/i2c/devices" / bus
    folder = monitor / inner
    folder.mkdir(parents=True)
    (monitor / "name").write_text(name)
    for file, text in files.items():
        (folder / file).write_text(text)
        (folder / file).chmod(0o600)
    (folder / "curr1_crit").write_text("1")
    (folder / "curr1_crit").chmod(0o600)
    apply(tmp_path / "sys", f"/bus/i2c/devices/{bus}/{inner}")
    for file in set(files) - {"name"}:
        at = (folder / file).stat()
        assert (stat.S_IMODE(at.st_mode), at.st_gid) == (0o640, GROUP), file
    assert stat.S_IMODE((folder / "curr1_crit").stat().st_mode) == 0o600
    assert power_rails(tmp_path) is not None  # these files are the ones that are read


def test_the_rule_matches_what_the_client_looks_for_and_nothing_else() -> None:
    matches = dict(re.findall(r'(\w+(?:\{\w+\})?)(?:==|!=)"([^"]*)"', rule()))
    assert matches == {"ACTION": "remove", "SUBSYSTEM": "iio|hwmon", "ATTRS{name}": "ina3221*"}


def test_udev_has_nothing_to_say_of_the_rule() -> None:
    if shutil.which("udevadm") is None:
        pytest.skip("udevadm is not installed")
    done = subprocess.run(["udevadm", "verify", str(RULES)], capture_output=True, text=True)
    if "Unknown command" in done.stderr or "verify" in done.stderr:
        pytest.skip("this udevadm cannot verify; systemd 254 and later can")
    assert done.returncode == 0, done.stdout + done.stderr
