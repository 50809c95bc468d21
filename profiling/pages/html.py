"""The page as one HTML file. It loads nothing, and its own rules for browsers forbid it to."""

import base64
import hashlib
import re
from importlib.util import find_spec
from pathlib import Path

from edge_client.errors import Failed, installing
from profiling.pages import charts
from profiling.pages.contents import Contents

TEMPLATES = Path(__file__).parent / "templates"
UNIT = re.compile(r"(?<=\d) (?=(?:[KMG]i?B|[skMGJ]|MiB|†)(?:\W|$))")


def check_jinja() -> None:
    """Look for Jinja before hours of work.

    Raises:
        Failed: It is not installed.
    """
    if find_spec("jinja2") is None:
        raise Failed(f"the HTML page needs Jinja; {installing('profile')}")


def render(contents: Contents) -> str:
    """The page; every word from outside is escaped.

    Raises:
        Failed: Jinja is not installed.
    """
    check_jinja()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style, script = (_text(name) for name in ("models.css", "sort.js"))
    room = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    room.filters["bound"] = bound
    return room.get_template("models.html.j2").render(
        page=contents,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        width=charts.WIDTH,
        left=charts.LEFT,
        right=charts.RIGHT,
        top=charts.TOP,
    )


def bound(text: str) -> str:
    """A text whose figures stay on the line of their units."""
    return UNIT.sub("\N{NO-BREAK SPACE}", text)


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a content security policy names what may run."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
