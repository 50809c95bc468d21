"""Joining runs: the device's membership in each, by invitation, or why it declines.

It joins when invited, when a missing base has been downloaded, or when a fault has been mended.
"""

import logging
import math
import time
from collections.abc import Callable

from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.client.failures import (
    ERRORS,
    Declined,
    GaveUp,
    OtherBase,
    RunMembership,
    code_of,
    not_known,
)
from smidgen.edge_client.client.packs.fetch import Fetching, NotFetched, PackDownloading
from smidgen.edge_client.client.progress_log import called
from smidgen.edge_client.client.state import ClientState
from smidgen.edge_client.client.transport import Coordinator, Refused, Unreachable, patiently
from smidgen.edge_client.client.worker import Worker
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.planning.plan import BudgetError
from smidgen.edge_client.wire.fleet import Membership, Terms
from smidgen.edge_client.wire.messages import Receipt

log = logging.getLogger(__name__)

SAID_AGAIN_S = 1.0


class Standings:
    """A device's runs.

    Args:
        state: Its state folder.

    Attributes:
        joined: Runs that go on with it, by their ids.
        declined: Runs that it cannot take part in, as things are, or whose adapter it cannot have;
            by their ids.
        finished: Names of runs that are over, by their ids.
        left: Runs that it has left in this life, too many of whose works failed.
    """

    def __init__(self, state: ClientState) -> None:
        self._state = state
        self.joined: dict[str, RunMembership] = {}
        self.declined: dict[str, Declined] = {}
        self.finished: dict[str, str] = {}
        self.left: set[str] = set()
        self._said: set[tuple[str, str]] = set()

    def of(self, run_id: str) -> RunMembership:
        """How it stands to a run whose work it is given; it may have joined in an earlier life."""
        if run_id not in self.joined:
            self.joined[run_id] = RunMembership(self._state.joined.terms(run_id))
        return self.joined[run_id]

    def terms(self, run_id: str) -> Terms | None:
        """What a run asks, as far as that is known here."""
        standing = self.joined.get(run_id)
        return (standing.terms if standing else None) or self._state.joined.terms(run_id)

    @property
    def is_done(self) -> bool:
        """Whether no run goes on with it, and there was one, if only one that it declined."""
        return not self.joined and bool(self.finished or self.declined)

    def check(self) -> None:
        """See that this device has the adapters of the runs that are over.

        Raises:
            Exception: It has missed one, or could take part in none; the first reason.
        """
        errors = [one.error for one in self.declined.values()]
        missed = [error for error in errors if isinstance(error, GaveUp)]
        if missed or (errors and self.finished.keys() <= self.declined.keys()):
            raise (missed or errors)[0]

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


LOOK_AGAIN_S = 300.0  # a run that could not be joined is looked at again
SAY_EVERY_S = 60.0  # that a pack is fetched, to hear whether its run still goes on
FETCHING = Membership("declined", "fetching")


class LowRank(BudgetError):
    """A run that needs a larger rank than this device takes."""


class Joining:
    """How a device comes into runs.

    Args:
        coordinator: Hears of it.
        worker: Sees whether this device can do what a run asks.
        fetching: Fetches packs of runs with another base.
        standings: Are kept.
        state: Keeps the terms of runs that were joined.
        clock: Seconds, ever growing.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        worker: Worker,
        fetching: Fetching,
        standings: Standings,
        state: ClientState,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator, self._worker, self._fetching = coordinator, worker, fetching
        self._standings, self._state, self._clock = standings, state, clock
        self._said_s = -math.inf  # when the coordinator last heard of runs that it is fetched for

    def invited(self, terms: Terms, *, is_asked: bool = True) -> None:
        """Join a run that this device can take part in; else say why, here in words.

        Whoever asks is answered each time: an invitation without an answer comes again at once.
        """
        run_id, was_in = terms.run_id, terms.run_id in self._standings.joined
        try:
            joined = self._worker.look(terms)
            self._state.joined.keep(terms)
        except ERRORS as found:
            is_base = isinstance(found, OtherBase)
            error = self._fetching.instead_of(found, terms) if is_base else found
            self._declined(terms, error)
            if is_asked:
                self._say(run_id, Membership("declined", code_of(error)))
                self._said_s = self._clock()
            return
        self._standings.declined.pop(run_id, None)
        receipt = self._say(run_id, joined)
        if receipt is not None and receipt.accepted:
            if not was_in:
                log.info("joined run %s%s", called(terms), _terms_text(terms, joined))
            self._standings.joined.setdefault(run_id, RunMembership(terms)).terms = terms
        elif receipt is not None and (joined.most_rank or joined.mask_key):
            kind = LowRank if joined.most_rank else Failed
            self._declined(terms, kind(receipt.reason))
        if not was_in and (receipt is None or not receipt.accepted):
            self._state.forget_terms(run_id)

    def look_again(self) -> None:
        """A run that could not be joined may be by now: memory is free, files are mended."""
        now_s = self._clock()
        for declined in list(self._standings.declined.values()):
            if declined.terms is not None and now_s - declined.at_s >= LOOK_AGAIN_S:
                self.invited(declined.terms, is_asked=False)

    def fetch(self) -> None:
        """Fetch packs for a while; runs whose pack is here are joined."""
        if self._fetching.is_under_way and self._clock() - self._said_s >= SAY_EVERY_S:
            for terms in self._fetching.runs:
                receipt = self._say(terms.run_id, FETCHING)
                if receipt is None or not receipt.accepted:
                    self._ended(terms)
            self._said_s = self._clock()
        for terms in self._fetching.go_on():
            self.invited(terms)

    def _ended(self, terms: Terms) -> None:
        """A run is over, or its coordinator wants to hear no more of it."""
        self._fetching.drop(terms.run_id)
        error = NotFetched(f"run {called(terms)} was over before its pack was here")
        log.info("%s; it is not fetched any more", error)
        self._standings.declined[terms.run_id] = Declined(None, error, self._clock())

    def _declined(self, terms: Terms, error: Exception) -> None:
        before = self._standings.declined.get(terms.run_id)
        is_news = before is None or code_of(before.error) != code_of(error)
        if is_news and not isinstance(error, PackDownloading):
            log.error(
                "run %s cannot be joined: %s; it is looked at again every %.0f min while this "
                "client runs",
                called(terms),
                error,
                LOOK_AGAIN_S / 60,
            )
        self._standings.declined[terms.run_id] = Declined(terms, error, self._clock())
        self._standings.joined.pop(terms.run_id, None)

    def _say(self, run_id: str, membership: Membership) -> Receipt | None:
        return self._standings.say(self._coordinator, run_id, membership)


def _terms_text(terms: Terms, joined: Membership) -> str:
    """What its owner should know: a rank less than the run's, and that updates are masked."""
    whole = parse_adapter(terms.adapter_spec).largest_rank
    rank = f", at rank {joined.most_rank} of {whole}" if joined.most_rank else ""
    secure = ", with secure aggregation: its coordinator learns sums of updates alone"
    return f"{rank}{secure}" if joined.mask_key else rank
