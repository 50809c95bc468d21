"""The client loop: ask for work, do it, answer, ask again; every step survives a power cut.

    enrol -> wait -> download -> load -> label, train or evaluate -> upload -> report -> wait ...

Finished work lies in the outbox before it is sent; work that was cut short is handed out again and
gives the same bytes, for its seeds depend on run, device and round alone. The device's texts are
those in its files when work begins: files that have changed since the last work are read again.
"""

import logging
import math
import os
import platform
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edge_client.adapters.spec import AdapterError, frozen_layers, parse_adapter
from edge_client.bases.base import Base
from edge_client.client.answers import answer
from edge_client.client.meter import WorkMeter
from edge_client.client.state import Answer, ClientState, Identity
from edge_client.client.transport import (
    Coordinator,
    Refused,
    RunFinished,
    TransportError,
    patiently,
)
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.budgeted import open_within
from edge_client.engine.engine import Engine, EngineError
from edge_client.engine.trainer import TrainingError
from edge_client.errors import WrongInput
from edge_client.labelling.book import FileNotes
from edge_client.labelling.own_texts import OwnTexts
from edge_client.planning.budget import MemoryRanOut
from edge_client.planning.guard import peak_rss_bytes
from edge_client.planning.resources import memory_bytes, usable_cores
from edge_client.planning.sizes import BudgetError
from edge_client.texts.data_folder import DataFolder
from edge_client.texts.examples import ClientData
from edge_client.texts.rows import DataError
from edge_client.texts.tasks import TaskError
from edge_client.wire.messages import (
    PROTOCOL,
    DeviceFacts,
    Enrol,
    Enrolled,
    Report,
    WireError,
    Work,
)
from edge_client.wire.tensors import decode_adapter

log = logging.getLogger(__name__)

# Errors whose messages are of the run's own making: they speak of what the coordinator sent, or of
# this device's memory and libraries.
TOLD = (
    AdapterError,
    BudgetError,
    EngineError,
    MemoryRanOut,
    TaskError,
    TrainingError,
    WireError,
)


class ClientError(WrongInput):
    """The device cannot serve this run as it is set up; says what to change."""


@dataclass(frozen=True)
class Settings:
    """What a client is started with.

    Attributes:
        url: The coordinator.
        token: Enrolment token; may be empty once the device is enrolled.
        name: What the device calls itself.
        data: Client data folder (or one labelled file).
        base: The frozen base on this device.
        engine: `auto`, `torch` or `onnx`.
        budget_bytes: Memory this process may take; None: 60 % of what is available.
        cache_bytes: Disk that results of frozen layers may take; 0: none are kept.
        version: The client's version, for the coordinator's list.
        wait_s: Length of one long poll.
        patience_s: How long the coordinator may be absent at the start; later it is waited for.
    """

    url: str
    token: str
    name: str
    data: Path
    base: Base
    engine: str = "auto"
    budget_bytes: int | None = None
    cache_bytes: int = 256 << 20
    version: str = ""
    wait_s: float = 25.0
    patience_s: float = 10.0


@dataclass(frozen=True)
class Summary:
    """What one life of a client did.

    Attributes:
        device_id: Its name in the run.
        works: Pieces of work done.
        failures: Pieces of work that failed.
    """

    device_id: str
    works: int
    failures: int


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

    def run(self) -> Summary:
        """Serve the run until it is finished.

        Raises:
            ClientError: Wrong token, another base, or another protocol.
            DataError: The device's texts do not fit the run's labels.
            TransportError: Nobody answered at the start.
        """
        enrolled = self._enrol()
        works = failures = 0
        coordinator = Coordinator(self._settings.url, enrolled.device_key)
        try:
            for finished in self._state.finished():
                self._deliver(coordinator, finished, WorkMeter())
            while True:
                meter = WorkMeter()
                with meter.phase("wait"):
                    work = self._next_work(coordinator, meter)
                if work is not None:
                    finished = self._do(coordinator, enrolled, work, meter)
                    self._keep(finished)
                    self._deliver(coordinator, finished, meter)
                    works, failures = works + 1, failures + (finished.report.outcome == "failed")
        except RunFinished:
            return Summary(enrolled.device_id, works, failures)
        finally:
            coordinator.close()

    def _enrol(self) -> Enrolled:
        settings = self._settings
        known = self._state.identity(settings.url)
        if known is not None:
            self._check_base(known.enrolled.base_id, known.enrolled.base_name)
            return known.enrolled
        if not settings.token:
            raise ClientError(f"not enrolled with {settings.url} yet; give --token")
        facts = DeviceFacts(
            machine=platform.machine(),
            cores=usable_cores(),
            memory_bytes=memory_bytes(),
            python=platform.python_version(),
            smidgen=settings.version,
        )
        request = Enrol(PROTOCOL, settings.token, settings.name, facts)
        coordinator = Coordinator(settings.url)
        try:
            enrolled = patiently(lambda: coordinator.enrol(request), settings.patience_s)
        except Refused as error:
            hint = "; check --token" if error.status == 401 else ""
            raise ClientError(f"{settings.url} refused to enrol: {error}{hint}") from error
        finally:
            coordinator.close()
        self._check_base(enrolled.base_id, enrolled.base_name)
        self._state.keep_identity(Identity(settings.url, enrolled))
        log.info("enrolled as %s in run %s", enrolled.device_id, enrolled.run_id)
        return enrolled

    def _check_base(self, base_id: str, base_name: str) -> None:
        mine = self._settings.base
        if mine.base_id != base_id:
            raise ClientError(
                f"--base {mine.name} ({mine.base_id[:12]}) is not the run's base {base_name} "
                f"({base_id[:12]}); copy the coordinator's base to this device"
            )

    def _next_work(self, coordinator: Coordinator, meter: WorkMeter) -> Work | None:
        settings = self._settings
        try:
            work = patiently(lambda: coordinator.next_work(settings.wait_s, meter), math.inf)
        except Refused as error:
            if error.status in (401, 403):
                raise ClientError(
                    f"{settings.url} does not know this device: {error}; delete its state folder "
                    "and enrol again"
                ) from error
            raise
        if work is not None and work.protocol != PROTOCOL:
            raise ClientError(
                f"{settings.url} speaks protocol {work.protocol}, this client {PROTOCOL}; "
                "install the same version of smidgen"
            )
        return work

    def _do(
        self, coordinator: Coordinator, enrolled: Enrolled, work: Work, meter: WorkMeter
    ) -> Answer:
        self._check_base(work.base_id, enrolled.base_name)
        log.info("round %d: %s", work.round_index, work.kind)
        try:
            return self._compute(coordinator, enrolled, work, meter)
        except DataError:
            # The error may quote a line of the file, which is nobody else's to read.
            reason = "this device's texts cannot be used; its own log says which file and line"
            failed = Report(work.work_id, "failed", error=reason)
            self._deliver(coordinator, Answer(failed, None), meter)
            raise
        except (RuntimeError, ValueError, MemoryError, OSError) as error:
            if isinstance(error, TransportError):
                raise
            if isinstance(error, OSError):  # a line cut short is mended when notes are opened again
                self._notes = None
            name = type(error).__name__
            log.error("round %d: %s failed: %s: %s", work.round_index, work.kind, name, error)
            said = told_to_others(error, self._settings.base.name)
            return Answer(Report(work.work_id, "failed", error=said), None)
        finally:
            if self._engine is not None:
                self._engine.rest()  # until there is more work, which may be in an hour

    def _compute(
        self, coordinator: Coordinator, enrolled: Enrolled, work: Work, meter: WorkMeter
    ) -> Answer:
        with meter.phase("download"):
            body = self._adapter(coordinator, work, meter)
        with meter.phase("load"):
            engine, own = self._ready(work)
            engine.load_adapter(decode_adapter(body))
            notes = self._known(own, work)
        with meter.phase(work.kind):
            finished = answer(engine, own, work, enrolled.device_id, notes)
        if work.kind == "train":
            engine.end_round()
        return finished

    def _adapter(self, coordinator: Coordinator, work: Work, meter: WorkMeter) -> bytes:
        body = self._state.adapter(work.adapter_sha256)
        if body is None:
            body = patiently(partial(coordinator.adapter, work.adapter_sha256, meter), math.inf)
            self._state.keep_adapter(work.adapter_sha256, body)
        return body

    def _ready(self, work: Work) -> tuple[Engine, OwnTexts]:
        """Engine and texts for this work; both stay for the next, but for files that change."""
        needed = (work.task, work.adapter_spec, work.training)
        if self._engine is not None and self._engine_for != needed:
            self._engine.close()
            self._engine = self._own = None
        data = self._texts(work.task.labels)
        if self._engine is None:
            self._engine, self._engine_for = self._opened(work, data), needed
        if self._own is None or self._own.data is not data:
            self._own, self._is_told = OwnTexts(data, self._engine.encoder.unknown_share), False
        return self._engine, self._own

    def _texts(self, labels: tuple[str, ...]) -> ClientData:
        if self._folder is None or self._folder.labels != labels:
            self._folder = DataFolder(self._settings.data, labels)
        return self._folder.read()

    def _opened(self, work: Work, data: ClientData) -> Engine:
        if work.labelling is None and not (data.labelled or data.test):
            raise DataError(
                f"{self._settings.data} holds unlabelled texts alone, and in this run devices "
                "do not label; put a labelled.csv with columns text,label there"
            )
        spec = parse_adapter(work.adapter_spec)
        engine = open_within(
            self._settings.engine,
            self._settings.base,
            work.task,
            spec,
            work.training,
            self._settings.budget_bytes,
            self._state.folder,
        )
        if self._settings.cache_bytes and frozen_layers(spec, engine.layers):
            engine.remember(self._open_cache())
        log.info("plan: %s", engine.plan)
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

    def _deliver(self, coordinator: Coordinator, finished: Answer, meter: WorkMeter) -> None:
        """Send update and report until they are acknowledged, then forget them."""
        report, update = finished.report, finished.update
        try:
            if update is not None:
                with meter.phase("upload"):
                    receipt = patiently(
                        lambda: coordinator.upload(report.work_id, update, meter), math.inf
                    )
                if not receipt.accepted:
                    log.warning("update came too late: %s", receipt.reason)
            full = with_costs(report, meter)
            patiently(lambda: coordinator.report(full, meter), math.inf)
            log.info("%s", in_short(full))
        except Refused as error:
            if error.status in (401, 403):
                raise ClientError(f"{self._settings.url} does not take it: {error}") from error
            log.warning("the coordinator does not want %s: %s", report.work_id, error)
        self._state.forget_finished(report.work_id)


def told_to_others(error: Exception, base: str) -> str:
    """What a coordinator is told of an error: no path of this device, and no word of its texts.

    Args:
        error: What went wrong.
        base: What the base is called here, which may be a folder and is not told.
    """
    name = type(error).__name__
    if isinstance(error, TOLD):
        return f"{name}: {str(error).replace(base, 'of this device')}"[:2000]
    if isinstance(error, OSError) and error.errno:
        name += f" ({os.strerror(error.errno)})"
    return f"{name}; its own log says more"


def with_costs(report: Report, meter: WorkMeter) -> Report:
    """A report with what its work cost so far."""
    return replace(
        report,
        phases_s={name: round(seconds, 6) for name, seconds in meter.phases_s.items()},
        peak_rss_bytes=peak_rss_bytes(),
        bytes_up=meter.bytes_up,
        bytes_down=meter.bytes_down,
        requests=meter.requests,
    )


def in_short(report: Report) -> str:
    """One line for the log."""
    if report.outcome == "failed":
        return f"told the coordinator that it failed: {report.error}"
    seconds = sum(spent for phase, spent in report.phases_s.items() if phase != "wait")
    gave = f"loss {report.loss:.3f}" if report.loss is not None else "done"
    if report.pseudo_labels:
        gave += f", {report.pseudo_labels} pseudo-labels"
    if report.accuracy is not None:
        gave += f", accuracy {report.accuracy:.3f}"
    return (
        f"{report.num_examples} texts, {gave}; {seconds:.1f} s, "
        f"{report.bytes_up / 1000:.1f} kB up, {report.bytes_down / 1000:.1f} kB down"
    )
