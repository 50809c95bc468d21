"""What is said of a machine, on trees of files as boards show them."""

from pathlib import Path

import pytest

from smidgen.edge_client.client.state import ClientState, StateError
from smidgen.edge_client.doctor.machine import (
    ERROR,
    NOTHING,
    OK,
    UNKNOWN,
    WARNING,
    Finding,
    Host,
    read_machine,
    read_state_folder,
    script,
    this_host,
)
from tests.edge_client.doctor.trees import BOARDS, JETPACK_4, JETPACK_6, device_tree, found_on, tx2
from tests.edge_client.metering.boards import as_nobody, forbid, put

SAID = {  # by board: what is found, by check
    "TX2": {
        "board": "quill: Jetson TX2 8 GB (p3310-1000)",
        "JetPack": "L4T 32.7.1 (JetPack 4)",
        "glibc": "2.27",
        "kernel": "4.9.253-tegra",
        "python": "3.6.9; smidgen needs 3.10 to 3.14",
        "processor": "aarch64, an ARMv8.0 without LSE atomics",
        "memory": "7.50 GiB, of which 3.75 GiB is available",
        "swap": "3.75 GiB, zram of 3.75 GiB",
        "memory limit": "5.00 GiB by its control group, of which 4.80 GiB is left",
        "power mode": "1 MAXQ",
        "clocks": "up to 1.20 GHz now, at most 2.04 GHz, by schedutil; cores 0,3-5 of 0-5 are on",
        "temperature": "41.5 degrees Celsius (CPU-therm)",
        "power sensors": "INA3221 can be read",
        "clock": "2026-11-18 11:06 UTC",
    },
    "Nano": {
        "board": "NVIDIA Jetson Nano Developer Kit: Jetson Nano 4 GB (p3448-0000)",
        "JetPack": "L4T 32.7.6 (JetPack 4)",
        "memory": "3.87 GiB, of which 1.94 GiB is available",
        "memory limit": "no control group limits this process",
        "power mode": "0 MAXN",
    },
    "Orin Nano": {
        "board": "NVIDIA Jetson Orin NX Developer Kit: Jetson Orin Nano 8 GB (p3767-0003)",
        "JetPack": "L4T 36.4.3 (JetPack 6)",
        "python": "3.10.12",
        "processor": "aarch64 with atomics, asimdhp, asimddp",
        "power mode": "2",
        "memory limit": "no control group limits this process",
        "power sensors": "INA3221 can be read",
    },
    "AGX Orin": {
        "board": "Jetson AGX Orin: Jetson AGX Orin (p3701-0004)",
        "JetPack": "L4T 35.4.1 (JetPack 5)",
        "memory limit": "20.0 GiB by its control group, of which 19.9 GiB is left",
        "power sensors": "INA3221 can be read",
    },
    "Raspberry Pi 5": {
        "board": "Raspberry Pi 5 Model B Rev 1.0",
        "JetPack": "not a Jetson: no L4T",
        "power mode": "not a Jetson: no power modes",
        "temperature": "86.2 degrees Celsius (cpu-thermal)",
        "power sensors": "none that can be read",
    },
}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_read_as_its_files_say(tmp_path: Path, name: str) -> None:
    BOARDS[name].write(tmp_path)
    found = found_on(tmp_path, BOARDS[name].host)
    assert {check: found[check].found for check in SAID[name]} == SAID[name]
    assert all(one.todo for one in found.values())
    assert not [one for one in found.values() if one.state == ERROR]


def test_an_old_processor_is_told_which_wheels_to_avoid(tmp_path: Path) -> None:
    tx2(tmp_path)
    found = found_on(tmp_path, JETPACK_4)
    told = "torch 2.0.0, 2.4.0, 2.10.0 and onnxruntime 1.21.0 die on it"
    assert found["processor"].todo.endswith(told) and found["processor"].state == OK
    assert "hf-xet" in found["glibc"].todo and "cpython.tar.gz" in found["python"].todo


def test_a_hot_processor_is_told_to_be_cooled(tmp_path: Path) -> None:
    BOARDS["Raspberry Pi 5"].write(tmp_path)
    found = found_on(tmp_path, JETPACK_6)["temperature"]
    assert (found.state, found.todo) == (WARNING, "give it air or a fan, or a lower power mode")


def test_a_processor_that_is_slowed_down_is_told(tmp_path: Path) -> None:
    tx2(tmp_path)
    put(tmp_path, {"sys/class/thermal/cooling_device1/type": "cpu-balanced"})
    put(tmp_path, {"sys/class/thermal/cooling_device1/cur_state": 2})
    found = found_on(tmp_path, JETPACK_4)["temperature"]
    assert found.state == WARNING and found.found.endswith("and the processor is throttled")


CLOSED = {  # what may not be read: the check that says so
    "proc/device-tree/compatible": "board",
    "etc/nv_tegra_release": "JetPack",
    "proc/sys/kernel/osrelease": "kernel",
    "proc/cpuinfo": "processor",
    "proc/meminfo": "memory",
    "proc/self/cgroup": "memory limit",
    "var/lib/nvpmodel/status": "power mode",
    "sys/class/thermal": "temperature",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "clocks",
    "sys/bus/i2c/devices/0-0041/iio:device4/in_power0_input": "power sensors",
}


@pytest.mark.few(5)
@pytest.mark.parametrize("place", CLOSED)
def test_what_may_not_be_read_is_unknown_and_named(tmp_path: Path, place: str) -> None:
    tx2(tmp_path)
    if place.endswith("cur_freq"):
        for core in range(1, 4):
            put(tmp_path, {f"sys/devices/system/cpu/cpu{core}/online": 0})
    forbid(tmp_path / place)
    with as_nobody(tmp_path) as root:
        found = found_on(root, JETPACK_4)[CLOSED[place]]
    said = "/sys/bus/i2c/devices/0-0040" if "i2c" in place else f"/{place} cannot be read: "
    assert found.state == UNKNOWN and said in found.found and found.todo != NOTHING


def test_an_empty_root_is_unknown_and_nothing_is_guessed(tmp_path: Path) -> None:
    host = Host("aarch64", "", "3.11.2", 0.0)
    found = found_on(tmp_path, host)
    known = {check for check, one in found.items() if one.state != UNKNOWN}
    assert known == {"JetPack", "python", "power mode", "disk", "clock"}


@pytest.mark.parametrize(
    ("model", "names", "said"),
    [
        ("Rock 5", ("radxa,rock-5",), "Rock 5, which is not in our list"),
        ("", ("x,y",), "a board without a model line, which is not in our list"),
        (
            "New",
            ("nvidia,p9999-0000", "nvidia,tegra234"),
            "New, of the Orin kind, with an unlisted part",
        ),
    ],
)
def test_a_board_that_nobody_knows_is_not_guessed(
    tmp_path: Path, model: str, names: tuple[str, ...], said: str
) -> None:
    device_tree(tmp_path, model, *names)
    found = found_on(tmp_path, JETPACK_6)["board"]
    assert found.state == UNKNOWN and found.found.startswith(said)


@pytest.mark.parametrize("now_s", [0.0, 1.5e9, 4e9, 1e18, float("nan")])
def test_a_clock_that_cannot_be_right_is_an_error(tmp_path: Path, now_s: float) -> None:
    found = found_on(tmp_path, JETPACK_6._replace(now_s=now_s))["clock"]
    assert found.state == ERROR and found.todo.startswith("set the clock")


@pytest.mark.parametrize(
    ("host", "check"),
    [
        (Host("armv7l", "2.36", "3.11.2", 1.795e9), "processor"),
        (Host("aarch64", "2.23", "3.11.2", 1.795e9), "glibc"),
    ],
)
def test_a_system_without_wheels_is_an_error(tmp_path: Path, host: Host, check: str) -> None:
    assert found_on(tmp_path, host)[check].state == ERROR


@pytest.mark.parametrize(
    ("release", "state", "said"),
    [
        ("# R32 (release), REVISION: 5.2, GCID: 1", WARNING, "older than JetPack 4.6"),
        ("# R38 (release), REVISION: 2.0, GCID: 1", UNKNOWN, "L4T 38.2.0 (JetPack 7)"),
        ("# R99 (release), REVISION: 1, GCID: 1", UNKNOWN, "which is not in our list"),
        ("garbage \udcff", UNKNOWN, "neither /etc/nv_tegra_release nor dpkg"),
    ],
)
def test_another_release_is_told(tmp_path: Path, release: str, state: str, said: str) -> None:
    tx2(tmp_path)
    (tmp_path / "etc/nv_tegra_release").write_bytes(release.encode("utf-8", "surrogateescape"))
    found = found_on(tmp_path, JETPACK_4)["JetPack"]
    assert found.state == state and said in found.found


def test_a_release_is_found_in_dpkgs_list_where_nvidias_file_is_missing(tmp_path: Path) -> None:
    tx2(tmp_path)
    (tmp_path / "etc/nv_tegra_release").unlink()
    package = "Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: 32.7.4-2023\n"
    put(tmp_path, {"var/lib/dpkg/status": f"Package: bash\nVersion: 4\n\n{package}"})
    assert found_on(tmp_path, JETPACK_4)["JetPack"].found == "L4T 32.7.4 (JetPack 4)"


def test_little_memory_is_a_warning(tmp_path: Path) -> None:
    tx2(tmp_path)
    put(tmp_path, {"proc/meminfo": "MemTotal: 900000 kB\nMemAvailable: 300000 kB\nSwapTotal: 0 kB"})
    found = found_on(tmp_path, JETPACK_4)
    assert found["memory"].state == WARNING and "client plan" in found["memory"].todo
    assert found["swap"].found == "none"


def test_this_machine_is_read_without_an_exception(tmp_path: Path) -> None:
    found = read_machine(Path("/"), this_host(), tmp_path / "not" / "there")
    assert len(found) == 15 and all(one.todo for one in found)


@pytest.mark.parametrize("place", ["/dev/null/below", "/proc/self"])
def test_a_state_folder_that_can_hold_nothing_is_an_error(place: str) -> None:
    found = Finding(*script().disk(Path(place)))
    assert found.state == ERROR and "--state" in found.todo


def test_a_state_folder_is_looked_at_as_a_client_does_and_left(tmp_path: Path) -> None:
    state, somebodys = tmp_path / "state", tmp_path / "photos"
    assert read_state_folder(state).state == OK and not state.exists()
    (somebodys / "runs").mkdir(parents=True)
    found = read_state_folder(somebodys)
    with pytest.raises(StateError) as refused:
        ClientState(somebodys)
    assert found.state == ERROR and f"{found.found}; {found.todo}" == str(refused.value)
    ClientState(state)
    assert read_state_folder(state).state == OK


def test_a_state_folder_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o300)  # a mode that whoever owns it cannot list either
    with as_nobody(tmp_path) as root:
        found = read_state_folder(root / "state")
    assert found.state == UNKNOWN and "cannot be read: Permission denied" in found.found
