"""Screens of `--help`: they fit a terminal, cut nothing, and leave nothing out for good."""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

import typer.main

from smidgen import COMMANDS
from smidgen.edge_client.options import FEW, PANELS, Screen
from tests.command_line import smidgen

LINES = 60  # of 80 columns


def screens(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Screen]]:
    if isinstance(command, Screen):
        yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from screens((*words, name), below)


SCREENS = dict(
    screen
    for name, (module, _, _) in COMMANDS.items()
    for screen in screens((name,), typer.main.get_command(import_module(module).app))
)
WIDE = {words: screen for words, screen in SCREENS.items() if screen.places}


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def flags(text: str) -> set[str]:
    return set(re.findall(r"^│ (?:--\[no-\])?(?:--)?([a-z][a-z-]*)", text, re.MULTILINE))


@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_help_fits_a_terminal_and_cuts_nothing(words: tuple[str, ...]) -> None:
    shown = smidgen(*words, "--help")
    assert shown.exit_code == 0 and "…" not in shown.stdout
    assert len(shown.stdout.splitlines()) <= LINES


@pytest.mark.parametrize("words", [one for one in WIDE if WIDE[one].rare], ids=" ".join)
def test_help_all_has_every_option_and_help_says_how_many_it_left_out(
    words: tuple[str, ...],
) -> None:
    options = [one for one in SCREENS[words].places if one.param_type_name == "option"]
    every = {one.opts[0].removeprefix("--") for one in options}
    some, full = (smidgen(*words, flag).stdout for flag in ("--help", "--help-all"))
    assert "…" not in full and flags(full) == every
    left_out = every - flags(some)
    told = f"More options ({len(left_out)}): smidgen {' '.join(words)} --help-all"
    assert some.rstrip().splitlines()[-1].strip() == told


@pytest.mark.parametrize("words", WIDE)
def test_an_option_of_many_has_a_panel(words: tuple[str, ...]) -> None:
    places = WIDE[words].places.items()
    other = [one.opts for one, (panel, _) in places if panel == "Other" and "--" in one.opts[0]]
    assert not other, f"{words}: put {other} into a panel of edge_client/options.py"


def test_every_name_in_a_panel_is_that_of_an_option() -> None:
    known = {one.name for screen in SCREENS.values() for one in screen.places}
    known |= {f"{screen.name}.{one.name}" for screen in WIDE.values() for one in screen.places}
    named = {name for both in PANELS.values() for names in both for name in names.split()}
    assert named <= known


def test_a_command_of_few_options_shows_all_of_them() -> None:
    few = {words: screen for words, screen in SCREENS.items() if words not in WIDE}
    assert few and all(len(screen.params) <= FEW + 1 for screen in few.values())
    assert not any("--help-all" in one.opts for screen in few.values() for one in screen.params)


def test_a_required_option_and_a_default_are_said() -> None:
    text = " ".join(smidgen("client", "run", "--help").stdout.replace("│", " ").split())
    assert text.index("─ Required ─") < text.index("--coordinator") < text.index("─ Network ─")
    assert "[default: embedded]" in text and "[env var: SMIDGEN_CA]" in text
