"""`scripts/jetson/doctor.py`: old Pythons read it, and it reads what planning and metering read."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.doctor.engines import DIE_WITHOUT_LSE
from smidgen.edge_client.doctor.machine import script
from smidgen.edge_client.metering.machine import board, read_heat
from smidgen.edge_client.metering.power import battery, packages, power_rails
from smidgen.edge_client.planning.resources import cgroup_memory, meminfo
from smidgen.edge_client.tables import size
from tests.edge_client.doctor.trees import BOARDS, JETPACK_4, found_on, tx2
from tests.edge_client.metering.boards import as_nobody, forbid, put

SCRIPT = Path(__file__).parents[3] / "scripts" / "jetson" / "doctor.py"
HERE = f"3.{sys.version_info.minor}"
OLD = ("3.6", "3.8")
PYENV = Path.home() / ".pyenv" / "versions"


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
        {"sys/class/hwmon/hwmon0/name": "k10temp", "sys/class/hwmon/hwmon0/temp1_input": 41500},
        {"proc/cpuinfo": "flags\t: avx2 fma"},
        {"var/lib/nvpmodel/status": "pmode:0003 fmode:fanNull"},
        {},
    ],
    ids=str,
)
def test_it_reads_what_the_client_reads(tmp_path: Path, files: dict[str, object]) -> None:
    put(tmp_path, files)
    agrees(tmp_path)


@pytest.mark.parametrize("name", BOARDS)
def test_it_reads_a_board_as_the_client_does(tmp_path: Path, name: str) -> None:
    BOARDS[name].write(tmp_path)
    agrees(tmp_path)


def agrees(root: Path) -> None:
    """What the doctor says of a tree is what planning and metering read there."""
    said = {check: one.found for check, one in found_on(root, JETPACK_4).items()}
    known, groups, heat = meminfo(root), list(cgroup_memory(root)), read_heat(root)
    if "MemAvailable" in known:
        both = f"{size(known['MemTotal'])}, of which {size(known['MemAvailable'])} is available"
        assert said["memory"] == both
    if groups:
        limit = min(group.limit_bytes for group in groups)
        left = min(group.headroom_bytes for group in groups)
        told = f"{size(limit)} by its control group, of which {size(left)} is left"
        assert said["memory limit"] == told
    else:
        assert said["memory limit"].startswith(("no control group", "/proc/self/cgroup does not"))
    assert heat.power_mode is None or said["power mode"] == str(heat.power_mode)
    if heat.hottest_c is not None:
        assert said["temperature"].startswith(f"{heat.hottest_c:.1f} degrees")
    for clocks, words in ((heat.clocks_hz, "up to"), (heat.limits_hz, "at most")):
        assert not clocks or f"{words} {max(clocks.values()) / 1e9:.2f} GHz" in said["clocks"]
    sources = (("INA3221", power_rails), ("RAPL", packages), ("battery", battery))
    power = next((name for name, read in sources if read(root) is not None), None)
    assert power is None or said["power sensors"] == f"{power} can be read"
    assert power is not None or "can be read" not in said["power sensors"].replace("that can", "")
    assert board(root) in said["board"]


def test_it_warns_of_the_wheels_that_the_client_knows_to_die() -> None:
    parts = [f"{name} {', '.join(versions)}" for name, versions in DIE_WITHOUT_LSE.items()]
    assert " and ".join(parts) == script().DYING


GARBAGE = (b"", b"x", b"\xff\xfe: y z\n", b"-5", b"9" * 30, b"MemTotal: x kB\nMemAvailable: 3.5 kB")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TX2", "Orin Nano", "Raspberry Pi 5"])
def test_no_file_that_is_closed_or_garbage_stops_it(tmp_path: Path, name: str) -> None:
    root, host = tmp_path / "root", BOARDS[name].host
    root.mkdir()
    BOARDS[name].write(root)
    for path in sorted(root.rglob("*")):
        mode = path.stat().st_mode
        forbid(path)
        with as_nobody(root) as copy:
            assert len(found_on(copy, host)) >= 14
        path.chmod(mode)
        if path.is_file():
            before = path.read_bytes()
            for garbage in GARBAGE:
                path.write_bytes(garbage)
                assert len(found_on(root, host)) >= 14
            path.write_bytes(before)


def test_it_asks_nvpmodel_where_nothing_is_written_down(tmp_path: Path) -> None:
    tx2(tmp_path)
    (tmp_path / "etc/nvpmodel.conf").unlink()
    put(tmp_path, {"usr/sbin/nvpmodel": "#!/bin/sh\necho 'NV Power Mode: MAXN_SUPER'\necho 2"})
    (tmp_path / "usr/sbin/nvpmodel").chmod(0o755)
    assert found_on(tmp_path, JETPACK_4)["power mode"].found == "2 MAXN_SUPER"


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
