"""Means, server optimizers and policies of selection that are not ours, by their names.

A run file names them as it names ours: `mean = "signs:0.001"` makes the extension `signs` with the
argument `"0.001"`. What is here was installed beside us or put into the folder of `--plugins` by
whoever starts the process (`coordinator.plugins`); no run file, device or operator adds to it.
"""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coordinator.rounds.extensions.calls import called
from coordinator.rounds.extensions.failures import FAILURES, PluginError, line_of
from edge_client.errors import WrongInput, demand

Kind: TypeAlias = Literal["mean", "optimizer", "selection"]
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}(:[^\s:]{1,64}){0,8}")


@dataclass(frozen=True)
class Extension:
    """A class of somebody else's.

    Attributes:
        kind: What it is.
        name: As run files say it.
        origin: Where it comes from, for people.
        factory: Makes it, from the arguments behind its name, as texts.
    """

    kind: Kind
    name: str
    origin: str
    factory: Callable[..., Any]


_KNOWN: dict[tuple[Kind, str], Extension] = {}


def add(one: Extension, ours: Collection[str] = ()) -> None:
    """Let run files of this process name an extension; again the same changes nothing.

    Raises:
        WrongInput: Its name makes no sense, is ours, or is another extension's.
    """
    said = f"{one.origin} names a {one.kind} {one.name!r}"
    is_name = NAME.fullmatch(one.name) and ":" not in one.name
    demand(bool(is_name), f"{said}; letters, digits, - and _ are expected", WrongInput)
    demand(one.name not in ours, f"{said}, which is built in; choose another name", WrongInput)
    known = _KNOWN.get((one.kind, one.name), one)
    demand(known.origin == one.origin, f"{said}, and so does {known.origin}", WrongInput)
    _KNOWN[one.kind, one.name] = one


@contextmanager
def apart() -> Iterator[None]:
    """A block in which only what is added inside is known, and which leaves nothing behind."""
    before = dict(_KNOWN)
    _KNOWN.clear()
    try:
        yield
    finally:
        _KNOWN.clear()
        _KNOWN.update(before)


def names_of(kind: Kind) -> list[str]:
    """The extensions of a kind that this process knows."""
    return sorted(name for of, name in _KNOWN if of == kind)


def find(kind: Kind, name: str) -> Extension | None:
    """An extension by its name; None where this process has none of it."""
    return _KNOWN.get((kind, name))


def split(text: str) -> tuple[str, list[str]]:
    """`krum:2` as its name and its arguments."""
    name, *arguments = text.split(":")
    return name, arguments


def made(kind: Kind, text: str) -> tuple[Any, str]:
    """What a run file names, made; and what it is called where it fails.

    Raises:
        PluginError: This process does not know it, or it cannot be made.
    """
    name, arguments = split(text)
    one = find(kind, name)
    if one is None:
        raise PluginError(
            f"{kind} {name!r} is not known here; start with --plugins FOLDER or install its package"
        )
    at_work = f"{kind} {text!r} of {one.origin}"
    try:
        return called(at_work, lambda: one.factory(*arguments)), at_work
    except PluginError:
        raise
    except FAILURES as error:
        raise PluginError(f"{at_work} cannot be made: {line_of(error)}") from error
