"""A store that goes from a folder to servers and back: all of it, or nothing."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from smidgen.coordinator.api.keeping import backup, move, verify
from smidgen.coordinator.storage import schema
from smidgen.coordinator.storage.credentials import add_operator, operator_of_token
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.devices import add_device
from smidgen.coordinator.storage.reports import add_report
from smidgen.coordinator.storage.runs import add_order
from smidgen.coordinator.storage.schema import TABLES, is_empty
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import Failed, WrongInput
from tests.command_line import smidgen
from tests.coordinator.servers import PASSWORD
from tests.coordinator.storage.shared.fleets import device
from tests.coordinator.upkeep.stores import Filled, filled, names


def fleet(folder: Path) -> tuple[Filled, str]:
    """A store with some of everything; its run and an operator's token."""
    with closing(Store(folder)) as store:
        run = filled(store, "mail", rounds=3, devices=2, open_updates=1)
        with store.database.transaction() as connection:
            for number in range(3):
                add_device(connection, device(f"d{number}"), f"d{number}", 1)
        row: dict[str, Any] = {"work_id": "w", "run_id": run.run_id, "device_id": "d0"}
        row |= {"round_index": 1, "attempt": 1, "kind": "train", "is_late": False}
        assert add_report(
            store.database, row | {"report": {"loss": 0.1 + 0.2, "text": "\0\ud800", "n": 1}}
        )
        add_order(store, store.runs()[0], "pause", None, 3.0)
        return run, add_operator(store, "operator", 1.0)


def everything(store: Store) -> list[Any]:
    order = [sql.select(table).order_by(*table.primary_key.columns) for table in TABLES]
    return [store.database.rows(one) for one in order]


def test_a_store_moves_to_servers_and_back_row_by_row(place: StorePlace, tmp_path: Path) -> None:
    run, token = fleet(tmp_path / "old")
    with closing(Store(tmp_path / "old")) as store:
        wanted = everything(store)
    there = replace(place, folder=tmp_path / "old")
    found = move(tmp_path / "old", place.database, blobs_to=place.blobs)
    assert (found.runs, found.lines) == (1, [])
    with closing(Store(there)) as store:
        assert everything(store) == wanted and operator_of_token(store, token) is not None
        assert {*run.adapters, run.updates[-1]} <= store.blobs.present().keys()
        order = add_order(store, store.runs()[0], "stop", None, 4.0)
        assert order.order_id == 2  # numbers go on
    with pytest.raises(StoreError, match=r"was moved to postgresql://smidgen:\*\*\*@.* with s3://"):
        Store(tmp_path / "old")
    new = tmp_path / "new"
    move(there, str(new))
    with closing(Store(new)) as store:
        back = everything(store)
        assert [len(rows) for rows in back] == [
            len(rows) + (table.name == "orders") for rows, table in zip(wanted, TABLES, strict=True)
        ]
        assert {*run.adapters, run.updates[-1]} <= names(new)
    assert verify(new).lines == []
    with pytest.raises(StoreError, match=f"was moved to {new}"):
        Store(there)


@pytest.mark.slow
def test_a_backup_of_a_shared_store_is_a_folder_that_can_be_served(
    place: StorePlace, tmp_path: Path
) -> None:
    run, _ = fleet(tmp_path / "old")
    move(tmp_path / "old", place.database, blobs_to=place.blobs)
    there = replace(place, folder=tmp_path / "other")
    with closing(Store(there)) as store, store.serving_alone():
        assert backup(there, tmp_path / "copy").runs == 1
        with closing(Store(tmp_path / "copy")) as copy:
            assert everything(copy) == everything(store)
    assert verify(tmp_path / "copy").lines == [] and run.adapters[-1] in names(tmp_path / "copy")


@pytest.mark.slow
def test_rows_alone_may_move(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    move(tmp_path / "old", place.database)
    with closing(Store(StorePlace(tmp_path / "old", place.database))) as store:
        assert store.blobs.present() and len(store.runs()) == 1


@pytest.mark.slow
def test_what_is_not_empty_is_not_moved_to(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    fleet(tmp_path / "second")
    move(tmp_path / "old", place.database, blobs_to=place.blobs)
    with pytest.raises(WrongInput, match=r"blobs are another fleet's|holds a fleet already"):
        move(tmp_path / "second", place.database, blobs_to=place.blobs)
    with pytest.raises(WrongInput, match="a new or an empty folder"):
        move(tmp_path / "second", str(tmp_path / "old"))
    Store(tmp_path / "second").close()


@pytest.mark.slow
def test_a_store_that_is_served_stays(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    with (
        closing(Store(tmp_path / "old")) as store,
        store.serving_alone(),
        pytest.raises(Failed, match="another coordinator serves"),
    ):
        move(tmp_path / "old", place.database, blobs_to=place.blobs)
    Store(tmp_path / "old").close()


@pytest.mark.slow
def test_a_move_that_is_cut_leaves_the_store_and_is_gone_on_with(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(tmp_path / "old")
    monkeypatch.setattr(schema, "_digest", lambda connection, _: connection.dialect.name)
    with pytest.raises(Failed, match=r"no store was moved: .* not the same in the copy"):
        move(tmp_path / "old", place.database, blobs_to=place.blobs)
    with closing(Store(replace(place, folder=tmp_path / "old"))) as target:
        assert is_empty(target.database) and target.blobs.present()
    monkeypatch.undo()
    Store(tmp_path / "old").close()
    move(tmp_path / "old", place.database, blobs_to=place.blobs)


@pytest.mark.slow
def test_the_command_says_what_moved_and_no_password(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    told = ("--store", str(tmp_path / "old"), "--to", place.database, "--blobs-to", place.blobs)
    done = smidgen("coordinator", "move", *told)
    assert done.exit_code == 0 and "1 run, " in done.stdout and "moved" in done.stdout
    again = smidgen("coordinator", "move", *told)
    assert again.exit_code == 2 and again.stderr.count("\n") == 1 and "was moved to" in again.stderr
    assert PASSWORD not in done.output + again.output
    taken = smidgen("coordinator", "verify", "--store", str(tmp_path / "old"), "--accept")
    assert taken.exit_code == 0, taken.output
    Store(tmp_path / "old").close()
