"""Completion, asked of real shells: `smidgen co<TAB>` and deeper."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.completion import SCRIPTS, candidates, script
from smidgen import COMMANDS
from tests.command_line import smidgen

BASH = """
eval "$(smidgen --show-completion bash)"
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
$(complete -p smidgen | sed -E 's/.*-F ([^ ]+) .*/\\1/') smidgen
echo "${{COMPREPLY[*]}}"
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with `smidgen` on its path and an empty home."""
    command = tmp_path / "bin" / "smidgen"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m smidgen "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "PYTHONPATH": root}


def asked(environment: dict[str, str], program: str, text: str) -> str:
    done = subprocess.run(
        [program, "-c", text], capture_output=True, text=True, env=environment, check=False
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("smidgen co", ["coordinator"]),
        ("smidgen client ru", ["run"]),
        ("smidgen client run --memory-b", ["--memory-budget"]),
        ("smidgen client run --base ''", []),
        ("smidgen nothing x", []),
    ],
)
def test_bash_completes(shell: dict[str, str], words: str, expected: list[str]) -> None:
    assert asked(shell, "bash", BASH.format(words=words)).split() == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes(shell: dict[str, str]) -> None:
    ask = "smidgen --show-completion fish | source; complete -C 'smidgen client ru'"
    assert asked(shell, "fish", ask).startswith("run\tServe a coordinator's runs")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_reads_its_script(shell: dict[str, str]) -> None:
    ask = "source <(smidgen --show-completion zsh); whence -w _smidgen"
    assert asked(shell, "zsh", ask) == "_smidgen: function\n"


def test_bash_is_installed_for_the_next_shell_and_once(shell: dict[str, str]) -> None:
    home = Path(shell["HOME"])
    (home / ".bashrc").write_text("alias ll='ls -l'")
    for _ in range(2):
        said = asked(shell, "bash", "smidgen --install-completion bash")
        assert said.endswith("a new shell completes `smidgen`\n")
    lines = (home / ".bashrc").read_text().splitlines()
    assert len(lines) == 2 and lines[0] == "alias ll='ls -l'"
    functions = asked(shell, "bash", 'source "$HOME/.bashrc"; complete -p smidgen')
    assert functions == "complete -o bashdefault -o default -F _smidgen smidgen\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_shell_has_a_script(name: str) -> None:
    assert smidgen("--show-completion", name).stdout == script(name) + "\n"


def test_another_shell_is_one_line() -> None:
    for option in ("--show-completion", "--install-completion"):
        done = smidgen(option, "tcsh")
        assert done.exit_code == 2 and "is for bash, zsh, fish, not for 'tcsh'" in done.stderr
        assert done.stderr.count("\n") == 1


def test_parts_have_no_completion_of_their_own() -> None:
    for part in ("client", "coordinator", "profile", "simulate"):
        assert "completion" not in smidgen(part, "--help").stdout


def test_an_option_that_is_given_is_not_offered_again() -> None:
    import edge_client.cli

    texts = {name: text for name, (_, text, _) in COMMANDS.items()}

    def offered(*words: str) -> list[str]:
        return [name for name, _ in candidates(texts, lambda _: edge_client.cli.app, words)]

    assert "--engine" in offered("client", "plan", "--")
    assert "--engine" not in offered("client", "plan", "--engine", "onnx", "--")
    assert offered("client", "plan", "--engine", "") == [] == offered("client", "plan", "")
