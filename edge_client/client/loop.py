"""The client loop: ask for work, do it, answer, ask again; every step survives a power cut.

    join -> wait -> download -> load -> label, train or evaluate -> upload -> report -> wait ...

Finished work lies in the outbox before it is sent; work that was cut short is handed out again and
gives the same bytes, for its seeds depend on run, device and round alone. The device's texts are
those in its files when work begins: files that have changed since the last work are read again.
"""

import logging
import math
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from edge_client.adapters.spec import frozen_layers, parse_adapter
from edge_client.client.answers import answer
from edge_client.client.enrolment import check_base, check_protocol, check_texts, join
from edge_client.client.failures import (
    MOST_IN_A_ROW,
    PASSING,
    ClientError,
    NotTaken,
    code_of,
    is_lasting,
)
from edge_client.client.finished import take_home
from edge_client.client.settings import Settings, Summary
from edge_client.client.state import Answer, ClientState
from edge_client.client.telling import Progress, Teller, in_short, texts_in
from edge_client.client.transport import Coordinator, Refused, TransportError, patiently
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine
from edge_client.errors import Failed
from edge_client.labelling.book import FileNotes
from edge_client.labelling.own_texts import OwnTexts
from edge_client.metering.work import WorkMeter
from edge_client.planning.words import plan_in_words
from edge_client.texts.data_folder import DataFolder
from edge_client.texts.examples import ClientData
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import Over, Report, Waiting, WireError, Work
from edge_client.wire.tensors import decode_adapter

log = logging.getLogger(__name__)

PARTING_S = 60.0  # how long a coordinator whose run is finished is waited for


class GaveUp(Failed):
    """Too many pieces of work failed one after the other."""


class Client:
    """A device in a run.

    Args:
        settings: What it was started with.
        state: Its state folder.
    """

    def __init__(self, settings: Settings, state: ClientState) -> None:
        self._settings, self._state = settings, state
        self._engine: Engine | None = None
        self._engine_for: tuple[object, ...] = ()
        self._folder: DataFolder | None = None
        self._own: OwnTexts | None = None
        self._is_told = False  # which of these texts are not read
        self._notes: FileNotes | None = None
        self._teller = Teller()
        self._works = self._failures = self._in_a_row = 0
        self._failing_since_s = 0.0

    def run(self) -> Summary:
        """Serve the run until it is finished.

        Raises:
            ClientError: Wrong token, another base, or another protocol.
            BudgetError: No plan fits the memory budget.
            DataError: The device's texts do not fit the run.
            GaveUp: Too many pieces of work failed one after the other.
            TransportError: Nobody answered at the start.
        """
        self._deliver_outbox()
        enrolled, self._folder = join(self._settings, self._state)
        coordinator = Coordinator(self._settings.url, enrolled.device_key)
        wait_s = 0.0  # at first, to say what the run waits for
        try:
            while True:
                meter = WorkMeter(coordinator.traffic)
                with meter.phase("wait"):
                    given = self._next(coordinator, wait_s, meter)
                wait_s = self._settings.wait_s
                if isinstance(given, Waiting):
                    self._teller.waiting(given)
                elif isinstance(given, Over):
                    folder = self._take_home(coordinator, enrolled.terms, given)
                    return Summary(enrolled.device_id, self._works, self._failures, folder)
                else:
                    self._teller.worked()
                    self._serve(coordinator, enrolled.device_id, enrolled.terms, given, meter)
        finally:
            coordinator.close()
            if self._engine is not None:
                self._engine.close()

    def _deliver_outbox(self) -> None:
        """Send what an earlier life has finished, whether or not this one can do more."""
        known = self._state.identity(self._settings.url)
        if known is None:
            return
        coordinator = Coordinator(self._settings.url, known.enrolled.device_key)
        try:
            for finished in self._state.finished():
                self._deliver(coordinator, None, finished, WorkMeter(coordinator.traffic))
        finally:
            coordinator.close()

    def _next(
        self, coordinator: Coordinator, wait_s: float, meter: WorkMeter
    ) -> Work | Waiting | Over:
        settings, have = self._settings, self._state.newest()
        try:
            given = patiently(lambda: coordinator.next_work(wait_s, have, meter), math.inf)
        except Refused as error:
            if error.status in (401, 403):
                raise ClientError(
                    f"{settings.url} does not know this device: {error}; delete its state folder "
                    "and enrol again"
                ) from error
            raise
        if isinstance(given, Work):
            check_protocol(settings.url, given.protocol)
        return given

    def _take_home(self, coordinator: Coordinator, terms: Terms, over: Over) -> str:
        """The finished adapter's folder, empty if it could not be had."""
        have, is_new = over.adapter_sha256, self._state.adapter(over.adapter_sha256) is None
        try:
            body = self._adapter(coordinator, have, WorkMeter(), PARTING_S)
        except (TransportError, WireError, OSError) as error:
            log.error("run %s is finished, its adapter not to be had: %s", terms.run_name, error)
            return ""
        if is_new:  # asking once more says that the adapter is here, and the server may go
            with suppress(TransportError):
                coordinator.next_work(0.0, have, WorkMeter())
        folder = self._settings.out or self._state.folder / "adapter"
        return take_home(folder, terms, self._settings, over, body)

    def _serve(
        self,
        coordinator: Coordinator,
        device_id: str,
        terms: Terms,
        work: Work,
        meter: WorkMeter,
    ) -> None:
        """Do one piece of work and answer it.

        Raises:
            WrongInput: It cannot be done until this client is given something else; the
                coordinator has been told that the device leaves.
            GaveUp: One too many has failed; so has it here.
        """
        log.info("round %d of %d: %s", work.round_index, terms.rounds, work.kind)
        error: Exception | None = None
        try:
            with meter.working():
                finished = self._do(coordinator, device_id, terms, work, meter)
        except (RuntimeError, ValueError, MemoryError, OSError) as found:
            if isinstance(found, TransportError):
                raise
            error, finished = found, self._failed(work, found)
        finally:
            if self._engine is not None:
                self._engine.rest()  # until there is more work, which may be in an hour
        finished = replace(finished, report=replace(finished.report, cost=meter.cost()))
        self._keep(finished)
        if not self._deliver(coordinator, work, finished, meter) and error is None:
            # Unanswered, the same work would be handed out again at once, for ever.
            error = NotTaken("the coordinator refused what was sent")
            finished = self._failed(work, error)
            self._deliver(coordinator, work, finished, meter)
        self._count(error, finished)

    def _count(self, error: Exception | None, finished: Answer) -> None:
        if error is None:
            self._works, self._in_a_row = self._works + 1, 0
            return
        self._failures, self._in_a_row = self._failures + 1, self._in_a_row + 1
        if not finished.report.is_leaving:
            return
        if is_lasting(error, self._settings.budget_bytes):
            raise error
        raise GaveUp(
            f"{self._in_a_row} pieces of work failed one after the other, the last with "
            f"{finished.reason}; this device has left the run until it is started again"
        ) from error

    def _failed(self, work: Work, error: Exception) -> Answer:
        if isinstance(error, OSError):  # a line cut short is mended when notes are opened again
            self._notes = None
        code, now_s = code_of(error), time.monotonic()
        self._failing_since_s = now_s if not self._in_a_row else self._failing_since_s
        grace_s = self._settings.grace_s if code in PASSING else 0.0
        is_last = self._in_a_row + 1 >= MOST_IN_A_ROW and now_s - self._failing_since_s >= grace_s
        is_leaving = is_last or is_lasting(error, self._settings.budget_bytes)
        report = Report(work.work_id, "failed", failure=code, is_leaving=is_leaving)
        return Answer(report, None, f"{type(error).__name__}: {error}")

    def _do(
        self,
        coordinator: Coordinator,
        device_id: str,
        terms: Terms,
        work: Work,
        meter: WorkMeter,
    ) -> Answer:
        check_base(self._settings, work.base_id, terms.base_name)
        with meter.phase("download"):
            body = self._adapter(coordinator, work.adapter_sha256, meter)
        with meter.phase("load"):
            engine, own = self._ready(work)
            engine.load_adapter(decode_adapter(body))
            notes = self._known(own, work)
            engine.on_texts = Progress(work, texts_in(work, own.data))
        with meter.phase(work.kind):
            finished = answer(engine, own, work, device_id, notes)
            if work.kind == "train":
                engine.end_round()
        peak = engine.device_peak()
        meter.accelerator_peak_bytes = peak.allocated_bytes if peak else None
        return finished

    def _adapter(
        self,
        coordinator: Coordinator,
        sha256: str,
        meter: WorkMeter,
        give_up_after_s: float = math.inf,
    ) -> bytes:
        body = self._state.adapter(sha256)
        if body is None:
            body = patiently(partial(coordinator.adapter, sha256, meter), give_up_after_s)
            self._state.keep_adapter(sha256, body)
        return body

    def _ready(self, work: Work) -> tuple[Engine, OwnTexts]:
        """Engine and texts for this work; both stay for the next, but for files that change."""
        needed = (work.task, work.adapter_spec, work.training)
        if self._engine is not None and self._engine_for != needed:
            self._engine.close()
            self._engine = self._own = None
        data = self._texts(work.task.labels)
        if self._engine is None:
            check_texts(self._settings, data, is_labelling=work.labelling is not None)
            self._engine, self._engine_for = self._opened(work), needed
        if self._own is None or self._own.data is not data:
            self._own, self._is_told = OwnTexts(data, self._engine.encoder.unknown_share), False
        return self._engine, self._own

    def _texts(self, labels: tuple[str, ...]) -> ClientData:
        if self._folder is None or self._folder.labels != labels:
            self._folder = DataFolder(self._settings.data, labels, self._settings.dialect)
        return self._folder.read()

    def _opened(self, work: Work) -> Engine:
        spec = parse_adapter(work.adapter_spec)
        engine = open_within(
            self._settings.engine,
            self._settings.base,
            work.task,
            spec,
            work.training,
            self._settings.budget_bytes,
            self._state.folder,
            device=self._settings.device,
        )
        if self._settings.cache_bytes and frozen_layers(spec, engine.layers):
            engine.remember(self._open_cache())
        log.info("plan: %s", plan_in_words(engine.option))
        return engine

    def _open_cache(self) -> ActivationCache:
        folder = self._state.folder / "activations"
        return ActivationCache(folder, self._settings.cache_bytes, self._settings.base.base_id)

    def _known(self, own: OwnTexts, work: Work) -> FileNotes:
        """What is known of the unlabelled texts; of new ones the log tells which are not read.

        Raises:
            OSError: The file cannot be read, or not be mended.
        """
        if self._notes is None:
            self._notes = FileNotes(self._state.labels(work.run_id))
        if work.labelling is not None and not self._is_told:
            if told := own.not_read(self._notes.book.revoked):
                log.warning("unlabelled texts that are not read: %s", told)
            self._is_told = True
        return self._notes

    def _keep(self, finished: Answer) -> None:
        """Put finished work in the outbox; on a full disk it has to do without."""
        try:
            self._state.keep_finished(finished)
        except OSError as error:
            log.warning("%s is not kept until it is sent: %s", finished.report.work_id, error)

    def _deliver(
        self, coordinator: Coordinator, work: Work | None, finished: Answer, meter: WorkMeter
    ) -> bool:
        """Send update and report until they are acknowledged, then forget them.

        Returns:
            Whether the coordinator took them; one that comes too late is taken.
        """
        report, update, is_counted, is_taken = finished.report, finished.update, True, True
        try:
            if update is not None:
                with meter.phase("upload"):
                    receipt = patiently(
                        lambda: coordinator.upload(report.work_id, update, meter), math.inf
                    )
                is_counted = receipt.accepted
            cost = report.cost.delivered(meter.cost()) if work is None else meter.cost()
            finished = replace(finished, report=replace(report, cost=cost))
            patiently(lambda: coordinator.report(finished.report, meter), math.inf)
            level = logging.INFO if report.outcome == "done" else logging.ERROR
            log.log(level, "%s", in_short(work, finished, is_counted))
        except Refused as error:
            if error.status == 401 or (error.status == 403 and work is not None):
                raise ClientError(f"{self._settings.url} does not take it: {error}") from error
            log.warning("the coordinator does not want %s: %s", report.work_id, error)
            is_taken = False
        self._state.forget_finished(report.work_id)
        return is_taken
