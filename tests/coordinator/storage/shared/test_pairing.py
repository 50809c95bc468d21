"""A database and its blobs are paired on purpose, and nobody waits for a bucket meanwhile."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from smidgen.coordinator.api.keeping import move, prune, verify
from smidgen.coordinator.api.stores import open_store
from smidgen.coordinator.storage.bucket import BucketBlobs
from smidgen.coordinator.storage.database import StoreError, StorePlace
from smidgen.coordinator.storage.dialects.postgres import told
from smidgen.coordinator.storage.store import Store
from smidgen.edge_client.errors import Failed, WrongInput
from tests.command_line import smidgen
from tests.coordinator.servers import PASSWORD
from tests.coordinator.storage.shared.test_moves import fleet


def fleet_of(place: StorePlace) -> str:
    place.folder.mkdir(exist_ok=True)
    return BucketBlobs(place.blobs, place.folder).fleet()


@pytest.mark.slow
def test_a_folder_with_runs_and_a_bucket_are_not_paired(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    given = ("--store", str(tmp_path / "old"), "--blobs", place.blobs)
    for command in ("verify", "status", "list"):
        done = smidgen("coordinator", command, *given)
        assert done.exit_code != 0 and "are not those of its runs" in done.output, done.output
    with pytest.raises(StoreError, match="are not those of its runs"):
        prune(StorePlace(tmp_path / "old", blobs=place.blobs))
    assert not fleet_of(place) and verify(tmp_path / "old").lines == []


@pytest.mark.slow
def test_a_look_pairs_nothing_and_a_start_does(place: StorePlace) -> None:
    embedded = replace(place, database="")
    Store(place.folder).close()  # no runs yet
    open_store(embedded).close()
    assert not fleet_of(place)
    open_store(embedded, may_pair=True).close()
    assert fleet_of(place)


@pytest.mark.slow
def test_blobs_that_are_forgotten_are_refused(place: StorePlace) -> None:
    embedded = replace(place, database="")
    Store(embedded).close()
    with pytest.raises(StoreError, match="are not those that its fleet began with"):
        Store(place.folder)
    Store(embedded).close()


@pytest.mark.slow
def test_a_pairing_that_was_cut_is_gone_on_with(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(BucketBlobs, "claim", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Store(place)
    with closing(Store(place)) as store:
        assert store.marks.fleet_id() == fleet_of(place) != ""


@pytest.mark.slow
def test_a_move_that_is_refused_claims_nothing(place: StorePlace, tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    with (
        closing(Store(tmp_path / "old")) as store,
        store.serving_alone(),
        pytest.raises(Failed, match="another coordinator serves"),
    ):
        move(tmp_path / "old", place.database, blobs_to=place.blobs)
    assert not fleet_of(place)


@pytest.mark.slow
def test_nobody_waits_to_write_while_another_asks_the_bucket(
    place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on = Event(), Event()
    fleet_there = BucketBlobs.fleet

    def slow(self: BucketBlobs) -> str:
        asked.set()
        assert goes_on.wait(30)
        return fleet_there(self)

    with closing(Store(place)) as store:
        monkeypatch.setattr(BucketBlobs, "fleet", slow)
        opening = Thread(target=lambda: Store(place).close())
        opening.start()
        assert asked.wait(30)
        store.marks.note_keep_rounds(5)  # a write
        goes_on.set()
        opening.join(30)


@pytest.mark.slow
def test_a_move_to_where_the_store_is_already_is_refused(place: StorePlace) -> None:
    Store(place).close()
    with pytest.raises(WrongInput, match=r"is where the store is; .*unset SMIDGEN_DATABASE"):
        move(place, place.database.replace(PASSWORD, "other"))


def test_options_of_a_move_are_named_as_they_were_given(tmp_path: Path) -> None:
    fleet(tmp_path / "old")
    for to, blobs_to, said in (
        ("mysql://host/x", "", "--to mysql:"),
        ("postgresql://u:p@ssw0rd@db/x", "", "--to has an @"),
        ("postgresql://u@db/x", "gs://x", "--blobs-to 'gs://x'"),
    ):
        with pytest.raises(WrongInput, match=said) as caught:
            move(tmp_path / "old", to, blobs_to=blobs_to)
        assert "ssw0rd" not in str(caught.value)


@pytest.mark.parametrize("url", ["postgresql://u:p@ssw0rd@db/x", "postgresql://u:p@ss/w0rd@db/x"])
def test_a_password_with_an_at_sign_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(WrongInput, match="%40") as caught:
        StorePlace(Path("x"), url)
    assert "w0rd" not in str(caught.value)


def test_a_place_on_a_command_line_has_no_password() -> None:
    place = StorePlace(Path("x"), "postgresql://u:word@db:5433/x?password=word", "s3://fleet/blobs")
    named = [
        "--store",
        "x",
        "--database",
        "postgresql://u@db:5433/x",
        "--blobs",
        "s3://fleet/blobs",
    ]
    assert place.options == named and "word" not in str(place)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("canceling statement due to lock timeout", "; somebody else writes for long; try again"),
        ("connection refused", "; start it, or name another --database"),
        ("deadlock detected", ""),
    ],
)
def test_advice_fits_what_the_server_said(said: str, advice: str) -> None:
    assert told(ValueError(said)) == said + advice
