"""Trees of files as the kernels of real boards show them, made in a folder."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

I2C = "sys/bus/i2c/devices"
TX2 = {  # milliwatts, by monitor and rail
    "0-0040": {"VDD_SYS_GPU": 150, "VDD_SYS_SOC": 700, "VDD_4V0_WIFI": 80},
    "0-0041": {"VDD_IN": 5000, "VDD_SYS_CPU": 1500, "VDD_SYS_DDR": 1100},
}
NANO = {"6-0040": {"POM_5V_IN": 4200, "POM_5V_GPU": 300, "POM_5V_CPU": 1400}}
ORIN_NANO = {"1-0040": {"VDD_IN": 6000, "VDD_CPU_GPU_CV": 1800, "VDD_SOC": 1500}}
AGX_ORIN = {
    "1-0040": {"VDD_GPU_SOC": 3000, "VDD_CPU_CV": 2000, "VIN_SYS_5V0": 4000},
    "1-0041": {"NC": 9000, "VDDQ_VDD2_1V8AO": 500},
}


def put(root: Path, files: Mapping[str, object]) -> None:
    """Write files under a root, folders included."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


def monitors(root: Path, monitors: Mapping[str, Mapping[str, int]], kind: str) -> None:
    """INA3221s as JetPack 4 (`iio`) or JetPack 5 and later (`hwmon`) show them."""
    put(root, {f"{I2C}/1-0050/name": "24c02"})  # an EEPROM on the same bus
    for place, (address, rails) in enumerate(monitors.items(), start=3):
        folder = f"{I2C}/{address}"
        put(root, {f"{folder}/name": "ina3221x" if kind == "iio" else "ina3221"})
        for number, (name, milliwatts) in enumerate(rails.items()):
            if kind == "iio":
                at = f"{folder}/iio:device{place}"
                put(root, {f"{at}/rail_name_{number}": name})
                put(root, {f"{at}/in_power{number}_input": milliwatts})
                continue
            at = f"{folder}/hwmon/hwmon{place}"
            put(root, {f"{at}/in{number + 1}_label": name})  # 5 V
            put(root, {f"{at}/in{number + 1}_input": 5000})
            put(root, {f"{at}/curr{number + 1}_input": milliwatts // 5})
        if kind == "hwmon":
            put(root, {f"{at}/in7_label": "sum of shunt voltages", f"{at}/in7_input": 77})
            put(root, {f"{at}/curr7_input": 5000})


def rapl(root: Path, zones: Mapping[str, tuple[str, int]]) -> None:
    """Powercap zones: name and microjoules, by folder."""
    for zone, (name, microjoules) in zones.items():
        at = f"sys/class/powercap/{zone}"
        put(root, {f"{at}/name": name, f"{at}/energy_uj": microjoules})
        put(root, {f"{at}/max_energy_range_uj": 1_000_000_000})


def cores(root: Path, clocks_khz: Mapping[int, tuple[int, int, int]]) -> None:
    """Present clock, limit and maximum by core."""
    for core, (now, limit, most) in clocks_khz.items():
        at = f"sys/devices/system/cpu/cpu{core}"
        put(root, {f"{at}/online": 1, f"{at}/cpufreq/scaling_governor": "schedutil"})
        put(root, {f"{at}/cpufreq/scaling_cur_freq": now})
        put(root, {f"{at}/cpufreq/scaling_max_freq": limit})
        put(root, {f"{at}/cpufreq/cpuinfo_max_freq": most})


def forbid(file: Path) -> None:
    """Let nobody but root read a file."""
    file.chmod(0)


@contextmanager
def as_nobody(root: Path) -> Iterator[Path]:
    """A copy of a tree that anybody may enter, and meanwhile no root's rights for this process."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy = Path(shutil.copytree(root, Path(folder) / "root"))
        copy.chmod(0o755)
        if os.geteuid() != 0:
            yield copy
            return
        os.seteuid(65534)
        try:
            yield copy
        finally:
            os.seteuid(0)
