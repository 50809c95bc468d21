"""The models table: per base, cells measured twice, which base fits which board; and as files.

    write_pages(cells, [record.conditions for record in records], Path("models"))

The files are Markdown, CSV, JSON and one HTML page. Both pages are Jinja templates over the
terminal's tables. The HTML works without a network, and its content security policy forbids
loading anything.

A cell fits a board only if a run in a cgroup of that size, or of a smaller board's, finished. Among
those that fit, the one with the fewest seconds per step is named.
"""

import base64
import csv
import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from smidgen.edge_client.errors import Failed, installing
from smidgen.edge_client.files import write_atomically
from smidgen.edge_client.planning.plan import MIB
from smidgen.edge_client.tables import Column, Table, plain, seconds, size
from smidgen.profiling.benchmarks.report import machine_notes
from smidgen.profiling.models.cell import BOARDS, GIB, METHODS, PEERS, Cell
from smidgen.profiling.models.measure import UNSTABLE
from smidgen.profiling.records.record import Conditions, last_part

SMALLEST_FIRST = tuple(sorted(BOARDS))
Why = Literal["proved", "unproved", "none", "unmeasured"]


class Setting(NamedTuple):
    """What must agree for cells to stand beside each other; as `Cell` has it."""

    isa: str
    batch: int
    tokens: int
    threads: int | None


class BoardFit(NamedTuple):
    """What trains a base on a board.

    Attributes:
        base: The base.
        board_bytes: The board's memory.
        why: `proved`; `unproved` where only the uncapped peak says so, or nothing does; `none`
            where nothing that was measured fits; `unmeasured` where nothing came to its end.
        cell: The fastest that fits; None where nothing is known to.
    """

    base: str
    board_bytes: int
    why: Why
    cell: Cell | None = None


def setting(cell: Cell) -> Setting:
    return Setting(cell.isa, cell.batch, cell.tokens, cell.threads)


def settings(cells: Iterable[Cell]) -> list[Setting]:
    """Each once: all that the processor has before what it was held to, the most cells first."""
    found = Counter(map(setting, cells))
    return sorted(found, key=lambda one: (one.isa, one.threads is not None, -found[one]))


def ordered(cells: Iterable[Cell]) -> list[Cell]:
    """By setting, base (the smallest first) and method; of what was measured twice the last."""
    latest = {tuple(cell.subject.items()): cell for cell in cells}.values()
    sizes: dict[str, int] = {}
    for cell in latest:
        sizes[cell.base] = max(sizes.get(cell.base, 0), cell.parameters or 0)
    places = {one: place for place, one in enumerate(settings(latest))}
    ways = [*METHODS, *(cell.method for cell in latest)]

    def key(cell: Cell) -> tuple[int, bool, int, str, int]:
        size = sizes[cell.base]
        return places[setting(cell)], not size, size, cell.base, ways.index(cell.method)

    return sorted(latest, key=key)


def answer(cells: Sequence[Cell], base: str, board_bytes: int) -> BoardFit:
    """The fastest that fits, of the proved ones if there are any."""
    done = [cell for cell in cells if cell.base == base and cell.is_done and cell.steps_s]
    fitting = [cell for cell in done if cell.board_bytes and cell.board_bytes <= board_bytes]
    proved = [cell for cell in fitting if cell.is_proved]
    if fitting:
        best = min(proved or fitting, key=lambda cell: median(cell.steps_s))
        return BoardFit(base, board_bytes, "proved" if proved else "unproved", best)
    is_known = all(cell.is_proved or cell.fits_none for cell in done)
    return BoardFit(
        base, board_bytes, "unmeasured" if not done else "none" if is_known else "unproved"
    )


def grid(cells: Sequence[Cell]) -> list[list[BoardFit]]:
    """One row per base in the order of the cells, one answer per board, the smallest first."""
    bases = dict.fromkeys(cell.base for cell in cells)
    return [[answer(cells, base, board) for board in SMALLEST_FIRST] for base in bases]


def largest(cells: Sequence[Cell]) -> BoardFit | None:
    """On the smallest board that anything is proved to fit, the largest base that is."""
    proved = [one for row in grid(cells) for one in row if one.why == "proved"]
    return min(
        proved,
        key=lambda one: (one.board_bytes, -((one.cell and one.cell.parameters) or 0)),
        default=None,
    )


CLOSE_MEMORY = 0.03
TABLE_NOTES = (
    "full, peft, nf4: what others run (full fine-tuning; PEFT LoRA; 4-bit LoRA of bitsandbytes and "
    "PEFT); torch, onnx: ours, within that --memory-budget",
    "peak: of resident memory over the process's life (VmHWM); anon: of its part that belongs to "
    "no file, sampled; step: median; label peak: VmHWM of a process that only labels",
    "board: the smallest of 8, 4, 2 and 1 GiB, proved by a run in a hard memory group of that size "
    "on two cores (a real board's system takes some of it), and where there is a smaller one, by "
    "one there that did not end; 1 GiB is the smallest tried",
)


def models_tables(cells: Sequence[Cell]) -> list[Table]:
    groups = [list(group) for _, group in groupby(cells, lambda cell: (cell.base, setting(cell)))]
    return [_table(group, is_last=group is groups[-1]) for group in groups]


def _table(cells: Sequence[Cell], is_last: bool) -> Table:
    columns = [
        *(Column("method", "word"), Column("type", "word")),
        *(Column("peak"), Column("anon"), Column("step"), Column("texts/s"), Column("label peak")),
        Column("board"),
        *(Column("trained", optional=2), Column("round", optional=3)),
        Column("J/step", optional=1),
    ]
    rows = [
        [
            cell.way,
            cell.dtype or "-",
            _mebibytes(cell.peak_rss_bytes),
            _mebibytes(cell.peak_anon_bytes),
            step_text(cell),
            _rate(_median(cell.texts_per_s)),
            _mebibytes(cell.label_peak_rss_bytes),
            board_text(cell),
            count_text(cell.trained_parameters),
            size(cell.round_bytes),
            _rate(_median(cell.step_j or ())),
        ]
        for cell in cells
    ]
    return Table(
        columns, rows, title(cells[0]), _notes(cells) + (list(TABLE_NOTES) if is_last else [])
    )


def step_text(cell: Cell) -> str:
    return seconds(_median(cell.steps_s)) + ("?" if cell.is_unstable else "")


def title(cell: Cell) -> str:
    held = f", held to {cell.isa}" if cell.isa else ""
    texts = f"{cell.batch} x {cell.tokens} tokens{held}"
    threads = "" if cell.threads is None else f", threads: {cell.threads}"
    return f"{last_part(cell.base)}, {count_text(cell.parameters)} parameters, {texts}{threads}"


def _notes(cells: Sequence[Cell]) -> list[str]:
    notes = [f"{cell.way}: {cell.outcome}" for cell in cells if not cell.is_done]
    if any(cell.is_unstable for cell in cells):
        notes.append(f"?: steps spread by more than {100 * UNSTABLE:.0f} % of their median")
    if any(cell.is_done and not cell.proofs for cell in cells):
        notes.append("not proved: no memory cgroup here (that needs root)")
    for cell in cells:
        broken = (proof for proof in cell.proofs if proof.is_broken)
        notes += [f"{cell.way}, {one.board_bytes // GIB} GiB: {one.outcome}" for one in broken]
    return notes


def board_text(cell: Cell) -> str:
    if not cell.is_done:
        return "-"
    if cell.board_bytes is not None and cell.is_proved:
        return f"{cell.board_bytes // GIB} GiB"
    return "none" if cell.fits_none else "not proved"


def count_text(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1e6:.1f} M" if value >= 1e5 else f"{value / 1e3:.1f} k"


def twice_table(pairs: Sequence[Sequence[Cell]]) -> Table:
    """Cells measured twice, side by side."""
    columns = [
        *(Column("cell", "text"), Column("peak"), Column("again"), Column("differs")),
        *(Column("step"), Column("again"), Column("differs"), Column("", "word")),
    ]
    rows = []
    for first, again in pairs:
        steps = [_median(cell.steps_s) for cell in (first, again)]
        rows.append(
            [
                first.name,
                _mebibytes(first.peak_rss_bytes),
                _mebibytes(again.peak_rss_bytes),
                _percent(memory_change(first, again)),
                *map(seconds, steps),
                _percent(step_change(first, again)),
                verdict(first, again),
            ]
        )
    notes = [
        "ok: peaks within 3 % and median steps within 15 %; unstable: memory agrees, but a step's "
        "seconds spread or moved by more than 15 %",
        *(f"{a.name}: {a.outcome}; {b.outcome}" for a, b in pairs if not (a.is_done and b.is_done)),
    ]
    return Table(columns, rows, "measured twice", notes)


def verdict(first: Cell, again: Cell) -> str:
    """How two measurements of one cell agree, in a word."""
    memory, step = memory_change(first, again), step_change(first, again)
    if not (first.is_done and again.is_done):
        return "same" if first.outcome == again.outcome else "differs"
    if memory is None or abs(memory) > CLOSE_MEMORY:
        return "memory differs"
    is_stable = not (first.is_unstable or again.is_unstable)
    return "ok" if is_stable and step is not None and abs(step) <= UNSTABLE else "unstable"


def memory_change(first: Cell, again: Cell) -> float | None:
    return _change(first.peak_rss_bytes, again.peak_rss_bytes)


def step_change(first: Cell, again: Cell) -> float | None:
    return _change(_median(first.steps_s), _median(again.steps_s))


def _change(first: float | None, again: float | None) -> float | None:
    return again / first - 1 if first and again else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _mebibytes(value: int | None) -> str:
    """One unit for every peak, and as budgets are typed: a few per cent are seen."""
    return "-" if value is None else f"{value / MIB:.0f} MiB"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


TEMPLATES = Path(__file__).parent / "templates"
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
    return re.sub(r"[&<>|*_`\[\]\\#]", lambda found: f"&#{ord(found[0])};", plain(text))


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
