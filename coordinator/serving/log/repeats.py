"""Log lines that would repeat: logged once, and again when the state changes.

For devices that back off because they did not answer, and are back; tasks that cannot be done for
now; what runs wait for; clocks that disagree with the database server's, which would make devices
look absent that another process has just heard, and close steps early or late.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from coordinator.rounds.events import Event, StepClosed, StepOpened
from coordinator.rounds.scheduling.participation import Silence, rest_after
from coordinator.rounds.state import State
from coordinator.serving.device_messages import Names
from coordinator.serving.ledger import Live
from coordinator.serving.log.steps import lack_text, listed
from coordinator.storage.blobs.blobs import BlobDamaged, BlobsAway
from coordinator.storage.database import Database, DatabaseBusy, DatabaseDamaged
from coordinator.storage.dialects.postgres import DatabaseAway
from coordinator.storage.errors import StoreError
from coordinator.watch.logs import about
from edge_client.errors import demand


def pace_texts(live: Live, event: Event, after: State, names_of: Names) -> list[str]:
    """Lines on devices that begin to rest, are asked again, or answer again; see `rounds.pace`.

    As many as there are lengths of a rest at most, whatever the number of devices.

    Args:
        live: The run before the event.
        event: A step that opened or closed.
        after: The run's state after it.
        names_of: Names of devices.
    """
    before, now = live.state.silences, after.silences
    if not isinstance(event, StepOpened | StepClosed) or not (before or now):
        return []
    found: list[str] = []
    members = event.members if isinstance(event, StepOpened) else ()  # it may follow a lost step
    asked = {key for _, key in members} & now.keys()
    silent = {key for key, one in now.items() if before.get(key) != one} - asked
    for misses, names in _by_misses(now, silent, names_of):
        rest = _steps(rest_after(misses))
        found.append(f"{names}: no answer in time; asked again after a rest of {rest}")
    for misses, names in _by_misses(now, asked, names_of):
        found.append(f"{names}: asked again after {_steps(misses)} without an answer")
    if back := before.keys() - now.keys():
        found.append(f"{listed(names_of(back))}: answered again; asked as often as others")
    return [f"{live.config.name}: {text}" for text in found]


def _by_misses(
    silences: Mapping[str, Silence], device_ids: Collection[str], names_of: Names
) -> list[tuple[int, str]]:
    """Devices that missed equally many steps in a row, their names in a line."""
    by_misses: dict[int, list[str]] = {}
    for device_id in device_ids:
        by_misses.setdefault(silences[device_id].misses, []).append(device_id)
    return [(misses, listed(names_of(some))) for misses, some in sorted(by_misses.items())]


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


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


MOST_APART_S = 10.0
EVERY_S = 60.0  # between two looks
SET = "set both by the network (NTP) and start it again"


def check_clock(database: Database, now_s: Callable[[], float] = time.time) -> None:
    """Refuse to serve beside others by a clock that is not theirs.

    Raises:
        WrongInput: Says how far it is off.
    """
    apart_s = database.apart_s(now_s)
    demand(abs(apart_s) <= MOST_APART_S, f"this machine's clock is {told(apart_s)}; {SET}")


def told(apart_s: float) -> str:
    """How far a clock is off, in words."""
    where = "ahead of" if apart_s > 0 else "behind"
    return (
        f"{abs(apart_s):.0f} s {where} the database server's, and clocks of one fleet may be "
        f"{MOST_APART_S:.0f} s apart"
    )


class Clocks:
    """Says when the clock of a process that serves is not the database server's; for one thread.

    Args:
        database: The fleet's.
        now_s: The clock.
    """

    def __init__(self, database: Database, now_s: Callable[[], float]) -> None:
        self._database, self._now_s = database, now_s
        self._looked_s, self._is_apart = time.monotonic(), False

    def look(self) -> None:
        """Look once in a while, and say what has changed.

        Raises:
            DatabaseAway: It cannot be asked.
        """
        if time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        apart_s = self._database.apart_s(self._now_s)
        is_apart = abs(apart_s) > MOST_APART_S
        if is_apart and not self._is_apart:
            LOG.warning(
                "the clock that this coordinator goes by is %s: devices are taken for gone, and "
                "steps close early or late; %s",
                told(apart_s),
                SET,
            )
        if self._is_apart and not is_apart:
            LOG.info("the clock that this coordinator goes by is the database server's again")
        self._is_apart = is_apart
