"""The terms of the runs that a device joined, on its disk: a run's end is understood by them.

joined = Joined(folder / "runs")
joined.keep(terms)
joined.terms("RUN")  # until the run's adapter is at home: joined.forget("RUN")
"""

import re
from pathlib import Path

from edge_client.files import PRIVATE, oldest_first, write_atomically
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import WireError, decode, encode
from edge_client.wire.tensors import sha256

KEPT_TERMS = 64  # of runs, the newest
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Joined:
    """The runs that one device joined.

    Args:
        folder: Made by the caller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, terms: Terms) -> None:
        """Keep the terms of a run that this device joins."""
        write_atomically(self._file(terms.run_id), encode(terms), PRIVATE, is_latest=True)

    def terms(self, run_id: str) -> Terms | None:
        """The terms of a run that this device joined, or None."""
        path = self._file(run_id)
        try:
            return decode(path.read_bytes(), Terms) if path.is_file() else None
        except WireError:
            return None

    def base_ids(self) -> set[str]:
        """Bases of the runs whose terms are kept."""
        found = (self.terms(path.stem) for path in self.folder.glob("*.json"))
        return {terms.base_id for terms in found if terms is not None}

    def forget(self, run_id: str) -> None:
        """Drop the terms of a run whose adapter is at home."""
        self._file(run_id).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Drop every run's terms."""
        for path in self.folder.glob("*.json"):
            path.unlink()

    def sweep(self) -> list[str]:
        """Drop the terms of runs of long ago.

        Returns:
            File names, without their endings, of all that were there, oldest first; the last
            `KEPT_TERMS` of them are kept.
        """
        terms = oldest_first(self.folder.glob("*.json"))
        for old in terms[:-KEPT_TERMS]:
            old.unlink()
        return [path.stem for path in terms]

    def _file(self, run_id: str) -> Path:
        return self.folder / f"{file_name(run_id)}.json"


def file_name(word: str) -> str:
    """A word that a coordinator chose, as the name of a file: itself, or its hash."""
    return word if PLAIN_NAME.fullmatch(word) else sha256(word.encode())
