"""`smidgen client generate`: let a causal language model answer, or go on with a text."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from edge_client.api.generate import GeneratedText, generate
from edge_client.commands.console import JsonOption
from edge_client.errors import WrongInput, demand
from edge_client.options import options_of
from edge_client.tables import prints


@options_of(generate, without=("texts", "tell", "on_piece"), personal={"metavar": "STATE"})
def generate_command(
    call: Callable[..., list[GeneratedText]],
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts to answer, or - to read them from stdin.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    given = list(texts or [])
    if given == ["-"]:
        given = _typed()
    demand(bool(given), "no text; give some, or - and texts on stdin, one per line")
    shown = _Shown(is_quiet=json_output)
    found = call(given, tell=shown.note, on_piece=shown.piece)
    print(json.dumps([asdict(one) for one in found]) if json_output else "")


def _typed() -> list[str]:
    """The lines of stdin."""
    try:
        lines = sys.stdin.buffer.read().decode().split("\n")
    except UnicodeDecodeError as error:
        raise WrongInput(f"stdin is not UTF-8 at byte {error.start}; UTF-8 is expected") from None
    return [line.removesuffix("\r") for line in lines if line.strip()]


class _Shown:
    """Answers as they come, a line break between two; what would steer a terminal is `?`."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet, self._number = is_quiet, 1

    def note(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def piece(self, number: int, piece: str) -> None:
        if self._is_quiet:
            return
        breaks, self._number = "\n" * (number - self._number), number
        safe = (letter if letter in "\n\t" or prints(letter) else "?" for letter in piece)
        print(breaks + "".join(safe), end="", flush=True)
