"""The folder of packs: what is removed for whom, and what is never touched."""

import errno
import os
from pathlib import Path

import pytest

from smidgen.edge_client.client.packs.shelf import RESERVE_BYTES, NoRoom, Shelf
from smidgen.edge_client.client.packs.sources import Folder
from smidgen.edge_client.errors import WrongInput
from tests.edge_client.client.packs.packs import announced, fetch_of, make_pack

PLENTY = 1 << 40
A, B, C = ("a" * 64, "b" * 64, "c" * 64)


def put(shelf: Shelf, base_id: str, size: int, age: int) -> None:
    """What looks like a pack, last used so long ago."""
    place = shelf.folder / base_id
    place.mkdir()
    (place / "weights.safetensors").write_bytes(bytes(size))
    os.utime(place, (1e9 - age, 1e9 - age))


def names(shelf: Shelf) -> set[str]:
    return {path.name for path in shelf.folder.iterdir()}


def test_the_pack_whose_last_use_is_the_longest_ago_makes_room(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 250, lambda _: PLENTY)
    put(shelf, A, 100, age=1)
    put(shelf, B, 100, age=2)
    assert shelf.make_room(C, 100, ()) == [B]
    assert names(shelf) == {A}


def test_what_an_open_run_needs_stays_and_the_next_one_hears_what_lacks(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 250, lambda _: PLENTY)
    put(shelf, A, 100, age=1)
    put(shelf, B, 100, age=2)
    assert shelf.make_room(C, 100, {B}) == [A]
    put(shelf, A, 100, age=1)
    with pytest.raises(NoRoom, match="with those that open runs need it is more than --packs-size"):
        shelf.make_room(C, 100, {A, B})
    assert names(shelf) == {A, B}


def test_old_packs_go_when_the_disk_runs_short_and_only_if_that_is_enough(tmp_path: Path) -> None:
    free = [RESERVE_BYTES]
    shelf = Shelf(tmp_path / "packs", 1000, lambda _: free[0])
    put(shelf, A, 100, age=1)
    with pytest.raises(NoRoom, match=r"lack on the disk of .*packs: free some space"):
        shelf.make_room(C, 300, ())
    assert names(shelf) == {A}
    assert shelf.make_room(C, 100, ()) == [A]


def test_what_has_arrived_of_a_pack_is_not_counted_twice_nor_removed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 100, lambda _: RESERVE_BYTES + 40)
    (shelf.partial(C) / "weights.safetensors").write_bytes(bytes(60))
    assert shelf.make_room(C, 100, ()) == []
    assert names(shelf) == {f".{C}.fetching"}


def test_two_runs_with_two_packs_and_too_little_room_keep_the_first(tmp_path: Path) -> None:
    one, other = make_pack(tmp_path, 1), make_pack(tmp_path, 2)
    total = announced(one[1]).total_bytes
    shelf = Shelf(tmp_path / "packs", total + total // 2)
    assert fetch_of(shelf, one, Folder(one[1])).go_on(1e12) is not None
    with pytest.raises(NoRoom, match="with those that open runs need"):
        shelf.make_room(other[0], announced(other[1]).total_bytes, {one[0]})
    assert shelf.base(one[0]) is not None
    assert shelf.make_room(other[0], announced(other[1]).total_bytes, ()) == [one[0]]
    assert shelf.base(one[0]) is None
    assert fetch_of(shelf, other, Folder(other[1])).go_on(1e12) is not None
    assert names(shelf) == {other[0]}


def test_a_pack_that_is_damaged_on_the_disk_is_no_pack_in_the_next_life(tmp_path: Path) -> None:
    one = make_pack(tmp_path, 1)
    shelf = Shelf(tmp_path / "packs", PLENTY)
    assert fetch_of(shelf, one, Folder(one[1])).go_on(1e12) is not None
    (shelf.folder / one[0] / "config.json").write_text("{}")
    assert Shelf(shelf.folder, PLENTY).base(one[0]) is None
    assert names(shelf) == set()


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_pack_that_cannot_be_read_now_stays(
    tmp_path: Path, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, shelf = make_pack(tmp_path, 1), Shelf(tmp_path / "packs", PLENTY)
    assert fetch_of(shelf, one, Folder(one[1])).go_on(1e12) is not None
    opened, later = Path.open, Shelf(shelf.folder, PLENTY)

    def failing(path: Path, mode: str = "r") -> object:
        if path.name == name:
            raise OSError(number, os.strerror(number))
        return opened(path, mode)

    with monkeypatch.context() as disk:
        disk.setattr(Path, "open", failing)
        with pytest.raises(OSError, match=os.strerror(number)):
            later.base(one[0])
    assert later.base(one[0]) is not None


def test_one_client_alone_keeps_packs_in_a_folder(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", PLENTY)
    other = Shelf(tmp_path / "packs", PLENTY)
    with shelf.locked(), pytest.raises(WrongInput, match="another client keeps its packs"):
        other.locked().__enter__()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs").chmod(0o777)
    with pytest.raises(WrongInput, match="its owner alone may write to"):
        Shelf(tmp_path / "packs", PLENTY)


def test_a_clock_that_was_set_back_at_boot_removes_no_newer_pack_first(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 250, lambda _: PLENTY)
    put(shelf, A, 100, age=-3600 * 24 * 365 * 40)  # by a clock that was forty years ahead
    put(shelf, B, 100, age=0)
    shelf.used(A)
    shelf.used(B)
    assert shelf.make_room(C, 100, ()) == [A]


def test_what_came_in_part_goes_before_a_whole_pack(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 250, lambda _: PLENTY)
    put(shelf, A, 100, age=1)
    (shelf.partial(B) / "weights.safetensors").write_bytes(bytes(100))
    assert shelf.make_room(C, 100, ()) == [B]


def test_a_link_to_a_folder_elsewhere_is_followed_once(tmp_path: Path) -> None:
    one, data = make_pack(tmp_path, 1), tmp_path / "data"
    data.mkdir(mode=0o700)
    (tmp_path / "packs").symlink_to(data)
    shelf = Shelf(tmp_path / "packs", PLENTY)
    assert shelf.folder == data.resolve()
    (tmp_path / "packs").unlink()
    (tmp_path / "packs").symlink_to(tmp_path / "elsewhere")
    assert fetch_of(shelf, one, Folder(one[1])).go_on(1e12) is not None
    assert {path.name for path in data.iterdir()} == {one[0]}


def test_a_link_to_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o770)
    (tmp_path / "packs").symlink_to(tmp_path / "data")
    with pytest.raises(WrongInput, match=r"a link to .*data\): a folder that its owner alone"):
        Shelf(tmp_path / "packs", PLENTY)


@pytest.mark.parametrize("target", ["not-mounted", "packs"])
def test_a_link_to_nothing_is_told_and_nothing_is_made_there(tmp_path: Path, target: str) -> None:
    (tmp_path / "packs").symlink_to(tmp_path / target)
    with pytest.raises(WrongInput, match="is a link to what is not there; mount it"):
        Shelf(tmp_path / "packs", PLENTY)
    assert [path.name for path in tmp_path.iterdir()] == ["packs"]


def test_a_pack_with_a_link_in_it_is_no_pack_in_the_next_life(tmp_path: Path) -> None:
    one = make_pack(tmp_path, 1)
    shelf = Shelf(tmp_path / "packs", PLENTY)
    assert fetch_of(shelf, one, Folder(one[1])).go_on(1e12) is not None
    weights, outside = shelf.folder / one[0] / "weights.safetensors", tmp_path / "outside"
    weights.rename(outside)
    weights.symlink_to(outside)
    assert Shelf(shelf.folder, PLENTY).base(one[0]) is None
    assert names(shelf) == set() and outside.stat().st_size > 0


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "packs", 100, lambda _: PLENTY)
    (shelf.folder / "photo.jpg").write_bytes(bytes(500))
    (shelf.folder / ".mine").mkdir()
    assert shelf.make_room(C, 100, ()) == []
    assert names(shelf) == {"photo.jpg", ".mine"}
