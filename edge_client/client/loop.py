"""The client loop: poll for work, do it, answer, repeat; every step survives a power cut.

    enrol -> wait -> download -> load -> label, train or evaluate -> upload -> report -> wait ...

A device serves all runs that want it, one piece of work at a time. Finished work is in the outbox
before it is sent; interrupted work is handed out again and gives the same bytes, since its seeds
depend on run, device and round alone.
"""

import logging
import math
import time
from dataclasses import replace
from functools import partial

from smidgen.edge_client.client.enrolment import (
    check_protocol,
    enrol,
    identity_of,
    is_unheard,
    last_elsewhere,
)
from smidgen.edge_client.client.failures import (
    ERRORS,
    ClientError,
    Declined,
    GaveUp,
    NotTaken,
    RunMembership,
    failed,
    is_lasting,
    not_known,
    too_old,
)
from smidgen.edge_client.client.outbox import Barriers, deliver, deliver_all, keep
from smidgen.edge_client.client.packs.fetch import Fetching
from smidgen.edge_client.client.packs.sources import Served
from smidgen.edge_client.client.progress_log import Teller, begun
from smidgen.edge_client.client.runs.adapters import Adapters
from smidgen.edge_client.client.runs.joining import SAID_AGAIN_S, Joining, Standings
from smidgen.edge_client.client.runs.own import Homecoming, OwnAdapter
from smidgen.edge_client.client.settings import Settings, Summary
from smidgen.edge_client.client.state import ClientState, FinishedWork, Identity
from smidgen.edge_client.client.transport import (
    Coordinator,
    Refused,
    TransportError,
    Unreachable,
    patiently,
)
from smidgen.edge_client.client.worker import Worker
from smidgen.edge_client.guest.guest import Guest
from smidgen.edge_client.guest.process import (
    Ended,
    look,
    nap,
    settle,
    status,
    tell,
    waiting,
    working,
)
from smidgen.edge_client.guest.steps import Paused
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.updates.masks import NotAmong
from smidgen.edge_client.wire.fleet import MOST_RETURNS, Outdated, draw_life
from smidgen.edge_client.wire.messages import Next, Work
from smidgen.edge_client.wire.tensors import decode_adapter

log = logging.getLogger(__name__)


class Client:
    """A device and its coordinator.

    Args:
        settings: What it was started with.
        state: Its state folder.
    """

    def __init__(self, settings: Settings, state: ClientState) -> None:
        self._settings, self._state = settings, state
        self._guest = Guest(settings.rules)
        self._worker = Worker(settings, state, self._guest)
        self._teller = Teller()
        self._me = Identity(settings.url, "")
        self._standings = Standings(state)
        self._barriers = Barriers()
        self._adapters, self._own = Adapters(state), OwnAdapter(settings, state)
        self._works = self._failures = 0
        self._minimum = ""  # of clients that get work, where this one is older and has said so
        self._returns = 0  # how often it had to enrol again
        self._fetching: Fetching  # once it is known who this device is
        self._joining: Joining  # likewise
        self._homecoming: Homecoming  # likewise

    def run(self) -> Summary:
        """Serve the runs that want this device: for ever, or until those it joined are over.

        Raises:
            ClientError: Wrong token, or another protocol; of the only run, another base.
            BudgetError: No plan fits the memory budget, and there is no other run to serve.
            DataError: The device's texts do not fit, and there is no other run to serve.
            GaveUp: Too many pieces of work of the only run failed one after the other, or a run
                ended and this device does not have its adapter.
            TransportError: Nobody answered at the start.
        """
        elsewhere = last_elsewhere(self._settings, self._state)
        known = identity_of(self._settings, self._state)
        verify, life, is_stopped = self._settings.verify, draw_life(), False
        url, alive = self._settings.url, self._guest.alive  # who hears no answer is, too
        coordinator = Coordinator(url, known.key, verify=verify, life=life, on_asked=alive)
        served = Served(url, known.key, verify, on_asked=alive)
        packs, mirrors = self._settings.packs, self._settings.mirrors
        self._fetching = Fetching(packs, mirrors, served, self._state.base_ids)
        standings, state = self._standings, self._state
        self._joining = Joining(coordinator, self._worker, self._fetching, standings, state)
        self._homecoming = Homecoming(
            coordinator, self._settings, state, standings, self._adapters, self._own
        )
        try:
            try:
                self._me = enrol(coordinator, known, self._settings, elsewhere)
            except (ClientError, Unreachable) as error:
                if is_unheard(error):
                    self._state.forget_new_identity()
                raise
            self._state.keep_identity(self._me)
            tell("READY=1", "STATUS=enrolled")
            deliver_all(coordinator, self._state)
            self._guest.begin()
            self._serve(coordinator)
            standings.check()
        except Ended:
            settle()
            is_stopped = True
            log.info("told to end; what was done is kept in %s", self._state.folder)
        except GaveUp as error:
            error.summary = self._summary()
            raise
        finally:
            tell("STOPPING=1")
            coordinator.close()
            served.close()
            self._fetching.close()
            self._worker.close()
            if not is_stopped:  # whoever is told to end is started again
                self._homecoming.forget()
        return self._summary(is_stopped=is_stopped)

    def _summary(self, *, is_stopped: bool = False) -> Summary:
        me, declined = self._me, self._standings.declined
        had = (name for one, name in self._standings.finished.items() if one not in declined)
        done, adapter = (self._works, self._failures, tuple(had)), self._homecoming.folder
        return Summary(me.device_id, me.name, *done, adapter, is_stopped, self._own.folder)

    def _serve(self, coordinator: Coordinator) -> None:
        wait_s = 0.0  # at first, to say what is waited for
        while True:
            look()
            if not self._guest.may_work():
                # Who pauses holds nothing, but texts where there is memory for them.
                self._worker.close(keeps_texts=not self._guest.is_short)
                self._guest.wait()
            if self._own.is_due:
                self._worker.close(keeps_texts=True)
                try:
                    with working():
                        self._own.make(self._stay)
                except Paused:  # it stays due
                    continue
            meter = WorkMeter(coordinator.traffic)
            try:
                with meter.phase("wait"):
                    given = self._next(coordinator, wait_s, meter)
            except Unreachable:  # it may have ended with its last run
                return
            wait_s = 0.0
            if given.outdated is not None:
                self._outdated(given.outdated)
                continue
            self._minimum = ""
            if not self._standings.joined:  # what came before is over, and the next may be another
                self._worker.close()
            if given.terms is not None:
                self._joining.invited(given.terms)
            elif given.over is not None:
                if not self._homecoming.of(given.over) and self._is_done():
                    return
            elif given.work is not None:
                if not self._guest.may_work():  # by now; it is handed out again
                    continue
                self._teller.worked()
                wait_s = 0.0 if self._fetching.is_under_way else self._settings.wait_s
                self._work(coordinator, given.work, meter, wait_s)
            elif given.waiting is not None:
                if given.waiting.phase == "idle":
                    self._homecoming.recall()
                if self._is_done():
                    return
                self._teller.waiting(given.waiting)
                self._joining.look_again()
                self._joining.fetch()
                wait_s = 0.0 if self._fetching.is_under_way else self._settings.wait_s

    def _stay(self, _texts: int) -> None:
        self._guest.stay()

    def _next(self, coordinator: Coordinator, wait_s: float, meter: WorkMeter) -> Next:
        """What the coordinator says; it is waited for while there is anything to come.

        Raises:
            ClientError: It does not know this device any more, or speaks another protocol.
            Unreachable: It is gone, and nothing is missing.
        """
        standings = self._standings
        is_last = standings.finished and not standings.joined
        is_parting = self._settings.is_until_finished and is_last
        patience_s = 0.0 if is_parting else math.inf
        try:
            given = patiently(partial(coordinator.next_work, wait_s, meter), patience_s)
        except Refused as error:
            if error.status == 409:
                return self._still_me(coordinator, error)
            if error.status in (401, 403):
                raise not_known(self._settings.url, error) from error
            raise
        if given.work is not None:
            check_protocol(self._settings.url, given.work.protocol)
        return given

    def _still_me(self, coordinator: Coordinator, error: Refused) -> Next:
        """Enrol again: another life may have been heard late that has long ended.

        Raises:
            ClientError: The other one is still there, and this one is the older.
        """
        if self._returns == MOST_RETURNS:
            log.error("%s", error)
            time.sleep(self._settings.parting_s)
            raise not_known(self._settings.url, error) from error
        self._returns += 1
        time.sleep(SAID_AGAIN_S)
        self._me = enrol(coordinator, self._me, self._settings)
        return self._next(coordinator, 0.0, WorkMeter())

    def _outdated(self, outdated: Outdated) -> None:
        """Say what to install, and wait until it is or the coordinator asks for less.

        Raises:
            TooOld: This client is to end when there is nothing more to do.
        """
        error = too_old(self._settings.version, outdated.minimum, self._state.folder)
        if self._settings.is_until_finished:
            raise error
        if outdated.minimum != self._minimum:
            log.error("%s", error)
            self._minimum = outdated.minimum
        self._worker.close()  # that may take weeks
        self._fetching.close()
        nap(self._settings.parting_s)

    def _is_done(self) -> bool:
        """Whether a client that serves until its runs are over has nothing more to come."""
        is_ending = self._settings.is_until_finished and not self._fetching.is_under_way
        return is_ending and self._standings.is_done

    def _work(self, coordinator: Coordinator, work: Work, meter: WorkMeter, wait_s: float) -> None:
        """Do one piece of work and answer it; wait as long for what is next.

        Raises:
            WrongInput: It cannot be done until this client is given something else, and there is
                no other run; the coordinator has been told that the device leaves.
            GaveUp: One too many has failed; so has it here.
        """
        if (answered := self._barriers.in_vain(work)) is not None:
            deliver(coordinator, self._state, work, answered, meter)
            self._failures += 1
            return
        run_id = work.run_id
        standing = self._standings.of(run_id)
        log.info("%s", said := begun(work, standing.terms))
        status(said)
        error: Exception | None = None
        with working():  # until it is in the outbox
            try:
                with meter.working():
                    finished = self._done(coordinator, work, standing, meter)
            except Refused as refused:
                if refused.status == 401:
                    raise not_known(self._settings.url, refused) from refused
                log.warning("%s: its adapter is not to be had: %s", work.work_id, refused)
                nap(SAID_AGAIN_S)  # its step is closed; what is next is another one
                return
            except Paused:  # it is handed out again, and goes on where it was
                return
            except ERRORS as found:
                if isinstance(found, TransportError):
                    raise
                error, finished = found, self._failed(work, standing, found)
                if isinstance(found, NotAmong) and standing.terms is not None:
                    self._joining.invited(standing.terms)  # which tells the key there is now
            finally:
                self._worker.rest()
            finished = replace(finished, report=replace(finished.report, cost=meter.cost()))
            if keep(self._state, finished):
                self._state.forget_steps(work.work_id)
        taken = deliver(coordinator, self._state, work, finished, meter, wait_s)
        self._state.forget_steps(work.work_id)  # also where the outbox could not be written
        if taken is not None and taken.report.outcome != finished.report.outcome:
            self._barriers.met(run_id, taken.report)  # that is no fault of this device
            self._failures += 1
            return
        if taken is not None and finished.update is not None:
            self._barriers.passed(run_id)
        if taken is None and error is None:
            # Unanswered, the same work would be handed out again at once, for ever.
            error = NotTaken("the coordinator refused what was sent")
            finished = self._failed(work, standing, error)
            deliver(coordinator, self._state, work, finished, meter)
        self._count(run_id, standing, error, finished)

    def _done(
        self, coordinator: Coordinator, work: Work, standing: RunMembership, meter: WorkMeter
    ) -> FinishedWork:
        base_name = standing.terms.base_name if standing.terms else "of that run"
        orders = [order for order in work.updates if order.shared_sha256]
        most = len(self._standings.joined) * (1 + len(orders))
        self._worker.check_sizes(work, base_name)
        with meter.phase("download"), waiting():
            fetch, body_of = partial(coordinator.adapter, meter=meter), self._adapters.body
            if work.kind == "unmask":  # nothing of which is asked for again
                shared = {
                    one.name: patiently(
                        partial(fetch, one.shared_sha256, most_bytes=one.shared_bytes), math.inf
                    )
                    for one in orders
                }
                return self._worker.do(work, self._me.device_id, {}, meter, shared)
            start = decode_adapter(
                body_of(work.adapter_sha256, work.adapter_bytes, fetch, most, steps=work.steps)
            )
            shared = {
                order.name: body_of(order.shared_sha256, order.shared_bytes, fetch, most)
                for order in orders
            }
        return self._worker.do(work, self._me.device_id, start, meter, shared)

    def _count(
        self, run_id: str, standing: RunMembership, error: Exception | None, finished: FinishedWork
    ) -> None:
        if error is None:
            self._works, standing.in_a_row = self._works + 1, 0
            return
        self._failures, standing.in_a_row = self._failures + 1, standing.in_a_row + 1
        if not finished.report.is_leaving:
            return
        joined = self._standings.joined
        joined.pop(run_id, None)
        self._standings.left.add(run_id)
        if joined:
            log.error("this device has left one run, and goes on in %d", len(joined))
        if not self._settings.is_until_finished and standing.terms is not None:
            self._standings.declined[run_id] = Declined(standing.terms, error, time.monotonic())
        if joined:
            return
        if not self._settings.is_until_finished:
            log.error("this device has left its only run, and waits for the next one")
            return
        if is_lasting(error, self._settings.budget_bytes):
            raise error
        raise GaveUp(
            f"{standing.in_a_row} pieces of work failed one after the other, the last with "
            f"{finished.reason}; this device has left the run until it is started again"
        ) from error

    def _failed(self, work: Work, standing: RunMembership, error: Exception) -> FinishedWork:
        if isinstance(error, OSError):
            self._worker.forget_notes()
        grace_s, budget_bytes = self._settings.grace_s, self._settings.budget_bytes
        report = failed(work, standing, error, time.monotonic(), grace_s, budget_bytes)
        return FinishedWork(report, None, f"{type(error).__name__}: {error}")
