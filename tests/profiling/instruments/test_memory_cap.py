import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smidgen.profiling.instruments.memory_cap import (
    CapReport,
    DataLimit,
    Group,
    MemoryCap,
    NoCap,
    cached_bytes,
    drop_page_cache,
    memory_cap,
)

MIB = 1 << 20
NO_MOUNTS = Path("/dev/null")
MAP = "import mmap, sys; f = open(sys.argv[1]); mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)"
# Touches every page, so that the memory is used and not only reserved.
ALLOCATE = "import sys; held = bytearray(int(sys.argv[1]) << 20); held[::4096] = held[::4096]"


@pytest.fixture
def group() -> Iterator[MemoryCap]:
    """A real group of 64 MiB; skips with a reason where there is none to be had."""
    with memory_cap(64 * MIB) as cap:
        if not isinstance(cap, Group):
            pytest.skip(f"no memory cgroup here: {cap.report().note}")
        yield cap


def run(cap: MemoryCap, mebibytes: int) -> int:
    command = cap.around([sys.executable, "-c", ALLOCATE, str(mebibytes)])
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_a_child_inside_its_cap_ends_well(group: MemoryCap) -> None:
    assert run(group, 20) == 0
    report = group.report()
    assert (report.limit_bytes, report.oom_kills) == (64 * MIB, 0)
    assert report.peak_bytes is not None and 20 * MIB < report.peak_bytes <= 64 * MIB


def test_a_child_over_its_cap_is_killed_and_counted(group: MemoryCap) -> None:
    assert run(group, 200) == -9
    assert group.report().oom_kills == 1


def test_the_group_is_gone_afterwards() -> None:
    with memory_cap(64 * MIB) as cap:
        if not isinstance(cap, Group):
            pytest.skip(f"no memory cgroup here: {cap.report().note}")
        folder = Path(cap.around([])[3]).parent
        assert folder.is_dir()
        assert run(cap, 200) == -9
    assert not folder.exists()


def test_without_a_controller_private_memory_is_limited_and_that_is_said() -> None:
    with memory_cap(100 * MIB, mounts=NO_MOUNTS) as cap:
        assert isinstance(cap, DataLimit)
        assert (run(cap, 20), run(cap, 200)) == (0, 1)
        report = cap.report()
    assert report.limit_bytes is None and "NOT enforced" in report.note


def test_the_data_limit_leaves_room_for_mapped_files(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    with file.open("wb") as stream:
        stream.truncate(300 * MIB)
    for mapped_bytes, code in ((0, 1), (300 * MIB, 0)):
        with memory_cap(100 * MIB, mapped_bytes, NO_MOUNTS) as cap:
            command = cap.around([sys.executable, "-c", MAP, str(file)])
            assert subprocess.run(command, capture_output=True, check=False).returncode == code


def test_no_cap_leaves_the_command_alone() -> None:
    with memory_cap(None) as cap:
        assert isinstance(cap, NoCap)
        assert cap.around(["true"]) == ["true"]
        assert cap.report() == CapReport("none", None, None, None, "no cap was asked for")


def test_version_2_is_taken_where_it_has_the_memory_controller(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with memory_cap(512 * MIB, mounts=mounts) as cap:
        folder = next(tmp_path.glob("smidgen-*"))
        (folder / "memory.peak").write_text("1048576\n")
        (folder / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
        report = cap.report()
        for file in folder.iterdir():
            file.unlink()  # the kernel's own files go with the folder
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (report.mechanism, report.limit_bytes) == ("cgroup v2", 512 * MIB)
    assert (report.peak_bytes, report.oom_kills) == (MIB, 2)


def test_version_2_without_the_memory_controller_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("hugetlb\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with memory_cap(512 * MIB, mounts=mounts) as cap:
        assert isinstance(cap, DataLimit)


def test_what_was_read_is_cached_and_can_be_dropped(tmp_path: Path) -> None:
    file = Path.cwd() / f".cached-{tmp_path.name}"  # not on a tmpfs, which is nothing but cache
    try:
        file.write_bytes(bytes(8 * MIB))
        assert cached_bytes(file) == 8 * MIB
        line = drop_page_cache([file], drop=tmp_path / "no" / "such" / "file")
        if cached_bytes(file) == 8 * MIB:
            pytest.skip("this file system is nothing but cache, or keeps its pages")
        assert cached_bytes(file) < MIB
    finally:
        file.unlink()
    assert line.startswith("the machine's page cache was NOT dropped")
    assert line.endswith("cached still: none of them")


def test_an_empty_file_has_nothing_cached(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert cached_bytes(tmp_path / "empty") == 0
