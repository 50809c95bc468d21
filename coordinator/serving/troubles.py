"""What cannot be done for now: it is tried again, and told once."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.storage.blobs import BlobDamaged
from coordinator.storage.database import DatabaseDamaged
from coordinator.storage.store import StoreError

DAMAGES = (BlobDamaged, DatabaseDamaged, StoreError)  # which say all of it in a line
LOG = logging.getLogger(__name__)


class Troubles:
    """What could not be done, and why, as it was last said; used by one thread at a time."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Go on after a failure; the log says why once, until it is another or all is well."""
        try:
            yield
        except Exception as error:  # the edge: a full disk or a damaged blob is for its owner
            said = (str(error).splitlines() or [""])[0]  # a database adds what it was to write
            if self._said.get(what) != said:
                why = f": {said}" if isinstance(error, DAMAGES) else ""
                LOG.log(
                    *(logging.ERROR, "%s: stands still; trying again each second%s", what, why),
                    exc_info=not why,
                )
            self._said[what] = said
        else:
            self._said.pop(what, None)
