"""A bucket that refuses is told, and never taken for an empty one."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import s3fs

from smidgen.coordinator.api.keeping import move, prune
from smidgen.coordinator.storage.blobs import BlobsAway
from smidgen.coordinator.storage.database import StorePlace
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.upkeep import backup
from smidgen.coordinator.upkeep.backup import Found, look
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.wire.tensors import sha256
from tests.coordinator.servers import Buckets
from tests.coordinator.storage.shared.proxies import Refusing, disturbing, refusing
from tests.coordinator.storage.shared.test_moves import fleet


@pytest.fixture
def way(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    with refusing(buckets.url) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


def test_a_listing_that_is_refused_is_not_an_empty_bucket(
    way: Refusing, place: StorePlace, store: Store
) -> None:
    assert store.blobs.present() == {}
    name = store.put(b"adapter")
    assert store.blobs.present() == {name: 7}
    way.lists = False
    with pytest.raises(BlobsAway, match="no right to it"):
        store.blobs.present()


@pytest.mark.slow
def test_a_bucket_that_only_fails_is_told_within_seconds(
    buckets: Buckets, place: StorePlace, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disturbing(buckets.url, seed) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        place.folder.mkdir()
        blobs = place.open_blobs()
        name = blobs.put(b"adapter")
        way.share, way.kinds = 1.0, ("refused", "request cut", "answer lost")
        for ask in (lambda: blobs.put(b"other"), blobs.present):
            began_s = time.monotonic()
            with pytest.raises(BlobsAway):
                ask()
            assert time.monotonic() - began_s < 20.0  # of s3fs itself it is a minute and a half
        way.share = 0.0
        assert blobs.put(b"other") and blobs.present().keys() >= {name}


@pytest.mark.slow
def test_a_blob_that_may_not_be_removed_is_told(
    way: Refusing, place: StorePlace, store: Store
) -> None:
    name = store.put(b"orphan")
    way.deletes = False
    with pytest.raises(BlobsAway, match="1 blobs cannot be removed: Access Denied"):
        store.blobs.remove([name])
    with pytest.raises(Failed, match="cannot remove"):
        prune(place)
    way.deletes = True
    assert prune(place).files == {"orphan": 1} and store.blobs.present() == {}


@pytest.mark.slow
def test_a_damaged_object_where_a_move_leads_is_written_anew(
    place: StorePlace, tmp_path: Path
) -> None:
    run, _ = fleet(tmp_path / "old")
    s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(
        f"{place.blobs}/{run.adapters[-1]}", b"else"
    )
    move(tmp_path / "old", place.database, blobs_to=place.blobs)
    there = StorePlace(tmp_path / "other", place.database, place.blobs)
    with closing(Store(there)) as store:
        assert sha256(store.read(run.adapters[-1])) == run.adapters[-1]


@pytest.mark.slow
def test_the_last_look_of_a_move_reads_what_was_just_written(
    place: StorePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = fleet(tmp_path / "old")
    damaged = f"{place.blobs}/{run.adapters[-1]}"

    def late(copy: Store) -> Found:
        s3fs.S3FileSystem(skip_instance_cache=True).pipe_file(damaged, b"else")
        return look(copy)

    monkeypatch.setattr(backup, "look", late)
    with pytest.raises(Failed, match=f"{run.adapters[-1]} is damaged"):
        move(tmp_path / "old", place.database, blobs_to=place.blobs)
    Store(tmp_path / "old").close()
