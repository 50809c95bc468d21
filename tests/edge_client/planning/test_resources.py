"""Facts read from folder trees with real-looking kernel files, and from this machine itself."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from smidgen.edge_client.planning.resources import (
    CgroupMemory,
    Resources,
    cgroup_memory,
    cpu_flags,
    fast_dtypes,
    measured_flops,
    read_facts,
    usable_cores,
)
from tests.processes import ENTER, memory_group

MIB = 1 << 20
GIB = 1 << 30
MEMINFO = """MemTotal:        8048636 kB
MemFree:          312340 kB
MemAvailable:    6291456 kB
HugePages_Total:       0
"""
EPYC = """processor\t: 0
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16
processor\t: 1
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16
"""
TX2 = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32
processor\t: 1
Features\t: fp asimd evtstrm aes
"""
V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:12 - cgroup cgroup rw,memory
"""
V2_MOUNT = "29 22 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
UNLIMITED_V1 = "9223372036854771712\n"


def tree(root: Path, files: Mapping[str, object]) -> Path:
    """A file system root with `proc` and `sys` as given."""
    for name, text in ({"proc/meminfo": MEMINFO, "proc/cpuinfo": EPYC} | dict(files)).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def v2(root: Path, groups: Mapping[str, Mapping[str, object]], mount_root: str = "/") -> Path:
    """A tree with the unified hierarchy; the process is in /app.slice/run.scope."""
    files: dict[str, object] = {
        "proc/self/cgroup": "0::/app.slice/run.scope\n",
        "proc/self/mountinfo": V2_MOUNT.format(root=mount_root),
    }
    for group, content in groups.items():
        files |= {f"sys/fs/cgroup/{group}/{name}": text for name, text in content.items()}
    return tree(root, files)


def v1(root: Path, groups: Mapping[str, Mapping[str, object]]) -> Path:
    """A tree with version 1; the process is in /jobs/one, its memory and its processor."""
    files: dict[str, object] = {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/jobs/one\n2:cpu,cpuacct:/jobs/one\n0::/\n",
        "proc/self/mountinfo": V1_MOUNTS,
    }
    for group, content in groups.items():
        files |= {f"sys/fs/cgroup/{group}/{name}": text for name, text in content.items()}
    return tree(root, files)


def facts(root: Path, machine: str = "x86_64") -> Resources:
    return read_facts(0, root, machine)


# Memory


def test_without_groups_all_that_is_available_counts(tmp_path: Path) -> None:
    found = facts(tree(tmp_path, {}))
    assert found.available_bytes == 6 * GIB and found.cgroup_limit_bytes is None
    assert found.total_bytes == 8048636 * 1024


def test_the_unified_groups_limit_counts_less_what_is_held(tmp_path: Path) -> None:
    stat = f"anon 1\nfile 2\ninactive_file {100 * MIB}\nactive_file 3\n"
    group = {"memory.max": GIB, "memory.current": 400 * MIB, "memory.stat": stat}
    found = facts(v2(tmp_path, {"app.slice/run.scope": group}))
    assert found.cgroup_limit_bytes == GIB
    assert found.available_bytes == GIB - 300 * MIB


def test_a_parents_tighter_limit_counts(tmp_path: Path) -> None:
    own = {"memory.max": GIB, "memory.current": MIB}
    parent = {"memory.max": 600 * MIB, "memory.current": 500 * MIB}
    found = facts(v2(tmp_path, {"app.slice/run.scope": own, "app.slice": parent}))
    assert (found.cgroup_limit_bytes, found.available_bytes) == (600 * MIB, 100 * MIB)


def test_a_throttling_limit_counts_and_max_is_none(tmp_path: Path) -> None:
    own = {"memory.max": "max\n", "memory.high": 300 * MIB, "memory.current": 0}
    parent = {"memory.max": "max\n", "memory.high": "max\n", "memory.current": GIB}
    root = v2(tmp_path, {"app.slice/run.scope": own, "app.slice": parent})
    assert list(cgroup_memory(root)) == [CgroupMemory(300 * MIB, 300 * MIB)]


def test_a_group_over_its_limit_grants_nothing(tmp_path: Path) -> None:
    group = {"memory.max": MIB, "memory.current": GIB}
    assert facts(v2(tmp_path, {"app.slice": group})).available_bytes == 0


def test_version_1_limits_count_with_parents(tmp_path: Path) -> None:
    stat = f"cache 5\ninactive_file 7\ntotal_inactive_file {10 * MIB}\n"
    own = {"memory.limit_in_bytes": UNLIMITED_V1, "memory.usage_in_bytes": 1}
    parent = {
        "memory.limit_in_bytes": 512 * MIB,
        "memory.usage_in_bytes": 60 * MIB,
        "memory.stat": stat,
    }
    found = facts(v1(tmp_path, {"memory/jobs/one": own, "memory/jobs": parent}))
    assert (found.cgroup_limit_bytes, found.available_bytes) == (512 * MIB, 462 * MIB)


def test_a_container_that_sees_a_part_of_the_hierarchy_finds_its_group(tmp_path: Path) -> None:
    group = {"memory.max": 256 * MIB, "memory.current": 0}
    root = v2(tmp_path, {"run.scope": group}, mount_root="/app.slice")
    assert facts(root).cgroup_limit_bytes == 256 * MIB


def test_a_group_outside_the_mount_falls_back_to_the_mount_itself(tmp_path: Path) -> None:
    group = {"memory.max": 256 * MIB, "memory.current": 0}
    root = v2(tmp_path, {".": group}, mount_root="/docker/3f2a")
    assert facts(root).cgroup_limit_bytes == 256 * MIB


def test_a_mount_point_with_a_space_is_found(tmp_path: Path) -> None:
    mount = "29 22 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n"
    files = {"proc/self/cgroup": "0::/a:b\n", "proc/self/mountinfo": mount}
    limits = {"sys/fs/my groups/a:b/memory.max": str(64 * MIB)}
    assert facts(tree(tmp_path, files | limits)).cgroup_limit_bytes == 64 * MIB


def test_nonsense_in_kernel_files_is_no_limit(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "\n0\n::\n0::/\n", "proc/self/mountinfo": "x\n - \n1 2 3 - \n"}
    limits = {"proc/meminfo": "\nMemAvailable:\n", "proc/cpuinfo": "flags"}
    found = facts(tree(tmp_path, files | limits))
    assert found.cgroup_limit_bytes is None and found.available_bytes == 0
    assert found.total_bytes is None and found.cores >= 1


# Processor


def test_a_quota_limits_the_cores(tmp_path: Path) -> None:
    every = len(os.sched_getaffinity(0))
    own, parent = {"cpu.max": "max 100000\n"}, {"cpu.max": "50000 100000\n"}
    assert usable_cores(v2(tmp_path, {"app.slice/run.scope": own})) == every
    assert usable_cores(v2(tmp_path, {"app.slice": parent})) == 1


def test_a_version_1_quota_limits_the_cores_and_a_part_counts_whole(tmp_path: Path) -> None:
    quota = {"cpu.cfs_quota_us": "110000\n", "cpu.cfs_period_us": "100000\n"}
    cores = usable_cores(v1(tmp_path, {"cpu,cpuacct/jobs": quota}))
    assert cores == min(2, len(os.sched_getaffinity(0)))
    without = {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}
    root = v1(tmp_path, {"cpu,cpuacct/jobs": without})
    assert usable_cores(root) == len(os.sched_getaffinity(0))


def test_only_flags_of_every_core_count() -> None:
    assert cpu_flags(TX2, "aarch64") == {"fp", "asimd", "evtstrm", "aes"}
    assert cpu_flags("") == cpu_flags("processor: 0\n") == frozenset()


def test_an_emulated_arm_does_not_take_the_flags_of_the_x86_below_it(tmp_path: Path) -> None:
    emulated = facts(tree(tmp_path, {"proc/cpuinfo": EPYC}), "aarch64")
    assert (emulated.flags, emulated.cpu_dtypes) == (frozenset(), ())


@pytest.mark.parametrize(
    ("machine", "flags", "dtypes"),
    [
        ("x86_64", "sse2 avx2 f16c", ()),
        ("x86_64", "avx512f avx512_bf16", ("bfloat16",)),
        ("x86_64", "avx512f avx512_fp16 amx_bf16", ("bfloat16", "float16")),
        ("aarch64", "fp asimd", ()),  # Cortex-A57: TX2 and Nano
        ("aarch64", "fp asimd fphp asimdhp", ("float16",)),  # Carmel: Xavier
        ("aarch64", "fp asimd asimdhp bf16", ("bfloat16", "float16")),
        ("x86_64", "asimdhp bf16", ()),
    ],
)
def test_16_bit_types_are_offered_where_the_processor_computes_them(
    machine: str, flags: str, dtypes: tuple[str, ...]
) -> None:
    assert fast_dtypes(machine, flags.split()) == dtypes


def test_nominal_rates_follow_the_processor(tmp_path: Path) -> None:
    epyc = facts(tree(tmp_path / "a", {}))
    assert epyc.nominal.flops_per_s["bfloat16"] > 2 * epyc.nominal.flops_per_s["float32"]
    tx2 = facts(tree(tmp_path / "b", {"proc/cpuinfo": TX2}), "aarch64")
    assert set(tx2.nominal.flops_per_s) == {"float32"} and tx2.accelerator is None


# This machine


def test_this_machine_has_facts() -> None:
    found = read_facts(runtime=1)
    assert 0 < found.available_bytes <= (found.total_bytes or 0)
    assert found.cores >= 1 and found.flags and found.runtime_bytes == 1


def test_the_processor_computes() -> None:
    assert measured_flops(size=64, repeats=3) > 1e6


def test_a_real_groups_limit_is_found_by_a_process_in_it() -> None:
    code = (
        "from smidgen.edge_client.planning.resources import read_facts; f = read_facts(runtime=0); "
        "print(f.cgroup_limit_bytes, f.available_bytes)"
    )
    with memory_group(300 * MIB) as group:
        line = [*ENTER, str(group), sys.executable, "-c", code]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
    limit, available = map(int, done.stdout.split())
    assert limit == 300 * MIB and 150 * MIB < available < limit
