"""Blobs as objects of a bucket, by fsspec, with a local cache of those written or read last.

An object is complete or absent and never changes, so cached copies never expire. Credentials,
region and endpoint come from where every S3 program looks: `AWS_PROFILE`, `AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL` and so on.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from smidgen.coordinator.storage.blobs import (
    FLEET,
    RESTORE,
    BlobDamaged,
    BlobsAway,
    FolderBlobs,
    is_blob,
)
from smidgen.edge_client.errors import WrongInput, installing
from smidgen.edge_client.wire.tensors import sha256

RIGHTS = (
    "name its key (AWS_ACCESS_KEY_ID, AWS_PROFILE), and give it GetObject, PutObject, DeleteObject "
    "and ListBucket"
)
READY = "ready"  # an object that says nothing
CACHE = "cache"  # in the store's folder
MOST_CACHED = 256  # copies of each kind: adapters that devices ask for are few
AT_ONCE = 1000  # objects that a request may delete
LOOKS = 3  # at an object whose bytes are not those that it is named by
# Who asks asks again, a device as a round: a bucket that fails is told within seconds, for a thread
# that waits for it does nothing else.
AGAIN = 2  # s3fs's tries, each of so many requests
TIMES = {
    "connect_timeout": 5,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 3, "mode": "standard"},
}


class BucketBlobs:
    """Blobs under a prefix of a bucket; any number of processes and machines may use it.

    Args:
        url: `s3://BUCKET/PREFIX`.
        folder: The store's, on this machine; copies lie in a folder of it.

    Raises:
        WrongInput: A package is missing.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._root = url, url.removeprefix("s3://").rstrip("/")
        self._files = _files()
        (folder / CACHE).mkdir(mode=0o700, exist_ok=True)
        self._here = FolderBlobs(folder / CACHE / "adapters")
        self._arrived = FolderBlobs(folder / CACHE / "updates")  # for who makes their mean
        self._lock = Lock()
        self._sizes: dict[str, int] = {}  # of blobs that are known to be whole in the bucket

    def __str__(self) -> str:
        return self._url

    def put(self, body: bytes, name: str = "") -> str:
        """Write bytes under their SHA-256, safe in the bucket when this returns."""
        name = name or sha256(body)
        with self._asked():  # also what was there once: others remove, too
            self._files.pipe_file(self._place(name), body)
        self._here.put(body, name)
        _trim(self._here)
        self._know(name, len(body))
        return name

    def keep(self, part: Path, name: str) -> None:
        """Make a file that is whole a blob, safe in the bucket when this returns."""
        size = part.stat().st_size
        with self._asked():
            self._files.put_file(str(part), self._place(name))
        part.replace(self._arrived.path(name))
        _trim(self._arrived)
        self._know(name, size)

    def read(self, name: str) -> bytes:
        """The bytes of a blob, of this disk where they are here."""
        for copies in (self._arrived, self._here):
            with suppress(BlobDamaged):
                return copies.read(name)
        return self._fetched(name)

    def check(self, name: str) -> None:
        """Make sure that the bucket has a blob; it is read once in the life of this process."""
        if name not in self._sizes:
            self._copied(name)

    def path(self, name: str) -> Path:
        """The copy of a blob on this disk, fetched where it is not here."""
        try:
            self._here.check(name)
        except BlobDamaged:
            with suppress(BlobDamaged):
                self._copied(name)
        return self._here.path(name)

    def size(self, name: str) -> int:
        size = self._sizes.get(name)
        return self._copied(name) if size is None else size

    def present(self) -> dict[str, int]:
        with self._asked(), suppress(FileNotFoundError):
            # Not `find`: of a folder that it may not list it says that nothing is there.
            found = self._files.ls(self._root, detail=True, refresh=True)
            sizes = {one["name"].rpartition("/")[2]: int(one["size"] or 0) for one in found}
            return {name: size for name, size in sizes.items() if is_blob(name)}
        return {}

    def remove(self, names: Collection[str]) -> None:
        self.forget(names)
        if names:
            self._delete(sorted(names))
        self._here.remove(names)
        self._arrived.remove(names)

    def _delete(self, names: list[str]) -> None:
        """Delete objects; not by `rm`, which says nothing of those that the bucket keeps."""
        bucket, _, prefix = self._root.partition("/")
        keys = [f"{prefix}/{name}".lstrip("/") for name in names]
        for first in range(0, len(keys), AT_ONCE):
            some = [{"Key": key} for key in keys[first : first + AT_ONCE]]
            told = {"Bucket": bucket, "Delete": {"Objects": some, "Quiet": True}}
            with self._asked():
                errors = self._files.call_s3("delete_objects", **told).get("Errors", [])
            if errors:
                why = errors[0].get("Message") or errors[0].get("Code")
                kept = f"{len(errors)} blobs cannot be removed"
                raise BlobsAway(f"{self._url}: {kept}: {why}; {RIGHTS}")

    def forget(self, names: Collection[str]) -> None:
        """Take no blob of these for whole that this process has not read since."""
        with self._lock:
            for name in names:
                self._sizes.pop(name, None)

    def sweep(self) -> None:
        for copies in (self._here, self._arrived):
            copies.sweep()
            _trim(copies)

    def is_writable(self) -> bool:
        """Whether the bucket takes an object now."""
        try:
            with self._asked():
                self._files.pipe_file(self._place(READY), READY.encode())
        except OSError:
            return False
        return True

    def check_rights(self) -> None:
        """Make sure that objects can be written, listed and removed; `fleet` has read one.

        Raises:
            BlobsAway: Something of that is refused.
        """
        bucket, _, prefix = self._root.partition("/")
        with self._asked():
            self._files.pipe_file(self._place(READY), READY.encode())
            listed = {"Prefix": f"{prefix}/"} if prefix else {}  # as `present` lists
            self._files.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1, **listed)
        self._delete([READY])

    def fleet(self) -> str:
        """The id of the fleet that the blobs belong to; empty where nobody said so."""
        with self._asked(), suppress(FileNotFoundError):
            return str(self._files.cat_file(self._place(FLEET)).decode())
        return ""

    def claim(self, fleet_id: str) -> None:
        with self._asked():
            self._files.pipe_file(self._place(FLEET), fleet_id.encode())

    def _place(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _copied(self, name: str) -> int:
        """Copy a blob from the bucket; how many bytes it has."""
        body = self._fetched(name)
        self._here.put(body, name)
        _trim(self._here)
        return len(body)

    def _fetched(self, name: str) -> bytes:
        for _ in range(LOOKS):  # an answer that was cut says nothing of the object
            try:
                with self._asked():
                    body = bytes(self._files.cat_file(self._place(name)))
            except FileNotFoundError as error:
                self._sizes.pop(name, None)
                raise BlobDamaged(f"blob {self._url}/{name} is missing; {RESTORE}") from error
            if sha256(body) == name:
                self._know(name, len(body))
                return body
        self.forget([name])
        raise BlobDamaged(f"blob {self._url}/{name} is damaged; {RESTORE}")

    def _know(self, name: str, size: int) -> None:
        with self._lock:
            self._sizes[name] = size
            if len(self._sizes) > 10_000:  # blobs that are known to be in the bucket
                self._sizes.pop(next(iter(self._sizes)))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Ask the bucket for something.

        Raises:
            FileNotFoundError: There is no such object, or bucket.
            BlobsAway: It refuses, or does not answer.
        """
        try:
            yield
        except FileNotFoundError as error:
            if "bucket" in str(error).lower():
                raise BlobsAway(f"{self._url}: there is no such bucket") from error
            raise
        except PermissionError as error:
            told = f"{_line(error)}: no right to it"
            raise BlobsAway(f"{self._url}: {told}; {RIGHTS}") from error
        except Exception as error:  # botocore's and aiohttp's, of many kinds
            raise BlobsAway(f"{self._url}: {_line(error)}") from error


def _files() -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise WrongInput(f"--blobs needs s3fs; {installing('shared')}") from error
    for name in ("botocore", "aiobotocore"):  # where it found credentials, at each start
        logging.getLogger(name).setLevel(logging.WARNING)
    files = s3fs.S3FileSystem(
        config_kwargs=TIMES, use_listings_cache=False, skip_instance_cache=True
    )
    files.retries = AGAIN
    return files


def _trim(copies: FolderBlobs) -> None:
    found = [copies.path(name) for name in copies.present()]
    if len(found) > MOST_CACHED:
        copies.remove([path.name for path in sorted(found, key=_age)[:-MOST_CACHED]])


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process trims too
        return 0.0


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
