"""Journals: hash-chained events of each run, with their heads in a file beside the database.

Editing, truncating or swapping entries breaks the hash chain. The first link covers the run's row,
each further one the previous link and its own event, so equal journals have equal links. A
compacted journal begins with `Folded` instead of its first events. It is written in the transaction
that removes them, and carries the last one's link, so the chain continues.

The heads file detects a database that is sound in itself but old: copied back, cut short, or robbed
of its write-ahead log. It is written after each commit, so it may lag behind the database but never
leads. Each line is 128 bytes, written in place within one disk sector and without fsync: it
survives a killed process; after a power cut it may be as old as the system's cache, half a minute
by default.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from smidgen.coordinator.rounds.events import Event, Folded, decode_event, encode_event
from smidgen.coordinator.storage.database import Database
from smidgen.coordinator.storage.schema import EVENTS, RUNS
from smidgen.edge_client.files import write_atomically

FIELDS = (
    *("run_id", "config", "base_id", "base_reference", "architecture", "adapter_sha256"),
    "secret",
)


def first_link(run: Mapping[str, Any]) -> str:
    """What a run's chain begins with, by its row."""
    return hashlib.sha256(json.dumps([run[name] for name in FIELDS]).encode()).hexdigest()


def next_link(link: str, payload: str) -> str:
    """The link of an event, by the one before and the event as it is stored."""
    return hashlib.sha256(f"{link}\n{payload}".encode()).hexdigest()


AT_ONCE = 500  # events that are held in memory
RESTORE = "restore the store from a backup"


class JournalError(ValueError):
    """A journal that is not as it was written, or that does not go as far."""


def link_of(connection: sql.Connection, run_id: str, seq: int) -> str | None:
    """The link of an event, also of the last that was folded away; None if there is none.

    Before the first event, of the run's row.
    """
    if seq < 0:
        chosen = sql.select(RUNS).where(RUNS.c.run_id == run_id)
        run = connection.execute(chosen).mappings().one_or_none()
        return None if run is None else first_link(dict(run))
    found = connection.scalar(sql.select(EVENTS.c.chain).where(_here(run_id, seq)))
    if found is None:
        payload = connection.scalar(sql.select(EVENTS.c.payload).where(_here(run_id, seq + 1)))
        after = decode_event(payload) if payload else None
        found = after.link if isinstance(after, Folded) else None
    return found


def chained(
    connection: sql.Connection, events: Sequence[tuple[str, int, Event]]
) -> list[dict[str, Any]]:
    """Rows of events that are about to be appended.

    Args:
        connection: In the transaction that appends them.
        events: Run, place in its journal, and what happened.

    Raises:
        JournalError: A journal is shorter than that.
    """
    rows: list[dict[str, Any]] = []
    links: dict[str, str] = {}
    for run_id, seq, event in events:
        before = links.get(run_id) or link_of(connection, run_id, seq - 1)
        if before is None:
            raise JournalError(f"the journal of run {run_id} has no event {seq - 1}")
        if isinstance(event, Folded):
            run_link = link_of(connection, run_id, -1) or ""
            event = replace(event, run_link=run_link, link=before)
        payload = encode_event(event)
        links[run_id] = next_link(before, payload)
        rows.append({"run_id": run_id, "seq": seq, "payload": payload, "chain": links[run_id]})
    return rows


def forget_before(run_id: str, seq: int) -> sql.Executable:
    return sql.delete(EVENTS).where((EVENTS.c.run_id == run_id) & (EVENTS.c.seq < seq))


def read(database: Database, run_id: str, first: int) -> Iterator[Event]:
    """A run's journal from an event on; from the one that stands for it, where it was folded.

    It may be folded meanwhile: then the event that stands for the rest comes next.

    Raises:
        JournalError: An event is not the one that was appended, or is missing.
    """
    with database.reading() as connection:
        link, run_link = link_of(connection, run_id, first - 1), link_of(connection, run_id, -1)
    mine = sql.select(EVENTS).where(EVENTS.c.run_id == run_id).order_by(EVENTS.c.seq)
    while True:
        some = database.rows(mine.where(EVENTS.c.seq >= first).limit(AT_ONCE))
        for row in some:
            before = link if row["seq"] == first else None
            event, link = _checked(row, before, run_link)
            yield event
            first = row["seq"] + 1
        if len(some) < AT_ONCE:
            return


def _checked(row: Mapping[str, Any], before: str | None, run_link: str | None) -> tuple[Event, str]:
    """An event and its link.

    Args:
        row: As it is stored.
        before: The link of the event before it; None where that is not there.
        run_link: What the chain begins with.
    """
    run_id, seq, payload = row["run_id"], row["seq"], row["payload"]
    folded = None
    if before is None:
        folded = decode_event(payload)
        if not isinstance(folded, Folded):
            raise JournalError(f"the journal of run {run_id} lacks event {seq - 1}; {RESTORE}")
        before = folded.link
    link = next_link(before, payload)
    event = folded or (decode_event(payload) if row["chain"] == link else None)
    is_wrong_fold = isinstance(event, Folded) and (event.events, event.run_link, event.link) != (
        *(seq, run_link, before),
    )
    if row["chain"] != link or event is None or is_wrong_fold:
        raise JournalError(
            f"the journal of run {run_id} was changed: event {seq} does not follow from those "
            f"before it; {RESTORE}"
        )
    return event, link


def _here(run_id: str, seq: int) -> sql.ColumnElement[bool]:
    return (EVENTS.c.run_id == run_id) & (EVENTS.c.seq == seq)


FILE = "journal.heads"
LINE_BYTES = 128
TITLE = ["smidgen", "heads", "1"]


@dataclass(frozen=True)
class JournalHead:
    """The end of a run's journal.

    Attributes:
        seq: Place of the last event.
        link: Its link of the chain.
    """

    seq: int
    link: str


class HeadsError(ValueError):
    """A file that holds something else."""


def read_heads(path: Path) -> dict[str, JournalHead]:
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
        return {run_id: JournalHead(int(seq), link) for run_id, seq, link in words[1:]}
    except (ValueError, IndexError) as error:
        raise HeadsError(f"{path} is damaged") from error


class Heads:
    """The file of a store that this process alone serves.

    Args:
        path: Of the file; written anew, through to the disk.
        known: The ends of the journals now.
    """

    def __init__(self, path: Path, known: Mapping[str, JournalHead]) -> None:
        lines = [_line(*TITLE), *(_of(run_id, head) for run_id, head in known.items())]
        write_atomically(path, b"".join(lines), mode=0o600)
        self._places = {run_id: place for place, run_id in enumerate(known, start=1)}
        self._file = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)

    def note(self, run_id: str, head: JournalHead, is_safe: bool = False) -> None:
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


def _of(run_id: str, head: JournalHead) -> bytes:
    return _line(run_id, f"{head.seq:012d}", head.link)


def _line(*words: str) -> bytes:
    return " ".join(words).encode("ascii").ljust(LINE_BYTES - 1) + b"\n"
