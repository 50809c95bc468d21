"""The page's tables, without knowing whether they become HTML or Markdown.

A column holds measured, published or estimated figures, never two kinds of them; where a table has
more than one kind, each stands over its columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge_client.tables import plain, size
from profiling.estimates.published import AUG_FEDPROMPT, SETTING, aug_fedprompt
from profiling.models.cell import Cell, Proof
from profiling.pages.answers import bases
from profiling.pages.words import (
    ABSENT,
    METHOD_NAMES,
    base_name,
    board_name,
    count,
    is_done,
    joules,
    middle,
    rate,
    spread,
    step,
)

Value = str | int | float | None


@dataclass(frozen=True)
class Head:
    """A column: its name, and `word`, `text` or nothing for numbers; `group` begins a kind."""

    name: str
    css: str = ""


@dataclass(frozen=True)
class Entry:
    """A cell of a sheet: what is read, and what it is sorted by; None: by what is read."""

    text: str
    css: str = ""
    value: Value = None


@dataclass(frozen=True)
class Sheet:
    """A table with what has to be said of it.

    Attributes:
        kinds: What kind of figures stands over how many columns; the empty kind over names.
    """

    title: str
    columns: Sequence[Head]
    rows: Sequence[Sequence[Entry]]
    prose: Sequence[str] = ()
    notes: Sequence[str] = ()
    kinds: Sequence[tuple[str, int]] = ()
    css: str = field(default="")


@dataclass(frozen=True)
class _Column:
    head: Head
    text: Callable[[Cell], str]
    value: Callable[[Cell], Value] = lambda _: None


def _bytes(name: str, value: Callable[[Cell], int | None]) -> _Column:
    return _Column(Head(name), lambda cell: size(value(cell)), lambda cell: value(cell) or "")


_CELL_COLUMNS = (
    _Column(Head("base", "word"), base_name),
    _Column(Head("method", "word"), lambda cell: METHOD_NAMES.get(cell.method, plain(cell.method))),
    _Column(Head("budget"), lambda cell: plain(cell.budget)),
    _Column(Head("held to", "word"), lambda cell: plain(cell.isa)),
    _Column(Head("threads"), lambda cell: str(cell.threads or "")),
    _Column(Head("texts in a step"), lambda cell: str(cell.batch)),
    _Column(Head("tokens"), lambda cell: str(cell.tokens)),
    _Column(Head("trained", "word"), lambda cell: plain(cell.adapter)),
    _Column(Head("computed in", "word"), lambda cell: plain(cell.dtype or "")),
    _bytes("peak memory", lambda cell: cell.peak_rss_bytes),
    _bytes("anonymous", lambda cell: cell.peak_anon_bytes),
    _Column(Head("step"), step, lambda cell: middle(cell.steps_s) or ""),
    _Column(
        Head("smallest to largest"),
        lambda cell: spread(cell.steps_s) or "-",
        lambda cell: max(cell.steps_s, default="") if len(cell.steps_s) > 1 else "",
    ),
    _Column(
        Head("texts labelled per second"),
        lambda cell: rate(cell.texts_per_s),
        lambda cell: middle(cell.texts_per_s) or "",
    ),
    _bytes("peak while labelling", lambda cell: cell.label_peak_rss_bytes),
    _Column(Head("energy per step"), joules, lambda cell: middle(cell.step_j or ()) or ""),
    _Column(
        Head("smallest board"),
        lambda cell: smallest_board(cell),
        lambda cell: cell.board_bytes or "",
    ),
    _Column(
        Head("runs inside hard limits, or why there are no figures", "text"),
        lambda cell: "; ".join(filter(None, (_why(cell), proofs(cell.proofs)))),
    ),
)
_OPTIONAL = ("held to", "threads", "energy per step")


def all_bases(cells: Sequence[Cell]) -> Sheet:
    """What each base has to train and to send, by adapter."""
    adapters = list(dict.fromkeys(cell.adapter for cell in cells if cell.trained_parameters))
    columns = [Head("base", "word"), Head("parameters")]
    for adapter in adapters:
        columns += [Head(f"{plain(adapter)}: trained", "group"), Head("sent per round")]
    rows = []
    for base in bases(cells):
        own = [cell for cell in cells if cell.base == base]
        whole = max((cell.parameters or 0 for cell in own), default=0)
        row = [Entry(base_name(own[0])), Entry(count(whole or None), value=whole or "")]
        for adapter in adapters:
            one = next((cell for cell in own if cell.adapter == adapter and cell.round_bytes), None)
            trained = one.trained_parameters if one else None
            row.append(Entry(count(trained), "group", trained or ""))
            row.append(Entry(size(one.round_bytes if one else None)))
        rows.append(row)
    notes = ["Sent per round: what is trained, in float32, by a formula; encodings make it less."]
    return Sheet("What is trained, and what a round sends", columns, rows, notes=notes)


def _why(cell: Cell) -> str:
    return "" if is_done(cell) else plain(cell.outcome)


def all_cells(cells: Sequence[Cell]) -> Sheet:
    """Every cell with all its figures; columns that no cell has anything in are left out."""
    columns = [
        column
        for column in _CELL_COLUMNS
        if column.head.name not in _OPTIONAL
        or any(column.text(cell) not in ("", "-") for cell in cells)
    ]
    kinds_of_adapter = {cell.adapter for cell in cells if cell.method != "full"}
    same = {"trained"} if len(kinds_of_adapter) < 2 else set[str]()
    if len({(cell.batch, cell.tokens) for cell in cells}) < 2:
        same |= {"texts in a step", "tokens"}
    columns = [column for column in columns if column.head.name not in same]
    rows = [
        [Entry(column.text(cell), column.head.css, column.value(cell)) for column in columns]
        for cell in cells
    ]
    notes = ["- is a figure that is not available here."]
    if all(cell.step_j is None for cell in cells):
        notes.append(f"Energy per step: {ABSENT}; no energy counter could be read.")
    return Sheet("All cells", [column.head for column in columns], rows, notes=notes, css="cells")


def smallest_board(cell: Cell) -> str:
    """Such as `2 GiB`, and whether a run proved it."""
    if not is_done(cell):
        return "-"
    if cell.board_bytes is None:
        return "none" if cell.fits_none else "not proved"
    return board_name(cell.board_bytes) + ("" if cell.is_proved else ", not proved")


def proofs(found: Sequence[Proof]) -> str:
    """Each run in a hard group, in a few words."""
    return "; ".join(
        f"{board_name(one.board_bytes)}: {plain(one.outcome)}"
        + (f", charged {size(one.peak_bytes)}" if one.is_done and one.peak_bytes else "")
        for one in sorted(found, key=lambda one: one.board_bytes)
    )


def beside_the_paper(cells: Sequence[Cell]) -> Sheet | None:
    """What was measured here beside what the paper prints for a TX2; None where no base is its.

    Args:
        cells: Of one setting.
    """
    published = aug_fedprompt()
    rows = []
    for base in bases(cells):
        if base not in published:
            continue
        own = [cell for cell in cells if cell.base == base and is_done(cell)]
        full = next((cell for cell in own if cell.method == "full"), None)
        small = min(
            (cell for cell in own if cell.peak_rss_bytes),
            key=lambda cell: cell.peak_rss_bytes or 0,
            default=None,
        )
        paper = published[base]
        rows.append(
            [
                Entry(base, "word"),
                Entry(size(full.peak_rss_bytes) if full else "-", "group"),
                Entry(step(full) if full else "-"),
                Entry(_method(small), "word"),
                Entry(size(small.peak_rss_bytes) if small else "-"),
                Entry(step(small) if small else "-"),
                Entry(paper.memory, "group"),
                Entry(paper.latency),
            ]
        )
    if not rows:
        return None
    columns = [
        Head("base", "word"),
        Head("full fine-tuning: peak", "group"),
        Head("step"),
        Head("least memory", "word"),
        Head("peak"),
        Head("step"),
        Head("full fine-tuning: memory, GB", "group"),
        Head("batch, s"),
    ]
    return Sheet(
        "Beside the published table",
        columns,
        rows,
        prose=[
            f"{AUG_FEDPROMPT}: {SETTING}. The paper names neither the library nor the length of "
            "the texts, and its board computes on a GPU: its seconds do not compare with ours. "
            "Memory compares better, and is not the same either."
        ],
        notes=[
            "OOM (9.8): the board ran out of memory; the paper measured the figure in brackets on "
            "a server. Whether its GB are steps of 1000 or 1024 it does not say."
        ],
        kinds=[("", 1), ("measured here", 5), ("published, TX2 8 GB", 2)],
    )


def _method(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    name = METHOD_NAMES.get(cell.method, plain(cell.method))
    return f"{name}, {plain(cell.budget)}" if cell.budget else name
