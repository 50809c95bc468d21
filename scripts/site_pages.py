"""What is generated while the site is built: an mkdocs hook.

Whole pages, whose files in `docs` say where else to look: `reference/commands.md` from the
commands' help, `results/papers.md` as `python -m benchmarks papers` wrote it beside its results,
`results/models-cells.md` as `smidgen profile models --page-only` writes it from the kept records.

Parts of a page: a line `{{ NAME }}` stands for what `PARTS` makes of the name, or for a file.
"""

import lzma
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import typer.main
from typer.cli import get_docs_for_click

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))  # this checkout's commands, wherever mkdocs is called

from smidgen import COMMANDS  # noqa: E402

HEAD = """# Commands

What the commands say of themselves. Every command answers `--help` (or `-h`). Exit codes:
[exit codes](exit-codes.md). Words that the help takes for granted: [glossary](../glossary.md).

"""


def commands() -> str:
    """Every command of `smidgen` with its options, as Typer writes it."""
    parts = [HEAD]
    for name, (module, _, _) in COMMANDS.items():
        app = typer.main.get_command(import_module(module).app)
        words = f"smidgen {name}"
        parts.append(get_docs_for_click(obj=app, ctx=typer.Context(app), name=words, indent=1))
    text = re.sub(r"\*\*Usage\*\*:\n\n```console\n\$ (.*)\n```", r"    \1", "".join(parts))
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def papers() -> str:
    """The papers' tables, ours beside them."""
    with ZipFile(RESULTS / "papers.zip") as kept:
        return kept.read("page.md").decode()


def models() -> str:
    """The cells of the models page, from the records that are kept."""
    from smidgen.profiling.models.cell import from_record
    from smidgen.profiling.models.page import write_pages
    from smidgen.profiling.models.run import read_kept

    with TemporaryDirectory() as name:
        kept = Path(name, "models.jsonl")
        kept.write_bytes(lzma.decompress((RESULTS / "models.jsonl.xz").read_bytes()))
        records = read_kept(kept).records
        cells = [from_record(record) for record in records]
        write_pages(cells, [record.conditions for record in records], Path(name))
        return Path(name, "models.md").read_text(encoding="utf-8")


def options(kind: str) -> str:
    """A row for each option of a type of PEFT's adapters, and what becomes of it here."""
    from smidgen.edge_client.adapters.peft_options import READ, REFUSED, UNUSED

    outcomes = (("read", READ), ("not needed", UNUSED), ("refused unless off", REFUSED))
    cells = sorted((name, what, say) for what, of in outcomes for name, say in of[kind].items())
    rows = [f"| `{name}` | {what} | {say} |" for name, what, say in cells]
    return "\n".join(["| option | here | |", "|---|---|---|", *rows])


def code(name: str) -> str:
    """A file as a block."""
    language = "toml" if name.endswith(".toml") else "python"
    return f"```{language}\n{(ROOT / name).read_text(encoding='utf-8')}```"


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "results/papers.md": papers,
    "results/models-cells.md": models,
}
PARTS: Mapping[str, Callable[[], str]] = {
    "options of LORA": partial(options, "LORA"),
    "options of PROMPT_TUNING": partial(options, "PROMPT_TUNING"),
}


def filled(markdown: str) -> str:
    """A page with its parts."""
    named = re.compile(r"^\{\{ (.+) \}\}$", re.MULTILINE)
    return named.sub(lambda part: PARTS.get(part[1], partial(code, part[1]))(), markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return PAGES.get(page.file.src_uri, partial(filled, markdown))()
