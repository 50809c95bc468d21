"""Looking a store over, and copying it; both also while it is served."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from coordinator.api.stores import Place, holds_store, open_store
from coordinator.storage.blobs import BlobDamaged
from coordinator.storage.store import Store, StoreError, serving_alone
from coordinator.upkeep.copying import copy_store
from coordinator.upkeep.verifying import Found, look
from coordinator.upkeep.watch import TLS, note
from edge_client.errors import Failed, demand
from edge_client.files import sync_folder
from edge_client.outputs import check_out_parent


def verify(store: Place, *, accept: bool = False) -> Found:
    """Look a store over: database, journals, blobs, and who may read it.

    Args:
        store: Folder of a store that `create_run` made.
        accept: Take the journals as they are for whole, and certificates that are gone for gone,
            where nothing else is wrong: after a backup was put back by hand.

    Raises:
        WrongInput: There is no such store; with `accept`, one that is served.
    """
    demand(holds_store(Path(store)), f"no store at {store}; name it with --store")
    try:
        with closing(open_store(store)) as opened:
            found = look(opened)
            if accept and not found.wrong:
                _accept(opened)
                found.behind.clear()
            return found
    except StoreError as error:
        if accept:
            raise
        return Found(wrong=[str(error)])


def _accept(store: Store) -> None:
    with serving_alone(store.folder):
        note(store).close()
        store.secure((store.folder / TLS).is_dir())


def backup(store: Place, out: Place) -> Found:
    """Copy a store into a new folder, which is a store itself; also while it is served.

    Args:
        store: Folder of a store that `create_run` made.
        out: A folder that is not there yet, or empty.

    Returns:
        What the copy holds.

    Raises:
        WrongInput: There is no such store, or `out` holds something.
        Failed: The store is damaged, or the copy cannot be written.
    """
    place = Path(os.path.realpath(out))
    check_out_parent("--out", place)
    is_free = not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir()))
    demand(is_free, f"--out {out} is there; a new or an empty folder is expected")
    part = place.with_name(f".{place.name}.part-{os.getpid()}")
    with closing(open_store(store)) as opened:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part.mkdir(mode=0o700)
            found = copy_store(opened, part)
            part.replace(place)
            sync_folder(place.parent)
        except (StoreError, BlobDamaged) as error:
            raise Failed(f"no backup was written: {error}") from error
        except (OSError, sqlite3.Error) as error:
            raise Failed(f"--out {out} cannot be written: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return found
