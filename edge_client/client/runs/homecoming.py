"""How finished runs' adapters come home: fetched, written down, and said to be there."""

import logging
import time
from functools import partial

from edge_client.client.adapters import Adapters, take_home
from edge_client.client.failures import MOST_IN_A_ROW, Standing, code_of, is_lasting
from edge_client.client.runs.own import OwnAdapter
from edge_client.client.runs.standings import Standings
from edge_client.client.settings import Settings
from edge_client.client.state import ClientState
from edge_client.client.transport import (
    MOST_ADAPTER_BYTES,
    Coordinator,
    Refused,
    TransportError,
)
from edge_client.errors import Failed, WrongInput
from edge_client.metering.work import WorkMeter
from edge_client.wire.fleet import Membership
from edge_client.wire.messages import Over, Receipt, WireError
from edge_client.wire.reported.failures import Failure

log = logging.getLogger(__name__)

PARTING_S = 60.0  # how long a coordinator whose run is finished is waited for
LONGEST_PAUSE_S = 30.0


class Homecoming:
    """Takes adapters of finished runs home.

    Args:
        coordinator: Has them.
        settings: What the client was started with.
        state: Its state folder.
        standings: Are kept.
        adapters: Those of work, in which a finished one may be, too.
        own: Makes an adapter of this device's own by them.

    Attributes:
        folder: Of the last one; empty where there is none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: Settings,
        state: ClientState,
        standings: Standings,
        adapters: Adapters,
        own: OwnAdapter,
    ) -> None:
        self._coordinator, self._settings, self._state = coordinator, settings, state
        self._standings, self._adapters, self._own, self.folder = standings, adapters, own, ""
        self._tries: dict[str, int] = {}  # in vain, by run

    def of(self, over: Over) -> bool:
        """Fetch a finished run's adapter and say so; what fails is tried again.

        Returns:
            Whether to ask what is next; false where it would be the same for ever.
        """
        run_id, standings = over.run_id, self._standings
        terms = standings.terms(run_id)
        standings.joined.pop(run_id, None)
        standings.declined.pop(run_id, None)
        standings.finished[run_id] = over.run_name
        try:
            if terms is None:
                raise Refused(404, "its terms are not here any more")
            fetch = partial(self._coordinator.adapter, meter=WorkMeter())
            # Beside those of the runs that go on.
            known, runs = (over.adapter_sha256, MOST_ADAPTER_BYTES), len(standings.joined) + 1
            body = self._adapters.body(*known, fetch, runs, PARTING_S)
            settings = self._settings.on_base(terms.base_id)
            self.folder = take_home(self._state, terms, settings, over, body)
            kept = self._state.finished_run(terms.run_name)  # the next run does not write over it
            self._own.follows(terms, str(kept) if kept.is_dir() else self.folder)
        except (Failed, WrongInput, OSError) as error:  # TransportError and WireError are Failed
            self.folder = ""
            return self._not_had(over, error)
        receipt = self._say(run_id, Membership("home"))
        if receipt is not None and not receipt.accepted:  # it goes on, for its operator extended it
            del standings.finished[run_id]
            standings.joined[run_id] = Standing(terms)
        elif receipt is not None:
            self._state.forget_terms(run_id)
        return receipt is not None

    def _not_had(self, over: Over, error: Exception) -> bool:
        """A finished adapter is not to be had: now, or at all where the coordinator refuses.

        One that arrives damaged, or that cannot be written down, comes no better for ever: the
        device does without it, for other runs wait behind it. A full disk or a cut line may pass.
        """
        run_id = over.run_id
        tries = self._tries[run_id] = self._tries.get(run_id, 0) + 1
        if tries == 1:
            log.error("run %s is finished, its adapter not to be had: %s", over.run_name, error)
        if tries > MOST_IN_A_ROW and self._settings.is_until_finished:
            return False  # told that it does without, the coordinator says it again
        is_vain = isinstance(error, WireError) or is_lasting(error, None)
        if isinstance(error, Refused) or (is_vain and tries >= MOST_IN_A_ROW):
            code: Failure = "transfer" if isinstance(error, TransportError) else code_of(error)
            told = self._say(run_id, Membership("declined", code))
            if told is not None:
                self._state.forget_terms(run_id)
            return told is not None
        if tries >= MOST_IN_A_ROW and self._settings.is_until_finished:
            return False  # it is there for the next life
        time.sleep(min(0.25 * 2.0 ** min(tries, 16), LONGEST_PAUSE_S))
        return True

    def _say(self, run_id: str, membership: Membership) -> Receipt | None:
        return self._standings.say(self._coordinator, run_id, membership, PARTING_S)
