"""Files of a state folder: which names are smidgen's own, and what is kept per run.

    foreign_in(folder)    # "photos": not ours, so nothing in this folder is touched
    sweep_halves(folder)  # remove files that were not completely written

`StepStates` keeps what update steps carry from one round to the next (SCAFFOLD's control variate,
a codec's residual), one file per run and round. It never leaves the device. The work names the
round to continue from (`Work.updates`), because an update may arrive late or be refused; so the
states that a training started from stay until the next work is done. New states are on disk before
the update is sent: a device killed in between repeats the work from equal states to equal bytes.

    states.keep("RUN", 7, {5, 3}, {"scaffold": body, "codec": other})  # made in round 7
    states.of("RUN", 7, "scaffold")

`Joined` keeps each run's terms, which are needed to handle its end, until the run's adapter has
been downloaded, or until the client ends where it ends with its runs: `joined.keep(terms)`,
`joined.terms("RUN")`, `joined.note_home("RUN")`, `joined.forget("RUN")`.
"""

import logging
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from smidgen.edge_client.adapters.peft_folder import ORIGIN
from smidgen.edge_client.errors import demand
from smidgen.edge_client.files import (
    PRIVATE,
    discard,
    from_json,
    make_latest,
    oldest_first,
    private,
    sync_folder,
    write_atomically,
)
from smidgen.edge_client.wire.fleet import Terms
from smidgen.edge_client.wire.messages import Message, WireError, decode, encode
from smidgen.edge_client.wire.tensors import sha256

FIRST = ("adapters", "outbox")  # folders that each version has made before anything else
WRITTEN = (*FIRST, "finished", "personal", "runs", "steps")  # folders that hold files by name
LOCK, IDENTITY = "lock", "device.json"
EARLY = {LOCK, IDENTITY, "device.new.json", "ca.pem", "corrections.json", "link.json", "noise.key"}
NAMES = {*WRITTEN, *EARLY, "activations", "adapter", "updates", "controls", "residuals"}
LABELS = re.compile(r"labels-.+\.jsonl(\.bad)?")
# What `write_atomically`, `new_file` and `new_folder` make beside a name until it is in its place.
HALF = re.compile(r"\.(?P<name>.+)\.(part|part-[0-9]+|(?P<old>old-[0-9]+))")
NOBODYS = {  # what systems put into any folder, and what keeps an empty one in an archive
    *("lost+found", "System Volume Information", ".snapshot", ".nfs*", ".Trash-*", ".DS_Store"),
    *(".gitignore", ".gitkeep", ".keep"),
}
TODO = "give --state a new or an empty folder, or one that a client has used before"

log = logging.getLogger(__name__)


def is_own(name: str) -> bool:
    """Whether smidgen gives this name to something in a state folder, or to the half of it."""
    half = HALF.fullmatch(name)
    whole = half["name"] if half else name
    # A file by which it is seen whether there is room
    is_probe = half is not None and re.fullmatch(r"room(\.\w+)?", whole) is not None
    return whole in NAMES or LABELS.fullmatch(whole) is not None or is_probe


def foreign_in(folder: Path, given: Iterable[Path] = ()) -> str | None:
    """What tells that a folder is somebody's own, by its name.

    None: it is not there, is empty or a state folder, be it of an older version, of a start that
    was killed, out of a backup without empty folders, or one into which somebody has put more.

    Args:
        folder: The state folder.
        given: What the user names besides, such as the texts: in there it tells nothing.

    Raises:
        OSError: It cannot be read.
    """
    is_made = all((folder / name).is_dir() for name in FIRST)
    if not folder.is_dir() or is_made or _is_identity(folder / IDENTITY):
        return None
    paths, known = sorted(folder.iterdir()), _names_below(folder, given)
    is_held = folder / LOCK in paths
    return next((path.name for path in paths if not _is_left(path, known, is_held)), None)


def in_words(folder: Path, held: str) -> str:
    """That a folder is somebody's own, and by what that is seen."""
    return f"state folder {folder} holds other things, such as {held}"


def _is_identity(path: Path) -> bool:
    """Whether it says who a device is."""
    try:
        said = from_json(path.read_bytes(), dict[str, Any]) if path.is_file() else {}
    except ValueError:
        return False
    return isinstance(said.get("key"), str) and isinstance(said.get("url"), str)


def _names_below(folder: Path, given: Iterable[Path]) -> set[str]:
    """The names in a folder by which one comes to some paths; none that is smidgen's own."""
    ways = ((path.absolute(), *path.absolute().parents) for path in given)
    steps = (step for way in ways for step in pairwise(way))
    found = {lower.name for lower, above in steps if _is_same(above, folder)}
    return {name for name in found if not is_own(name)}


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # not there, or no path at all, such as a hub name with NUL
        return False


def _is_left(path: Path, known: Iterable[str], is_held: bool) -> bool:
    """Whether what lies in a folder that no client has finished making may be left of one.

    Anybody may have a folder of adapters, or labels: by their names they are ours only where a
    client has held the folder.
    """
    name = path.name
    if name in known or any(fnmatchcase(name, pattern) for pattern in NOBODYS):
        return True
    if name in FIRST:
        return is_held or (path.is_dir() and not any(path.iterdir()))
    is_half = HALF.fullmatch(name) is not None and is_own(name)
    return name in EARLY or is_half or (is_held and LABELS.fullmatch(name) is not None)


def sweep_halves(folder: Path) -> None:
    """Delete what killed processes left half-written; whoever writes there holds the folder.

    A folder that was set aside stays where nothing stands in its place: who writes there next
    puts it back. So does one that is whole, until something newer stands there: who wrote it was
    told that it is kept.
    """
    runs = (folder / "updates").glob("*")
    for place in (folder, *(folder / name for name in WRITTEN), *runs):
        for path in place.glob(".*"):
            half = HALF.fullmatch(path.name)
            if half is None or (place == folder and not is_own(path.name)):
                continue
            whole = place / half["name"]
            if whole.exists() if half["old"] else _is_sweepable(path, whole):
                _remove(path)


def _is_sweepable(part: Path, whole: Path) -> bool:
    """Whether a half is one, or as old as what stands in its place."""
    mark, other = part / ORIGIN, whole / ORIGIN
    if part.is_symlink() or not mark.is_file():
        return True
    return other.is_file() and other.stat().st_mtime_ns >= mark.stat().st_mtime_ns


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


DIGITS = 64  # of a SHA-256, before the rest of a file
States = Mapping[str, bytes]  # by step


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
            log.warning(
                "update step %s: what it kept of round %d is lost; it begins anew or stands aside",
                step,
                round_index,
            )
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
        self._held = {
            key: one for key, one in self._held.items() if key[0] == run and key[1] in before
        }
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
TERMS, HOME = ".json", ".home"  # what files of terms end in; the other, once the adapter is at home
SAID = ".said"  # what files of answers to secure aggregations end in
TWICE = "an aggregation asks this device a second time, for something else, or a note is damaged"
NOT_MASKED = "an unmasking that this device has masked no update for, or a note is damaged"


class Joined:
    """The runs that one device joined.

    Args:
        folder: Made by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note_masked(self, run_id: str, round_index: int, ring: str) -> None:
        """Note before an update is masked for which secure aggregation that is.

        Args:
            run_id: The run.
            round_index: The round.
            ring: Names the aggregation.

        Raises:
            WireError: This device has unmasked another one of that round.
            OSError: It cannot be noted.
        """
        known = self._said(run_id)
        unmasked = known.get(f"unmasked {round_index}", ring).partition(" ")[0]
        demand(unmasked == ring, TWICE, WireError)
        if known.get(f"masked {round_index}") != ring:
            self._say(run_id, f"masked {round_index} {ring}")

    def note_unmasked(self, run_id: str, round_index: int, ring: str, asked: str) -> None:
        """Note before an unmasking is answered which that is.

        Args:
            run_id, round_index, ring: As `note_masked` takes them.
            asked: Names all that is asked.

        Raises:
            WireError: This device has masked no update for it, or has answered another one.
            OSError: It cannot be noted.
        """
        known, said = self._said(run_id), f"{ring} {asked}"
        demand(known.get(f"masked {round_index}") == ring, NOT_MASKED, WireError)
        demand(known.get(f"unmasked {round_index}", said) == said, TWICE, WireError)
        if f"unmasked {round_index}" not in known:
            self._say(run_id, f"unmasked {round_index} {said}")

    def _said(self, run_id: str) -> dict[str, str]:
        """What was noted of secure aggregations, the newest of each round."""
        path = self._file(run_id).with_suffix(SAID)
        lines = path.read_text("ascii", "replace").splitlines() if path.is_file() else []
        parts = (line.split(" ", 2) for line in lines)
        return {f"{one[0]} {one[1]}": one[2] for one in parts if len(one) == 3}

    def _say(self, run_id: str, line: str) -> None:
        path = self._file(run_id).with_suffix(SAID)
        is_new = not path.is_file()
        try:
            with open(path, "a", opener=private) as file:
                file.write(f"\n{line}\n")  # also behind one that was cut
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_folder(self.folder)
        except OSError as error:
            said = f"{path.name} takes no note of what is said, so nothing is: {error.strerror}"
            raise OSError(error.errno, said) from error

    def keep(self, terms: Terms) -> None:
        """Keep the terms of a run that this device joins; its end is understood by them.

        Raises:
            OSError: The disk is full or read-only; not where a full one holds them already.
        """
        path, body = self._file(terms.run_id), b"".join(sealed(encode(terms)))
        if not path.is_file() or path.read_bytes() != body:
            write_atomically(path, body, PRIVATE)
        make_latest(path)
        discard(path.with_suffix(HOME))

    def terms(self, run_id: str) -> Terms | None:
        """The terms of a run that this device joined, or None."""
        path = self._file(run_id)
        return _terms_in(path) or _terms_in(path.with_suffix(HOME))

    def all(self, ending: str = TERMS) -> dict[str, Terms | None]:
        """Terms that are here by their file's name without ending; None where they are damaged.

        Args:
            ending: `HOME`: of runs whose adapter is at home.
        """
        return {path.stem: _terms_in(path) for path in self.folder.glob(f"*{ending}")}

    def note_home(self, run_id: str, *, is_home: bool = True) -> None:
        """Note whether a run's adapter is at home, until its terms are forgotten."""
        path = self._file(run_id)
        before, after = (path, path.with_suffix(HOME))[:: 1 if is_home else -1]
        try:
            if before.is_file():
                before.replace(after)
                sync_folder(self.folder)
        except OSError as error:  # its terms stay as they are
            log.warning("%s is not renamed: %s", before.name, error.strerror)

    def forget(self, run_id: str) -> None:
        """Drop the terms of a run that is over."""
        for ending in (TERMS, HOME):  # what was said stays: the run may be extended
            discard(self._file(run_id).with_suffix(ending))

    def forget_all(self) -> None:
        for path in self._files():
            path.unlink()

    def sweep(self) -> list[str]:
        """Drop the terms of runs of long ago.

        Returns:
            File names, without their endings, of all that were there, oldest first; the last
            `KEPT_TERMS` of them are kept.
        """
        terms = oldest_first(self._files())
        said = oldest_first(list(self.folder.glob(f"*{SAID}")))
        for old in (*terms[:-KEPT_TERMS], *said[:-KEPT_TERMS]):
            old.unlink()
        return [path.stem for path in terms]

    def _files(self) -> list[Path]:
        return [path for ending in (TERMS, HOME) for path in self.folder.glob(f"*{ending}")]

    def _file(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}{TERMS}"


def sealed(message: bytes, more: bytes = b"") -> tuple[bytes, ...]:
    """A file's parts: a message, and the SHA-256 of it and of what belongs to it, in hex."""
    return message, b"\n", sha256(message + more).encode()


def unsealed(body: bytes, kind: type[Message], more: bytes = b"") -> Message:
    """The message of a file; a bit that flips may leave one that decodes.

    Args:
        body: What was `sealed`.
        kind: What it is.
        more: What belongs to it.

    Raises:
        WireError: They are not as they were.
    """
    message, _, digest = body.rpartition(b"\n")
    if sha256(message + more).encode() != digest:
        raise WireError("damaged, or of an older smidgen")
    return decode(message, kind)


def _terms_in(path: Path) -> Terms | None:
    body = path.read_bytes() if path.is_file() else b""
    with suppress(WireError):
        return unsealed(body, Terms)
    with suppress(WireError):  # of an older smidgen, without a seal; no damaged one decodes whole
        return decode(body, Terms)
    return None


def file_name(word: str) -> str:
    """A word that a coordinator chose, as the name of a file: itself, or its hash."""
    return word if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", word) else sha256(word.encode())
