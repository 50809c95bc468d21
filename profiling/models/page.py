"""The models table as files: Markdown, CSV, JSON, and one HTML page that loads nothing.

    write_pages(cells, [record.conditions for record in records], Path("models"))

Both pages are Jinja templates over the terminal's tables. The HTML works without a network, and its
content security policy forbids loading anything.
"""

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from smidgen.edge_client.errors import Failed, installing
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.tables import Column, Table, plain, size
from smidgen.profiling.benchmarks.report import machine_notes
from smidgen.profiling.models.cell import GIB, PEERS, Cell
from smidgen.profiling.models.report import (
    SMALLEST_FIRST,
    BoardFit,
    count_text,
    grid,
    largest,
    models_tables,
    ordered,
    setting,
    settings,
    step_text,
)
from smidgen.profiling.records.record import Conditions, last_part

TEMPLATES = Path(__file__).parent / "templates"
SPECIAL = re.compile(r"[&<>|*_`\[\]\\#]")  # as entities: every reader of Markdown knows them
WITHOUT = {"unmeasured": "not measured", "none": "does not fit", "unproved": "not proved"}
LISTS = ("steps_s", "texts_per_s", "step_j")
NOT_FLAT = (*LISTS, "plan", "asked", "proofs")
NOTES = (
    "In each field: median seconds of a step, by what, and its peak memory; behind it the fastest "
    "of the others' recipes that fits too.",
    "What is proved is memory: a run inside a hard limit of that size came to its end. The seconds "
    "are this machine's, without a limit; a board's processor takes longer.",
)


def check_jinja() -> None:
    """Look for Jinja before hours of work.

    Raises:
        Failed: It is not installed.
    """
    if find_spec("jinja2") is None:
        raise Failed(f"the pages need Jinja; {installing('profile')}")


def write_pages(
    cells: Sequence[Cell], conditions: Sequence[Conditions], folder: Path, left_out: int = 0
) -> list[Path]:
    """Write models.html, models.md, models.csv and models.json.

    Args:
        cells: In any order; of one that was measured twice the last counts.
        conditions: Of every record the cells are from.
        folder: Made if it is not there; pages that are there are replaced.
        left_out: How many records of other machines are not among them.

    Raises:
        Failed: Jinja is not installed; nothing is written.
    """
    check_jinja()
    cells = ordered(cells)
    every = [[cell for cell in cells if setting(cell) == one] for one in settings(cells)]
    page = {
        "lead": _lead(every[0] if every else []),
        "answers": list(map(_answers, every)),
        "bases": _bases(cells),
        "where": _where(conditions, left_out),
    }
    texts = {
        "models.html": _rendered("models.html.j2", page),
        "models.md": _rendered("models.md.j2", page),
        "models.csv": as_csv(cells),
        "models.json": as_json(cells, conditions),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def _rendered(name: str, page: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    is_html = name.endswith(".html.j2")
    room = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=is_html, undefined=StrictUndefined
    )
    room.filters |= {"escaped": escaped, "median": median}
    style = (TEMPLATES / "models.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return room.get_template(name).render(page, style=style, style_hash=digest) + "\n"


def escaped(text: str) -> str:
    """Words from outside, so that Markdown reads them as words."""
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", plain(text))


def _bases(cells: Sequence[Cell]) -> list[tuple[Table, list[tuple[Cell, Sequence[str]]]]]:
    rest, found = iter(cells), []
    for table in models_tables(cells):
        found.append((table, [(next(rest), row) for row in table.rows]))
    return found


def _lead(cells: Sequence[Cell]) -> str:
    """The answer in a sentence."""
    if not any(cell.is_done for cell in cells):
        return "Nothing has been measured to its end yet."
    best = largest(cells)
    if best is None or best.cell is None:
        return "No run inside a board's memory has been made yet: what fits is not proved."
    return (
        f"The largest base that trains inside {best.board_bytes // GIB} GiB is "
        f"{last_part(best.base)} ({count_text(best.cell.parameters)} parameters): {best.cell.way} "
        f"takes {step_text(best.cell)} per step on this machine, with a peak of "
        f"{size(best.cell.peak_rss_bytes)}."
    )


def _answers(cells: Sequence[Cell]) -> Table:
    """Of one setting the fastest way that fits, by base and board."""
    one, peers = cells[0], [cell for cell in cells if cell.method in PEERS]
    columns = [Column("base", "word"), Column("parameters")]
    columns += [Column(f"{board // GIB} GiB", "word") for board in SMALLEST_FIRST]
    others = {(own.base, own.board_bytes): own for row in grid(peers) for own in row}
    sizes = {cell.base: cell.parameters for cell in cells if cell.parameters}
    rows = [
        [
            last_part(row[0].base),
            count_text(sizes.get(row[0].base)),
            *(_said(own, others.get((own.base, own.board_bytes))) for own in row),
        ]
        for row in grid(cells)
    ]
    held = f", held to {one.isa}" if one.isa else ", all instruction sets"
    threads = "" if one.threads is None else f", threads: {one.threads}"
    return Table(
        columns,
        rows,
        f"The fastest way that fits: {one.batch} x {one.tokens} tokens{held}{threads}",
        NOTES,
    )


def _said(own: BoardFit, peer: BoardFit | None) -> str:
    if own.cell is None:
        return WITHOUT[own.why]
    said = f"{step_text(own.cell)} {own.cell.way} {size(own.cell.peak_rss_bytes)}"
    said += ", not proved" if own.why == "unproved" else ""
    if peer is None or own.cell.method in PEERS or peer.why == "unmeasured":
        return said
    if peer.cell is None:
        return f"{said}; others: {WITHOUT[peer.why]}"
    open_ = "" if peer.why == "proved" else ", not proved"
    return f"{said}; {peer.cell.way} {step_text(peer.cell)}{open_}"


def told_left_out(count: int) -> str:
    return f"{count} of another machine left out: processor, instruction sets or cores differ"


def _where(conditions: Sequence[Conditions], left_out: int) -> list[str]:
    if not conditions:
        return []
    last, loads = conditions[-1], [one.load_1m for one in conditions]
    known = [f"{name} {version}" for name, version in last.versions.items() if version]
    lines = [*machine_notes(last.machine, loads), f"versions: {', '.join(known)}"]
    return [*lines, told_left_out(left_out)] if left_out else lines


def as_csv(cells: Sequence[Cell]) -> str:
    """One line per cell, in bytes and seconds; of repetitions median, least, greatest, number.

    An empty field is a figure that is not available here.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(_flat(Cell("", ""))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_flat, cells))
    return file.getvalue()


def _flat(cell: Cell) -> dict[str, Any]:
    every = asdict(cell)
    row = {name: value for name, value in every.items() if name not in NOT_FLAT}
    row["threads"] = cell.threads
    for name in LISTS:
        values = every[name] or ()
        row |= {
            f"{name}_median": median(values) if values else None,
            f"{name}_min": min(values, default=None),
            f"{name}_max": max(values, default=None),
            f"{name}_count": len(values),
        }
    return row | {"proofs": "; ".join(f"{one.board_bytes}:{one.outcome}" for one in cell.proofs)}


def as_json(cells: Sequence[Cell], conditions: Sequence[Conditions]) -> str:
    """Everything: cells as they were measured, the answers, the conditions."""
    answers = [
        one._asdict() | own._asdict() | {"cell": own.cell and own.cell.subject}
        for one in settings(cells)
        for row in grid([cell for cell in cells if setting(cell) == one])
        for own in row
    ]
    told = {json.dumps(asdict(one)): asdict(one) for one in conditions}
    body = {"measured": list(map(asdict, cells)), "fits": answers, "conditions": [*told.values()]}
    return json.dumps(body, indent=1) + "\n"
