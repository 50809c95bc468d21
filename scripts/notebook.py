"""Run a notebook of docs/examples and keep what it shows, without times and paths.

    python scripts/notebook.py docs/examples/first_run.ipynb

Needs the `dev` extra.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

LIMIT_S = 240  # of a cell


def run(path: Path, folder: Path) -> Any:
    """A notebook after its cells were run in a folder, one after the other.

    Raises:
        CellExecutionError: A cell failed; quotes it.
    """
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=LIMIT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            notebook = run(Path(name), Path(folder))
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        nbformat.write(notebook, name)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
