"""What the coordinator does for devices, and what lets rounds proceed.

Devices enrol, ask for work, and answer; `tick` closes and opens steps. An answer is on disk, blob
and journal, before it is acknowledged, so killing the process at any point loses nothing that a
device believes to be safe. Safe to use from several threads; one process per store.
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from threading import Lock

from coordinator.rounds.admission import Refusal, check_digest, check_report, check_update
from coordinator.rounds.events import Answered, Finished, Left, Returned, StepOpened
from coordinator.rounds.guidance import guidance_of
from coordinator.serving.executor import proceed
from coordinator.serving.ledger import Asked, Ledger, Live
from coordinator.serving.presence import Presence
from coordinator.serving.telling import (
    answer_text,
    lack_text,
    over_of,
    run_text,
    terms_of,
    waiting_of,
)
from coordinator.storage.figures import accuracies, rows
from coordinator.storage.keys import draw_secret, hash_secret
from coordinator.storage.store import Device, Store
from edge_client.wire.messages import (
    PROTOCOL,
    Asking,
    Enrol,
    Enrolled,
    Over,
    Receipt,
    Report,
    Terms,
    Waiting,
    Work,
)
from edge_client.wire.tensors import AdapterState, decode_adapter

SILENCE_S = 2.0  # between two lines on what a run waits for
FAREWELL_S = 60.0  # twice the longest pause of a client that waits for the coordinator
LOG = logging.getLogger(__name__)


class Service:
    """All runs of one store.

    Args:
        store: Owned by the caller, who closes it after the last use.
        now_s: Unix time.
    """

    def __init__(self, store: Store, now_s: float) -> None:
        self._store = store
        self._ledger = Ledger(store, now_s)
        self._presence = Presence(store, now_s)
        self._ticking, self._summing = Lock(), Lock()
        self._told: set[Device] = set()  # that their run is finished, and have its adapter
        self._overs: dict[str, Over] = {}
        self._lacks: dict[str, tuple[str, float]] = {}  # what runs were last said to wait for
        self._over_since_s: float | None = None
        self._reference: tuple[str, AdapterState] = ("", {})

    def terms(self, asking: Asking) -> Terms:
        """What the run of a token asks of a device, which does not join it by asking.

        Raises:
            Refusal: 422 another protocol, 401 no such token.
        """
        return terms_of(self._run_of(asking.protocol, asking.token))

    def _run_of(self, protocol: int, token: str) -> Live:
        if protocol != PROTOCOL:
            raise Refusal(
                422,
                f"protocol {protocol}; this coordinator speaks {PROTOCOL}: install the same "
                "version of smidgen on both sides",
            )
        run_id = self._store.run_of_token(hash_secret(token))
        if run_id is None:
            raise Refusal(401, "no run has this enrolment token; ask the run's owner for one")
        self._ledger.load_new_runs()
        return self.run(run_id)

    def enrol(self, message: Enrol, now_s: float) -> Enrolled:
        """Let a device into the run of its token, under its own name or `name-2`, `name-3`, ...

        Raises:
            Refusal: 422 another protocol, 401 no such token.
        """
        live = self._run_of(message.protocol, message.token)
        key, facts, run_id = draw_secret(), asdict(message.facts), live.run.run_id
        for name in _names(message.name):
            if self._store.add_device(Device(run_id, name), hash_secret(key), facts, now_s):
                break
        LOG.info("%s: device %s enrolled", live.config.name, name)
        return Enrolled(name, key, terms_of(live))

    def device_of(self, key: str | None) -> Device:
        """The device of a key.

        Raises:
            Refusal: 401.
        """
        device = self._store.device_of_key(hash_secret(key)) if key else None
        if device is None:
            raise Refusal(401, "a device's key is expected as `Authorization: Bearer KEY`")
        return device

    def next_work(self, device: Device, now_s: float, have: str = "") -> Work | Over | None:
        """The open work of a device that it has not answered; the same until it does.

        Args:
            device: Who asks; one that had left is back.
            now_s: Unix time.
            have: SHA-256 of the adapter that it has.

        Returns:
            The work, or that the run is over; None where there is something to wait for.
        """
        self._presence.saw(device, now_s)
        while device.device_id in (live := self.run(device.run_id)).state.left:
            if live.state.is_finished:
                break
            self._ledger.append(live, Returned(device.device_id, now_s))
            LOG.info("%s: device %s is back", live.config.name, device.device_id)
        if live.state.is_finished:
            if have == live.state.adapter_sha256:
                self._told.add(device)
            return self._over(live)
        step = live.state.step
        for work_id, device_id in step.members.items() if step else ():
            if device_id == device.device_id and step and work_id not in step.answers:
                return self._work(live, step.opened, work_id)
        return None

    def waiting(self, device: Device, now_s: float) -> Waiting:
        """What the run of a device waits for."""
        run_id = device.run_id
        return waiting_of(self.run(run_id), lambda: self.alive(run_id, now_s), now_s)

    def _over(self, live: Live) -> Over:
        run_id = live.run.run_id
        with self._summing:
            if run_id not in self._overs:
                table = rows(self._store, run_id)
                self._overs[run_id] = over_of(live, self._enrolled(run_id), accuracies(table))
            return self._overs[run_id]

    def _enrolled(self, run_id: str) -> int:
        return sum(device.run_id == run_id for device in self._store.devices())

    def lines(self) -> list[str]:
        """Where every run stands, in words."""
        return [run_text(live, self._enrolled(live.run.run_id)) for live in self.runs()]

    def _work(self, live: Live, opened: StepOpened, work_id: str) -> Work:
        guidance = guidance_of(live.config, live.state, opened)
        return Work(
            protocol=PROTOCOL,
            work_id=work_id,
            kind=opened.kind,
            run_id=live.run.run_id,
            round_index=opened.round_index,
            base_id=live.run.base_id,
            adapter_spec=live.config.adapter,
            adapter_sha256=opened.adapter_sha256,
            adapter_bytes=self.adapter_bytes(opened.adapter_sha256),
            task=live.config.task,
            training=live.config.training,
            seed=live.config.seed,
            labelling=live.config.labelling,
            keep=guidance.keep,
            prior=guidance.prior,
            thresholds=guidance.thresholds,
            most=guidance.most,
        )

    def asked(self, device: Device, work_id: str) -> Asked:
        """What was asked with a work id, if it was asked of this device.

        Raises:
            Refusal: 404 nobody was asked that, 403 another device was.
        """
        asked = self._ledger.asked(work_id)
        if asked is None:
            raise Refusal(404, f"no work {work_id[:64]!r}")
        if asked.device != device:
            raise Refusal(403, "this work is another device's")
        return asked

    def accept_update(
        self, device: Device, work_id: str, body: bytes, digest: str | None, now_s: float
    ) -> Receipt:
        """Take a trained update; it is on disk before the receipt says so.

        The same body twice counts once. What comes after its step has closed does not count.

        Raises:
            Refusal: 400 damaged on the way, 422 not what was asked for, 403, 404.
        """
        opened = self.asked(device, work_id).opened
        self._presence.saw(device, now_s)
        if opened.kind != "train":
            raise Refusal(422, f"work {work_id} asks to {opened.kind}; a report alone is expected")
        name = check_digest(body, digest)
        update = check_update(body, work_id, self._adapter(opened.adapter_sha256))
        step = self.run(device.run_id).state.step
        if step is None or work_id not in step.members:
            is_counted = self._ledger.is_counted(work_id)
            return Receipt(is_counted, "" if is_counted else "its step is closed")
        self._store.put(body, name)
        answer = Answered(work_id, "done", name, update.num_examples)
        return self._ledger.answer(device.run_id, answer)

    def accept_report(self, device: Device, report: Report, now_s: float) -> Receipt:
        """Keep a report's figures; a failure, an evaluation and labelling answer their work.

        Raises:
            Refusal: 422 figures that cannot be, 403, 404.
        """
        check_report(report, len(self.run(device.run_id).config.task.labels))
        opened = self.asked(device, report.work_id).opened
        self._presence.saw(device, now_s)
        if opened.kind != "train" or report.outcome == "failed":
            receipt = self._ledger.answer(device.run_id, _answer(report, opened))
        else:
            is_counted = self._ledger.is_counted(report.work_id)
            receipt = Receipt(is_counted, "" if is_counted else "no update of this work counts")
        if report.is_leaving and report.failure:
            self._leave(device, Left(device.device_id, report.failure, now_s))
        figures = asdict(device) | {
            "work_id": report.work_id,
            "round_index": opened.round_index,
            "attempt": opened.attempt,
            "kind": opened.kind,
            "is_late": not receipt.accepted,
            "report": asdict(report),
        }
        if self._store.add_report(figures):
            level = logging.WARNING if report.outcome == "failed" else logging.INFO
            live, spent_s = self.run(device.run_id), now_s - opened.opened_at_s
            said = answer_text(
                live, device.device_id, opened, report, spent_s, not receipt.accepted
            )
            LOG.log(level, "%s", said)
        return receipt

    def _leave(self, device: Device, event: Left) -> None:
        """Once, however often it is said and whatever happens in between."""
        while device.device_id not in (live := self.run(device.run_id)).state.left:
            if live.state.is_finished or self._ledger.append(live, event):
                return

    def is_adapter(self, name: str) -> bool:
        return self._ledger.is_adapter(name)

    def adapter_path(self, name: str) -> Path:
        return self._store.blob_path(name)

    def adapter_bytes(self, name: str) -> int:
        return self.adapter_path(name).stat().st_size

    def _adapter(self, name: str) -> AdapterState:
        cached = self._reference
        if cached[0] != name:
            cached = self._reference = (name, decode_adapter(self._store.read(name)))
        return cached[1]

    def run(self, run_id: str) -> Live:
        """A run as it stands.

        Raises:
            Refusal: 404.
        """
        live = self._ledger.run(run_id)
        if live is None:
            raise Refusal(404, f"no run {run_id[:64]!r}")
        return live

    def runs(self) -> list[Live]:
        """Every run as it stands, oldest first."""
        return self._ledger.all()

    def alive(self, run_id: str, now_s: float) -> set[str]:
        return self._presence.alive(run_id, now_s)

    def is_over(self, now_s: float) -> bool:
        """Whether all runs are finished and every device that is there has been told so."""
        runs = self.runs()
        if not runs or not all(live.state.is_finished for live in runs):
            self._over_since_s = None
            return False
        self._over_since_s = self._over_since_s or now_s
        here = {
            Device(live.run.run_id, name)
            for live in runs
            for name in self.alive(live.run.run_id, now_s) - live.state.left.keys()
        }
        return here <= self._told or now_s - self._over_since_s > FAREWELL_S

    def tick(self, now_s: float) -> set[Device]:
        """Let every run proceed as far as it can.

        Returns:
            Devices to wake: asked for new work, or of a run that is finished.
        """
        woken: set[Device] = set()
        with self._ticking:
            self._ledger.load_new_runs()
            for run_id in [live.run.run_id for live in self.runs()]:
                alive = self.alive(run_id, now_s)
                while event := proceed(self._store, self._ledger, run_id, alive, now_s):
                    if isinstance(event, StepOpened):
                        woken |= {Device(run_id, device_id) for _, device_id in event.members}
                    if isinstance(event, Finished):
                        woken |= {Device(run_id, name) for name in alive}
                self._say_what_lacks(self.run(run_id), alive, now_s)
        return woken

    def _say_what_lacks(self, live: Live, alive: set[str], now_s: float) -> None:
        """Once until it changes, and not for each of many devices that come at once."""
        said, at_s = self._lacks.get(live.run.run_id, ("", -SILENCE_S))
        lack = lack_text(live, alive)
        if lack and lack != said and now_s - at_s >= SILENCE_S:
            LOG.info("%s", lack)
            self._lacks[live.run.run_id] = (lack, now_s)
        elif not lack:
            self._lacks.pop(live.run.run_id, None)


def _answer(report: Report, opened: StepOpened) -> Answered:
    answer = Answered(report.work_id, report.outcome, None, report.num_examples)
    answer = replace(answer, failure=report.failure)
    if opened.kind != "train":
        answer = replace(answer, labelled=report.labelled)
    if opened.kind == "label":
        answer = replace(answer, confidences=report.confidences)
    if opened.kind == "evaluate" and report.accuracy is not None:
        right, mean = round(report.accuracy * report.num_examples), report.mean_log_probabilities
        answer = replace(answer, right=right, mean_log_probabilities=mean)
    return answer


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))
