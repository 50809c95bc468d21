"""What the log is told once: what cannot be done for now, and what runs wait for."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from coordinator.serving.ledger import Live
from coordinator.serving.log.steps import lack_text
from coordinator.storage.blobs.blobs import BlobDamaged, BlobsAway
from coordinator.storage.database import DatabaseBusy, DatabaseDamaged
from coordinator.storage.dialects.postgres import DatabaseAway
from coordinator.storage.errors import StoreError
from coordinator.watch.logs import about

# These say all of it in a line.
DAMAGES = (BlobDamaged, BlobsAway, DatabaseAway, DatabaseBusy, DatabaseDamaged, StoreError)
SILENCE_S = 2.0  # between two lines of one run: many devices may come at once
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


class Lacks:
    """What each run was last said to wait for; used by one thread at a time."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}

    def say(
        self,
        live: Live,
        alive: Collection[str],
        names_of: Callable[[Iterable[str]], list[str]],
        now_s: float,
    ) -> None:
        """Say what a run waits for, if it is something else than before.

        Args:
            live: The run.
            alive: Devices that are there.
            names_of: What people call them.
            now_s: Unix time.
        """
        said, at_s = self._said.get(live.run.run_id, ("", -SILENCE_S))
        lack = lack_text(live, alive, names_of)
        if lack and lack != said and now_s - at_s >= SILENCE_S:
            LOG.info("%s", lack, extra=about(live.config.name))
            self._said[live.run.run_id] = (lack, now_s)
        elif not lack:
            self.forget(live)

    def forget(self, live: Live) -> None:
        """A run waits for nobody now: what it waits for next is said anew."""
        self._said.pop(live.run.run_id, None)
