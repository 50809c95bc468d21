"""The page of commands says what the commands say, no more and no less."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen import COMMANDS
from tests.command_line import smidgen

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "command_reference.py"


def _script() -> Any:
    spec = spec_from_file_location("command_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = _script()
LEAVES = dict(REFERENCE.every_command())
SECTIONS = dict(
    re.findall(r"^## (smidgen [^\n]+)\n(.*?)(?=^## |\Z)", REFERENCE.page(), re.M | re.S)
)


def plain(text: str) -> str:
    """Words alone: no boxes, no backticks, one space between two."""
    return " ".join(re.sub(r"[`│╭╮╰╯─|\\]", " ", text).split())


def test_the_page_is_the_one_that_the_commands_give() -> None:
    told = "docs/reference/commands.md is old: run scripts/command_reference.py"
    assert REFERENCE.PAGE.read_text() == REFERENCE.page(), told


def test_every_command_has_a_section() -> None:
    assert list(SECTIONS) == list(LEAVES)
    assert {words.split()[1] for words in LEAVES} == set(COMMANDS)


@pytest.mark.parametrize("words", list(LEAVES))
def test_a_section_says_what_help_says(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    done = smidgen(*words.split()[1:], "--help")
    assert done.exit_code == 0, done.stderr
    shown, section = plain(done.stdout), plain(SECTIONS[words])
    first = plain(str(LEAVES[words].help or "").strip().split("\n\n")[0])
    assert first and first in shown and first in section
    for param in LEAVES[words].params:
        if not REFERENCE.is_shown(param):
            continue
        help_text = plain(str(getattr(param, "help", "") or ""))
        assert help_text, f"{words} {param.opts}: an option without help"
        assert help_text in shown and help_text in section
        for flag in param.opts if param.param_type_name == "option" else ():
            assert flag in shown.split() and f"`{flag}" in SECTIONS[words]
    in_help = set(re.findall(r"--[a-z][a-z-]*", done.stdout)) - {"--help"}
    assert in_help <= set(re.findall(r"--[a-z][a-z-]*", SECTIONS[words]))
