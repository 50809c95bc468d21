"""The index of results as Markdown: every published table, ours beside it, and missing cells.

All of it is generated: a cell that has not been run says so, and its row names the command.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.papers.index.entry import MIXTURE, Entry, EntryState, Given, Printed, Slot
from benchmarks.papers.paired import APART, APART_NOTE, apart_rows
from benchmarks.papers.pieces import SEEDS
from smidgen.edge_client.tables import Table
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.simulation.report.report import Piece, sizes, sources
from smidgen.simulation.report.scenario import (
    Figure,
    Measured,
    beside,
    lines_of,
    part_of_page,
    spread_text,
)

NOT_RUN = "not run"
MISSING = "missing"
MEAN = "mean"
WIDTH = 100
HEAD = """# The papers' tables and figures, ours beside them

Written by `python -m benchmarks papers`; do not edit it by hand. In each cell: ours, accuracy in %
where nothing else is said, ± is the standard deviation over seeds; in brackets what the paper
prints, with what it prints behind ±. Read differences between rows, not levels: the bases here are
far smaller than the papers'. `not run`: no result is on disk, and the row says why or which command
fills it. Names in capitals stand for folders: `DATA` of data sets, `BASE` and `MULTILINGUAL` of
bases.
"""

Row = list[str]


def page(printed: Sequence[Printed], states: Sequence[EntryState], given: Given) -> str:
    """All of it.

    Args:
        printed: Tables and figures, paper by paper.
        states: What there is of the entries that were asked for.
        given: What they are played with.
    """
    there = {state.entry.name: state for state in states}
    every = [slot for state in states for slot in state.cells]
    whole = sum(slot.is_whole for slot in every)
    parts, paper = [HEAD, f"{whole:,} of {len(every):,} cells have been run.\n"], ""
    for one in printed:
        mine = [there[entry.name] for entry in one.entries if entry.name in there]
        if one.entries and not mine:
            continue
        if one.paper != paper:
            paper = one.paper
            parts.append(f"## {paper}\n")
        parts.append(_part(one, mine, given))
    known = dict.fromkeys(sources([on for slot in every for on in slot.stages]))
    return "\n".join([*parts, "## Bases and texts\n", *_lines(f"- {line}" for line in known), ""])


def command_of(name: str, bases: str, given: Given) -> str:
    """What runs an entry, or all whose names begin so; folders are named by what they are."""
    seeds = len(given.order.seeds)
    more = " --quick" if given.quick else f" --seeds {seeds}" if seeds != SEEDS else ""
    read = ",".join(f"{language}={share:.12g}" for language, share in given.mixture.items())
    told = bases.replace(MIXTURE, read)
    return f"python -m benchmarks papers --only {name}{more} {told} --data DATA"


def _part(one: Printed, states: Sequence[EntryState], given: Given) -> str:
    lines = [f"### {one.title}", ""]
    if states:
        command = command_of(_shared(states), one.bases, given)
        stages = [on for one in states for slot in one.cells for on in slot.stages]
        notes = {on.dataset.task.kind: kind_of(on.dataset.task).measure.cells for on in stages}
        for _, note in sorted(notes.items()):
            lines += [f"in each cell: {note}", ""] if note else []
        lines += [*lines_of(*_table(states, given)), "", f"    {command}", ""]
        lines += _apart(states)
        lines += _own_tables(states)
    elif one.command:
        lines += [f"    {one.command}", ""]
    is_lacking = not all(state.is_whole for state in states)
    for table in one.tables if is_lacking else ():
        lines += part_of_page(table)
    printed = [f"published: {_sentence(figure)}" for figure in one.figures if is_lacking]
    if one.counted is not None:
        lines += part_of_page(one.counted)
    page_of = [f"more about it: [{one.page}]({one.page})"] if one.page else []
    lines += [f"- {note}" for note in (*one.told, *printed, *page_of, *_notes(states, given))]
    return "\n".join([*_lines(lines), ""])


def _sentence(figure: Figure) -> str:
    unit = f" {figure.unit}" if figure.unit else ""
    remark = f" ({figure.remark})" if figure.remark else ""
    return f"{figure.table}, {figure.row}: {figure}{unit}{remark}"


def _lines(lines: Iterable[str]) -> list[str]:
    return [part for line in lines for part in _wrapped(line)]


def _shared(states: Sequence[EntryState]) -> str:
    first = states[0].entry.name
    return first if len(states) == 1 else first.rpartition("/")[0]


def _table(states: Sequence[EntryState], given: Given) -> tuple[Row, list[Row]]:
    """Its head and rows; the rows of several entries stand below each other, each with its name."""
    slot = [one for state in states for one in state.cells]
    is_spoken = any(one.cell.published_by_language for one in slot)
    columns = _languages(slot) if is_spoken else _columns(slot)
    rows: list[Row] = []
    for state in states:
        own = _spoken(state, columns, given) if is_spoken else _grid(state, columns, given)
        rows += [[state.entry.last, *row] for row in own]
    head = ["", "", *columns, MISSING]
    if all(state.is_whole for state in states):
        head, rows = head[:-1], [row[:-1] for row in rows]
    if len(states) == 1:
        head, rows = head[1:], [row[1:] for row in rows]
    return head, rows


def _columns(slot: Sequence[Slot]) -> list[str]:
    """In the order of the cells; numbers by their size, before all others."""
    found = dict.fromkeys(one.cell.column for one in slot)
    numbers = sorted((name for name in found if name.isdecimal()), key=int)
    return [*numbers, *(name for name in found if not name.isdecimal())]


def _languages(slot: Sequence[Slot]) -> list[str]:
    spoken = {name for one in slot for name in one.cell.experiment.languages}
    return [*sorted(spoken), MEAN]


def _grid(state: EntryState, columns: Sequence[str], given: Given) -> list[Row]:
    rows = []
    for name in dict.fromkeys(one.cell.row for one in state.cells):
        here = {one.cell.column: one for one in state.cells if one.cell.row == name}
        cells = [_cell(here.get(column)) for column in columns]
        rows.append([name, *cells, _missing(state, list(here.values()), given)])
    return rows or [["(all)", *[NOT_RUN] * len(columns), _missing(state, (), given)]]


def _spoken(state: EntryState, columns: Sequence[str], given: Given) -> list[Row]:
    rows = []
    for slot in state.cells:
        shares = slot.found.by_language() if slot.found else {}
        printed = slot.cell.published_by_language
        cells = [
            beside(_percent(shares.get(name)) if shares else NOT_RUN, printed.get(name))
            for name in columns[:-1]
        ]
        rows.append([slot.cell.row, *cells, _cell(slot), _missing(state, [slot], given)])
    return rows or [["(all)", *[NOT_RUN] * len(columns), _missing(state, (), given)]]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _cell(slot: Slot | None) -> str:
    if slot is None:
        return "-"
    return beside(_own(slot.found, len(slot.results)), slot.cell.published)


def _own(found: Measured | None, seeds: int) -> str:
    if found is None:
        return NOT_RUN
    text, there = spread_text([100 * one for one in found.by_seed()]), len(found.results)
    return text if there == seeds else f"{text} ({there} of {seeds} seeds)"


def _missing(state: EntryState, row: Iterable[Slot], given: Given) -> str:
    """Why cells of a row are not there, and what fills them; empty where all are."""
    lacking = [slot for slot in row if not slot.is_whole]
    if state.piece is not None and not lacking:
        return ""
    reasons = dict.fromkeys([state.trouble, *(slot.trouble for slot in lacking)])
    told = "; ".join(reason for reason in reasons if reason)
    fills = f"`--only {state.entry.name}`"
    return f"{_plain(told, given)}; then {fills}" if told else fills


def _plain(text: str, given: Given) -> str:
    """A reason on one line, folders called as in commands: a page is read on other machines."""
    order = given.order
    folders = {str(order.place.out): "OUT", str(order.out): "OUT", str(order.place.data): "DATA"}
    bases = (given.base, given.multilingual, *given.bases)
    folders |= {base: Path(base).name for base in bases if "/" in base}
    for folder in sorted(folders, key=len, reverse=True):
        text = text.replace(folder, folders[folder])
    return " ".join(text.replace("|", "/").split())


def _apart(states: Sequence[EntryState]) -> list[str]:
    """What pairs of cells differ by, as far as two seeds of both are there."""
    rows: list[Row] = []
    for state in states:
        if state.piece is not None:
            found = [slot.found for slot in state.cells if slot.found]
            told = apart_rows(state.piece.scenario, found)
            rows += [[state.entry.last, *row] for row in told] if len(states) > 1 else told
    if not rows:
        return []
    head = list(APART) if len(states) == 1 else ["", *APART]
    return [*lines_of(head, rows), "", f"- {APART_NOTE}", ""]


def _own_tables(states: Sequence[EntryState]) -> Iterator[str]:
    """Tables that a scenario makes itself, once all its cells are there."""
    for state in states:
        piece = state.piece
        if piece is None or piece.more is None or not state.is_whole:
            continue
        for table in _made(piece, [slot.found for slot in state.cells if slot.found]):
            name = f"{state.entry.last}: " if len(states) > 1 else ""
            title, *rest = part_of_page(table)
            yield from (f"{name}{title}", *rest, *([""] if rest[-1] else []))


def _made(piece: Piece, found: Sequence[Measured]) -> Sequence[Table]:
    assert piece.more is not None, "asked by its caller"
    made, _ = piece.more(found)
    return [made] if isinstance(made, Table) else made


def _notes(states: Sequence[EntryState], given: Given) -> list[str]:
    """Notes of all; what is of one of several alone says of which."""
    told: dict[str, list[Entry]] = {}
    for state in states:
        for note in dict.fromkeys(_notes_of(state, given)):
            told.setdefault(note, []).append(state.entry)
    return [_whose(note, entries, len(states)) for note, entries in told.items()]


def _whose(note: str, entries: Sequence[Entry], every: int) -> str:
    names = ", ".join(entry.last for entry in entries)
    is_told = len(entries) == every or note.startswith(f"{names}: ")
    return note if is_told else f"{names}: {note}"


def _notes_of(state: EntryState, given: Given) -> list[str]:
    if state.piece is None:
        return []
    scenario = state.piece.scenario
    stages = [on for slot in state.cells for on in slot.stages]
    source = [f"[published]: {scenario.source}"] if scenario.source else []
    source += _remarks(state)
    known = sizes(scenario, stages, len(given.order.seeds)) if stages else []
    failed = [line for slot in state.cells if slot.found and (line := slot.found.failures())]
    return [*source, *known, *scenario.notes, *failed, *card_notes(state)]


def _remarks(state: EntryState) -> list[str]:
    """What else has to be known of the published figures in its cells, once each."""
    cells = [slot.cell for slot in state.cells]
    figures = [figure for cell in cells for figure in cell.published_by_language.values()]
    figures += [cell.published for cell in cells if isinstance(cell.published, Figure)]
    told = [f"[published], {one.row}: {one.remark}" for one in figures if one.remark]
    return list(dict.fromkeys(told))


def card_notes(state: EntryState) -> list[str]:
    """Which CUDA devices computed how many experiments, where any did."""
    results = [one for slot in state.cells for one in slot.results if one is not None]
    rows = [[*one.rows, *(row for part in one.parts for row in part.rows)] for one in results]
    cards = [dict.fromkeys(row.card for row in found if row.card) for found in rows]
    counted = Counter(card for names in cards for card in names)
    return [
        f"computed on {card} (`--device cuda`), wholly or in part: {count} of {len(results)} "
        "experiments"
        for card, count in sorted(counted.items())
    ]


def _wrapped(line: str) -> list[str]:
    """A line broken at words, as prose of these pages is; tables and commands stay whole."""
    if line.startswith(("|", "    ", "#")) or len(line) <= WIDTH:
        return [line]
    below = "  " if line.startswith("- ") else ""
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )
