"""A board's name and its supply, read from made-up trees of kernel files."""

from pathlib import Path

import pytest

from smidgen.edge_client.metering.machine import board, is_on_mains


def supply(root: Path, name: str, **files: str) -> None:
    folder = root / "sys/class/power_supply" / name
    folder.mkdir(parents=True)
    for file, said in files.items():
        (folder / file).write_text(f"{said}\n")


def test_a_board_is_called_what_its_firmware_calls_it(tmp_path: Path) -> None:
    assert board(tmp_path) == ""
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 5 Model B Rev 1.0\0")
    assert board(tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"
    (tmp_path / "proc/device-tree/model").write_bytes(b"a\n\x1bb" + b"c" * 1000)
    assert board(tmp_path) == "ab" + "c" * 98


def test_a_machine_without_a_supply_that_tells_is_unknown(tmp_path: Path) -> None:
    assert is_on_mains(tmp_path) is None
    supply(tmp_path, "hidpp_battery_0", type="Battery", scope="Device", status="Discharging")
    assert is_on_mains(tmp_path) is None


@pytest.mark.parametrize(("online", "status"), [("1", "Discharging"), ("1", "Charging")])
def test_a_plug_decides_before_the_battery(tmp_path: Path, online: str, status: str) -> None:
    supply(tmp_path, "AC", type="Mains", online=online)
    supply(tmp_path, "BAT0", type="Battery", status=status)
    assert is_on_mains(tmp_path) is True


@pytest.mark.parametrize(
    ("status", "expected"),
    [("Discharging", False), ("Full", True), ("Charging", True), ("Unknown", None)],
)
def test_a_battery_alone_says_whether_it_is_used_up(
    tmp_path: Path, status: str, expected: bool | None
) -> None:
    supply(tmp_path, "BAT0", type="Battery", status=status)
    assert is_on_mains(tmp_path) is expected


def test_a_plug_that_is_out_is_no_mains(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    assert is_on_mains(tmp_path) is False


def test_a_port_without_anything_in_it_says_nothing(tmp_path: Path) -> None:
    """As USB-C controllers have it on boards that only ever run on mains."""
    port = {"type": "USB", "online": "0", "scope": "Unknown"}
    supply(tmp_path, "ucsi-source-psy-0", **port)
    assert is_on_mains(tmp_path) is None
    supply(tmp_path, "battery", type="Battery", status="Discharging")
    assert is_on_mains(tmp_path) is False
