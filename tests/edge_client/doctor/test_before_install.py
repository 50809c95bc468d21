"""`scripts/jetson/doctor.py`: old Pythons read it, and it says what the client's doctor says."""

import ast
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_client.doctor.disk import read_disk
from edge_client.doctor.finding import OK, WARNING
from edge_client.doctor.host import Host
from tests.edge_client.doctor.trees import BOARDS, JETPACK_4, found_on, tx2
from tests.edge_client.metering.boards import as_nobody, forbid, put

SCRIPT = Path(__file__).parents[3] / "scripts" / "jetson" / "doctor.py"
HERE = f"3.{sys.version_info.minor}"
OLD = ("3.6", "3.8")
PYENV = Path.home() / ".pyenv" / "versions"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = spec_from_file_location("doctor_script", SCRIPT)
    assert found and found.loader
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def said_by(script: Any, root: Path, host: Host) -> dict[str, tuple[str, ...]]:
    found = script.findings(root, script.Host(*vars(host).values()), root / "var/lib/smidgen")
    return {one.check: tuple(one) for one in found}


def same(script: Any, root: Path, host: Host) -> None:
    ours = {check: tuple(vars(one).values()) for check, one in found_on(root, host).items()}
    assert said_by(script, root, host) == ours


@pytest.mark.parametrize("name", BOARDS)
def test_both_doctors_say_the_same_of_a_board(
    tmp_path: Path, script: ModuleType, name: str
) -> None:
    BOARDS[name].write(tmp_path)
    same(script, tmp_path, BOARDS[name].host)


@pytest.mark.parametrize(
    "closed",
    [
        ("proc/meminfo", "proc/self/cgroup", "sys/class/thermal"),
        ("sys/bus/i2c/devices/0-0041/iio:device4/in_power0_input", "proc/cpuinfo"),
        ("proc/device-tree", "var/lib/nvpmodel/status", "sys/bus/i2c/devices"),
    ],
)
def test_both_doctors_say_the_same_of_what_may_not_be_read(
    tmp_path: Path, script: ModuleType, closed: tuple[str, ...]
) -> None:
    tx2(tmp_path)
    for place in closed:
        forbid(tmp_path / place)
    with as_nobody(tmp_path) as root:
        same(script, root, JETPACK_4)


@pytest.mark.parametrize(
    "host",
    [
        Host("armv7l", "", "3.5.2", 0.0),
        Host("x86_64", "2.17", "3.15.0", 4e9),
        Host("aarch64", "x", "", 1e18),
    ],
)
def test_both_doctors_say_the_same_of_nothing(
    tmp_path: Path, script: ModuleType, host: Host
) -> None:
    same(script, tmp_path, host)


@pytest.mark.parametrize(
    "files",
    [
        {"proc/meminfo": "MemTotal: 5 kB\nMemAvailable: 0 kB"},
        {"proc/meminfo": "MemTotal: 1023999 kB", "proc/self/cgroup": "0::/"},
        {
            "sys/class/powercap/intel-rapl:0/name": "package-0",
            "sys/class/powercap/intel-rapl:0/energy_uj": 5,
            "sys/class/powercap/intel-rapl:0/max_energy_range_uj": 9,
        },
        {
            "sys/class/power_supply/BAT0/type": "Battery",
            "sys/class/power_supply/BAT0/power_now": 5,
        },
        {"sys/class/thermal/thermal_zone0/type": "a", "sys/class/thermal/thermal_zone0/temp": "x"},
        {"proc/cpuinfo": "flags\t: avx2 fma"},
        {"etc/nv_tegra_release": "# R32 (release), REVISION: 4.4,"},
        {"var/lib/nvpmodel/status": "pmode:0003 fmode:fanNull"},
    ],
    ids=str,
)
def test_both_doctors_say_the_same_of_odd_files(
    tmp_path: Path, script: ModuleType, files: dict[str, object]
) -> None:
    put(tmp_path, files)
    same(script, tmp_path, JETPACK_4)


@pytest.mark.parametrize("place", ["/dev/null/below", "x" * 5000, "not/there", "/proc/self"])
def test_both_doctors_say_the_same_of_a_state_folder(script: ModuleType, place: str) -> None:
    ours = read_disk(Path(place))
    if ours.state in (OK, WARNING):  # how much is free changes meanwhile
        assert script.disk(Path(place)).state == ours.state
    else:
        assert tuple(script.disk(Path(place))) == tuple(vars(ours).values())


GARBAGE = (b"", b"x", b"\xff\xfe: y z\n", b"-5", b"9" * 30, b"MemTotal: x kB\nMemAvailable: 3.5 kB")


@pytest.mark.parametrize("garbage", GARBAGE[1:4])
def test_both_doctors_say_the_same_of_garbage(
    tmp_path: Path, script: ModuleType, garbage: bytes
) -> None:
    tx2(tmp_path)
    for place in ("proc/meminfo", "proc/cpuinfo", "proc/device-tree/compatible"):
        (tmp_path / place).write_bytes(garbage)
    same(script, tmp_path, JETPACK_4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TX2", "Orin Nano", "Raspberry Pi 5"])
def test_no_file_that_is_closed_or_garbage_stops_a_doctor_or_divides_the_two(
    tmp_path: Path, script: ModuleType, name: str
) -> None:
    root, host = tmp_path / "root", BOARDS[name].host
    root.mkdir()
    BOARDS[name].write(root)
    for path in sorted(root.rglob("*")):
        mode = path.stat().st_mode
        forbid(path)
        with as_nobody(root) as copy:
            same(script, copy, host)
        path.chmod(mode)
        if path.is_file():
            before = path.read_bytes()
            for garbage in GARBAGE:
                path.write_bytes(garbage)
                same(script, root, host)
            path.write_bytes(before)


def test_both_ask_nvpmodel_where_nothing_is_written_down(
    tmp_path: Path, script: ModuleType
) -> None:
    tx2(tmp_path)
    (tmp_path / "etc/nvpmodel.conf").unlink()
    put(tmp_path, {"usr/sbin/nvpmodel": "#!/bin/sh\necho 'NV Power Mode: MAXN_SUPER'\necho 2"})
    (tmp_path / "usr/sbin/nvpmodel").chmod(0o755)
    same(script, tmp_path, JETPACK_4)
    assert said_by(script, tmp_path, JETPACK_4)["power mode"][2] == "2 MAXN_SUPER"


def test_python_3_6_can_parse_it_and_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {str(name).split(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize("version", [HERE, *OLD])
def test_it_runs_in_isolation_on_an_old_python(tmp_path: Path, version: str) -> None:
    pythons = sorted(PYENV.glob(f"{version}.*/bin/python"))
    python = sys.executable if version == HERE else str(pythons[0]) if pythons else ""
    if not python:
        pytest.skip(f"no Python {version} under {PYENV}")
    line = [python, "-I", "-S", str(SCRIPT), "--json", "--state", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd="/")
    told = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, done.stderr) == (0 if told["works"] else 1, "")
    assert [one["check"] for one in told["findings"]][:4] == ["board", "JetPack", "glibc", "kernel"]
    assert told["elapsed_s"] < 5


def test_an_error_is_exit_code_1_and_wrong_use_2(tmp_path: Path) -> None:
    late = "import runpy, sys, time; time.time = lambda: 0.0; sys.argv = ['doctor.py']\n"
    code = f"{late}runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "set the clock" in done.stdout
    narrow = "import runpy, sys; sys.maxsize = 2**31 - 1; sys.argv = ['doctor.py']\n"
    code = code.replace(late, narrow)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "a 32-bit system on " in done.stdout, done
    assert "install a 64-bit system" in done.stdout
    wrong = [sys.executable, str(SCRIPT), "--x"]
    assert subprocess.run(wrong, capture_output=True).returncode == 2
