"""Location of a store: a folder, with database and blobs elsewhere where machines share them.

    StorePlace(Path("here"))
    StorePlace(Path("here"), "postgresql://fleet@db.example/fleet", "s3://fleet/blobs")

The folder always exists and belongs to one machine: it holds the rest, certificates, uploads in
progress and copies of blobs.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sql

from smidgen.coordinator.storage.blobs import Blobs, FolderBlobs
from smidgen.coordinator.storage.bucket import BucketBlobs
from smidgen.coordinator.storage.dialects import postgres
from smidgen.edge_client.errors import demand

DATABASE = "coordinator.db"
BLOBS = "blobs"


@dataclass(frozen=True)
class StorePlace:
    """Where a store lies; as text it is what people typed, without a password.

    Attributes:
        folder: Of this machine.
        database: URL of a PostgreSQL database; empty: SQLite's, in the folder.
        blobs: `s3://BUCKET/PREFIX`; empty: in the folder.

    Raises:
        WrongInput: A URL is another one, or a package is missing.
    """

    folder: Path
    database: str = field(default="", repr=False)
    blobs: str = ""

    def __post_init__(self) -> None:
        if self.database:
            postgres.url_of(self.database)
        check_blobs(self.blobs)

    def __str__(self) -> str:
        named = postgres.masked(postgres.url_of(self.database)) if self.database else self.folder
        return f"{named} with {self.blobs}" if self.blobs else str(named)

    @property
    def options(self) -> list[str]:
        """What names it on a command line; a password is left out."""
        named = ["--store", str(self.folder)]
        if self.database:
            named += ["--database", postgres.without_password(postgres.url_of(self.database))]
        return [*named, "--blobs", self.blobs] if self.blobs else named

    @property
    def is_shared(self) -> bool:
        """Whether others may use the database from other machines."""
        return bool(self.database)

    @property
    def is_embedded(self) -> bool:
        """Whether all of it lies in the folder."""
        return not self.database and not self.blobs

    @property
    def file(self) -> Path:
        """SQLite's file, where the database is one."""
        return self.folder / DATABASE

    @property
    def url(self) -> sql.URL:
        if self.database:
            return postgres.url_of(self.database)
        return sql.URL.create("sqlite", database=str(self.file))

    def open_blobs(self) -> Blobs:
        if self.blobs:
            return BucketBlobs(self.blobs, self.folder)
        return FolderBlobs(self.folder / BLOBS)


def check_blobs(text: str, option: str = "--blobs") -> None:
    """Refuse what is no place of blobs.

    Raises:
        WrongInput: Names the option.
    """
    parts = re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w.=-]+)*/?", text)
    demand(
        not text or parts is not None,
        f"{option} {text.rpartition('@')[2][:80]!r}: s3://BUCKET/PREFIX is expected, without "
        "credentials: they belong in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )


def place_of(store: str | Path | StorePlace, database: str = "", blobs: str = "") -> StorePlace:
    """A store's place, by a folder too, with what is shared."""
    return store if isinstance(store, StorePlace) else StorePlace(Path(store), database, blobs)
