"""What a store promises, on PostgreSQL and in a bucket; its place is told without a password."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import s3fs
import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from smidgen.coordinator.rounds.events import Finished, Resumed
from smidgen.coordinator.storage.blobs import BlobDamaged
from smidgen.coordinator.storage.credentials import insert_token, tokens
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.devices import Member, add_device, devices, members, put_member
from smidgen.coordinator.storage.reports import add_report, newest_of_run
from smidgen.coordinator.storage.schema import EVENTS, STORE
from smidgen.coordinator.storage.store import Run, Store
from smidgen.coordinator.upkeep.retention import remove
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.wire.fleet import DeviceFacts, Membership
from smidgen.edge_client.wire.tensors import sha256
from tests.command_line import smidgen
from tests.coordinator.servers import PASSWORD, Buckets, Postgres
from tests.coordinator.storage.shared.fleets import device

RUN = Run("r1", 1.0, "{}", "b", "/base", "bert", "a" * 64, "secret")
NAMES = ("Zoo", "apple", "_x", "zebra", "Äpfel", "a-2", "a")


def test_a_store_gives_back_what_was_put_in(place: StorePlace, store: Store) -> None:
    store.add_run(RUN)
    store.append("r1", 0, Resumed(1.0))
    store.append("r1", 1, Finished(2.0))
    name = store.put(b"delta")
    with closing(Store(replace(place, folder=place.folder / "there"))) as other:
        assert other.runs() == [RUN] and other.events("r1") == [Resumed(1.0), Finished(2.0)]
        assert other.read(name) == b"delta" and other.blobs.present() == {name: 5}


def test_a_place_of_the_journal_is_written_once(store: Store) -> None:
    store.add_run(RUN)
    store.append("r1", 0, Resumed(1.0))
    with pytest.raises(StoreError, match="another process"):
        store.append("r1", 0, Resumed(2.0))
    assert store.events("r1") == [Resumed(1.0)]


def test_a_run_comes_with_its_token_or_not_at_all(store: Store) -> None:
    store.add_run(RUN)
    statement = insert_token("secret", 1.0)[1]
    store.database.write(statement)
    with pytest.raises(IntegrityError):
        store.add_run(replace(RUN, run_id="r2"), statement)
    assert store.runs() == [RUN]


def test_rows_come_in_the_order_of_sqlite_and_numbers_are_as_large(
    store: Store, tmp_path: Path
) -> None:
    with closing(Store(tmp_path / "embedded")) as embedded:
        for one in (store, embedded):
            one.add_run(RUN)
            with one.database.transaction() as connection:
                for name in NAMES:
                    add_device(connection, device(name), name, 1)
            told = Membership("joined", peak_bytes=1 << 45)
            put_member(one.database, "r1", "Zoo", Member(told, 1.5))
        found, wanted = (
            [(item.name, item.revision) for item in devices(one.database)]
            for one in (store, embedded)
        )
        assert found == wanted and found[0][0] == "Zoo"
        assert members(store.database, "r1") == members(embedded.database, "r1")


def test_texts_of_devices_may_hold_what_postgresql_has_no_character_for(store: Store) -> None:
    store.add_run(RUN)
    with store.database.transaction() as connection:
        strange = DeviceFacts("board\0\x1b", 4, 1, "3", "0", "\ud800")
        add_device(connection, replace(device("a"), facts=strange), "a", 1)
    report = {"outcome": "failed", "error": "nothing\0 and \ud800 half"}
    names = ("work_id", "run_id", "device_id", "kind")
    row: dict[str, Any] = dict(zip(names, ("w", "r1", "a", "train"), strict=True))
    row |= {"round_index": 1, "attempt": 1, "is_late": False, "report": report}
    assert add_report(store.database, row) and not add_report(store.database, row)
    assert devices(store.database)[0].facts == strange
    assert [one["error"] for one in newest_of_run(store.database, "r1", 5, outcome="failed")] == [
        report["error"]
    ]


@pytest.mark.slow
def test_revisions_of_many_writers_grow_in_the_order_of_commits(place: StorePlace) -> None:
    stores = [Store(place) for _ in range(3)]
    together = Barrier(len(stores))

    def write(number: int) -> None:
        together.wait()
        for count in range(10):
            with stores[number].database.transaction() as connection:
                name = f"d{number}-{count}"
                add_device(connection, device(name), name, 1)

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(write, range(len(stores))))
    assert sorted(one.revision for one in devices(stores[0].database)) == list(range(1, 31))
    for one in stores:
        one.close()


@pytest.mark.slow
def test_a_store_that_is_not_there_yet_is_made_once(place: StorePlace) -> None:
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: Store(place), range(3)))
    assert len(opened[0].database.rows(sql.select(STORE))) == 1
    for one in opened:
        one.close()


@pytest.mark.slow
def test_one_coordinator_serves_and_a_second_is_told_so(place: StorePlace) -> None:
    with closing(Store(place)) as first, closing(Store(place)) as second:
        assert not second.is_served()
        with first.serving_alone():
            assert second.is_served()
            with (
                pytest.raises(StoreError, match="another coordinator serves"),
                second.serving_alone(),
            ):
                pass
        with second.serving_alone():
            assert first.is_served()


@pytest.mark.slow
def test_nobody_removes_what_another_machine_claims(place: StorePlace) -> None:
    with closing(Store(place)) as first, closing(Store(place)) as second:
        name = first.put(b"delta")
        with first.claiming(), first.claiming(), second.removing() as is_held:
            assert not is_held
        assert remove(second, [name], set) == {name} and not first.blobs.present()
        with pytest.raises(BlobDamaged, match="is missing"):
            second.read(name)


def test_a_blob_that_is_damaged_here_or_there_is_not_read(place: StorePlace, store: Store) -> None:
    name = store.put(b"delta")
    store.blobs.path(name).write_bytes(b"d3lta")
    assert store.read(name) == b"delta" == store.blobs.path(name).read_bytes()
    s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(f"{place.blobs}/{name}", b"else")
    shutil.rmtree(place.folder / "cache")
    with closing(Store(place)) as again, pytest.raises(BlobDamaged, match="is damaged"):
        again.check(name)


def test_what_arrived_in_a_file_becomes_a_blob(store: Store, tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(b"update")
    store.blobs.keep(part, sha256(b"update"))
    assert not part.exists() and store.blobs.size(sha256(b"update")) == 6


Change = Callable[[StorePlace, Postgres, Buckets], StorePlace]
WRONG: dict[str, tuple[Change, str]] = {
    "password": (
        lambda place, *_: replace(place, database=place.database.replace(PASSWORD, "other")),
        r"postgresql://smidgen:\*\*\*@.*password authentication failed.*PGPASSWORD",
    ),
    "database": (
        lambda place, *_: replace(place, database=f"{place.database}x"),
        r'database "t\d+x" does not exist; make it',
    ),
    "server": (
        lambda place, *_: replace(place, database="postgresql://smidgen:pw@127.0.0.1:1/x"),
        r"Connection refused.*start it, or name another --database",
    ),
    "bucket": (
        lambda place, *_: replace(place, blobs="s3://no-such-bucket/x"),
        r"s3://no-such-bucket/x: there is no such bucket",
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("which", WRONG)
def test_what_is_not_there_is_told_in_one_line_without_a_password(
    which: str, place: StorePlace, postgres: Postgres, buckets: Buckets
) -> None:
    change, said = WRONG[which]
    wrong = change(place, postgres, buckets)
    with pytest.raises(StoreError, match=said) as caught:
        Store(wrong)
    assert "\n" not in str(caught.value) and PASSWORD not in str(caught.value)
    told = ("--database", wrong.database, "--blobs", wrong.blobs)
    done = smidgen("coordinator", "create", "--store", str(place.folder), *told, "--task", "agnews")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert PASSWORD not in done.output and not done.stdout


@pytest.mark.parametrize(
    ("database", "blobs"),
    [
        ("mysql://root:pw@host/x", ""),
        ("postgresql://host", ""),
        ("nothing", ""),
        ("", "gs://bucket/x"),
        ("", "s3://key:word@bucket"),
        ("", "s3://"),
    ],
)
def test_urls_of_other_kinds_are_refused(database: str, blobs: str) -> None:
    with pytest.raises(WrongInput, match="is expected") as caught:
        StorePlace(Path("x"), database, blobs)
    assert "pw" not in str(caught.value) and "word" not in str(caught.value)


def test_a_store_of_a_newer_schema_and_tables_of_others_are_refused(
    place: StorePlace, postgres: Postgres
) -> None:
    Store(place).close()
    name = place.url.database or ""
    postgres.do("UPDATE alembic_version SET version_num = '0099'", name)
    with pytest.raises(StoreError, match="schema 0099, and this smidgen knows"):
        Store(place)
    other = postgres.create()
    postgres.do("CREATE TABLE carts (id int)", other.rpartition("/")[2])
    with pytest.raises(StoreError, match="holds tables of something else"):
        Store(replace(place, database=other))


@pytest.mark.slow
def test_a_database_holds_one_fleet_and_so_does_a_prefix(
    place: StorePlace, postgres: Postgres
) -> None:
    Store(place).close()
    for other in (
        replace(place, blobs=f"{place.blobs}-2"),
        replace(place, blobs=""),
        replace(place, database=postgres.create()),
    ):
        with pytest.raises(StoreError, match=r"the blobs are .*a database holds one fleet"):
            Store(other)


@pytest.mark.slow
def test_commands_find_the_store_by_the_environment(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    monkeypatch.setenv("SMIDGEN_DATABASE", place.database)
    monkeypatch.setenv("SMIDGEN_BLOBS", place.blobs)
    done = smidgen("coordinator", "status", "--store", str(place.folder))
    assert done.exit_code == 2 and "no store at postgresql://smidgen:***@" in done.stderr
    told = ("--store", str(place.folder))
    assert smidgen("coordinator", "create", *told, "--task", "agnews").exit_code == 0
    assert smidgen("coordinator", "list", *told).exit_code == 0
    done = smidgen("coordinator", "verify", *told)
    assert done.exit_code == 0 and "1 run, 0 events, 1 blob" in done.stdout
    with closing(Store(place)) as store:
        assert len(tokens(store.database)) == 1
        assert store.database.rows(sql.select(EVENTS)) == []
