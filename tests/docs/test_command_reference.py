"""The page of commands says what the commands say, no more and no less."""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

import typer.main

from smidgen import COMMANDS

SCRIPT = Path(__file__).parents[2] / "scripts" / "command_reference.py"


def _script() -> Any:
    spec = spec_from_file_location("command_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command below one, with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield words, command
    for name, below in inner.items():
        yield from leaves(f"{words} {name}", below)


LEAVES = dict(
    leaf
    for name, (module, _, _) in COMMANDS.items()
    for leaf in leaves(f"smidgen {name}", typer.main.get_command(import_module(module).app))
)
PAGE = _script().page()
SECTIONS = dict(re.findall(r"^##+ `(smidgen [^\n]+)`\n(.*?)(?=^#+ |\Z)", PAGE, re.M | re.S))


def test_the_page_is_the_one_that_the_commands_give() -> None:
    told = "docs/reference/commands.md is old: run scripts/command_reference.py"
    assert _script().PAGE.read_text() == PAGE, told


@pytest.mark.parametrize("words", list(LEAVES))
def test_a_command_has_a_section_with_every_option_and_its_help(words: str) -> None:
    section = " ".join(SECTIONS[words].split())
    assert LEAVES[words].help.split("\n\n")[0].strip() in SECTIONS[words]
    for param in LEAVES[words].params:
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        help_text = " ".join(str(getattr(param, "help", "") or "").split())
        assert help_text, f"{words} {param.opts}: an option without help"
        assert help_text in section
        for flag in param.opts if param.param_type_name == "option" else ():
            assert flag in section
