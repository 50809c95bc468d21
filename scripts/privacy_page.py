"""Writes docs/privacy.md: what leaves a device, field by field, from the types of the wire.

    python scripts/privacy_page.py    rewrites the page

Routes come from the table in the docstring of `edge_client.wire.messages`, fields and types from
its dataclasses, meanings from their docstrings. What a field reveals cannot be generated: it stands
in `REVEALS` and `LEARNS` of `scripts/privacy_words.py`, and a field without its line there ends in
an error that names it.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from edge_client.client import state  # noqa: E402
from edge_client.wire import fleet, messages, packs, tensors  # noqa: E402
from edge_client.wire.reported.failures import SAID, Failure  # noqa: E402
from scripts.privacy_words import (  # noqa: E402
    CHECK,
    HEAD,
    LEARNS,
    NOTES,
    QUERY,
    REVEALED,
    REVEALS,
    SIZES,
    WHEN,
    WORDS,
)

PAGE = ROOT / "docs" / "privacy.md"
TENSORS = tensors.Update  # what a safetensors body from a device holds
ROUTE = re.compile(r"^ +(GET|PUT|POST) +(\S+) +(?:(\w+) -> )?(.+)", re.MULTILINE)
ATTRIBUTE = re.compile(r"^ {4}(\w+): ((?:.|\n {5,})+)", re.MULTILINE)
NOT_SENT = (
    "Update.work_id",
    "Update.num_examples",
    "Update.steps",
    "Update.codec",
    "Update.coded",
)  # they travel as `UpdateHeader`, and what is coded in the delta's place


class PageError(Exception):
    """A field, message or line of the page that has no counterpart."""


@dataclass(frozen=True)
class Route:
    """One request of the contract.

    Attributes:
        path: Method and path, without its query.
        query: Names of what the query carries.
        up: Message that the device sends; `safetensors`, or empty for none.
        down: Messages that it may get.
    """

    path: str
    query: tuple[str, ...]
    up: str
    down: tuple[str, ...]


def routes(module: ModuleType = messages) -> list[Route]:
    """The routes in the docstring of the wire's messages."""
    known, found = {"safetensors", *(kind.__name__ for kind in _messages())}, []
    for method, request, up, told in ROUTE.findall(module.__doc__ or ""):
        path, _, query = request.partition("?")
        answers = tuple(word for word in re.findall(r"\w+", told) if word in known)
        names = tuple(part.partition("=")[0] for part in query.split("&") if part)
        found.append(Route(f"{method} {path}", names, up, answers))
    return found


def is_of_the_wire(kind: Any) -> bool:
    """Whether a type is a dataclass of the wire, whose fields are listed one by one."""
    return is_dataclass(kind) and kind.__module__.startswith(messages.__package__ or "")


def parts_of(hint: Any) -> list[Any]:
    """The wire's dataclasses inside a type."""
    if is_of_the_wire(hint):
        return [hint]
    return [part for inner in get_args(hint) for part in parts_of(inner)]


def said_of(hint: Any) -> str:
    """A type in words."""
    plain = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    origin, inside = get_origin(hint), get_args(hint)
    if hint is NoneType:
        return "null"
    if hint == tensors.AdapterState:
        return "float32 tensors by name"
    if hint in plain:
        return plain[hint]
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(map(said_of, inside))
    if origin is tuple:
        return f"list of: {said_of(inside[0])}"
    if origin is dict:
        return f"{said_of(inside[1])} for each {said_of(inside[0])}"
    return getattr(hint, "__name__", str(hint))


def meanings(kind: type[Any]) -> dict[str, str]:
    """What a dataclass's docstring says of each field."""
    _, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    return {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(attributes)}


def fields_of(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Key, type and meaning of each field, those of dataclasses within one by one.

    Raises:
        PageError: A field has no meaning in its docstring.
    """
    hints, told = get_type_hints(kind), meanings(kind)
    for field in fields(kind):
        hint, key = hints[field.name], f"{kind.__name__}.{field.name}"
        if field.name not in told:
            raise PageError(f"{key} has no line under `Attributes:`")
        for part in parts_of(hint):
            yield from fields_of(part)
        if not parts_of(hint) and key not in NOT_SENT:
            yield key, failure_or(hint), told[field.name]


def failure_or(hint: Any) -> str:
    """A type in words; the codes of failures have a table of their own."""
    inner = get_args(hint)
    return "code or null" if Failure in inner else said_of(hint)


def kinds_of(name: str) -> tuple[type[Any], ...]:
    """The dataclasses behind a name in the contract's table."""
    if name == "safetensors":
        return tensors.UpdateHeader, TENSORS
    return (message(name),)


def line(key: str, table: Mapping[str, Any], name: str) -> Any:
    """What is said of a field.

    Raises:
        PageError: Nothing is; names the field and where to say it.
    """
    if key not in table:
        raise PageError(
            f"{key} has no line in {name} of scripts/privacy_words.py; say what it tells"
        )
    return table[key]


def row(*cells: str) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def leaving(found: list[Route], reveals: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A section for each request that carries something."""
    header = [row("field", "type", "what it is", "the run's owner learns", "other devices get")]
    header.append("|---|---|---|---|---|")
    for route in found:
        keys = [(f"work.{name}", "in the query", QUERY.get(name, "")) for name in route.query]
        if route.up:
            keys += [entry for kind in kinds_of(route.up) for entry in fields_of(kind)]
        if not keys:
            continue
        yield f"\n### `{route.path}`{f': {route.up}' if route.up else ''}\n"
        yield line(route.up or "work", WHEN, "WHEN") + "\n"
        yield from header
        for key, kind, meaning in keys:
            owner, others = line(key, reveals, "REVEALS")
            yield row(f"`{key}`", kind, meaning, owner, others or "nothing")


def coming(found: list[Route], learns: Mapping[str, str]) -> Iterator[str]:
    """A table of what devices get that others have a part in."""
    yield row("field", "type", "what it is", "what it tells of others")
    yield "|---|---|---|---|"
    for name in answers(found):
        if name == "safetensors":
            told = "All updates so far, averaged; in a round of one device, that device's."
            yield row("adapter", said_of(tensors.AdapterState), "The run's adapter.", told)
            continue
        kind = message(name)
        hints, told_of = get_type_hints(kind), meanings(kind)
        for field in fields(kind):
            key = f"{name}.{field.name}"
            learnt = line(key, learns, "LEARNS")
            if learnt:
                yield row(f"`{key}`", said_of(hints[field.name]), told_of[field.name], learnt)


def free_texts(found: list[Route]) -> list[str]:
    """The fields in which a device could say anything at all."""
    kinds = [kind for route in found if route.up for kind in kinds_of(route.up)]
    keys = [key for kind in kinds for key, said, _ in fields_of(kind) if "text" in said.split()]
    return list(dict.fromkeys(keys))


def failures() -> str:
    rows = [row(f"`{code}`", said) for code, said in SAID.items()]
    head = "### Failures\n\nOf an error the coordinator hears a code, never its message.\n"
    return "\n".join([head, row("code", "what the owner reads"), "|---|---|", *rows])


def state_folder() -> str:
    """The files of the state folder, from the docstring of the module that writes them."""
    found = re.findall(r"^(\S+(?:, \S+)?) {2,}(.+)$", state.__doc__ or "", re.MULTILINE)
    if not found:
        raise PageError("edge_client.client.state names no files in its docstring")
    return "\n".join(
        [row("file", "what it holds"), "|---|---|", *(row(f"`{n}`", t) for n, t in found)]
    )


def check_all_listed(found: list[Route], told: Iterable[str]) -> None:
    """Every message has a route, and every line a field.

    Args:
        found: The routes.
        told: Keys of the lines.

    Raises:
        PageError: Names what has none.
    """
    named = {name for route in found for name in (route.up, *route.down)}
    inner = {part.__name__ for kind in _messages() for part in _inside(kind)}
    if lost := sorted({kind.__name__ for kind in _messages()} - named - inner):
        raise PageError(f"{lost[0]} is in no route in the docstring of edge_client.wire.messages")
    up = {key for r in found if r.up for kind in kinds_of(r.up) for key, _, _ in fields_of(kind)}
    asked = {f"work.{name}" for route in found for name in route.query}
    names = set(answers(found)) - {"safetensors"}
    down = {f"{name}.{field.name}" for name in names for field in fields(message(name))}
    if idle := sorted(set(told) - up - asked - down):
        raise PageError(f"{idle[0]} has a line in scripts/privacy_words.py, but does not travel")


def message(name: str) -> type[Any]:
    """The dataclass of a message."""
    return next(kind for kind in _messages() if kind.__name__ == name)


def answers(found: list[Route]) -> list[str]:
    """What a device may get, each once; of `Next` what it carries one of."""
    told: dict[str, None] = {}
    for name in (name for route in found for name in route.down):
        carried = _inside(messages.Next) if name == "Next" else []
        told |= dict.fromkeys([kind.__name__ for kind in carried] or [name])
    return list(told)


def _messages() -> list[type[Any]]:
    modules = [messages, fleet, packs]
    found = [kind for module in modules for kind in vars(module).values()]
    kinds = dict.fromkeys(kind for kind in found if isinstance(kind, type))
    own = {module.__name__ for module in modules}
    return [kind for kind in kinds if is_dataclass(kind) and kind.__module__ in own]


def _inside(kind: type[Any]) -> list[type[Any]]:
    return [part for hint in get_type_hints(kind).values() for part in parts_of(hint)]


def page(
    reveals: Mapping[str, tuple[str, str]] = REVEALS, learns: Mapping[str, str] = LEARNS
) -> str:
    """The whole page.

    Raises:
        PageError: A field without its line, or a line without its field.
    """
    found = routes()
    check_all_listed(found, [*reveals, *learns])
    sections = [
        HEAD.lstrip(),
        WORDS,
        *(f"- `{key}`" for key in free_texts(found)),
        "",
        NOTES.strip(),
        *leaving(found, reveals),
        "",
        failures(),
        "\n## What devices learn of each other\n",
        "A device receives these, in which others have a part; the rest is the run's own making.\n",
        *coming(found, learns),
        REVEALED,
        CHECK.strip().format(state=state_folder()),
        SIZES,
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(sections)).rstrip() + "\n"


if __name__ == "__main__":
    try:
        PAGE.write_text(page(), encoding="utf-8")
    except PageError as error:
        sys.exit(f"privacy_page: {error}")
