"""Serves the runs' base packs: announcements, and `GET /v1/packs/{base_id}/{file}`.

A pack is where `create` found it, as its manifest describes it. A base that is not a pack, or has
gone, is not announced, and looked for again after a while. The folder itself may be a link, for
example to a data disk; links inside a pack are not followed. Files are streamed in pieces, a few at
a time, so that a fleet that downloads at once does not delay reports and updates.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Header, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from smidgen.coordinator.config import RunConfig
from smidgen.coordinator.rounds.admission import Refusal
from smidgen.coordinator.serving.http.handlers import FILE, Detail, refusals
from smidgen.coordinator.serving.http.uploads import headers_of, past_the_end
from smidgen.coordinator.storage.store import Run
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.bases.manifest import is_pack, read_manifest
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.files import file_sha256
from smidgen.edge_client.wire.fleet import (
    FILE_NAME,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    SHA_256,
    Pack,
    PackFile,
)

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
        size = (folder / MANIFEST).stat().st_size
        demand(size <= MOST_MANIFEST_BYTES, f"{MANIFEST} has {size} bytes")
        files = manifest.files | {MANIFEST: PackFile(size, file_sha256(folder / MANIFEST))}
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


PIECE_BYTES = 64 << 10  # held for each file that is under way
EACH = 2  # files of one device: a connection that was cut may still look alive
AGAIN_S = 5


class Turns:
    """The files that are under way; safe to use from several threads.

    Args:
        most: As many as there may be.
        each: As many as one device may have.
    """

    def __init__(self, most: int, each: int = EACH) -> None:
        self._most, self._each, self._lock = most, each, Lock()
        self._taken = Counter[str]()

    def take(self, device_id: str) -> bool:
        """Begin with a file; false where there is no turn."""
        with self._lock:
            is_full = self._taken.total() >= self._most or self._taken[device_id] >= self._each
            if not is_full:
                self._taken[device_id] += 1
            return not is_full

    def give_back(self, device_id: str) -> None:
        """The file is out, or its device gone."""
        with self._lock:
            self._taken[device_id] -= 1
            self._taken += Counter[str]()  # forgets who has none


class Sent(FileResponse):
    """A file that keeps its turn until the last byte is out or the device is gone."""

    chunk_size = PIECE_BYTES

    def __init__(self, path: Path, headers: dict[str, str], over: Callable[[], None]) -> None:
        super().__init__(path, headers=headers)
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def add_pack_route(
    app: FastAPI,
    device_of: Callable[..., Any],
    file_of: Callable[[Any, str, str], tuple[Path, PackFile] | None],
    most: int = AT_ONCE,
) -> None:
    """Add it.

    Args:
        app: Gets it.
        device_of: Depends on a request; the device that sent it.
        file_of: A pack's file by base id and name, if this device may have it; in a thread.
        most: Files that are under way at a time.
    """
    Known = Annotated[Any, Depends(device_of)]
    turns = Turns(most)

    @app.get(
        "/v1/packs/{base_id}/{name}",
        tags=["devices' own"],
        response_class=FileResponse,
        responses={
            200: {"content": FILE, "description": "A file of a base pack."},
            206: {"content": FILE, "description": "The part that `Range` asked for."},
            416: {"model": Detail, "description": "`Content-Range` says how long it is."},
            **refusals(400, 401, 404, 422, 429, 503),
        },
    )
    def pack_file(
        device: Known,
        base_id: str,
        name: str,
        wanted: Annotated[str | None, Header(alias="Range")] = None,
    ) -> Response:
        """A file of the base of a run that asks this device, where the coordinator serves packs."""
        is_plain = SHA_256.fullmatch(base_id) is not None and FILE_NAME.fullmatch(name) is not None
        found = file_of(device, base_id, name) if is_plain else None
        if found is None:
            raise Refusal(404, f"no file {name[:64]!r} of a pack {base_id[:64]!r} is served here")
        path, told = found
        if not path.is_file() or path.stat().st_size != told.bytes:
            raise Refusal(
                404, f"{name} of pack {base_id[:12]} is not what it was; ask its operator"
            )
        headers = headers_of(told.sha256)
        if (past := past_the_end(wanted, told.bytes, headers)) is not None:
            return past
        if not turns.take(device.device_id):
            raise Refusal(503, "other devices fetch packs now; try again", AGAIN_S)
        return Sent(path, headers, partial(turns.give_back, device.device_id))
