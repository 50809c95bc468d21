"""Completion, asked of real shells: `smidgen co<TAB>` and deeper."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smidgen import COMMANDS
from smidgen.edge_client.completion import SCRIPTS, candidates, install, script
from smidgen.edge_client.errors import Failed
from tests.command_line import homeless, smidgen

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


@pytest.mark.few(2)
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


def test_a_full_disk_leaves_what_the_shell_reads(shell: dict[str, str]) -> None:
    file = Path(shell["HOME"]) / ".bashrc"
    file.write_bytes(b"#" * 32000)
    line = ["bash", "-c", "ulimit -f 16; smidgen --install-completion bash"]
    done = subprocess.run(line, capture_output=True, text=True, env=shell, check=False)
    assert done.returncode == 1 and "completion cannot be installed" in done.stderr
    assert file.read_bytes() == b"#" * 32000
    assert not list(file.parent.glob(".*.part"))


def test_what_the_shell_reads_keeps_its_bytes_its_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles" / "bashrc"
    real.write_bytes(b"a=1\r\n# caf\xe9")
    real.chmod(0o666)
    (tmp_path / ".bashrc").symlink_to("dotfiles/bashrc")
    install("bash", tmp_path)
    line = f"source {tmp_path}/.local/share/smidgen/completion.bash\n"
    assert real.read_bytes() == b"a=1\r\n# caf\xe9\n" + line.encode()
    assert (tmp_path / ".bashrc").is_symlink() and real.stat().st_mode & 0o777 == 0o666


def test_a_file_is_added_to_where_it_lies(tmp_path: Path) -> None:
    """A hard link shows that; where another is renamed onto it, a mount is refused as busy."""
    (tmp_path / "other").write_text("a=1\n")
    (tmp_path / ".bashrc").hardlink_to(tmp_path / "other")
    install("bash", tmp_path)
    assert (tmp_path / ".bashrc").samefile(tmp_path / "other")
    assert (tmp_path / "other").read_text().startswith("a=1\nsource ")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may mount")
def test_a_file_that_is_mounted_is_added_to(shell: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mounted").write_text("")
    (tmp_path / ".bashrc").write_text("")
    line = "mount --bind $HOME/mounted $HOME/.bashrc || exit 77; smidgen --install-completion bash"
    command = ["unshare", "--mount", "sh", "-c", line]
    done = subprocess.run(command, capture_output=True, text=True, env=shell, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mounted").read_text().startswith("source ")


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".zshrc").symlink_to("pipe")
    with pytest.raises(Failed, match="something else than a file"):
        install("zsh", tmp_path)
    assert (tmp_path / "pipe").is_fifo()


def test_without_a_home_it_is_one_line() -> None:
    with homeless():
        done = smidgen("--install-completion", "bash")
    told = "smidgen --install-completion: this user has no home folder; set HOME\n"
    assert (done.exit_code, done.stderr) == (2, told)


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
    import smidgen.edge_client.cli

    texts = {name: text for name, (_, text, _) in COMMANDS.items()}

    def offered(*words: str) -> list[str]:
        return [name for name, _ in candidates(texts, lambda _: smidgen.edge_client.cli.app, words)]

    assert "--engine" in offered("client", "plan", "--")
    assert "--engine" not in offered("client", "plan", "--engine", "onnx", "--")
    assert offered("client", "plan", "--engine", "") == [] == offered("client", "plan", "")
