"""Per-run files in the state folder: the state of update steps, and terms of joined runs.

`StepStates` keeps what update steps carry from one round to the next (SCAFFOLD's control variate,
a codec's residual), one file per run and round. It never leaves the device. The work names the
round to continue from (`Work.updates`), because an update may arrive late or be refused; so the
states that a training started from stay until the next work is done. New states are on disk before
the update is sent: a device killed in between repeats the work from equal states to equal bytes.

    states.keep("RUN", 7, {5, 3}, {"scaffold": body, "codec": other})  # made in round 7
    states.of("RUN", 7, "scaffold")

`Joined` keeps each run's terms, which are needed to handle its end, until the run's adapter has
been downloaded: `joined.keep(terms)`, `joined.terms("RUN")`, `joined.forget("RUN")`.
"""

import logging
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from edge_client.files import PRIVATE, oldest_first, write_atomically
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import WireError, decode, encode
from edge_client.wire.tensors import sha256

DIGITS = 64  # of a SHA-256, before the rest of a file
States = Mapping[str, bytes]  # by step

log = logging.getLogger(__name__)


class StepStates:
    """Those of one device.

    Args:
        folder: Made when there is something to keep.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[tuple[str, int], States] = {}  # what the disk has no room for

    def of(self, run: str, round_index: int, step: str) -> bytes | None:
        """A step's state after a round; empty before any, None where it is lost.

        Args:
            run: The run, as a folder's name.
            round_index: The round; 0: before any.
            step: The step's name.
        """
        if not round_index:
            return b""
        states = self._held.get((run, round_index)) or self._read(run, round_index)
        if step not in states:
            said = (
                "update step %s: what it kept of round %d is lost; it begins anew or stands aside"
            )
            log.warning(said, step, round_index)
        return states.get(step)

    def _read(self, run: str, round_index: int) -> States:
        with suppress(OSError, msgspec.DecodeError):
            body = self._path(run, round_index).read_bytes()
            if sha256(body[DIGITS:]).encode() == body[:DIGITS]:
                return msgspec.msgpack.decode(body[DIGITS:], type=dict[str, bytes])
        return {}

    def keep(self, run: str, round_index: int, before: Collection[int], states: States) -> None:
        """Keep the states after a round beside those that it began with; drop all others.

        Args:
            run: The run, as a folder's name.
            round_index: The round.
            before: The rounds whose states the training began with.
            states: Safetensors files by step.
        """
        path = self._path(run, round_index)
        began = {(run, index) for index in before}
        self._held = {key: one for key, one in self._held.items() if key in began}
        body = msgspec.msgpack.encode(dict(sorted(states.items())))
        try:
            for folder in (self._folder, path.parent):
                folder.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, sha256(body).encode() + body, PRIVATE)
        except OSError as error:  # a full disk costs memory; the next life trains without
            log.warning("what update steps go on from is not kept: %s", error)
            self._held[run, round_index] = states
            return
        kept = {path, *(self._path(run, index) for index in before)}
        for other in path.parent.iterdir():
            if other not in kept:
                other.unlink(missing_ok=True)

    def forget(self, run: str) -> None:
        self._held = {key: one for key, one in self._held.items() if key[0] != run}
        shutil.rmtree(self._folder / run, ignore_errors=True)

    def forget_all_but(self, runs: Collection[str]) -> None:
        with suppress(OSError):
            for folder in list(self._folder.iterdir()):
                if folder.name not in runs:
                    self.forget(folder.name)

    def _path(self, run: str, round_index: int) -> Path:
        return self._folder / run / f"{round_index}.st"


KEPT_TERMS = 64  # of runs, the newest
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Joined:
    """The runs that one device joined.

    Args:
        folder: Made by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, terms: Terms) -> None:
        """Keep the terms of a run that this device joins."""
        write_atomically(self._file(terms.run_id), encode(terms), PRIVATE, is_latest=True)

    def terms(self, run_id: str) -> Terms | None:
        """The terms of a run that this device joined, or None."""
        path = self._file(run_id)
        try:
            return decode(path.read_bytes(), Terms) if path.is_file() else None
        except WireError:
            return None

    def base_ids(self) -> set[str]:
        found = (self.terms(path.stem) for path in self.folder.glob("*.json"))
        return {terms.base_id for terms in found if terms is not None}

    def forget(self, run_id: str) -> None:
        """Drop the terms of a run whose adapter is at home."""
        self._file(run_id).unlink(missing_ok=True)

    def forget_all(self) -> None:
        for path in self.folder.glob("*.json"):
            path.unlink()

    def sweep(self) -> list[str]:
        """Drop the terms of runs of long ago.

        Returns:
            File names, without their endings, of all that were there, oldest first; the last
            `KEPT_TERMS` of them are kept.
        """
        terms = oldest_first(self.folder.glob("*.json"))
        for old in terms[:-KEPT_TERMS]:
            old.unlink()
        return [path.stem for path in terms]

    def _file(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.json"


def file_name(word: str) -> str:
    """A word that a coordinator chose, as the name of a file: itself, or its hash."""
    return word if PLAIN_NAME.fullmatch(word) else sha256(word.encode())
