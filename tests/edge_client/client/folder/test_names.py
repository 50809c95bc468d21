"""Which folders a client takes for its own, and what it leaves alone in them."""

import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from smidgen.edge_client.adapters.peft_folder import ORIGIN
from smidgen.edge_client.client.folder import foreign_in, is_own, sweep_halves
from smidgen.edge_client.client.state import ClientState, StateError
from tests.command_line import smidgen


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that lies in a folder: modes and contents."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.stat().st_mode),
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture
def somebodys(tmp_path: Path) -> Path:
    """A folder that was never a client's."""
    folder = tmp_path / "home"
    (folder / "public").mkdir(parents=True)
    for name in ("public/index.html", "room", ".mine.part"):
        (folder / name).write_text("mine")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def test_somebodys_own_folder_is_refused_and_stays_as_it_is(
    somebodys: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "unlabelled.csv").write_text("text\nrain\n")
    before, packs = seen(somebodys), somebodys / "packs"
    given = ("--coordinator", "http://127.0.0.1:9", "--token", "t", "--patience", "0")
    places = ("--data", str(tmp_path / "data"), "--state", str(somebodys), "--packs", str(packs))
    done = smidgen("client", "run", *given, *places)
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert f"state folder {somebodys} holds other things, such as .mine.part; give" in done.stderr
    assert seen(somebodys) == before


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("lost+found",),
        ("adapters",),
        ("adapters", "outbox", "lock", "photos"),  # of whoever puts things into a state folder
        ("device.new.json", ".adapter.part-17", ".adapter.old-17"),
        ("corrections.json", "lock", "labels-r1.jsonl", "labels-r1.jsonl.bad", ".ca.pem.part"),
        ("System Volume Information", ".Trash-1000", ".nfs00000000012", ".snapshot", ".DS_Store"),
        (".keep", ".gitignore"),
    ],
)
def test_what_smidgen_has_written_is_a_state_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert foreign_in(tmp_path) is None
    ClientState(tmp_path)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("photos",), "photos"),
        (("adapters", "photos"), "photos"),
        ((".photos.part",), ".photos.part"),
        (("finished", "personal", "runs"), "finished"),  # by names that anybody may give
        (("adapter",), "adapter"),
        (("adapters/of-mine",), "adapters"),
        (("outbox/letters",), "outbox"),
        (("labels-monday.jsonl", "labels-tuesday.jsonl"), "labels-monday.jsonl"),
        (("steps", "tmpabc"), "steps"),
    ],
)
def test_what_smidgen_never_made_so_is_not(
    tmp_path: Path, names: tuple[str, ...], told: str
) -> None:
    for name in names:
        (tmp_path / name).mkdir(parents=True)
    before = seen(tmp_path)
    with pytest.raises(StateError, match=rf"as {re.escape(told)}; give --state a new or an empty"):
        ClientState(tmp_path)
    assert seen(tmp_path) == before


def test_a_state_out_of_a_backup_without_empty_folders_is_known_by_its_identity(
    tmp_path: Path,
) -> None:
    identity = '{"device_id": "", "key": "k", "name": "", "url": ""}'
    for name in ("adapters", "packs", "personal"):
        (tmp_path / name).mkdir()
    (tmp_path / "device.json").write_text(identity)
    known = ClientState(tmp_path).identity()
    assert known is not None and known.key == "k"


@pytest.mark.parametrize("body", ["", "{", "[]", '{"url": "x"}', '{"url": 1, "key": "k"}'])
def test_any_other_device_json_vouches_for_nothing(tmp_path: Path, body: str) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "device.json").write_text(body)
    assert foreign_in(tmp_path) == "runs"


def test_what_the_user_names_in_a_new_state_folder_is_not_foreign(tmp_path: Path) -> None:
    (tmp_path / "state" / "data" / "de").mkdir(parents=True)
    (tmp_path / "state" / "token").write_text("t")
    (tmp_path / "link").symlink_to(tmp_path / "state")
    given = [tmp_path / "state/data/de", tmp_path / "link/token", tmp_path / "elsewhere", Path("x")]
    assert foreign_in(tmp_path / "state") == "data"
    assert foreign_in(tmp_path / "state", given) is None
    assert foreign_in(tmp_path / "state", given[1:]) == "data"
    (tmp_path / "state" / "runs").mkdir()  # of texts, say: they would be closed and swept
    assert foreign_in(tmp_path / "state", [*given, tmp_path / "state/runs"]) == "runs"


def test_a_first_start_in_a_folder_prepared_for_it_gets_as_far_as_the_coordinator(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "unlabelled.csv").write_text("text\nrain\n")
    (tmp_path / "packs").mkdir()
    (tmp_path / "token").write_text("t")
    (tmp_path / "token").chmod(0o600)
    given = ("--coordinator", "http://127.0.0.1:9", "--patience", "0", "--state", f"{tmp_path}")
    named = [(f"--{kind}", f"{tmp_path}/{kind.split('-')[0]}") for kind in ("data", "packs")]
    places = [word for pair in named for word in pair]
    done = smidgen("client", "run", *given, *places, "--token-file", f"{tmp_path}/token")
    assert done.exit_code == 1 and "holds other things" not in done.stderr
    assert (tmp_path / "token").read_text() == "t" and not (tmp_path / "adapters").exists()


def test_what_others_put_into_a_state_folder_is_neither_closed_nor_deleted(
    tmp_path: Path, somebodys: Path
) -> None:
    state = ClientState(tmp_path / "state")
    somebodys.rename(state.folder / "home")
    (state.folder / ".mine.part").write_text("mine")
    (state.folder / "link.json").write_text("{}")
    (state.folder / "link.json").chmod(0o644)
    before = seen(state.folder / "home")
    with state.locked():
        state.check_room()
    assert seen(state.folder / "home") == before
    assert (state.folder / ".mine.part").read_text() == "mine"
    assert stat.S_IMODE((state.folder / "link.json").stat().st_mode) == 0o600


def test_folders_that_killed_processes_left_half_written_are_swept(tmp_path: Path) -> None:
    state = ClientState(tmp_path)
    halves = (".adapter.part-17", ".adapter.old-17", "personal/.adapter.part-17")
    others = (".photos.part-17", "adapter", "personal/adapter", "finished/.b.old-17")
    for name in (*halves, "finished/.a.part-17", *others):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "weights").write_text("")
    (tmp_path / "finished/.c.part-17").symlink_to(tmp_path / "adapter")
    with state.locked():
        assert not any((tmp_path / name).exists() for name in (*halves, "finished/.a.part-17"))
        assert all((tmp_path / name / "weights").exists() for name in others)
    assert {path.name for path in (tmp_path / "finished").iterdir()} == {".b.old-17"}


def put_adapter(folder: Path, time_s: int) -> None:
    """The mark of a whole adapter, written at a time."""
    folder.mkdir(parents=True)
    (folder / ORIGIN).write_text("{}")
    os.utime(folder / ORIGIN, (time_s, time_s))


@pytest.mark.parametrize("place", ["", "personal", "finished"])
def test_what_was_kept_whole_stays_until_something_newer_stands_there(
    tmp_path: Path, place: str
) -> None:
    state, kept = ClientState(tmp_path), tmp_path / place / ".adapter.part-17"
    put_adapter(kept, time_s=2000)
    with state.locked():
        assert kept.is_dir()  # nothing stands there
    put_adapter(tmp_path / place / "adapter", time_s=1000)
    with state.locked():
        assert kept.is_dir()  # what stands there could not be replaced
    os.utime(tmp_path / place / "adapter" / ORIGIN, (3000, 3000))
    with state.locked():
        assert not kept.exists() and (tmp_path / place / "adapter" / ORIGIN).exists()


def test_the_probe_for_room_of_a_killed_client_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ClientState(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(tempfile, "_O_TMPFILE_WORKS", False)  # as on NFS
        killed.setattr(os, "unlink", lambda path: None)  # a kill just before it
        state.check_room()
    (left,) = tmp_path.glob(".room*")
    assert is_own(left.name)
    with state.locked():
        assert not left.exists()


def test_a_sweep_of_what_is_not_there_is_none(tmp_path: Path) -> None:
    sweep_halves(tmp_path)
    assert is_own(".room.part") and not is_own("room")
