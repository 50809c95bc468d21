"""What `smidgen` itself understands, before any package is asked."""

from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper

import pytest

from smidgen import COMMANDS, __version__, main
from tests.command_line import smidgen


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_one_line(word: str) -> None:
    done = smidgen(word)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_command(word: str) -> None:
    said = smidgen(word).stdout
    assert all(f"  {name} " in said for name in COMMANDS)


def test_a_command_that_is_nearly_one_is_suggested() -> None:
    done = smidgen("clinet")
    assert done.exit_code == 2 and "did you mean 'client'?" in done.stderr.splitlines()[0]


def test_bytes_that_are_not_text_are_told_by_place() -> None:
    done = smidgen("client", "predict", "\udcff")
    assert done.exit_code == 2
    assert done.stderr == "smidgen: word 3 of the command is not UTF-8 text\n"


@pytest.mark.parametrize("words", [("client",), ("client", "plan"), ("pack",)])
def test_every_level_knows_the_short_form_of_help(words: tuple[str, ...]) -> None:
    done = smidgen(*words, "-h")
    assert done.exit_code == 0 and "Usage: smidgen" in done.stdout


def test_a_way_to_write_other_letters_that_the_user_chose_is_kept() -> None:
    for chosen, kept in (("strict", "backslashreplace"), ("replace", "replace")):
        out = TextIOWrapper(BytesIO(), "ascii", errors=chosen)
        with redirect_stdout(out):
            main(["--version"])
        assert out.errors == kept
