"""How far each run's journal went, kept in a file beside the database.

A database that is copied back, cut short, or robbed of its write-ahead log is sound in itself; only
somebody who remembers its end can tell. The file is written after each commit, so it may lag behind
the database, and never leads. A line is written in place, 128 bytes that no sector cuts, without
waiting for the disk: what is written survives a killed process; after a power cut it may be as old
as the system's cache, half a minute by default.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_client.files import write_atomically

FILE = "journal.heads"
LINE_BYTES = 128
TITLE = ["smidgen", "heads", "1"]


@dataclass(frozen=True)
class Head:
    """The end of a run's journal.

    Attributes:
        seq: Place of the last event.
        link: Its link of the chain.
    """

    seq: int
    link: str


class HeadsError(ValueError):
    """A file that holds something else."""


def read_heads(path: Path) -> dict[str, Head]:
    """The last known event of each run.

    Raises:
        FileNotFoundError: There is no such file.
        HeadsError: It is damaged.
    """
    body = path.read_bytes()
    lines = [body[at : at + LINE_BYTES] for at in range(0, len(body), LINE_BYTES)]
    try:
        # A power cut may have kept a line's room and not the line.
        words = [line.decode("ascii").split() for line in lines if line.strip(b"\0")]
        if words[0] != TITLE:
            raise HeadsError
        return {run_id: Head(int(seq), link) for run_id, seq, link in words[1:]}
    except (ValueError, IndexError) as error:
        raise HeadsError(f"{path} is damaged") from error


class Heads:
    """The file of a store that this process alone serves.

    Args:
        path: Of the file; written anew, through to the disk.
        known: The ends of the journals now.
    """

    def __init__(self, path: Path, known: Mapping[str, Head]) -> None:
        lines = [_line(*TITLE), *(_of(run_id, head) for run_id, head in known.items())]
        write_atomically(path, b"".join(lines), mode=0o600)
        self._places = {run_id: place for place, run_id in enumerate(known, start=1)}
        self._file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)

    def note(self, run_id: str, head: Head, is_safe: bool = False) -> None:
        """Write down an event that the database has; what cannot be written is left as it was.

        Args:
            run_id: The run.
            head: The event.
            is_safe: Whether to wait until it is on disk.
        """
        place = self._places.setdefault(run_id, len(self._places) + 1)
        os.pwrite(self._file, _of(run_id, head), place * LINE_BYTES)
        if is_safe:
            os.fsync(self._file)

    def close(self) -> None:
        """Leave the file, written through to the disk."""
        os.fsync(self._file)
        os.close(self._file)


def _of(run_id: str, head: Head) -> bytes:
    return _line(run_id, f"{head.seq:012d}", head.link)


def _line(*words: str) -> bytes:
    return " ".join(words).encode("ascii").ljust(LINE_BYTES - 1) + b"\n"
