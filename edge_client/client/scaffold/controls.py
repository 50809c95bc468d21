"""A device's own control variates on disk, of each run by round; they never leave it.

What coded updates left out is kept in the same way (`Work.residual_round`).

    controls.keep("RUN", 7, 5, body)  # made in round 7, from the one of round 5
    controls.own("RUN", 7)

Which round's a device goes on from is said with the work (`Work.control_round`), for an update may
come late or not be taken: so the one that a training began with stays beside the new one until the
next work is done. The new one is on disk before the update can be sent; a device that is killed in
between does the same work again, from the same variate to the same bytes.
"""

import logging
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from edge_client.files import PRIVATE, write_atomically
from edge_client.wire.tensors import sha256

DIGITS = 64  # of a SHA-256, before the rest of a file

log = logging.getLogger(__name__)


class Controls:
    """Those of one device.

    Args:
        folder: Made when there is something to keep.
        what: What is kept, for the log.
    """

    def __init__(self, folder: Path, what: str = "the control variate") -> None:
        self._folder, self._what = folder, what
        self._held: dict[tuple[str, int], bytes] = {}  # what the disk has no room for

    def own(self, run: str, round_index: int) -> bytes | None:
        """The variate after a round, a safetensors file; empty before any, None where it is lost.

        Args:
            run: The run, as a folder's name.
            round_index: The round; 0: before any.
        """
        if not round_index:
            return b""
        if (held := self._held.get((run, round_index))) is not None:
            return held
        with suppress(OSError):
            digest, body = _parted(self._path(run, round_index).read_bytes())
            if sha256(body).encode() == digest:
                return body
        log.warning("%s of round %d is lost; this device trains without", self._what, round_index)
        return None

    def keep(self, run: str, round_index: int, before: int, body: bytes) -> None:
        """Keep the variate after a round beside that of the round before; drop all others.

        Args:
            run: The run, as a folder's name.
            round_index: The round.
            before: The round whose variate the training began with.
            body: A safetensors file.
        """
        path = self._path(run, round_index)
        self._held = {key: one for key, one in self._held.items() if key == (run, before)}
        try:
            for folder in (self._folder, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, sha256(body).encode() + body, PRIVATE)
        except OSError as error:  # a full disk costs memory; the next life trains without
            log.warning("%s is not kept: %s", self._what, error)
            self._held[run, round_index] = body
            return
        kept = {path, self._path(run, before)}
        for other in path.parent.iterdir():
            if other not in kept:
                other.unlink(missing_ok=True)

    def forget(self, run: str) -> None:
        """Drop those of a run."""
        self._held = {key: one for key, one in self._held.items() if key[0] != run}
        shutil.rmtree(self._folder / run, ignore_errors=True)

    def forget_all_but(self, runs: Collection[str]) -> None:
        """Drop those of all other runs."""
        with suppress(OSError):
            for folder in list(self._folder.iterdir()):
                if folder.name not in runs:
                    self.forget(folder.name)

    def _path(self, run: str, round_index: int) -> Path:
        return self._folder / run / f"{round_index}.st"


def _parted(body: bytes) -> tuple[bytes, bytes]:
    return body[:DIGITS], body[DIGITS:]
