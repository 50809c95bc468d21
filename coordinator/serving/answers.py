"""What devices write into runs: joining, leaving, updates and reports, on disk before the reply.

A member that cannot continue counts as having left, and as returned when it joins again.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from smidgen.coordinator.fleet.devices import Fleet, Members, wants
from smidgen.coordinator.rounds.admission import (
    Refusal,
    check_failure,
    check_masked_update,
    check_report,
    check_shares,
    check_update,
    counted,
)
from smidgen.coordinator.rounds.events import Answered, Left, LossTold, Returned, StepOpened
from smidgen.coordinator.rounds.learning.exact import handed, spec_at_rank
from smidgen.coordinator.rounds.learning.server_update import length_of
from smidgen.coordinator.rounds.learning.unmasking import places_of
from smidgen.coordinator.rounds.scheduling.asking import answer_to
from smidgen.coordinator.rounds.scoring import judged
from smidgen.coordinator.serving.http.uploads import Judge
from smidgen.coordinator.serving.ledger import CLOSED, Ledger, Live, OpenWork, is_work_id
from smidgen.coordinator.serving.log import answer_text
from smidgen.coordinator.serving.packs import LatePacks
from smidgen.coordinator.storage.blobs import BlobDamaged
from smidgen.coordinator.storage.database import Conflict
from smidgen.coordinator.storage.devices import Device, held
from smidgen.coordinator.storage.reports import add_report, inserted
from smidgen.coordinator.storage.store import Store
from smidgen.coordinator.watch.logs import about
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.updates.masks import is_key, ring_in, shares_bytes_of
from smidgen.edge_client.updates.ridge import bytes_of_moments
from smidgen.edge_client.wire.fleet import Membership
from smidgen.edge_client.wire.messages import Receipt, Report
from smidgen.edge_client.wire.reports import SAID, Failure
from smidgen.edge_client.wire.tensors import (
    MAX_UPDATE_OVERHEAD_BYTES,
    AdapterState,
    decode_adapter,
    shapes_of,
)

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
    if lack := lack_of_key(live, members, device_id, told):
        # One that is in it stays, to have the adapter in the end, and has been asked.
        stands = known.membership if is_joined and known else Membership("declined", "engine")
        members.put(run_id, device_id, stands, at_s)
        LOG.info("%s: %s takes no part: %s", run, device.name, lack, extra=whom)
        return Receipt(False, lack)
    if lack := lack_of_rank(live, told):
        if is_joined:
            leave(ledger, members, run_id, device, "budget", now_s)
        members.put(run_id, device_id, Membership("declined", "budget"), at_s)
        LOG.info("%s: %s takes no part: %s", run, device.name, lack, extra=whom)
        return Receipt(False, lack)
    members.put(run_id, device_id, told, at_s)
    if _returned(ledger, run_id, device_id, now_s):
        LOG.info("%s: device %s is back", run, device.name, extra=whom)
    elif not is_joined:
        LOG.info("%s: device %s joined", run, device.name, extra=whom)
    return Receipt(True)


def lack_of_rank(live: Live, told: Membership) -> str:
    """Why a device takes too low a rank for a run, in words; empty where it does not."""
    spec, rank = live.config.adapter, told.most_rank
    if spec_at_rank(spec, rank) == spec or live.config.learning.lora_mean != "factors":
        return ""
    needed = parse_adapter(spec)
    said = f"run {live.config.name} needs rank {needed.largest_rank} of every device, "
    said += f"this one takes {rank} at most"
    return said if needed.net or needed.ridge else f"{said}; lora_mean = product takes any"


def lack_of_key(live: Live, members: Members, device_id: str, told: Membership) -> str:
    """Why a device cannot be in a run with secure aggregation, in words; empty where it can."""
    run, key = f"run {live.config.name}", bytes.fromhex(told.mask_key)
    if not live.config.updates.secured:
        return ""
    if not key:
        return f"{run} has secure aggregation, and this device told no mask_key"
    if device_id in live.state.shut_out:
        return f"{run} asks this device no more: it dealt inconsistent shares"
    others = members.mask_keys(live.run.run_id)
    is_taken = any(one == key for name, one in others.items() if name != device_id)
    return (
        f"{run}: mask_key is another device's, or hides nothing"
        if (is_taken or not is_key(key))
        else ""
    )


def leave(
    ledger: Ledger, members: Members, run_id: str, device: Device, failure: Failure, now_s: float
) -> None:
    """A device takes no part for now; once, however often it is said.

    Raises:
        Refusal: 401, it was forgotten meanwhile.
    """
    event = Left(device.device_id, failure, now_s)
    try:
        while (live := ledger.run(run_id)) is not None and not _has_left(live, event):
            if live.state.is_finished or ledger.append(live, event, held(device.device_id)):
                break
    finally:
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
                with suppress(Refusal):  # it was forgotten meanwhile
                    leave(ledger, members, live.run.run_id, device, "revoked", now_s)
                run = live.config.name
                told = about(run, device.name)
                LOG.info("%s: device %s was revoked", run, device.name, extra=told)


def _returned(ledger: Ledger, run_id: str, device_id: str, now_s: float) -> bool:
    while (live := ledger.run(run_id)) is not None and device_id in live.state.left:
        if live.state.is_finished:
            break
        if ledger.append(live, Returned(device_id, now_s), held(device_id)):
            return True
    return False


class AnswerIntake:
    """Takes in what devices send for the work they were given; safe to use from several threads."""

    def __init__(self, store: Store, ledger: Ledger, fleet: Fleet, members: Members) -> None:
        self._store, self._ledger, self._fleet, self._members = store, ledger, fleet, members
        self._counting = Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()  # by run, kind and outcome
        self._reference: tuple[str, AdapterState] = ("", {})

    def asked(self, device: Device, work_id: str) -> OpenWork | None:
        """What was asked with a work id, if it was asked of this device; None of long ago.

        Raises:
            Refusal: 404 nobody can have been asked that, 403 another device was.
        """
        asked = self._ledger.asked(work_id)
        if asked is None and not is_work_id(work_id):
            raise Refusal(404, f"no work {work_id[:64]!r}")
        if asked is None:
            return None  # of a step before the last two; whose it was is forgotten
        if asked.device_id != device.device_id:
            raise Refusal(403, "this work is another device's")
        return asked

    def judge(self, device: Device, work_id: str) -> Judge:
        """What decides on an update for a piece of work.

        Raises:
            Refusal: 422 its answer is a report alone, 403, 404.
            BlobDamaged: Its adapter is gone, without which no update can be judged now.
        """
        asked = self.asked(device, work_id)
        if asked is None:
            return Judge(0, lambda _: CLOSED, lambda *_: CLOSED)
        if not asked.opened.brings_files:
            raise Refusal(
                422, f"work {work_id} asks to {asked.opened.kind}; a report alone is expected"
            )
        known, accept = partial(self._known, asked, work_id), partial(self._accept, asked, work_id)
        name = asked.opened.given(asked.device_id)[1]
        try:
            size = self._store.blobs.size(name)
            if asked.opened.measures:
                size = bytes_of_moments(shapes_of(self._adapter(name)))
        except BlobDamaged:
            if known("") is None:
                raise
            return Judge(0, known, accept)  # its step is over, and no body is wanted any more
        size += shares_bytes_of(len(asked.opened.members)) if asked.opened.masks else 0
        return Judge(size + MAX_UPDATE_OVERHEAD_BYTES, known, accept)

    def _known(self, asked: OpenWork, work_id: str, name: str) -> Receipt | None:
        if over := self._ledger.over(asked.run_id, work_id, name):
            return over
        answer = answer_to(self._live(asked).state, work_id)
        if answer is None:
            return None
        is_same = answer.update_sha256 == name
        return Receipt(is_same, "" if is_same else f"answered already: {answer.outcome}")

    def _accept(self, asked: OpenWork, work_id: str, path: Path, name: str) -> Receipt:
        """Take a trained update; it is on disk before the receipt says so.

        The same body twice counts once. What comes after its step has closed does not count.

        Raises:
            Refusal: 422 not what was asked for.
        """
        if (receipt := self._known(asked, work_id, name)) is not None:
            return receipt  # its step has closed while it came: its adapter may be gone
        adapter = self._adapter(asked.opened.adapter_sha256)
        if asked.opened.masks:
            return self._accept_masked(asked, work_id, path, name, adapter)
        config = self._live(asked).config
        rank, _ = asked.opened.given(asked.device_id)
        given = handed(adapter, spec_at_rank(config.adapter, rank)) if rank else adapter
        known = asked.opened.round_index, asked.opened.updates
        update = check_update(path.read_bytes(), work_id, given, config, *known)
        norm = length_of(config.learning, adapter)(update.delta)
        answer = Answered(
            work_id,
            "done",
            name,
            update.num_examples,
            norm=norm,
            counted=counted(update, norm, asked.opened, config),
        )
        if (receipt := self._known(asked, work_id, name)) is not None:
            return receipt
        with self._store.claiming():
            self._store.keep(path, name)
            return self._ledger.answer(asked.run_id, answer)

    def _accept_masked(
        self, asked: OpenWork, work_id: str, path: Path, name: str, adapter: AdapterState
    ) -> Receipt:
        """Take what a device sends in a secure aggregation: its masked update, or shares.

        Raises:
            Refusal: 422 not what was asked for.
        """
        opened, live, body = asked.opened, self._live(asked), path.read_bytes()
        masked = live.state.masked
        if opened.kind == "train":
            ring = ring_in(self._store.read(opened.handed("")))
            update = check_masked_update(body, work_id, opened, ring, shapes_of(adapter))
            counts = counted(update, 0.0, opened, live.config)
            answer = Answered(work_id, "done", name, update.num_examples, counted=counts)
        elif masked is None:
            return CLOSED
        else:
            ring = ring_in(self._store.read(masked.opened.handed("")))
            places = places_of(masked.opened, live.run.secret)
            included = sorted(places.index(one) for one, _ in masked.updates())
            check_shares(body, work_id, ring, places.index(asked.device_id), included)
            answer = Answered(work_id, "done", name, 0)
        if (receipt := self._known(asked, work_id, name)) is not None:
            return receipt
        with self._store.claiming():
            self._store.keep(path, name)
            return self._ledger.answer(asked.run_id, answer)

    def report(self, device: Device, report: Report, now_s: float) -> Receipt:
        """Keep a report's figures; a failure, an evaluation and labelling answer their work.

        Raises:
            Refusal: 422 figures that cannot be, 403, 404.
        """
        asked = self.asked(device, report.work_id)
        if asked is None:
            return CLOSED
        opened, run_id = asked.opened, asked.run_id
        task = self._live(asked).config.task
        check_report(report, task)
        if not opened.brings_files or report.outcome == "failed":
            receipt = self._ledger.answer(run_id, _answer(report, opened, task))
        else:
            is_counted = self._ledger.is_counted(report.work_id)
            receipt = Receipt(is_counted, "" if is_counted else "no update of this work counts")
        if report.is_leaving and report.failure:
            leave(self._ledger, self._members, run_id, device, report.failure, now_s)
        figures = {
            "work_id": report.work_id,
            "run_id": run_id,
            "device_id": device.device_id,
            "round_index": opened.round_index,
            "attempt": opened.attempt,
            "kind": opened.kind,
            "is_late": not receipt.accepted,
            "report": asdict(report),
        }
        told = None
        if opened.kind == "train" and receipt.accepted and report.outcome == "done":
            told = None if report.loss is None else LossTold(device.device_id, report.loss)
        if self._is_kept(run_id, figures, told):
            is_late = not receipt.accepted and report.outcome == "done"
            outcome = "late" if is_late else report.outcome
            with self._counting:
                self._counts[run_id, opened.kind, outcome] += 1
            level = logging.WARNING if report.outcome == "failed" else logging.INFO
            said = answer_text(
                self._live(asked),
                device.device_id,
                opened,
                report,
                spent_s=now_s - opened.opened_at_s,
                is_late=not receipt.accepted,
                names_of=self._fleet.names_of,
            )
            run = self._live(asked).config.name
            LOG.log(level, "%s", said, extra=about(run, device.name, opened.round_index))
        return receipt

    def _is_kept(self, run_id: str, figures: Mapping[str, Any], told: LossTold | None) -> bool:
        """Keep a report; False if its work has one.

        The loss of training that counts goes into the journal with it, both or none, where the
        choice of devices goes by it.
        """
        while told is not None and (live := self._ledger.run(run_id)) is not None:
            if not live.config.learning.goes_by_losses or live.state.is_finished:
                break
            try:
                if self._ledger.append(live, told, inserted(figures)):
                    return True
            except Conflict:  # no other event came in between: its work has a report
                break
        return add_report(self._store.database, figures)

    def count(self, run_id: str) -> int:
        with self._counting:
            return sum(n for (run, _, _), n in self._counts.items() if run == run_id)

    def by_outcome(self) -> Counter[tuple[str, str]]:
        """Answers since the process began, by (kind, outcome)."""
        found: Counter[tuple[str, str]] = Counter()
        with self._counting:
            for (_, kind, outcome), number in self._counts.items():
                found[kind, outcome] += number
        return found

    def _live(self, asked: OpenWork) -> Live:
        live = self._ledger.run(asked.run_id)
        assert live is not None  # what was asked was asked by a run
        return live

    def _adapter(self, name: str) -> AdapterState:
        cached = self._reference
        if cached[0] != name:
            cached = self._reference = (name, decode_adapter(self._store.read(name)))
        return cached[1]


def _answer(report: Report, opened: StepOpened, task: Task) -> Answered:
    answer = Answered(report.work_id, report.outcome, None, report.num_examples)
    answer = replace(answer, failure=report.failure)
    if not opened.brings_files:
        answer = replace(answer, labelled=report.labelled)
    if opened.kind == "label":
        answer = replace(answer, confidences=report.confidences)
    return judged(answer, report, task) if opened.kind == "evaluate" else answer
