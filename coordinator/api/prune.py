"""Removing from a store what nothing needs any more."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coordinator.api.stores import AtStore, open_store
from coordinator.storage.dialects.locks import SERVE, FileLocks
from coordinator.storage.runs import find_run
from coordinator.storage.store import Store
from coordinator.upkeep.disk_space import LEAST_FREE, limits_of, rounds_kept
from coordinator.upkeep.retention import PATIENCE_S, Books, Busy, remove
from edge_client.errors import Failed

OLDEST_S = 3600.0  # that a part is kept without another byte


@dataclass(frozen=True)
class Pruned:
    """What was removed, or would be.

    Attributes:
        files: By kind: `adapter`, `update`, `orphan` (belongs to no run), `part` (of an upload
            that was cut long ago).
        freed_bytes: By kind.
        kept_bytes: Of the blobs that stay.
    """

    files: dict[str, int]
    freed_bytes: dict[str, int]
    kept_bytes: int

    @property
    def freed(self) -> int:
        return sum(self.freed_bytes.values())


def prune(
    store: AtStore, *, run: str | None = None, keep_rounds: int | None = None, dry_run: bool = False
) -> Pruned:
    """Remove what nothing needs any more; also while the store is served.

    Updates go once their step is closed. Of a run that goes on the adapters of the last rounds
    stay, of a finished one only the first, the best and the last. Journals and reports stay.

    Args:
        store: Folder of a store that `create_run` made.
        run: Run id or name; by default all runs, and what belongs to none.
        keep_rounds: Newest rounds whose adapter stays, of finished runs too; by default those of
            runs that go on, as many as `serve` was told last.
        dry_run: Only say what would go.

    Raises:
        WrongInput: No such store or run.
        Failed: Uploads kept coming, or a file cannot be removed.
    """
    with closing(open_store(store)) as opened:
        keep = rounds_kept(opened) if keep_rounds is None else keep_rounds
        limits_of(keep, LEAST_FREE)
        chosen = None if run is None else find_run(opened, run).run_id
        books = Books(opened, keep, chosen, is_thorough=keep_rounds is None)
        files = opened.blobs.present()
        gone = {name for name in files.keys() - books.kept() if books.may_go(name)}
        parts: list[int] = []
        try:
            if not dry_run:
                gone = remove(opened, gone, books.kept, PATIENCE_S)
            if chosen is None:
                parts = list(_parts(opened, dry_run))
        except Busy as error:
            raise Failed("uploads kept coming; prune again when fewer do") from error
        except OSError as error:
            raise Failed(f"cannot remove from the store {opened.place}: {error}") from error
        sizes = [(books.kind(name), files[name]) for name in gone]
        left = sum(size for name, size in files.items() if name not in gone)
    sizes += [("part", size) for size in parts]
    counts, freed = Counter(kind for kind, _ in sizes), Counter[str]()
    for kind, size in sizes:
        freed[kind] += size
    return Pruned(dict(counts), dict(freed), left)


def _parts(store: Store, dry_run: bool) -> Iterator[int]:
    """Remove parts of uploads that were cut long ago; a coordinator that serves does so itself.

    Of several that serve a shared store from this folder, each holds one for its uploads: what
    those that are gone left behind is nobody's.
    """
    with store.locks.alone(SERVE) as is_ours:
        if is_ours:
            yield from _old_parts(store.uploads, dry_run)
    beside = FileLocks(store.folder)
    for folder in sorted(one for one in store.folder.glob("uploads-*") if one.is_dir()):
        with beside.alone(f"{folder.name}.lock") as is_left:
            if is_left:
                yield from _old_parts(folder, dry_run)


def _old_parts(folder: Path, dry_run: bool) -> Iterator[int]:
    for path in folder.glob("*"):
        told = path.stat()
        if time.time() - told.st_mtime > OLDEST_S:
            yield told.st_size
            if not dry_run:
                path.unlink(missing_ok=True)
