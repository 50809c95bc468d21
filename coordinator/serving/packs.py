"""The packs that runs train on, as devices are told of them, and their files where they are served.

A pack lies where `create` was told to find it; its manifest says the rest. A base that is not a
pack, or does not lie there, is announced to nobody, and looked for again after a while. The place
may be a link, as to a disk of data; links inside a pack lead nowhere else.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from coordinator.config import RunConfig
from coordinator.storage.store import Run
from edge_client.bases.base import EMBEDDED
from edge_client.bases.manifest import is_pack, read_manifest
from edge_client.errors import WrongInput, demand
from edge_client.files import file_sha256
from edge_client.wire.packs import MANIFEST, MOST_MANIFEST_BYTES, Pack, PackFile

LOG = logging.getLogger(__name__)
MOST_TIMES = 4  # that a device is asked again for what it said before this process began
LOOK_AGAIN_S = 60.0  # for a pack that was not there: a disk may be mounted late
AT_ONCE = 8  # files of packs that are sent at a time: each takes turns in the threads


Key: TypeAlias = tuple[str, str, tuple[str, ...]]


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
        clock: Seconds, ever growing.
    """

    def __init__(
        self, is_serving: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_serving, self._lock, self._clock = is_serving, Lock(), clock
        self._offers: dict[Key, Offer] = {}
        self._missed: dict[Key, tuple[float, str]] = {}  # when a pack was looked for, and why not

    def of(self, run: Run, config: RunConfig) -> Pack | None:
        """What devices are told of the pack that a run trains on; None: nothing."""
        offer = self._offer(run, config)
        return None if offer is None else offer.pack

    def path(self, run: Run, config: RunConfig, name: str) -> tuple[Path, PackFile] | None:
        """A file of a run's pack, and what it has to be; None where it is not served."""
        offer = self._offer(run, config) if self._is_serving else None
        if offer is None or name not in offer.pack.files:
            return None
        path = (offer.folder / name).resolve()
        if not path.is_relative_to(offer.folder):
            return None
        return path, offer.pack.files[name]

    def _offer(self, run: Run, config: RunConfig) -> Offer | None:
        if config.base == EMBEDDED:
            return None
        key = run.base_id, config.base, config.pack_mirrors
        with self._lock:
            missed_s, before = self._missed.get(key, (-math.inf, ""))
            if key not in self._offers and self._clock() - missed_s >= LOOK_AGAIN_S:
                try:
                    self._offers[key] = self._read(run, config)
                except (WrongInput, OSError) as error:
                    self._missed[key] = self._clock(), str(error)
                    is_meant = self._is_serving or config.pack_mirrors or is_pack(Path(config.base))
                    if str(error) != before and is_meant:
                        LOG.warning("%s: devices are not told of its pack: %s", config.name, error)
            return self._offers.get(key)

    def _read(self, run: Run, config: RunConfig) -> Offer:
        """What there is to tell.

        Raises:
            WrongInput: There is no pack, or it is another one.
            OSError: It cannot be read.
        """
        folder = Path(config.base).resolve()
        demand(is_pack(folder), f"no pack lies at {config.base} as seen from here")
        manifest = read_manifest(folder / MANIFEST)
        demand(manifest.pack_id == run.base_id, f"the pack at {config.base} is another one by now")
        files = {name: PackFile(one.bytes, one.sha256) for name, one in manifest.files.items()}
        size = (folder / MANIFEST).stat().st_size
        demand(size <= MOST_MANIFEST_BYTES, f"{MANIFEST} has {size} bytes")
        files[MANIFEST] = PackFile(size, file_sha256(folder / MANIFEST))
        licence, mirrors = manifest.licence or "", config.pack_mirrors
        return Offer(folder, Pack(manifest.name, licence, files, mirrors, self._is_serving))


class LatePacks:
    """Devices that were asked into a run before its pack was there: they are asked again then.

    Who said that it lacks the base before this process began may have been asked without the pack.

    Args:
        packs: What runs train on.
        since_s: Unix time at which the process began.
    """

    def __init__(self, packs: Packs, since_s: float) -> None:
        self._packs, self._since_s = packs, since_s
        self._asked = set[tuple[str, str]]()  # without it, by run and device
        self._again: Counter[tuple[str, str]] = Counter()  # for what was said before

    def told(self, run: Run, config: RunConfig, device_id: str) -> Pack | None:
        """What a device that is asked into a run is told of its pack."""
        pack = self._packs.of(run, config)
        if pack is None and config.base != EMBEDDED:
            self._asked.add((run.run_id, device_id))
        return pack

    def is_news(
        self, run: Run, config: RunConfig, device_id: str, said_at_s: float = math.inf
    ) -> bool:
        """Whether there is a pack by now of which a device may not have been told.

        Args:
            run: The run.
            config: Its configuration.
            device_id: The device.
            said_at_s: When it said that it lacks the base, Unix time.
        """
        key = run.run_id, device_id
        # Clocks of several processes differ a little: what is said through another may seem older.
        is_older = said_at_s < self._since_s and self._again[key] < MOST_TIMES
        if not (is_older or key in self._asked) or self._packs.of(run, config) is None:
            return False
        self._again[key] += is_older
        return True

    def answered(self, run: Run, config: RunConfig, device_id: str) -> None:
        """A device has said how it stands to a run: now it knows what there is to know."""
        if self.is_news(run, config, device_id):
            self._asked.discard((run.run_id, device_id))
