import time
from pathlib import Path

import psutil
import pytest

from smidgen.edge_client.metering import machine as heat_module
from smidgen.edge_client.metering.machine import (
    Heat,
    PowerMode,
    is_throttled,
    power_mode,
    read_heat,
)
from tests.edge_client.metering.boards import cores, put

THERMAL = "sys/class/thermal"
CPU0 = "sys/devices/system/cpu/cpu0"
CONFIG = "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=3 NAME=MAXP_ARM >"


def zone(number: int, name: str, thousandths: int) -> dict[str, object]:
    at = f"{THERMAL}/thermal_zone{number}"
    return {f"{at}/type": name, f"{at}/temp": thousandths}


def test_what_always_says_the_same_is_no_temperature(tmp_path: Path) -> None:
    put(tmp_path, zone(0, "MCPU-therm", 41500) | zone(1, "GPU-therm", -256000))
    put(tmp_path, zone(2, "PMIC-Die", 100000) | zone(3, "Tboard_tegra", 38000))
    heat = read_heat(tmp_path)
    assert heat.zones_c == {"MCPU-therm": 41.5, "Tboard_tegra": 38.0}
    assert heat.hottest_c == 41.5


def test_cores_that_are_off_have_no_clock(tmp_path: Path) -> None:
    cores(tmp_path, {0: (1_200_000, 2_000_000, 2_000_000), 1: (0, 0, 2_000_000)})
    put(tmp_path, {"sys/devices/system/cpu/cpu1/online": 0})
    heat = read_heat(tmp_path)
    assert heat.clocks_hz == {0: 1.2e9} and heat.limits_hz == {0: 2e9}
    assert heat.governor == "schedutil"


def test_a_machine_that_tells_nothing_is_unknown(tmp_path: Path) -> None:
    heat = read_heat(tmp_path)
    assert heat == Heat({}, {}, {}, None, None, None, None)
    assert heat.hottest_c is None and is_throttled(heat, heat) is None


def test_an_x86_counts_how_often_it_was_slowed_down(tmp_path: Path) -> None:
    cores(tmp_path, {0: (1, 1, 2)})  # a limit that its owner set
    put(tmp_path, {f"{CPU0}/thermal_throttle/core_throttle_count": 4})
    before = read_heat(tmp_path)
    assert is_throttled(before, read_heat(tmp_path)) is False
    put(tmp_path, {f"{CPU0}/thermal_throttle/package_throttle_count": 1})
    assert is_throttled(before, read_heat(tmp_path)) is True


def test_a_cooling_device_at_work_slows_down(tmp_path: Path) -> None:
    fan = f"{THERMAL}/cooling_device0"
    at = f"{THERMAL}/cooling_device1"
    put(tmp_path, {f"{fan}/type": "pwm-fan", f"{fan}/cur_state": 3})
    put(tmp_path, {f"{at}/type": "thermal-cpufreq-0", f"{at}/cur_state": 0})
    cool = read_heat(tmp_path)
    put(tmp_path, {f"{at}/cur_state": 2})
    assert is_throttled(cool, cool) is False
    assert is_throttled(read_heat(tmp_path), cool) is True


def test_a_limit_that_was_there_before_is_no_heat(tmp_path: Path) -> None:
    unknown = read_heat(tmp_path)
    cores(tmp_path, {0: (1_000_000, 1_200_000, 2_000_000)})
    before = read_heat(tmp_path)
    assert is_throttled(before, read_heat(tmp_path)) is False
    cores(tmp_path, {0: (800_000, 900_000, 2_000_000)})
    assert is_throttled(before, read_heat(tmp_path)) is True
    assert is_throttled(unknown, read_heat(tmp_path)) is None


def test_a_power_mode_has_the_name_of_its_board(tmp_path: Path) -> None:
    put(tmp_path, {"var/lib/nvpmodel/status": "pmode:0003 fmode:quiet"})
    assert power_mode(tmp_path) == PowerMode(3, None)
    put(tmp_path, {"etc/nvpmodel.conf": CONFIG})
    assert str(power_mode(tmp_path)) == "3 MAXP_ARM"


def nvpmodel(root: Path, does: str) -> None:
    put(root, {"usr/sbin/nvpmodel": f"#!/bin/sh\n{does}"})
    (root / "usr/sbin/nvpmodel").chmod(0o755)


def test_nvpmodel_is_asked_where_it_wrote_nothing_down(tmp_path: Path) -> None:
    told = r"NV Fan Mode:\351\nNV Power Mode: 15W\n2\n"  # not UTF-8
    nvpmodel(tmp_path, f"[ $# = 1 ] && [ $1 = -q ] && printf '{told}'")
    assert power_mode(tmp_path) == PowerMode(2, "15W")


def test_nvpmodel_is_asked_again_where_its_status_has_changed(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    nvpmodel(tmp_path, f"echo >> {asked}; exit 1")
    assert power_mode(tmp_path) is None and power_mode(tmp_path) is None
    assert asked.read_text() == "\n"
    put(tmp_path, {"var/lib/nvpmodel/status": "pmode:0001"})
    assert power_mode(tmp_path) == power_mode(tmp_path) == PowerMode(1, None)
    assert asked.read_text() == "\n\n"


def test_nvpmodel_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heat_module, "ASK_S", 0.2)
    nvpmodel(tmp_path, "exec sleep 600")
    start = time.monotonic()
    assert power_mode(tmp_path) is None and power_mode(tmp_path) is None
    assert time.monotonic() - start < 60


def test_a_system_whose_sensors_psutil_does_not_know_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert heat_module._sensors_c() == {}
    assert isinstance(read_heat(), Heat)
