"""The packs that runs train on, as devices are told of them, and their files where they are served.

A pack lies where `create` was told to find it; its manifest says the rest. A base that is not a
pack, or no longer lies there, is announced to nobody.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from coordinator.config import RunConfig
from coordinator.storage.store import Run
from edge_client.bases.base import EMBEDDED
from edge_client.bases.manifest import is_pack, read_manifest
from edge_client.errors import WrongInput
from edge_client.files import file_sha256
from edge_client.wire.packs import MANIFEST, MOST_MANIFEST_BYTES, Pack, PackFile

LOG = logging.getLogger(__name__)
AT_ONCE = 8  # files of packs that are sent at a time: each takes turns in the threads


@dataclass(frozen=True)
class Offer:
    """What is known of a run's pack.

    Attributes:
        folder: Where it lies.
        pack: What devices are told.
    """

    folder: Path
    pack: Pack


class Packs:
    """Packs by base id, each read once. Safe to use from several threads.

    Args:
        is_serving: Whether devices may have their files from here.
    """

    def __init__(self, is_serving: bool = False) -> None:
        self._is_serving, self._lock = is_serving, Lock()
        self._offers: dict[tuple[str, str, tuple[str, ...]], Offer | None] = {}

    def of(self, run: Run, config: RunConfig) -> Pack | None:
        """What devices are told of the pack that a run trains on; None: nothing."""
        offer = self._offer(run, config)
        return None if offer is None else offer.pack

    def path(self, run: Run, config: RunConfig, name: str) -> tuple[Path, PackFile] | None:
        """A file of a run's pack, and what it has to be; None where it is not served."""
        offer = self._offer(run, config) if self._is_serving else None
        if offer is None or name not in offer.pack.files:
            return None
        return offer.folder / name, offer.pack.files[name]

    def _offer(self, run: Run, config: RunConfig) -> Offer | None:
        key = run.base_id, config.base, config.pack_mirrors
        with self._lock:
            if key not in self._offers:
                self._offers[key] = self._read(run, config)
            return self._offers[key]

    def _read(self, run: Run, config: RunConfig) -> Offer | None:
        folder = Path(config.base)
        if config.base == EMBEDDED:
            return None
        if not is_pack(folder):
            if config.pack_mirrors or self._is_serving:
                told = "%s: no pack lies at %s as seen from here, so no device can fetch it"
                LOG.warning(told, config.name, config.base)
            return None
        try:
            manifest = read_manifest(folder / MANIFEST)
            if manifest.pack_id != run.base_id:
                told = "%s: the pack at %s is another one by now; devices are not told of it"
                LOG.warning(told, config.name, folder)
                return None
            files = {name: PackFile(one.bytes, one.sha256) for name, one in manifest.files.items()}
            size = (folder / MANIFEST).stat().st_size
            if size > MOST_MANIFEST_BYTES:
                return None
            files[MANIFEST] = PackFile(size, file_sha256(folder / MANIFEST))
            licence, mirrors = manifest.licence or "", config.pack_mirrors
            pack = Pack(manifest.name, licence, files, mirrors, self._is_serving)
        except (WrongInput, OSError) as error:
            LOG.warning("%s: devices are not told of its pack: %s", config.name, error)
            return None
        return Offer(folder.absolute(), pack)
