"""Outbox: finished work, on disk before it is sent, deleted once it is acknowledged.

A proxy or filter may pass small messages but never an update. The coordinator is then told by a
small message, and ever fewer of the next updates are tried.
"""

import logging
import math
import time
from dataclasses import dataclass, replace

from smidgen.edge_client.client.failures import ClientError, not_known
from smidgen.edge_client.client.progress_log import in_short
from smidgen.edge_client.client.state import ClientState, FinishedWork
from smidgen.edge_client.client.transport import Coordinator, Refused, Unreachable, patiently
from smidgen.edge_client.errors import Failed
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.tables import size
from smidgen.edge_client.wire.messages import Receipt, Report, Work
from smidgen.edge_client.wire.reports import Failure

MOST_413 = 4  # of one update, before they are believed: one may be of a proxy that starts
STUCK_TRIES, STUCK_S = 12, 300.0  # of a body that does not get through, where small messages do
LONGEST_GAP = 31  # updates of a run that are not tried, between two that are

log = logging.getLogger(__name__)


class NotThrough(Failed):
    """Something between device and coordinator does not let an update through.

    Args:
        message: For people.
        code: What the coordinator hears.
        size_bytes: The update's.
    """

    def __init__(self, message: str, code: Failure, size_bytes: int) -> None:
        super().__init__(message)
        self.code, self.size_bytes = code, size_bytes


@dataclass
class Tries:
    """What came of the tries to send one update.

    Attributes:
        url: The coordinator's.
        size_bytes: The update's.
        refused: Answers of 413 by something in between.
        stuck: Tries in a row in which the coordinator was heard, and nothing of the body arrived.
        since_s: When the first of these was.
    """

    url: str
    size_bytes: int
    refused: int = 0
    stuck: int = 0
    since_s: float = 0.0

    def failed(self, error: Unreachable, now_s: float) -> None:
        """Note one that failed.

        Raises:
            NotThrough: There is no use in trying on.
        """
        self.refused += error.status == 413
        is_stuck = error.is_body_alone and not error.is_further
        self.stuck = self.stuck + 1 if is_stuck else 0
        self.since_s = self.since_s if self.stuck > 1 else now_s
        where = f"between this device and {self.url}"
        what = f"an update of {size(self.size_bytes)} ({self.size_bytes} bytes)"
        if self.refused >= MOST_413:
            raise NotThrough(
                f"something {where} refuses {what} as too large (413): raise the limit of the "
                "proxy there (nginx: client_max_body_size; Caddy: request_body max_size)",
                "too_large",
                self.size_bytes,
            ) from error
        if self.stuck >= STUCK_TRIES and now_s - self.since_s >= STUCK_S:
            raise NotThrough(
                f"something {where} lets small messages through, and {what} in none of "
                f"{self.stuck} tries: {error}",
                "transfer",
                self.size_bytes,
            ) from error


@dataclass
class _Gap:
    code: Failure
    size_bytes: int
    length: int
    left: int


class Barriers:
    """Runs whose updates something in between does not let through.

    After one that was not, the next is tried; then one is left out, then three, seven ... To train
    for each of them would be in vain. A client that is started again tries at once.
    """

    def __init__(self) -> None:
        self._gaps: dict[str, _Gap] = {}

    def met(self, run_id: str, report: Report) -> None:
        """An update of a run was not let through, as its report says."""
        before, code = self._gaps.get(run_id), report.failure or "too_large"
        length = min(2 * before.length + 1, LONGEST_GAP) if before else 0
        self._gaps[run_id] = _Gap(code, report.refused_bytes, length, length)

    def passed(self, run_id: str) -> None:
        self._gaps.pop(run_id, None)

    def in_vain(self, work: Work) -> FinishedWork | None:
        """The answer to work that is not worth doing now; None: it is tried."""
        gap = self._gaps.get(work.run_id)
        if work.kind != "train" or gap is None or not gap.left:
            return None
        gap.left -= 1
        report = Report(work.work_id, "failed", failure=gap.code, refused_bytes=gap.size_bytes)
        after = f"after {gap.left} more" if gap.left else "with the next work"
        return FinishedWork(
            report,
            None,
            f"not trained, for the last update was not let through; tried again {after}",
        )


def deliver_all(coordinator: Coordinator, state: ClientState) -> None:
    """Send what an earlier life has finished, whether or not this one can do more.

    A life that gave up is over: this one is asked again, and has not left anything yet.
    """
    for kept in state.finished():
        finished = replace(kept, report=replace(kept.report, is_leaving=False))
        deliver(coordinator, state, None, finished, WorkMeter(coordinator.traffic))


def keep(state: ClientState, finished: FinishedWork) -> bool:
    """Put finished work in the outbox; false where a full disk has to do without."""
    try:
        state.keep_finished(finished)
    except OSError as error:
        log.warning("%s is not kept until it is sent: %s", finished.report.work_id, error)
        return False
    return True


def deliver(
    coordinator: Coordinator,
    state: ClientState,
    work: Work | None,
    finished: FinishedWork,
    meter: WorkMeter,
    wait_s: float = 0.0,
) -> FinishedWork | None:
    """Send update and report until they are acknowledged, then forget them.

    Args:
        coordinator: Asked again and again while it does not answer.
        state: Holds the outbox.
        work: What was asked; None for an answer from before a restart.
        finished: The answer.
        meter: Counts what sending costs.
        wait_s: How long the receipt of work that is done may wait for what is next.

    Returns:
        What the coordinator took, also if it came too late: the answer, or that its update was not
        let through. None: it refused it.

    Raises:
        ClientError: It does not know this device.
    """
    report, is_counted = finished.report, True
    try:
        if finished.update is not None:
            try:
                with meter.phase("upload"):
                    is_begun = work is None  # perhaps: it may have been cut by a restart
                    begun_s = time.monotonic()
                    receipt = _sent(coordinator, report.work_id, finished.update, meter, is_begun)
                if not is_begun:
                    state.link.sent(len(finished.update), time.monotonic() - begun_s)
                is_counted = receipt.accepted
            except NotThrough as error:
                finished = _not_through(report, error)
        cost = report.cost.delivered(meter.cost()) if work is None else meter.cost()
        finished = replace(finished, report=replace(finished.report, cost=cost))
        is_done = finished.report.outcome == "done"
        log.log(
            logging.INFO if is_done else logging.ERROR, "%s", in_short(work, finished, is_counted)
        )
        wait_s = wait_s if is_done else 0.0
        patiently(lambda: coordinator.report(finished.report, meter, wait_s), math.inf)
    except Refused as error:
        if error.status == 401:
            raise not_known(coordinator.url, error) from error
        if error.status == 403 and work is not None:
            raise ClientError(f"{coordinator.url} does not take it: {error}") from error
        log.warning("the coordinator does not want %s: %s", report.work_id, error)
        state.forget_finished(report.work_id)
        return None
    state.forget_finished(report.work_id)
    return finished


def _sent(
    coordinator: Coordinator, work_id: str, update: bytes, meter: WorkMeter, is_begun: bool
) -> Receipt:
    """Send an update until somebody answers who is the coordinator.

    Raises:
        NotThrough: Nobody will.
    """
    tries = Tries(coordinator.url, len(update))

    def send() -> Receipt:
        try:
            return coordinator.upload(work_id, update, meter, is_begun)
        except Unreachable as error:
            tries.failed(error, time.monotonic())
            raise

    return patiently(send, math.inf)


def _not_through(report: Report, error: NotThrough) -> FinishedWork:
    """What is said instead of a report whose update is not let through."""
    refused = error.size_bytes if error.code == "too_large" else 0
    told = Report(report.work_id, "failed", failure=error.code, refused_bytes=refused)
    return FinishedWork(told, None, str(error))
