"""Shell completion for bash, zsh and fish: commands, sub-commands and options.

The shell runs `smidgen` with the words typed so far and `_SMIDGEN_COMPLETE` set; each output line
is a candidate, a tab and its description. Without candidates the shell completes files. Only the
package of the typed command is imported.
"""

import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from smidgen.edge_client.errors import Failed, demand

OPTIONS = {
    "--help": "list the commands",
    "--version": "print the version",
    "--install-completion": "install completion for bash, zsh or fish",
    "--show-completion": "print the completion script",
}
SCRIPTS = {
    "bash": """\
_smidgen() {
    local IFS=$'\\n'
    COMPREPLY=($(_SMIDGEN_COMPLETE=1 "${1/#\\~/$HOME}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null |
        cut -f1))
}
complete -o default -o bashdefault -F _smidgen smidgen
""",
    "zsh": """\
#compdef smidgen
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_smidgen() {
    local -a found
    found=("${(@f)$(_SMIDGEN_COMPLETE=1 ${~words[1]} "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found//:/\\:}")
    found=("${(@)found/$'\t'/:}")
    if [[ -n "$found" ]]; then _describe smidgen found; else _files; fi
}
compdef _smidgen smidgen
""",
    "fish": """\
function __smidgen_complete
    set -l before (commandline -opc)
    set -l word (commandline -ct)
    set -l found (_SMIDGEN_COMPLETE=1 $before "$word" 2>/dev/null)
    if test (count $found) -gt 0
        string join \\n -- $found
    else
        __fish_complete_path "$word"
    end
end
complete -c smidgen -f -a '(__smidgen_complete)'
""",
}


def candidates(
    commands: Mapping[str, str], open_app: Callable[[str], Any], words: Sequence[str]
) -> list[tuple[str, str]]:
    """What the last word may become, with what it does.

    Args:
        commands: Name and description of the commands of `smidgen`.
        open_app: Gives the Typer app of one of them.
        words: What is typed after `smidgen`; the last is the one to complete, empty if it is new.
    """
    *before, current = words or [""]
    if not before:
        found = OPTIONS if current.startswith("-") else commands
        return [(name, text) for name, text in found.items() if name.startswith(current)]
    if before[0] not in commands:
        return []
    import typer.main  # not before a command is known

    node: Any = typer.main.get_command(open_app(before[0]))
    for word in before[1:]:
        node = getattr(node, "commands", {}).get(word, node)
    value_of = _option(node, before[-1])
    if value_of is not None and not value_of.is_flag:
        return []
    found_here = _options(node, before) if current.startswith("-") else _commands(node)
    return [(name, text) for name, text in found_here if name.startswith(current)]


def _commands(node: Any) -> Iterator[tuple[str, str]]:
    for name, command in getattr(node, "commands", {}).items():
        yield name, _first_line(command.help)


def _options(node: Any, before: Sequence[str]) -> Iterator[tuple[str, str]]:
    for param in node.params:
        is_given = not param.multiple and set(param.opts) & set(before)
        if param.param_type_name == "option" and not is_given:
            for name in (*param.opts, *param.secondary_opts):
                yield name, _first_line(param.help)
    yield "--help", "show what the command takes"


def _option(node: Any, word: str) -> Any | None:
    options = [param for param in node.params if param.param_type_name == "option"]
    return next((param for param in options if word in param.opts), None)


def _first_line(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def script(shell: str) -> str:
    """What a shell reads to complete `smidgen`.

    Raises:
        WrongInput: A shell that is not known.
    """
    known = ", ".join(SCRIPTS)
    demand(shell in SCRIPTS, f"completion is for {known}, not for {shell or 'this shell'!r}")
    return SCRIPTS[shell]


def this_shell() -> str:
    """The shell that has called, or else the login shell."""
    try:
        parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    except OSError:
        parent = ""
    return parent if parent in SCRIPTS else Path(os.environ.get("SHELL", "")).name


def install(shell: str, home: Path) -> str:
    """Write the script where the shell reads it from now on; what was done, in words.

    What the shell reads already stays the same file, and a full disk leaves it as it was.

    Raises:
        WrongInput: A shell that is not known.
        Failed: A file cannot be written.
    """
    text = script(shell)
    files = {"fish": home / ".config/fish/completions/smidgen.fish"}
    file = files.get(shell, home / f".local/share/smidgen/completion.{shell}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, text.encode())
        if shell == "fish":
            return f"written {file}; a new shell completes `smidgen`"
        start, line = home / f".{shell}rc", os.fsencode(f"source {shlex.quote(str(file))}")
        before = start.read_bytes() if start.is_file() else b""
        if line not in before.splitlines():
            end = b"" if before.endswith(b"\n") or not before else b"\n"
            _append(start, end + line + b"\n")
    except OSError as error:
        raise Failed(f"completion cannot be installed in {home}: {error}") from error
    return f"written {file}, which {start} reads; a new shell completes `smidgen`"


def _append(path: Path, body: bytes) -> None:
    """Add to the end of a file where it lies, be it a mount or in a folder of somebody else's.

    Raises:
        OSError: It cannot be written, and is as before as far as the disk allows; or what is there
            is no file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "there is something else than a file", str(path))
    left = memoryview(body)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def _replace(path: Path, body: bytes) -> None:
    """Put a file in another's place, a link's end included; it keeps its mode and its owner.

    Raises:
        OSError: It cannot be written, or what is there is no file.
    """
    from smidgen.edge_client.files import (
        write_atomically,
    )  # heavy for a shell that waits for a word

    place = Path(os.path.realpath(path))
    if not os.path.lexists(place):
        write_atomically(place, body)
        return
    before = place.stat()
    if not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EINVAL, "there is something else than a file", str(path))
    write_atomically(place, body, stat.S_IMODE(before.st_mode))
    with suppress(PermissionError):
        os.chown(place, before.st_uid, before.st_gid)  # of a home that root writes to
    place.chmod(stat.S_IMODE(before.st_mode))  # whatever the umask says
