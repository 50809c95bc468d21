"""The licence of a data set as the files beside it state it, in one line."""

import re
from pathlib import Path

UNKNOWN = "unknown: ask whoever gave it to you"
_STATED = re.compile(r"^\W*licen[cs]e\W*:\s*(.+)$", re.IGNORECASE | re.MULTILINE)


def licence_near(folder: Path) -> str:
    """The licence of a folder: PROVENANCE.md's line, README.md's front matter, LICENSE's title."""
    for name in ("PROVENANCE.md", "README.md"):
        if (folder / name).is_file() and (stated := licence_stated(_text(folder / name))):
            return stated
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"):
        if (folder / name).is_file():
            lines = [line.strip(" #\t") for line in _text(folder / name).splitlines()]
            return next((line for line in lines if line), UNKNOWN)
    return UNKNOWN


def licence_stated(text: str) -> str:
    """The first line `licence: ...` of a text, or empty."""
    match = _STATED.search(text)
    return match[1].strip().strip("\"'") if match else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
