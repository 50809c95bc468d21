"""Packs that this device fetches for runs, one after the other, while there is nothing else to do.

A run whose base is not here is declined as `fetching`, and joined once the pack is: the loop asks
what is next in between, so work of other runs never waits for a long download.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from edge_client.bases.base import Base
from edge_client.client.packs.fetch import Fetch, NotFetched
from edge_client.client.packs.shelf import NoRoom, Shelf
from edge_client.client.packs.sources import Source, Web
from edge_client.errors import Failed, WrongInput
from edge_client.tables import size
from edge_client.wire.fleet import Terms
from edge_client.wire.packs import SHA_256, Pack

log = logging.getLogger(__name__)
SLICE_S = 5.0  # of fetching, between two looks at what is next


def announced_by(pack: Pack) -> list[Source]:
    """The mirrors that a coordinator names; one that is no address is left out, with a line."""
    found: list[Source] = []
    for place, address in enumerate(pack.mirrors, 1):
        try:
            found.append(Web(address))
        except WrongInput:
            log.warning("mirror %d of pack %s is not an address; it is left out", place, pack.name)
    return found


class Underway(Failed):
    """The run's pack is on its way to this device."""


class Fetching:
    """What is fetched, in which order.

    Args:
        shelf: Where packs lie; None: its owner allows none.
        mirrors: What its owner names, asked first.
        served: The coordinator.
        needed: Base ids of the runs that go on.
    """

    def __init__(
        self,
        shelf: Shelf | None,
        mirrors: Sequence[Source],
        served: Source,
        needed: Callable[[], Collection[str]],
    ) -> None:
        self._shelf, self._mirrors, self._served, self._needed = shelf, mirrors, served, needed
        self._due: dict[str, list[Terms]] = {}  # runs by their base's id, in the order of fetching
        self._now: Fetch | None = None
        self._began_s = 0.0
        self._failed: dict[str, Exception] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether there is something to fetch."""
        return bool(self._due)

    def instead_of(self, error: Exception, terms: Terms) -> Exception:
        """Why a run cannot be joined now, where another base is the reason.

        Args:
            error: That reason; it stays where this device fetches nothing.
            terms: The run's; its pack is fetched from now on.
        """
        if self._shelf is None or terms.pack is None:
            return error
        if SHA_256.fullmatch(terms.base_id) is None:  # it names folders of packs
            return NotFetched(
                "the run's base id is not a SHA-256, so no pack can be fetched for it"
            )
        if (failed := self._failed.pop(terms.base_id, None)) is not None:
            return failed
        told = f"the run's base {terms.pack.name} is being fetched"
        runs = self._due.setdefault(terms.base_id, [])
        if terms.run_id not in [one.run_id for one in runs]:
            runs.append(terms)
        return Underway(told)

    def go_on(self, seconds: float = SLICE_S) -> list[Terms]:
        """Fetch for a while; runs to look at again, whose pack is here or not to be had."""
        if self._shelf is None or not self._due:
            return []
        base_id, runs = next(iter(self._due.items()))
        try:
            if self._now is None:
                self._now = self._begun(self._shelf, base_id, runs[0])
            base = self._now.go_on(time.monotonic() + seconds)
        except (NotFetched, NoRoom) as error:
            self._failed[base_id] = error
        except OSError as error:
            self._failed[base_id] = NoRoom(f"--packs {self._shelf.folder}: {error.strerror}")
        else:
            if base is None:
                return []
            self._say_fetched(base)
        self.close()
        return self._due.pop(base_id)

    @property
    def runs(self) -> list[Terms]:
        """The runs for which something is fetched."""
        return [terms for runs in self._due.values() for terms in runs]

    def drop(self, run_id: str) -> None:
        """Fetch nothing more for a run; what has arrived stays while there is room for it."""
        for base_id, runs in list(self._due.items()):
            self._due[base_id] = [terms for terms in runs if terms.run_id != run_id]
            if not self._due[base_id]:
                if base_id == next(iter(self._due)):  # the one under way
                    self.close()
                del self._due[base_id]

    def close(self) -> None:
        """Let go of what is under way; what has arrived stays."""
        if self._now is not None:
            self._now.close()
            self._now = None

    def _begun(self, shelf: Shelf, base_id: str, terms: Terms) -> Fetch:
        pack = terms.pack
        assert pack is not None  # only such runs are due
        stays = {*self._needed(), *self._due}
        for removed in shelf.make_room(base_id, pack.total_bytes, stays):
            log.info("removed pack %s, which no open run needs", removed[:12])
        announced = announced_by(pack)
        sources = [*self._mirrors, *announced, *([self._served] if pack.is_served else [])]
        fetch = Fetch(shelf, base_id, pack, sources)
        log.info(
            "run %s: fetching its base %s (%s, licence: %s) from %s",
            *(terms.run_name, pack.name, size(pack.total_bytes), pack.licence or "not said"),
            ", ".join(source.name for source in sources),
        )
        self._began_s = time.monotonic()
        return fetch

    def _say_fetched(self, base: Base) -> None:
        assert self._now is not None
        spent_s = time.monotonic() - self._began_s
        came = size(self._now.came_bytes)
        log.info("pack %s is here: %s came in %.1f s", base.folder, came, spent_s)
