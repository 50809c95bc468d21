"""What commands read, and where they write: never in one place, for an `--out` is made empty."""

from pathlib import Path

from edge_client.errors import demand
from edge_client.formats.opened import DataError


def check_apart(out: Path, *inputs: Path | None) -> None:
    """Refuse an `--out` that holds what is read.

    Raises:
        DataError: Names both.
    """
    for path in inputs:
        if path is not None and path.exists():
            inside = out.resolve() in (path.resolve(), *path.resolve().parents)
            said = f"--out {out} holds {path}, which is read; name another folder"
            demand(not inside, said, DataError)
