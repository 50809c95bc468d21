"""Finished work on its way: on disk before it is sent, and forgotten once it is acknowledged."""

import logging
import math
from dataclasses import replace

from edge_client.client.failures import ClientError, not_known
from edge_client.client.state import Answer, ClientState
from edge_client.client.telling import in_short
from edge_client.client.transport import Coordinator, Refused, patiently
from edge_client.metering.work import WorkMeter
from edge_client.wire.messages import Work

log = logging.getLogger(__name__)


def deliver_all(coordinator: Coordinator, state: ClientState) -> None:
    """Send what an earlier life has finished, whether or not this one can do more.

    A life that gave up is over: this one is asked again, and has not left anything yet.
    """
    for kept in state.finished():
        finished = replace(kept, report=replace(kept.report, is_leaving=False))
        deliver(coordinator, state, None, finished, WorkMeter(coordinator.traffic))


def keep(state: ClientState, finished: Answer) -> None:
    """Put finished work in the outbox; on a full disk it has to do without."""
    try:
        state.keep_finished(finished)
    except OSError as error:
        log.warning("%s is not kept until it is sent: %s", finished.report.work_id, error)


def deliver(
    coordinator: Coordinator,
    state: ClientState,
    work: Work | None,
    finished: Answer,
    meter: WorkMeter,
) -> bool:
    """Send update and report until they are acknowledged, then forget them.

    Args:
        coordinator: Asked again and again while it does not answer.
        state: Holds the outbox.
        work: What was asked; None for an answer from before a restart.
        finished: The answer.
        meter: Counts what sending costs.

    Returns:
        Whether the coordinator took them; one that comes too late is taken.

    Raises:
        ClientError: It does not know this device.
    """
    report, update, is_counted, is_taken = finished.report, finished.update, True, True
    try:
        if update is not None:
            with meter.phase("upload"):
                is_begun = work is None  # perhaps: it may have been cut by a restart
                receipt = patiently(
                    lambda: coordinator.upload(report.work_id, update, meter, is_begun), math.inf
                )
            is_counted = receipt.accepted
        cost = report.cost.delivered(meter.cost()) if work is None else meter.cost()
        finished = replace(finished, report=replace(report, cost=cost))
        patiently(lambda: coordinator.report(finished.report, meter), math.inf)
        level = logging.INFO if report.outcome == "done" else logging.ERROR
        log.log(level, "%s", in_short(work, finished, is_counted))
    except Refused as error:
        if error.status == 401:
            raise not_known(coordinator.url, error) from error
        if error.status == 403 and work is not None:
            raise ClientError(f"{coordinator.url} does not take it: {error}") from error
        log.warning("the coordinator does not want %s: %s", report.work_id, error)
        is_taken = False
    state.forget_finished(report.work_id)
    return is_taken
