"""Files of answers in the forms of annotation tools, where people correct them and bring them back.

with proposals("--out", Path("answers.json"), "label-studio", "smidgen") as write:
    write(Proposal("charged twice", label="bill", score=0.9))
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from edge_client.errors import demand
from edge_client.formats.annotation import doccano, label_studio
from edge_client.formats.annotation.answers import Proposal
from edge_client.outputs import check_out_file, new_file

WRITERS = {
    "label-studio": (label_studio.writing, ".json"),
    "doccano": (doccano.writing, ".jsonl"),
}
VERSION = '"model_version": "smidgen'  # by which a file of ours is known
WRITE = "Write --out as an annotation tool imports it, to correct there: label-studio or doccano."

WriteOption = Annotated[str, typer.Option("--write", metavar="TOOL", help=WRITE)]


def check_proposals(out: Path | None, tool: str) -> None:
    """Refuse a file of proposals that cannot be written.

    Raises:
        WrongInput: No such tool, no file, another ending, or somebody's own file.
    """
    known = ", ".join(WRITERS)
    demand(tool in WRITERS, f"--write {tool[:40]!r}: one of {known} is expected")
    demand(out is not None, f"--write {tool} says how --out is written; give --out too")
    assert out is not None, "just demanded"
    check_out_file("--out", out, (WRITERS[tool][1],), sign=VERSION)


@contextmanager
def proposals(
    out: Path, tool: str, is_private: bool = False
) -> Iterator[Callable[[Proposal], None]]:
    """Writes each proposal to a file; see `check_proposals`.

    Args:
        out: The file.
        tool: See `WRITERS`.
        is_private: Whether nobody but its owner may read it.
    """
    with new_file("--out", out, is_private) as file, WRITERS[tool][0](file, "smidgen") as write:
        yield write
