"""Devices' answers: updates and reports, on disk before they are acknowledged."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from coordinator.fleet.devices import Fleet
from coordinator.fleet.members import Members
from coordinator.rounds.admission import Refusal, check_report, check_update, counted
from coordinator.rounds.events import Answered, LossTold, StepOpened
from coordinator.rounds.learning.exact import handed, spec_at_rank
from coordinator.rounds.learning.server_update import length_of
from coordinator.rounds.metrics import judged
from coordinator.rounds.scheduling.asking import answer_to
from coordinator.serving.http.uploads import Judge
from coordinator.serving.joining import leave
from coordinator.serving.ledger import CLOSED, Ledger, Live, OpenWork, is_work_id
from coordinator.serving.log.steps import answer_text
from coordinator.storage.blobs.blobs import BlobDamaged
from coordinator.storage.errors import Conflict
from coordinator.storage.rows.devices import Device
from coordinator.storage.rows.reports import add_report, inserted
from coordinator.storage.store import Store
from coordinator.watch.logs import about
from edge_client.tasks.task import Task
from edge_client.wire.messages import Receipt, Report
from edge_client.wire.tensors import MAX_UPDATE_OVERHEAD_BYTES, AdapterState, decode_adapter

LOG = logging.getLogger(__name__)


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
        if asked.opened.kind != "train":
            raise Refusal(
                422, f"work {work_id} asks to {asked.opened.kind}; a report alone is expected"
            )
        known, accept = partial(self._known, asked, work_id), partial(self._accept, asked, work_id)
        try:
            size = self._store.blobs.size(asked.opened.given(asked.device_id)[1])
        except BlobDamaged:
            if known("") is None:
                raise
            return Judge(0, known, accept)  # its step is over, and no body is wanted any more
        return Judge(size + MAX_UPDATE_OVERHEAD_BYTES, known, accept)

    def _known(self, asked: OpenWork, work_id: str, name: str) -> Receipt | None:
        if over := self._ledger.over(asked.run_id, work_id):
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
        config = self._live(asked).config
        rank, _ = asked.opened.given(asked.device_id)
        given = handed(adapter, spec_at_rank(config.adapter, rank)) if rank else adapter
        update = check_update(path.read_bytes(), work_id, given, config, asked.opened.round_index)
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
        if opened.kind != "train" or report.outcome == "failed":
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
    if opened.kind != "train":
        answer = replace(answer, labelled=report.labelled)
    if opened.kind == "label":
        answer = replace(answer, confidences=report.confidences)
    return judged(answer, report, task) if opened.kind == "evaluate" else answer
