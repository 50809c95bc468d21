"""Environments of their own for what cannot be installed beside us, and how our modules run there.

A script in `scripts/` makes each and writes `MARK` last, so that half an environment is none.
"""

import os
from pathlib import Path

from profiling.instruments.bases import cache_folder

MARK = ".installed"
ROOT = Path(__file__).parents[2]
# Our packages come last on the path: beside them may lie libraries of another environment.
LAUNCH = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def folder_of(name: str, variable: str) -> Path:
    """Where an environment is looked for: as the variable says, else in the cache folder."""
    chosen = os.environ.get(variable, "")
    return Path(chosen) if chosen else cache_folder() / name


def why_missing(folder: Path, script: str) -> str | None:
    """Why nothing can run in an environment, in one line; None if it can."""
    if (folder / MARK).is_file():
        return None
    return f"there is no environment for it at {folder}; {script} makes one"


def command_in(folder: Path, module: str, *arguments: str) -> list[str]:
    return [str(folder / "bin" / "python"), "-c", LAUNCH, str(ROOT), module, *arguments]
