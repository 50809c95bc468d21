"""The repository's pages and their blocks of code."""

import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ("scripts/jetson/README.md", "scripts/server/README.md")
FRONT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", *SCRIPTS)
PAGES = [*(ROOT / name for name in FRONT), *sorted(ROOT.glob("docs/**/*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
HOOK = runpy.run_path(str(ROOT / "scripts" / "site_pages.py"))
MADE = HOOK["PAGES"]  # by their names below docs; generated while the site is built
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n(?= {4}))+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        page: The page, relative to the repository.
        line: Its first line in the page, from 1.
        language: As the fence says; empty for an indented block, which holds console lines.
        text: Without fence and indentation.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_console(self) -> bool:
        return self.language in ("", "sh", "console")

    def commands(self) -> list[tuple[str, ...]]:
        """Console lines as words, comments left out, continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [tuple(shlex.split(line, comments=True)) for line in lines]
        return [words for words in found if words]


def blocks(page: str) -> Iterator[Block]:
    """All blocks of a page, in no particular order."""
    text: str = HOOK["filled"]((ROOT / page).read_text(encoding="utf-8"))

    def line_at(place: int) -> int:
        return text.count("\n", 0, place) + 1

    for found in FENCED.finditer(text):
        yield Block(page, line_at(found.start()) + 1, found[1], found[2])
    bare = FENCED.sub(lambda fence: re.sub(r"[^\n]", "x", fence[0]), text)
    for found in INDENTED.finditer(bare):
        body = re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE)
        yield Block(page, line_at(found.start()), "", body)


EVERY_BLOCK = [block for name in NAMES for block in blocks(name)]
