"""Made-up roots as the systems of real boards show them; written after notes, none is a copy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from smidgen.edge_client.doctor.machine import Finding, Host, read_machine
from tests.edge_client.metering.boards import AGX_ORIN, NANO, ORIN_NANO, TX2, cores, monitors, put

NOW_S = 1_795_000_000.0  # in November 2026
A57 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
A78 = f"{A57} atomics fphp asimdhp asimddp dcpop"
GIB = 1 << 20  # kilobytes, as /proc/meminfo counts
Kept = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Board:
    """A board of a system.

    Attributes:
        write: Writes its tree into a folder.
        host: What its system says otherwise.
    """

    write: Callable[[Path], None]
    host: Host


def linux(root: Path, flags: str, total_kib: int, kernel: str, on: str = "0-3") -> None:
    """What every kernel shows, for four cores."""
    core = f"processor\t: 0\nFeatures\t: {flags}\n"
    memory = f"MemTotal: {total_kib} kB\nMemFree: 9 kB\nMemAvailable: {total_kib // 2} kB\n"
    put(root, {"proc/cpuinfo": core * 4, "proc/sys/kernel/osrelease": kernel})
    put(root, {"proc/meminfo": f"{memory}SwapTotal: {total_kib // 2} kB\nHugePages_Total: 0"})
    put(root, {f"sys/block/zram{n}/disksize": total_kib * 1024 // 8 for n in range(4)})
    put(root, {"sys/devices/system/cpu/online": on, "sys/devices/system/cpu/present": "0-5"})
    cores(root, dict.fromkeys(range(4), (1200000, 2035200, 2035200)))


def device_tree(root: Path, model: str, *compatible: str) -> None:
    """Texts that end in NUL, as the kernel shows them."""
    folder = root / "proc/device-tree"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model").write_bytes(model.encode() + b"\0")
    (folder / "compatible").write_bytes(b"".join(one.encode() + b"\0" for one in compatible))


def legacy_cgroup(root: Path, limit_bytes: int) -> None:
    """Version 1, as JetPack 4 and 5 boot."""
    put(root, {"proc/self/cgroup": "4:memory:/system.slice/smidgen-client.service\n1:name=x:/"})
    at = "25 24 0:22 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory"
    put(root, {"proc/self/mountinfo": at})
    group = "sys/fs/cgroup/memory/system.slice/smidgen-client.service"
    put(root, {f"{group}/memory.limit_in_bytes": limit_bytes, "sys/fs/cgroup/x": ""})
    put(root, {f"{group}/memory.usage_in_bytes": 300 << 20})
    put(root, {f"{group}/memory.stat": f"cache 5\ntotal_inactive_file {100 << 20}"})


def unified_cgroup(root: Path, limit: str) -> None:
    """Version 2, as JetPack 6 and later boot."""
    put(root, {"proc/self/cgroup": "0::/system.slice/smidgen-client.service"})
    at = "30 24 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw"
    put(root, {"proc/self/mountinfo": at})
    group = "sys/fs/cgroup/system.slice/smidgen-client.service"
    put(root, {f"{group}/memory.max": limit, f"{group}/memory.current": 64 << 20})
    put(root, {f"{group}/memory.stat": "inactive_file 0"})


def jetson(root: Path, release: str, mode: int, rails: Kept, kind: str) -> None:
    """What NVIDIA's systems show beside the kernel."""
    major, _, rest = release.partition(".")
    line = f"# R{major} (release), REVISION: {rest}, GCID: 1, BOARD: t210ref, EABI: aarch64"
    put(root, {"etc/nv_tegra_release": line, "var/lib/nvpmodel/status": f"pmode:{mode:04}"})
    modes = "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=MAXQ >"
    put(root, {"etc/nvpmodel.conf": modes})
    zones = {"CPU-therm": 41500, "GPU-therm": 39000, "PMIC-Die": 100000, "CV-therm": -256000}
    for place, (name, thousandths) in enumerate(zones.items()):
        at = f"sys/class/thermal/thermal_zone{place}"
        put(root, {f"{at}/type": name, f"{at}/temp": thousandths})
    put(root, {"sys/class/thermal/cooling_device0/type": "pwm-fan"})
    put(root, {"sys/class/thermal/cooling_device0/cur_state": 3})
    monitors(root, rails, kind)


def tx2(root: Path) -> None:
    linux(root, A57, 7_860_000, "4.9.253-tegra", on="0,3-5")
    device_tree(root, "quill", "nvidia,quill", "nvidia,tegra186")
    dts = "/dvs/git/dirty/tegra186-quill-p3310-1000-c03-00-base.dts"
    put(root, {"proc/device-tree/nvidia,dtsfilename": dts})
    jetson(root, "32.7.1", 1, TX2, "iio")
    legacy_cgroup(root, 5 << 30)


def nano(root: Path) -> None:
    linux(root, A57, 4_059_000, "4.9.337-tegra")
    names = "nvidia,p3449-0000-b00+p3448-0000-b00", "nvidia,jetson-nano", "nvidia,tegra210"
    device_tree(root, "NVIDIA Jetson Nano Developer Kit", *names)
    jetson(root, "32.7.6", 0, NANO, "iio")
    legacy_cgroup(root, (1 << 63) - 4096)


def orin_nano(root: Path) -> None:
    linux(root, A78, 7_800_000, "5.15.148-tegra")
    names = "nvidia,p3768-0000+p3767-0003-super", "nvidia,p3767-0003", "nvidia,tegra234"
    device_tree(root, "NVIDIA Jetson Orin NX Developer Kit", *names)  # as of some carrier boards
    jetson(root, "36.4.3", 2, ORIN_NANO, "hwmon")
    unified_cgroup(root, "max")


def agx_orin(root: Path) -> None:
    linux(root, A78, 31_300_000, "5.10.120-tegra")
    names = "nvidia,p3737-0000+p3701-0004", "nvidia,p3701-0004", "nvidia,tegra234"
    device_tree(root, "Jetson AGX Orin", *names)
    jetson(root, "35.4.1", 0, AGX_ORIN, "hwmon")
    unified_cgroup(root, f"{20 << 30}")


def raspberry_pi(root: Path) -> None:
    linux(root, A78, 4_130_000, "6.6.51+rpt-rpi-2712")
    device_tree(root, "Raspberry Pi 5 Model B Rev 1.0", "raspberrypi,5-model-b", "brcm,bcm2712")
    put(root, {"sys/class/thermal/thermal_zone0/type": "cpu-thermal"})
    put(root, {"sys/class/thermal/thermal_zone0/temp": 86200})
    unified_cgroup(root, "max")


JETPACK_4 = Host("aarch64", "2.27", "3.6.9", NOW_S)
JETPACK_5 = Host("aarch64", "2.31", "3.8.10", NOW_S)
JETPACK_6 = Host("aarch64", "2.35", "3.10.12", NOW_S)
BOARDS = {
    "TX2": Board(tx2, JETPACK_4),
    "Nano": Board(nano, JETPACK_4),
    "Orin Nano": Board(orin_nano, JETPACK_6),
    "AGX Orin": Board(agx_orin, JETPACK_5),
    "Raspberry Pi 5": Board(raspberry_pi, Host("aarch64", "2.36", "3.11.2", NOW_S)),
}


def found_on(root: Path, host: Host) -> dict[str, Finding]:
    """Findings on a tree, by check."""
    return {one.check: one for one in read_machine(root, host, root / "var/lib/smidgen")}
