"""The low-water mark: what it looks at, how often, and how it is typed."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from smidgen.coordinator.upkeep.retention import (
    KEEP_ROUNDS,
    LEAST_FREE,
    DiskLimits,
    Room,
    limits_of,
    note,
    noted,
)
from smidgen.edge_client.errors import WrongInput


@dataclass
class Disk:
    """A disk and a clock that a test sets.

    Attributes:
        free: Bytes.
        now_s: Seconds.
        looks: How often somebody asked.
    """

    free: int
    now_s: float = 0.0
    looks: list[Path] = field(default_factory=list)

    def usage(self, folder: Path) -> "Disk":
        self.looks.append(folder)
        return self

    def room(self, least_free_bytes: int) -> Room:
        return Room(Path("store"), least_free_bytes, self.usage, lambda: self.now_s)


def test_a_disk_is_full_below_the_mark_and_not_at_it() -> None:
    assert Disk(99).room(100).is_full and not Disk(100).room(100).is_full


def test_the_disk_is_looked_at_once_a_second_at_most() -> None:
    disk = Disk(100)
    room = disk.room(100)
    for _ in range(50):
        assert not room.is_full
    disk.free, disk.now_s = 0, 0.9
    assert not room.is_full and len(disk.looks) == 1
    disk.now_s = 1.0
    looked = room.is_full, len(disk.looks)
    assert looked == (True, 2)


def test_it_goes_on_by_itself_once_there_is_room() -> None:
    disk = Disk(1)
    room = disk.room(100)
    assert room.is_full
    disk.free, disk.now_s = 500, 2.0
    assert not room.is_full


def test_without_a_mark_nobody_looks() -> None:
    disk = Disk(0)
    assert not disk.room(0).is_full and not disk.looks


def test_limits_are_typed_as_sizes_are() -> None:
    assert limits_of(KEEP_ROUNDS, LEAST_FREE) == DiskLimits() == DiskLimits(20, 512 << 20)
    assert limits_of(3, "1G") == DiskLimits(3, 1 << 30) and limits_of(0, "0") == DiskLimits(0, 0)


@pytest.mark.parametrize("keep", [-1, 10**9])
def test_a_number_of_rounds_out_of_range_is_named(keep: int) -> None:
    with pytest.raises(WrongInput, match="--keep-rounds"):
        limits_of(keep, LEAST_FREE)


@pytest.mark.parametrize("least", ["", "-1", "much", "512", "00"])
def test_a_mark_that_is_not_a_size_is_named(least: str) -> None:
    with pytest.raises(WrongInput, match="--least-free"):
        limits_of(KEEP_ROUNDS, least)


def test_other_commands_read_what_serve_was_told(tmp_path: Path) -> None:
    assert noted(tmp_path) == DiskLimits()
    note(tmp_path, DiskLimits(3, 7))
    assert noted(tmp_path) == DiskLimits(3, 7)
    (tmp_path / "limits.json").write_text("{}x")
    assert noted(tmp_path) == DiskLimits()
