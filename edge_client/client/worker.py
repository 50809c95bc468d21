"""A device's texts and engine, which carry out one piece of work at a time, of any run.

Both stay loaded while the next work needs the same. Changed files are read again; while they cannot
be read, the earlier texts stay in use.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from weakref import ReferenceType, ref

import numpy as np

from smidgen.edge_client.adapters.initial import most_bytes
from smidgen.edge_client.adapters.spec import net_in, parse_adapter
from smidgen.edge_client.client.answers import answer
from smidgen.edge_client.client.enrolment import check_base, check_ready, check_texts
from smidgen.edge_client.client.folder import file_name
from smidgen.edge_client.client.progress_log import Progress, texts_in
from smidgen.edge_client.client.settings import Settings
from smidgen.edge_client.client.state import ClientState, FinishedWork
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.budgeted import open_within
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.frozen_layers_cache import is_kept
from smidgen.edge_client.engine.limits import Watched
from smidgen.edge_client.engine.opening import engine_name
from smidgen.edge_client.guest.guest import Guest
from smidgen.edge_client.guest.process import waiting
from smidgen.edge_client.guest.steps import Keeper, StepFile
from smidgen.edge_client.labelling.label_journal import FileNotes
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts
from smidgen.edge_client.metering.work import WorkMeter
from smidgen.edge_client.planning.allocator import let_go_of_code
from smidgen.edge_client.planning.planner import plan_in_words
from smidgen.edge_client.tasks.encoder import cuts_in_words, usable
from smidgen.edge_client.texts.data_folder import DataFolder
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.texts.parts import Labels, wanted_by
from smidgen.edge_client.updates.masks import (
    MOST_BYTES,
    Member,
    public_key,
    ring_in,
    unmasking_in,
)
from smidgen.edge_client.updates.registry import made
from smidgen.edge_client.updates.secure_sum import SHARES, SecureSum
from smidgen.edge_client.updates.states import StepInputs, held_bytes, multiplier_of
from smidgen.edge_client.wire.fleet import Membership, Terms
from smidgen.edge_client.wire.messages import Report, WireError, Work
from smidgen.edge_client.wire.tensors import MASKED, AdapterState, Update, encode_update

log = logging.getLogger(__name__)


class Worker:
    """Computes answers; asks nobody.

    Args:
        settings: What the client was started with.
        state: Its state folder.
        guest: Says between two steps whether to go on.
    """

    def __init__(self, settings: Settings, state: ClientState, guest: Guest) -> None:
        self._settings, self._state, self._guest = settings, state, guest
        self._engine: Engine | None = None
        self._engine_for: tuple[object, ...] = ()
        self._is_squeezed = False  # by a plan for short memory
        self._folders: dict[Labels, DataFolder] = {}  # by what a run's task reads
        self._own: OwnTexts | None = None
        self._read: ClientData | None = None  # of which those are what can be asked
        self._is_told = False  # which of these texts are not read
        self._cut: dict[str, ReferenceType[ClientData]] = {}  # whose cuts are told, by run
        self._notes: tuple[str, FileNotes] | None = None  # of one run
        self._longest: tuple[tuple[object, ...], int] = ((), 0)  # file of an adapter, in bytes

    def look(self, terms: Terms) -> Membership:
        """See whether this device can do what a run asks, and how it takes part.

        Raises:
            WrongInput: Another base, texts that do not fit, or no plan that fits the budget.
            Failed: There is too little memory now.
        """
        if self._engine_for != (terms.base_id, terms.task, terms.adapter_spec, terms.training):
            self._close_engine()  # its memory is what the plan is to fit in
        wanted = wanted_by(terms.task)
        folder = self._folders.get(wanted) or self._open_folder(wanted)
        joined = check_ready(self._settings.on_base(terms.base_id), terms, folder)
        self._folders[wanted] = folder
        if any(isinstance(step, SecureSum) for step in made(terms.steps)):
            key = public_key(self._state.secret(terms.run_id))
            joined = replace(joined, mask_key=key.hex())
        return joined

    def check_sizes(self, work: Work, base_name: str) -> None:
        """Refuse work whose files are longer than its adapter can be, before any is fetched.

        Args:
            work: What is asked.
            base_name: What the run's owner calls its base.

        Raises:
            OtherBase: It is of another base than is here.
            WireError: Names the file, and how long it may be.
        """
        here = self._settings.on_base(work.base_id)
        check_base(here, work.base_id, base_name)
        known = work.base_id, work.adapter_spec, work.task
        if self._longest[0] != known:
            spec = parse_adapter(work.adapter_spec)
            self._longest = known, most_bytes(spec, here.base, work.task)
        most, sizes = self._longest[1], {"adapter": work.adapter_bytes}
        sizes |= {
            f"state of update step {one.name}": one.shared_bytes
            for one in work.updates
            if one.name != SecureSum.name or one.shared_bytes > MOST_BYTES
        }
        sizes |= {"step": max((one.step_bytes for one in work.steps), default=0)}
        for what, size in sizes.items():
            if size > most:
                raise WireError(
                    f"the coordinator names a file of {size} bytes as {what}; with adapter "
                    f"{work.adapter_spec} it is at most {most}, so nothing is fetched"
                )

    def do(
        self,
        work: Work,
        device_id: str,
        start: AdapterState,
        meter: WorkMeter,
        shared: Mapping[str, bytes] = MappingProxyType({}),
    ) -> FinishedWork:
        """Do one piece of work.

        Args:
            work: What is asked.
            device_id: The device's.
            start: The adapter to start from; only read.
            meter: Counts.
            shared: What the server halves of its update steps hand out, by step; likewise.

        Raises:
            OverLimits: It is more than the device's owner allows.
            OutOfTime: It took longer.
            Ended: This process is to end; what was done of it is kept.
            Paused: It may not go on now; likewise.
        """
        if work.kind == "unmask":
            return self._unmasked(work, shared)
        limits = self._settings.limits
        limits.check(work.training)
        if work.kind == "train":
            limits.check_noise(multiplier_of(order.step for order in work.updates))
        if ring_body := shared.get(SecureSum.name) if work.kind == "train" else None:
            ring = ring_in(ring_body)  # rather than train in vain
            Member(ring, self._state.secret(work.run_id)).check()
            self._state.joined.note_masked(work.run_id, work.round_index, ring.name.hex())
        with meter.phase("load"):
            with waiting():
                engine, own = self._ready(work)
            notes = self._known(own, work)
            progress = Progress(work, texts_in(work, own.data))
            engine.on_texts = watched = Watched(limits.seconds, progress)
            if work.kind != "train" or net_in(work.adapter_spec):
                # An adapter's training is left where its keeper says. What was labelled is on
                # disk; an evaluation or a net's training would begin anew, so it stays.
                def stay() -> None:
                    watched.leave_out(self._guest.stay())

                leave = self._guest.between if work.kind == "label" else stay
                engine.on_texts = left_after(watched, leave)
        with meter.phase(work.kind):
            inputs, keeper = self._inputs(work, shared), self._keeper(work)
            finished = answer(engine, start, own, work, device_id, notes, keeper, inputs)
            if finished.states:  # before the outbox, so that both are there or neither
                began = {order.round_index for order in work.updates}
                run = file_name(work.run_id)
                self._state.updates.keep(run, work.round_index, began, finished.states)
            if work.kind == "train":
                engine.end_round()
        peak = engine.device_peak()
        meter.accelerator_peak_bytes = peak.allocated_bytes if peak else None
        return finished

    def _inputs(self, work: Work, shared: Mapping[str, bytes]) -> StepInputs:
        """What the update steps of a piece of work start from."""
        run, kept = file_name(work.run_id), self._state.updates
        states = {one.name: kept.of(run, one.round_index, one.name) for one in work.updates}
        rate = self._state.link.rate() if work.updates else None
        needs_secret = any(one.is_secret for one in made(one.step for one in work.updates))
        secret = self._state.secret(work.run_id) if needs_secret else b""
        return StepInputs(states, shared, rate, secret)

    def _unmasked(self, work: Work, shared: Mapping[str, bytes]) -> FinishedWork:
        """The shares that take the masks off a sum which this device's update is in.

        Raises:
            WireError: It is not what a coordinator asks, or somebody would be left alone.
            Failed: This device has answered for another set of updates.
        """
        asked = unmasking_in(shared.get(SecureSum.name, b""))
        ring = ring_in(asked.ring)
        if ring.run_id != work.run_id:
            raise WireError("an unmasking that is another run's")
        steps = made(order.step for order in work.updates)
        fewest = (one.fewest(len(ring.keys)) for one in steps if isinstance(one, SecureSum))
        member = Member(ring, self._state.secret(work.run_id))
        shares = member.answer(asked, max(fewest, default=0))
        what = hashlib.sha256(asked.body).hexdigest()
        self._state.joined.note_unmasked(work.run_id, ring.round_index, ring.name.hex(), what)
        coded = {SHARES: np.frombuffer(shares, np.uint8)}
        body = encode_update(Update(work.work_id, 1, {}, coded=coded, codec=MASKED))
        return FinishedWork(Report(work.work_id, "done"), body)

    def _keeper(self, work: Work) -> Keeper:
        settings = self._settings
        how = (engine_name(settings.engine, settings.device), settings.device, settings.version)
        bound = {
            "work": work.work_id,
            "adapter": work.adapter_sha256,
            "base": work.base_id,
            "form of adapter": work.adapter_spec,
            "engine or version": " ".join(how),
            "update steps": repr(work.updates),
        }
        return StepFile(self._state.steps(work.work_id), bound, self._guest.between)

    def rest(self) -> None:
        """Hold little until there is more work, which may be in an hour."""
        if self._engine is not None:
            self._engine.rest()
        let_go_of_code()

    def close(self, *, keeps_texts: bool = False) -> None:
        """Hold nothing.

        Args:
            keeps_texts: But the texts read last, which stay in use while a file is being written.
        """
        self._close_engine()
        if not keeps_texts:
            self._folders.clear()
        self._notes = None

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = self._own = None

    def forget_notes(self) -> None:
        """Open them again with the next work, which mends a line that was cut short."""
        self._notes = None

    def _open_folder(self, wanted: Labels) -> DataFolder:
        return DataFolder(self._settings.data, wanted, self._settings.dialect)

    def _ready(self, work: Work) -> tuple[Engine, OwnTexts]:
        needed = (work.base_id, work.task, work.adapter_spec, work.training)
        is_squeezed = self._guest.is_squeezed
        if self._engine is not None and (
            self._engine_for != needed or self._is_squeezed != is_squeezed
        ):
            self._close_engine()  # of another work, or planned when memory was otherwise
        wanted = wanted_by(work.task)
        data = self._folders.setdefault(wanted, self._open_folder(wanted)).read()
        if self._engine is None:
            is_labelling = work.labelling is not None
            check_texts(self._settings, wanted, data, is_labelling=is_labelling)
            self._engine, self._engine_for = self._opened(work, is_squeezed), needed
            self._is_squeezed = is_squeezed
        if self._own is None or self._read is not data:
            texts, left_out = usable(self._engine.encoder, data)
            for line in left_out:
                log.warning("%s", line)
            self._own, self._is_told = OwnTexts(texts, self._engine.encoder.unknown_share), False
            self._read = data
        self._tell_cuts(self._engine, data, work)
        return self._engine, self._own

    def _tell_cuts(self, engine: Engine, data: ClientData, work: Work) -> None:
        """Say once of the texts at hand which of them this run does not read to their end."""
        told = self._cut.get(work.run_id)
        if told is None or told() is not data:
            self._cut[work.run_id] = ref(data)
            for line in cuts_in_words(engine.encoder, data, work.training.tokens):
                log.warning("%s", line)

    def _opened(self, work: Work, is_squeezed: bool) -> Engine:
        spec, base = parse_adapter(work.adapter_spec), self._settings.on_base(work.base_id).base
        terms = self._state.joined.terms(work.run_id)  # an evaluation tells no steps of training
        steps = terms.steps if terms else [order.step for order in work.updates]
        engine = open_within(
            self._settings.engine,
            base,
            work.task,
            spec,
            work.training,
            self._settings.budget_bytes,
            self._state.folder,
            device=self._settings.device,
            is_squeezed=is_squeezed,
            held_bytes=held_bytes(steps),
        )
        if self._settings.cache_bytes and is_kept(work.task, engine.frozen_layers):
            folder = self._state.folder / "activations"
            engine.remember(ActivationCache(folder, self._settings.cache_bytes, base.base_id))
        short = ", for memory was short" if is_squeezed else ""
        log.info("plan: %s%s", plan_in_words(engine.option), short)
        return engine

    def _known(self, own: OwnTexts, work: Work) -> FileNotes:
        """What is known of the unlabelled texts; of new ones the log tells which are not read.

        Raises:
            OSError: The file cannot be read, or not be mended.
        """
        if self._notes is None or self._notes[0] != work.run_id:
            self._notes = work.run_id, FileNotes(self._state.labels(work.run_id))
        notes = self._notes[1]
        if work.labelling is not None and not self._is_told:
            if told := own.not_read(notes.book.revoked):
                log.warning("unlabelled texts that are not read: %s", told)
            self._is_told = True
        return notes


def left_after(on_texts: Callable[[int], None], leave: Callable[[], None]) -> Callable[[int], None]:
    """Hear of texts that were read, and leave there if it is said."""

    def heard(texts: int) -> None:
        on_texts(texts)
        leave()

    return heard
