"""Runs the cells of a models table one after the other; a file of records keeps the results.

A cell is on disk as soon as it is done. One already done with these libraries, machine and settings
is not measured again, so an interrupted table can be resumed.

    for cell in run(cells, Asked(), Path("results/models.jsonl"), follow):
        print(cell.name, cell.board_bytes)
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from smidgen.profiling.instruments.environment import BenchmarkError, conditions, find_base
from smidgen.profiling.models.cell import Cell, can_prove, from_record, to_record
from smidgen.profiling.models.measure import Asked, is_random, measure, prove
from smidgen.profiling.records.record import (
    Conditions,
    Record,
    RecordError,
    Records,
    append,
    new_session,
    read_records,
)

FILE = "models.jsonl"
SAME = ("processor", "instruction_sets", "cores")  # of machines whose seconds compare
Follow = Callable[[int, str], None]


def read_kept(path: Path | None) -> Records:
    """Records of cells in a file, in the order they were measured; none without a file.

    Raises:
        RecordError: It holds something else.
    """
    if path is None or not path.is_file():
        return Records(())
    found = read_records(path)
    return Records(tuple(row for row in found.records if row.kind == "model"), found.note)


def of_one_machine(records: Sequence[Record]) -> tuple[Record, ...]:
    """The records of the machine that was measured last: seconds of two machines do not compare."""
    if not records:
        return ()
    last = [records[-1].conditions.machine.get(name) for name in SAME]
    return tuple(
        one for one in records if [one.conditions.machine.get(name) for name in SAME] == last
    )


def run(
    cells: Sequence[Cell],
    asked: Asked,
    path: Path | None = None,
    follow: Follow = lambda place, text: None,
    times: int = 1,
) -> Iterator[list[Cell]]:
    """Measure what is not in the file yet; all cells come out in order.

    Args:
        cells: What is wanted.
        asked: How it is measured.
        path: File of records to read and to write on, or None.
        follow: Told the place of the cell that is measured and what is done just now.
        times: How often each is measured.

    Yields:
        Of each cell, the last `times` measurements, the newest last. One that lacks its runs on
        boards, and was measured where they could not be made, is given them alone.

    Raises:
        RecordError: The file holds something else.
    """
    kept, session = read_kept(path).records, ""
    for place, cell in enumerate(cells):
        found = _found(cell, asked, kept)[-times:]
        lacking = [found.pop()] if found and lacks_proof(found[-1]) else []  # the newest is shown
        todo = [partial(prove, one, asked) for one in lacking]
        todo += [partial(measure, cell, asked)] * (times - len(found) - len(todo))
        for work in todo:
            follow(place, "looking for the base")
            before = _conditions(cell, asked)
            session = session or session_for(kept, before)
            found.append(work(partial(follow, place)))
            if path is not None:
                where = replace(before, plan=found[-1].plan)
                append(path, [to_record(found[-1], where, session)])
        yield found


def lacks_proof(cell: Cell) -> bool:
    return cell.is_done and not cell.proofs and can_prove()


def to_do(
    cells: Sequence[Cell], asked: Asked, path: Path | None = None, times: int = 1
) -> list[int]:
    kept = read_kept(path).records
    known = (_found(cell, asked, kept)[-times:] for cell in cells)
    return [times - len(found) + (bool(found) and lacks_proof(found[-1])) for found in known]


def _found(cell: Cell, asked: Asked, kept: Sequence[Record]) -> list[Cell]:
    """Measurements of a cell that need not be made again, the newest last."""
    cell = replace(cell, asked=asdict(asked))
    same = [
        (record, done) for record in kept if (done := from_record(record)).subject == cell.subject
    ]
    if not same:
        return []
    key = _key(cell, asked, _conditions(cell, asked))
    found = []
    for record, done in same:
        how = _asked(record, done)
        if done.is_final and _key(done, how, record.conditions) == key:
            found.append(done)
    return found


def _asked(record: Record, done: Cell) -> Asked:
    try:
        return msgspec.convert(done.asked or asdict(Asked()), Asked)
    except msgspec.ValidationError as error:
        raise RecordError(f"{record.name}: not settings of a cell: {error}") from error


def session_for(kept: Sequence[Record], here: Conditions) -> str:
    """The session of a file's last record, which goes on here; a new one on another machine."""
    if kept and kept[-1].session:
        last = kept[-1].conditions
        if (last.machine, last.versions) == (here.machine, here.versions):
            return kept[-1].session
    return new_session()


def _key(cell: Cell, asked: Asked, where: Conditions) -> str:
    """Equal for measurements that may stand for each other."""
    same: dict[str, Any] = asdict(where)
    del same["plan"], same["load_1m"]
    if is_random(cell.base):  # its name and the seed say all of it
        del same["base_id"]
    return json.dumps([cell.subject, asdict(asked), same], sort_keys=True)


def _conditions(cell: Cell, asked: Asked) -> Conditions:
    return conditions(_base_id(cell.base, asked.seed), None, asked.seed, cell.isa)


@cache
def _base_id(base: str, seed: int) -> str:
    """SHA-256 of a base; empty where it cannot be had."""
    try:
        return find_base(base, is_random(base), None, seed).base_id
    except BenchmarkError:
        return ""
