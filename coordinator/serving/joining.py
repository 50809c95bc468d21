"""Joining and leaving runs: first an event in the journal, then the membership's row.

A member that cannot continue counts as having left, and as returned when it joins again.
"""

import logging

from coordinator.fleet.devices import Fleet, wants
from coordinator.fleet.members import Members
from coordinator.rounds.admission import Refusal, check_failure
from coordinator.rounds.events import Left, Returned
from coordinator.rounds.learning.exact import spec_at_rank
from coordinator.serving.ledger import Ledger, Live
from coordinator.serving.packs import LatePacks
from coordinator.storage.rows.devices import Device
from coordinator.watch.logs import about
from edge_client.adapters.spec import parse_adapter
from edge_client.wire.fleet import Membership
from edge_client.wire.messages import Receipt
from edge_client.wire.reports import SAID, Failure

LOG = logging.getLogger(__name__)


def due_invitation(
    ledger: Ledger, members: Members, device: Device, late: LatePacks
) -> Live | None:
    """The oldest run that wants a device and has not heard from it since its client started.

    One whose base it lacks asks it again where the base's pack has come since then.
    """
    for live in ledger.open():
        member = members.get(live.run.run_id, device.device_id)
        is_told = member is not None and member.at_s >= device.started_at_s
        if member is not None and member.membership.failure == "base":
            is_told &= not late.is_news(live.run, live.config, device.device_id, member.at_s)
        # One that went home is asked again where the run was extended since then.
        is_home = member is not None and member.membership.state == "home"
        if (is_home or not is_told) and wants(live.config, live.run.secret, device):
            return live
    return None


def answer_invitation(
    ledger: Ledger, members: Members, live: Live, device: Device, told: Membership, now_s: float
) -> Receipt:
    """Take in how a device stands to a run; the same twice is as good as once.

    Raises:
        Refusal: 403, the run does not want this device, which is not in it; 422, a code that is not
            a device's to say.
    """
    check_failure(told.failure)
    run_id, device_id = live.run.run_id, device.device_id
    run, whom = live.config.name, about(live.config.name, device.name)
    known = members.said(run_id, device_id)
    is_joined = known is not None and known.is_joined
    at_s = max(now_s, device.started_at_s)
    if told.state == "home":
        if is_joined and live.state.is_finished:
            members.put(run_id, device_id, told, at_s)
        return Receipt(live.state.is_finished, "" if live.state.is_finished else "it is not over")
    if not is_joined and not wants(live.config, live.run.secret, device):
        if known is not None:  # so it is invited anew once it is wanted again
            members.put(run_id, device_id, known.membership, 0.0)
        raise Refusal(403, f"run {live.config.name} does not ask this device")
    has_declined = known is not None and known.membership.state == "declined"
    if told.state == "joined" and has_declined and live.state.is_finished:
        return Receipt(False, "it is over")
    if told.failure == "fetching" and live.state.is_finished:
        return Receipt(False, "it is over")  # so the device fetches nothing more for it
    if told.failure is not None:
        if is_joined:
            leave(ledger, members, run_id, device, told.failure, now_s)
        is_news = known is None or known.membership != told  # who fetches says so each minute
        members.put(run_id, device_id, told, at_s)
        if is_news:
            why = SAID[told.failure]
            LOG.info("%s: %s takes no part: %s", run, device.name, why, extra=whom)
        return Receipt(True)
    if lack := lack_of_rank(live, told):
        if is_joined:
            leave(ledger, members, run_id, device, "budget", now_s)
        members.put(run_id, device_id, Membership("declined", "budget"), at_s)
        LOG.info("%s: %s takes no part: %s", run, device.name, lack, extra=whom)
        return Receipt(False, lack)
    if _returned(ledger, run_id, device_id, now_s):
        LOG.info("%s: device %s is back", run, device.name, extra=whom)
    elif not is_joined:
        LOG.info("%s: device %s joined", run, device.name, extra=whom)
    members.put(run_id, device_id, told, at_s)
    return Receipt(True)


def lack_of_rank(live: Live, told: Membership) -> str:
    """Why a device takes too low a rank for a run, in words; empty where it does not."""
    spec, rank = live.config.adapter, told.most_rank
    if spec_at_rank(spec, rank) == spec or live.config.learning.lora_mean != "factors":
        return ""
    needed = parse_adapter(spec)
    said = f"run {live.config.name} needs rank {needed.largest_rank} of every device, "
    said += f"this one takes {rank} at most"
    return said if needed.net else f"{said}; lora_mean = product takes any"


def leave(
    ledger: Ledger, members: Members, run_id: str, device: Device, failure: Failure, now_s: float
) -> None:
    """A device takes no part for now; once, however often it is said."""
    event = Left(device.device_id, failure, now_s)
    while (live := ledger.run(run_id)) is not None and not _has_left(live, event):
        if live.state.is_finished or ledger.append(live, event):
            break
    at_s = max(now_s, device.started_at_s)
    members.put(run_id, device.device_id, Membership("declined", failure), at_s)


def _has_left(live: Live, event: Left) -> bool:
    """Whether that is known; that a device was revoked takes back what it answered before."""
    why = live.state.left.get(event.device_id)
    return why == "revoked" or (why is not None and event.failure != "revoked")


def dismiss_revoked(ledger: Ledger, members: Members, fleet: Fleet, now_s: float) -> None:
    """Let devices leave that an operator revoked: nobody waits for their work, and none counts.

    So do those that had left before, whose answer would still count.
    """
    revoked = fleet.revoked()
    for live in ledger.open():
        left, *known = live.state.left, live.works, live.state.confidences
        gone = {
            key
            for key in revoked
            if left.get(key) != "revoked" and any(key in some for some in (left, *known))
        }
        for device_id in sorted(gone.union(members.joined_of(live.run.run_id, revoked))):
            device = fleet.get(device_id)
            if device is not None:
                leave(ledger, members, live.run.run_id, device, "revoked", now_s)
                run = live.config.name
                told = about(run, device.name)
                LOG.info("%s: device %s was revoked", run, device.name, extra=told)


def _returned(ledger: Ledger, run_id: str, device_id: str, now_s: float) -> bool:
    while (live := ledger.run(run_id)) is not None and device_id in live.state.left:
        if live.state.is_finished:
            break
        if ledger.append(live, Returned(device_id, now_s)):
            return True
    return False
