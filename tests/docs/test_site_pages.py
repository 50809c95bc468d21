"""Pages that are made while the site is built: that of commands says what they say."""

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
from tests.docs.pages import MADE


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
PAGE = MADE["reference/commands.md"]()
SECTIONS = dict(re.findall(r"^##+ `(smidgen [^\n]+)`\n(.*?)(?=^#+ |\Z)", PAGE, re.M | re.S))


def test_the_papers_page_lies_beside_the_results_that_it_is_made_of() -> None:
    text = MADE["results/papers.md"]()
    assert text.startswith("# The papers' tables and figures") and "python -m benchmarks" in text


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
