"""Which folders a client takes for its own, and what it leaves alone in them."""

import stat
from pathlib import Path

import pytest

from edge_client.client.folder.names import foreign_in, is_own, sweep_halves
from edge_client.client.state import ClientState, StateError
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
        ("device.json",),
        ("corrections.json", "labels-r1.jsonl", "labels-r1.jsonl.bad", ".ca.pem.part"),
        ("activations", ".adapter.part-17", ".adapter.old-17"),
    ],
)
def test_what_smidgen_has_written_is_a_state_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert foreign_in(tmp_path) is None
    ClientState(tmp_path)


@pytest.mark.parametrize("names", [("photos",), ("adapters", "photos"), (".photos.part",)])
def test_what_smidgen_never_wrote_is_not(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(StateError, match=r"photos.*; give --state a new or an empty folder"):
        ClientState(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*names}


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


def test_a_sweep_of_what_is_not_there_is_none(tmp_path: Path) -> None:
    sweep_halves(tmp_path)
    assert is_own(".room.part") and not is_own("room")
