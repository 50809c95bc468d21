from contextlib import closing
from pathlib import Path

import pytest

from coordinator.api.keeping import backup
from coordinator.api.serve import serve
from coordinator.storage.store import DATABASE, Store
from edge_client.errors import Failed, WrongInput
from tests.command_line import smidgen
from tests.coordinator.upkeep.stores import filled


def test_a_backup_is_a_store_that_goes_on_where_it_was_taken(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        run = filled(store, "mail", rounds=3, devices=2, open_updates=1)
        found = backup(tmp_path / "store", tmp_path / "copy")
        assert (found.runs, found.events) == (1, len(store.events(run.run_id)))
    assert smidgen("coordinator", "verify", "--store", str(tmp_path / "copy")).exit_code == 0
    with closing(Store(tmp_path / "copy")) as copy:
        assert copy.read(run.updates[-1]) and copy.read(run.adapters[-1])
    with serve(tmp_path / "copy", port=0) as server:
        assert server.runs()[0].phase == "train"


def test_a_backup_holds_certificates_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    made = smidgen("coordinator", "init", "--store", str(tmp_path / "store"), "--host", "localhost")
    assert made.exit_code == 0, made.output
    out = tmp_path / "there" / "copy"
    done = smidgen("coordinator", "backup", "--store", str(tmp_path / "store"), "--out", str(out))
    assert done.exit_code == 0, done.output
    assert {path.name for path in (out / "tls").iterdir()} >= {"ca.key", "server.pem"}
    assert {path.stat().st_mode & 0o077 for path in (out, *out.rglob("*"))} == {0}


def test_a_damaged_store_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store")) as store:
        run = filled(store, "mail", rounds=2, devices=2)
        store.blob_path(run.adapters[-1]).write_bytes(b"else")
    with pytest.raises(Failed, match=r"no backup was written: .*damaged"):
        backup(tmp_path / "store", tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_backup_goes_over_nothing(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    for name in ("copy", "link", "store"):
        with pytest.raises(WrongInput, match="a new or an empty folder"):
            backup(tmp_path / "store", tmp_path / name)
    with pytest.raises(WrongInput, match="no store"):
        backup(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "copy" / DATABASE).exists()
