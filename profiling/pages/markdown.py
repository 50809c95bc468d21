"""The page as Markdown, for docs and issues: the same words and tables, without the charts."""

import re
import textwrap
from collections.abc import Iterable, Sequence

from profiling.pages.contents import Block, Contents, GridCell
from profiling.pages.sheets import Sheet

COLUMNS = 100
SPECIAL = re.compile(r"[&<>|*_`\[\]\\#]")  # as entities: every reader of Markdown knows them


def render(contents: Contents) -> str:
    """The page."""
    parts = ["# Which model fits which board", *map(escaped, contents.lead)]
    for block in contents.blocks:
        parts += _answers(block, contents.boards)
    for sheet in contents.tables:
        parts += _sheet(sheet)
    parts += ["## What it was measured on", *_list(contents.conditions)]
    parts += ["## How it was measured", *_list(contents.instruments)]
    return "\n\n".join(_laid(part) for part in parts) + "\n"


def escaped(text: str) -> str:
    """Words from outside, so that they are read as words."""
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};", text)


def _laid(part: str) -> str:
    """Prose in lines; tables, headings and blocks as they are."""
    if part.startswith(("#", "|", "    ")):
        return part
    return "\n".join(
        line
        for row in part.split("\n")
        for line in textwrap.wrap(
            row,
            COLUMNS,
            subsequent_indent="  " if row.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def _answers(block: Block, boards: Sequence[str]) -> list[str]:
    head = ["base", "parameters", *boards]
    rows = [
        [
            escaped(row.name),
            row.parameters or "-",
            *(
                f"**{one.value}** {escaped(_beside(one))}" if one.value else escaped(one.method)
                for one in row.cells
            ),
        ]
        for row in block.answers
    ]
    prose = f"Seconds per training step, by base and by the memory of the board. {block.setting}"
    heading = f"## The fastest way that fits{escaped(block.heading)}"
    table = _table(head, rows, ["", "r", *("r" for _ in boards)])
    return [heading, escaped(prose), table, *map(escaped, block.notes)]


def _beside(cell: GridCell) -> str:
    return f"{cell.method}; {cell.other}" if cell.other else cell.method


def _sheet(sheet: Sheet) -> list[str]:
    kinds = [kind for kind, width in sheet.kinds for _ in range(width)] or [""] * len(sheet.columns)
    names = [
        f"{kind.partition(',')[0]}: {head.name}" if kind else head.name
        for kind, head in zip(kinds, sheet.columns, strict=True)
    ]
    rows = [[escaped(entry.text) for entry in row] for row in sheet.rows]
    sides = ["" if "word" in head.css or "text" in head.css else "r" for head in sheet.columns]
    prose = [escaped(line) for line in sheet.prose]
    return [
        f"## {sheet.title}",
        *prose,
        _table(list(map(escaped, names)), rows, sides),
        *(escaped(note) if not note.startswith("- ") else f"A dash{escaped(note[1:])}"
          for note in sheet.notes),
    ]  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: Sequence[str]) -> str:
    lines = [head, ["---:" if side else "---" for side in sides], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return ["\n".join(f"- {escaped(name)}: {escaped(text)}" for name, text in pairs)]
