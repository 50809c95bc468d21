"""Stores that were damaged on disk: each is refused in one line, or named by `verify`."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from smidgen.coordinator.api.init import init
from smidgen.coordinator.api.serve import serve
from smidgen.coordinator.rounds.events import Paused
from smidgen.coordinator.storage.database import DATABASE, StoreError
from smidgen.coordinator.storage.journals import (
    FILE,
    LINE_BYTES,
    HeadsError,
    JournalHead,
    read_heads,
)
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep.backup import note, watched
from smidgen.edge_client.errors import WrongInput
from tests.command_line import Done, smidgen
from tests.coordinator.upkeep.stores import Filled, filled

WAL = f"{DATABASE}-wal"


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, Filled]:
    """A store as a killed coordinator leaves it: its newest events are in the WAL alone."""
    live, folder = tmp_path / "live", tmp_path / "store"
    with closing(Store(live)) as store:
        with store.database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        store.database.engine.dispose()
    with closing(Store(live)) as store, store.noting(note(store)):
        run = filled(store, "mail", rounds=2, devices=3, open_updates=2)
        shutil.copytree(live, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder, run


def verify(folder: Path, *more: str) -> Done:
    return smidgen("coordinator", "verify", "--store", str(folder), *more)


def one_line(folder: Path, command: str, *more: str) -> str:
    done = smidgen("coordinator", command, "--store", str(folder), *more)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1, done.output
    assert "Traceback" not in done.output
    return done.stderr


def refused(folder: Path) -> str:
    """What a start says that must not come to serve."""
    with pytest.raises(WrongInput) as caught, serve(folder, port=0):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(path: Path, at: int = -1) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)


def test_a_killed_coordinators_store_is_sound_and_is_served(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    assert (folder / WAL).stat().st_size > 50_000  # the journal is there and nowhere else
    assert verify(folder).exit_code == 0
    with serve(folder, port=0) as server:
        assert [one.phase for one in server.runs()] == ["train"]
    assert "1 run, " in verify(folder).stdout


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_write_ahead_log_that_was_cut_is_noticed(
    killed: tuple[Path, Filled], left: float
) -> None:
    folder, _ = killed
    (folder / f"{DATABASE}-shm").unlink()
    log = (folder / WAL).read_bytes()
    (folder / WAL).write_bytes(log[: int(left * len(log))])
    said = refused(folder)
    assert "is behind: the journal of run r-mail had" in said and "--accept" in said
    looked = verify(folder)
    assert looked.exit_code == 1 and "is behind" in looked.stdout


def test_what_was_put_back_on_purpose_is_accepted(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("DELETE FROM events WHERE seq > 4")
    assert "had" in refused(folder)
    done = verify(folder, "--accept")
    assert done.exit_code == 0, done.output
    with serve(folder, port=0) as server:
        assert server.runs()[0].round_index <= 1


def test_a_database_that_was_swapped_is_noticed(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    with closing(Store(folder.with_name("other"))) as other:
        filled(other, "mail", rounds=3, devices=2)
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    shutil.copy(folder.with_name("other") / DATABASE, folder / DATABASE)
    assert "the journal of run r-mail is another one than it was" in refused(folder)


def test_an_event_that_was_changed_is_noticed(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("""UPDATE events SET payload = replace(payload, '1000', '9000')""")
    said = "the journal of run r-mail was changed: event"
    assert said in refused(folder) and said in one_line(folder, "status")
    assert said in verify(folder).stdout


def test_a_runs_row_that_was_changed_is_noticed(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("UPDATE runs SET secret = 'another'")
    assert "the journal of run r-mail was changed: event 0" in refused(folder)


def test_heads_that_are_missing_or_damaged_are_told(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    flip(folder / FILE, 3)
    assert "journal.heads is damaged" in refused(folder)
    (folder / FILE).unlink()
    assert "journal.heads is missing" in refused(folder)
    assert verify(folder, "--accept").exit_code == 0
    assert verify(folder).exit_code == 0


def test_heads_may_lag_behind_and_never_lead(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        run = filled(store, "mail", rounds=1, devices=2, open_updates=0)
        with watched(store):
            before = (tmp_path / FILE).read_bytes()
            end = store.ends()[run.run_id]
            store.append(run.run_id, end.seq + 1, Paused(1.0))
            assert read_heads(tmp_path / FILE) == store.ends()
            with pytest.raises(StoreError, match="another process"):  # nothing was committed
                store.append(run.run_id, end.seq + 1, Paused(2.0))
            assert read_heads(tmp_path / FILE) == store.ends()
        (tmp_path / FILE).write_bytes(before)  # killed between commit and note
        with watched(store):
            assert read_heads(tmp_path / FILE)[run.run_id].seq == end.seq + 1


def test_a_line_that_a_power_cut_left_empty_is_no_alarm(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store, store.noting(heads := note(store)):
        heads.note("r1", JournalHead(7, "a" * 64))
    body = (tmp_path / FILE).read_bytes()
    assert len(body) == 2 * LINE_BYTES
    (tmp_path / FILE).write_bytes(body + b"\0" * LINE_BYTES)
    assert read_heads(tmp_path / FILE) == {"r1": JournalHead(7, "a" * 64)}
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(HeadsError):
        read_heads(tmp_path / FILE)


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _halved(path: Path) -> None:
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])


def _garbage_page(path: Path) -> None:
    body = bytearray(path.read_bytes())
    for page in range(1, len(body) // 4096):
        body[page * 4096 : page * 4096 + 512] = b"\xa5" * 512
    path.write_bytes(body)


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xa5" * path.stat().st_size)


@pytest.mark.few(2)
@pytest.mark.parametrize("harm", [_emptied, _halved, _garbage_page, _garbage, Path.unlink])
def test_a_damaged_database_is_one_line_to_every_command(
    killed: tuple[Path, Filled], harm: Callable[[Path], None]
) -> None:
    folder, _ = killed
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    harm(folder / DATABASE)
    refused(folder)
    for command in ("status", "list", "figures", "prune"):
        one_line(folder, command)
    one_line(folder, "export", "--out", str(folder.with_name("out")))
    done = verify(folder)
    assert done.exit_code in (1, 2) and done.stderr.count("\n") == 1


def test_a_damaged_page_is_one_line_with_what_to_do(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        name = "name = 'ix_reports_device_id'"
        root = database.execute(f"SELECT rootpage FROM sqlite_master WHERE {name}").fetchone()[0]
    with (folder / DATABASE).open("r+b") as file:
        file.seek((root - 1) * 4096 + 3)
        file.write(b"\0\x40")  # so many cells, of which there are none
    done = verify(folder)
    assert done.exit_code == 1 and done.stdout.count("\n") == 2, done.output
    told = "coordinator.db is damaged ("
    assert done.stdout.startswith(told) and "restore it from a backup" in done.stdout
    assert told in (said := refused(folder)) and "--accept" not in said


def test_what_is_left_of_a_store_is_named_by_verify(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    for path in folder.glob(f"{DATABASE}*"):
        path.unlink()
    done = verify(folder)
    assert done.exit_code == 1, done.output
    assert "holds adapters, but no coordinator.db; restore it from a backup" in done.stdout
    assert done.stderr == f"smidgen coordinator: 1 thing is wrong with the store {folder}\n"


def test_a_store_that_lost_its_certificates_is_not_served_in_plain_http(
    killed: tuple[Path, Filled],
) -> None:
    folder, _ = killed
    init(folder, ["pi.example"])
    assert verify(folder).exit_code == 0
    (folder / "tls").rename(folder.with_name("lost"))
    done = verify(folder)
    assert done.exit_code == 1 and "folder tls/, with the CA that devices believe" in done.stdout
    said = refused(folder)
    assert "is missing; restore it from a backup" in said and "--plain-http" in said
    with serve(folder, port=0, plain_http=True) as server:
        assert server.url.startswith("http://")
    assert "is missing" in refused(folder)  # still
    assert verify(folder, "--accept").exit_code == 0
    with serve(folder, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:")


def test_certificates_that_an_older_smidgen_made_are_remembered_once_served(
    tmp_path: Path,
) -> None:
    init(tmp_path, ["pi.example"])
    with closing(Store(tmp_path)) as store:
        store.marks.secure(False)
    with serve(tmp_path, port=0):
        pass
    (tmp_path / "tls").rename(tmp_path.with_name("lost"))
    assert "is missing" in refused(tmp_path)


def test_a_damaged_adapter_is_refused_at_a_start(killed: tuple[Path, Filled]) -> None:
    folder, run = killed
    flip(folder / "blobs" / run.adapters[-1])
    assert "run mail cannot go on: blob" in (said := refused(folder)) and "is damaged" in said
    (folder / "blobs" / run.adapters[-1]).unlink()
    assert "is missing" in refused(folder)


def test_a_damaged_update_of_an_open_step_is_refused_at_a_start(
    killed: tuple[Path, Filled],
) -> None:
    folder, run = killed
    flip(folder / "blobs" / run.updates[-1])
    assert run.updates[-1] in refused(folder)


def test_verify_names_each_damaged_blob_and_who_may_read(killed: tuple[Path, Filled]) -> None:
    folder, run = killed
    flip(folder / "blobs" / run.adapters[0])
    flip(folder / "blobs" / run.updates[0])  # of a closed step
    (folder / DATABASE).chmod(0o644)
    done = verify(folder)
    assert done.exit_code == 1
    assert f"{run.adapters[0]} is damaged" in done.stdout
    assert f"{run.updates[0]} is damaged; restore it from a backup of the store (no run" in (
        done.stdout
    )
    assert f"others may read {folder / DATABASE}" in done.stdout
    assert done.stderr.endswith(f"3 things are wrong with the store {folder}\n")


def test_a_damaged_blob_is_written_anew_by_who_puts_it(tmp_path: Path) -> None:
    with closing(Store(tmp_path)) as store:
        name = store.put(b"adapter")
        flip(store.blobs.path(name))
        assert store.put(b"adapter") == name and store.read(name) == b"adapter"


def test_a_store_is_closed_to_others_at_a_start(killed: tuple[Path, Filled]) -> None:
    folder, _ = killed
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with serve(folder, port=0):
        modes = set[int]()
        for path in (folder, *folder.rglob("*")):
            with suppress(FileNotFoundError):  # it is tidied up meanwhile
                modes.add(path.stat().st_mode & 0o077)
        assert modes == {0}
        assert verify(folder).exit_code == 0  # while it is served
