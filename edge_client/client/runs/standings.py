"""How a device stands to its coordinator's runs: those it is in, declines, or has seen end.

What is said of it goes to the coordinator by `say`, as often as that asks.
"""

import logging
import math
import time

from edge_client.client.failures import Declined, Standing, not_known
from edge_client.client.state import ClientState
from edge_client.client.transport import Coordinator, Refused, Unreachable, patiently
from edge_client.wire.fleet import Membership, Terms
from edge_client.wire.messages import Receipt

log = logging.getLogger(__name__)

SAID_AGAIN_S = 1.0


class Standings:
    """A device's runs.

    Args:
        state: Its state folder.

    Attributes:
        joined: Runs that go on with it, by their ids.
        declined: Runs that it cannot take part in, as things are; by their ids.
        finished: Names of runs that are over, by their ids.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self.joined: dict[str, Standing] = {}
        self.declined: dict[str, Declined] = {}
        self.finished: dict[str, str] = {}
        self._said: set[tuple[str, str]] = set()

    def of(self, run_id: str) -> Standing:
        """How it stands to a run whose work it is given; it may have joined in an earlier life."""
        if run_id not in self.joined:
            self.joined[run_id] = Standing(self._state.terms(run_id))
        return self.joined[run_id]

    def terms(self, run_id: str) -> Terms | None:
        """What a run asks, as far as that is known here."""
        standing = self.joined.get(run_id)
        return (standing.terms if standing else None) or self._state.terms(run_id)

    @property
    def is_done(self) -> bool:
        """Whether each run that it joined is over, and there was one.

        Raises:
            Exception: It could take part in none; the first reason.
        """
        if self.joined:
            return False
        if not self.finished and self.declined:
            raise next(iter(self.declined.values())).error
        return bool(self.finished)

    def say(
        self,
        coordinator: Coordinator,
        run_id: str,
        membership: Membership,
        patience_s: float = math.inf,
    ) -> Receipt | None:
        """Say how this device stands to a run; None: the coordinator did not hear of it.

        Raises:
            ClientError: It does not know this device.
        """
        if (run_id, membership.state) in self._said:
            time.sleep(SAID_AGAIN_S)  # one that asks again and again is not kept busy
        self._said.add((run_id, membership.state))
        try:
            return patiently(lambda: coordinator.membership(run_id, membership), patience_s)
        except Refused as error:
            if error.status == 401:
                raise not_known(coordinator.url, error) from error
            log.warning("run %s: the coordinator does not want to hear of it: %s", run_id, error)
        except Unreachable as error:
            log.warning("run %s: %s", run_id, error)
        return None
