"""A federated run in one process: the coordinator's rounds and aggregation, without a socket.

`rounds.machine` decides what is due next and `rounds.selection` who is asked; updates are encoded,
checked and folded as the server does it, one at a time and in order of client names. So a run here
ends in the same bytes as the same run over HTTP.

    devices = ...  # answers work with an engine, on this machine or on a Ray cluster
    last = federate(schedule, template, Standing(adapter), names, devices, on_round)
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from smidgen.coordinator.rounds.admission import counted
from smidgen.coordinator.rounds.events import (
    Answered,
    Event,
    Finished,
    LossTold,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.guidance import context_of, guidance_of, step_orders
from smidgen.coordinator.rounds.learning.exact import handed, spec_at_rank
from smidgen.coordinator.rounds.learning.memory import decode_memory
from smidgen.coordinator.rounds.learning.server_update import AdmittedUpdate as Admitted
from smidgen.coordinator.rounds.learning.server_update import learn, length_of
from smidgen.coordinator.rounds.learning.unmasking import LostSum, asked_of, step_in, sum_of
from smidgen.coordinator.rounds.machine import (
    MOST_ROLLBACKS,
    bounded,
    decide,
    kept_of,
    narrowed,
    thresholds_before,
)
from smidgen.coordinator.rounds.scheduling.participation import after_score
from smidgen.coordinator.rounds.scoring import Good
from smidgen.coordinator.rounds.state import State, evolve, with_score
from smidgen.edge_client.codecs import PLAIN, Shapes
from smidgen.edge_client.errors import WrongInput
from smidgen.edge_client.updates.masks import Member, Ring, public_key
from smidgen.edge_client.updates.registry import sent_shapes
from smidgen.edge_client.updates.secure_sum import SEALS, SHARES
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import (
    Update,
    decode_adapter,
    encode_adapter,
    sha256,
    shapes_of,
)
from smidgen.simulation.experiments.federation.devices import (
    NOTHING,
    Devices,
    Looking,
    Round,
    Rounds,
    SimulationError,
    Standing,
    TooFew,
    admitted,
    gate_answer,
    told_of,
)
from smidgen.simulation.experiments.federation.resume import Carried, RunState, recalled, remembered
from smidgen.simulation.experiments.hostile import Hostile, evaluations, label_report, train_answers
from smidgen.simulation.experiments.scoring import Score


def federate(
    schedule: Rounds,
    template: Work,
    start: Standing,
    names: Collection[str],
    devices: Devices,
    on_round: Callable[[Round], None] = lambda closed: None,
    arm: str = "",
    texts: Mapping[str, int] | None = None,
    forgers: frozenset[str] = frozenset(),
    secret: str = "",
    ranks: Mapping[str, int] | None = None,
) -> Standing:
    """Run all rounds that are left.

    Going on from any standing that `on_round` was given ends in the same adapter as running
    through. That is the last one, or of a run that keeps its best one that.

    Args:
        schedule: Rounds, cohort, evaluation, labelling.
        template: Work as every client gets it; round, adapter and ids are filled in.
        start: The standing to begin from.
        names: Clients that have work to do.
        devices: Who answer.
        on_round: Told each round after its evaluation, if it has one.
        arm: The client that trains for itself and is judged by its own texts; empty for nobody.
        texts: How many labelled texts each of the clients holds; needed with labelling.
        forgers: Clients that answer as `schedule.hostile` says.
        secret: What a coordinator draws by; the schedule's seed where it is not said, for nobody
            foresees anything here.
        ranks: The most rank that each of the clients takes, where that is less than the run's.

    Raises:
        SimulationError: Fewer clients than the schedule needs, or a round in which too few could
            train; quotes the first error.
    """
    drawn_by = secret or str(schedule.seed)
    run = _Run(schedule, template, devices, start, arm, texts or {}, forgers, drawn_by, ranks or {})
    open_round: Round | None = None
    while (event := run.next_event(names)) is not None:
        if isinstance(event, StepOpened) and event.kind == "evaluate":
            open_round = run.evaluate(event, open_round)
            continue
        if open_round is not None and isinstance(event, RolledBack):
            open_round = run.ended(run.rolled_back(event, open_round))
        if open_round is not None and isinstance(event, Finished):
            open_round = run.ended(open_round)
        if open_round is not None:
            on_round(open_round)
            open_round = None
        if isinstance(event, StepOpened) and event.kind == "train":
            open_round = run.train(event)
        elif isinstance(event, StepOpened):
            run.label(event)
        elif isinstance(event, Finished):
            break
    return run.result


class _Run:
    """The state machine of one run and the adapter that goes with it."""

    def __init__(
        self,
        schedule: Rounds,
        template: Work,
        devices: Devices,
        start: Standing,
        arm: str,
        texts: Mapping[str, int],
        forgers: frozenset[str],
        secret: str,
        ranks: Mapping[str, int],
    ) -> None:
        self._ranks = ranks
        self._hostile, self._forgers, self._secret = schedule.hostile, forgers, secret
        self._schedule, self._template, self._devices = schedule, template, devices
        self._arm, self._first = arm, devices.start().adapter
        self._looking: Looking | None = None
        self._judging: Work | None = None
        self._gate = Report("", "done")
        self._good, self._carried = self._first, Carried()
        self.standing = start
        name, first = sha256(start.adapter), sha256(self._first)
        state = State(name, start.round_index, start.evaluated, first_sha256=first)
        self._state = replace(state, evaluated_sha256=name, texts=texts)
        if start.memory:
            known = recalled(start.memory)
            self._state = replace(known.state, texts=known.state.texts or texts)
            self._gate, self._good = known.gate, known.good_adapter or self._first
            self._carried, devices.books = known.carried, known.books
        if not schedule.is_guarded:
            self._state = replace(self._state, rollbacks=MOST_ROLLBACKS)

    @property
    def result(self) -> Standing:
        """Where the run stands, with the adapter that it would end with."""
        return self.standing if self.kept is None else replace(self.standing, adapter=self._good)

    @property
    def kept(self) -> int | None:
        """The round of the best adapter, where the run keeps that and has one."""
        has_gone_back = self._schedule.is_guarded and self._state.rollbacks >= MOST_ROLLBACKS
        is_best = self._schedule.keep == "best" or has_gone_back
        is_there = is_best and self._state.good is not None
        return kept_of(self._schedule, self._state)[0] if is_there else None

    def next_event(self, names: Collection[str]) -> Event | None:
        """What is due, folded into the state."""
        event = decide(self._schedule, self._state, names, self._secret, 0.0)
        if event is None:
            raise SimulationError(
                f"round {self._state.round_index + 1} needs {self._schedule.min_updates} or more "
                f"clients that can train; there are {len(names)}"
            )
        if isinstance(event, Paused):
            raise SimulationError(f"round {self._state.round_index + 1}: {event.reason}")
        if isinstance(event, StepOpened):
            adapter = self.standing.adapter
            event = bounded(event, self._schedule, self._state, lambda: decode_adapter(adapter))
        self._state = evolve(self._state, event)
        if isinstance(event, RolledBack):
            self._carried.roll_back()
            self.standing = self._stand(self._good)
        return event

    def label(self, opened: StepOpened) -> None:
        """One label step."""
        read = forwards = 0
        is_first = opened.adapter_sha256 == sha256(self._first)
        adapter = self._first if is_first else self.standing.adapter
        self._fetch(opened, adapter)
        used = 0 if is_first else self.standing.round_index
        asked = [(name, self._work(opened, work_id, name)) for work_id, name in opened.members]
        answers = self._devices.do(adapter, asked)
        for (name, work), finished in zip(asked, answers, strict=True):
            report = finished.report
            if report.outcome == "failed":
                raise SimulationError(f"{name} could not label: {finished.reason}")
            read, forwards = read + report.num_examples, forwards + report.layer_forwards
            if self._hostile is not None and name in self._forgers:
                report = label_report(report, self._template.task, self._hostile)
            told = Answered(work.work_id, "done", None, 0, report.labelled)
            self._state = evolve(self._state, replace(told, confidences=report.confidences))
        self._state = evolve(self._state, StepClosed(self._state.adapter_sha256, 0.0))
        thresholds = thresholds_before(self._schedule, self._state, opened.round_index)
        gate = self._gate
        self._looking = Looking(
            len(asked), read, forwards, gate.layer_forwards, gate.accuracy, used, thresholds
        )

    def train(self, opened: StepOpened) -> Round:
        """One training step, up to the adapter after it."""
        start_s, schedule = time.perf_counter(), self._schedule
        before = self.standing.adapter
        reference = decode_adapter(before)
        reports: dict[str, Report] = {}
        errors: dict[str, str] = {}
        sizes: list[int] = []
        new: dict[str, Mapping[str, bytes]] = {}
        handed_out = sum(map(len, self._carried.shared.values()))
        down: list[int] = []
        length = length_of(schedule.learning, reference)
        self._fetch(opened, before)
        ring = self._ring(opened) if schedule.updates.secured else None

        def updates() -> Iterator[Admitted]:
            asked = [(name, self._work(opened, work_id, name)) for work_id, name in opened.members]
            inputs = (
                self._carried.inputs([name for name, _ in asked], ring)
                if opened.updates
                else NOTHING
            )
            honest = self._devices.do(before, asked, inputs)
            answers = train_answers(honest, before, asked, self._hostile, self._forgers)
            for (name, work), finished in zip(asked, answers, strict=True):
                given = handed(reference, work.adapter_spec)
                whole = len(before) if given is reference else len(encode_adapter(given))
                down.append(self._carried.fetched.bytes_of(name, whole))
                taken, update = admitted(finished, work, given, schedule)
                report = reports[name] = taken.report
                if taken.reason:
                    errors[name] = taken.reason
                answer = Answered(work.work_id, report.outcome, None, 0)
                if update is None:
                    self._state = evolve(self._state, answer)
                    continue
                norm = length(update.delta) if update.delta else 0.0
                states = counted(update, norm, opened, schedule)
                examples = update.num_examples
                answer = replace(answer, num_examples=examples, norm=norm, counted=states)
                self._state = evolve(self._state, answer)
                if schedule.learning.goes_by_losses and report.loss is not None:
                    self._state = evolve(self._state, LossTold(name, report.loss))
                sizes.append(len(finished.update or b""))
                new[name] = taken.states
                yield Admitted(name, update, norm, counted=states)
            if len(sizes) < max(1, schedule.min_updates):
                reason = next(iter(errors.values()), "nobody was asked")
                raise TooFew(
                    f"round {opened.round_index}: {len(sizes)} of {len(asked)} clients could "
                    f"train, {schedule.min_updates} needed: {reason}"
                )

        try:
            remembers, norms = decode_memory(self._carried.server), self._state.medians.norms
            cohort: Iterable[Admitted] = updates()
            if ring is not None:
                cohort = [_unmasked(opened, ring, list(cohort), shapes_of(reference))]
            context = context_of(schedule, self._state, opened, self._secret)
            if not norms and "adaptive" in (schedule.norm_bound, schedule.max_examples):
                cohort = list(cohort)  # in a file, in a coordinator
                assert self._state.step is not None
                opened = narrowed(schedule, self._state, self._state.step)
            found = learn(
                schedule.learning,
                opened,
                schedule.rounds,
                cohort,
                reference,
                remembers,
                norms,
                schedule.is_guarded,
                context,
                schedule.updates.down,
            )
            lack, lost, step = found.lack, found.lost, found.step
            if not lack:
                self._carried.remember(found.memory, found.shared)
        except TooFew as error:
            if self._hostile is None:
                raise
            lack, lost, step = str(error), None, b""  # it stands still: what it has is judged
        adapter = before if lack else encode_adapter(found.adapter)
        closed = StepClosed(sha256(adapter), 0.0, lack, shared=self._handed_out())
        if step:
            closed = replace(closed, step_sha256=sha256(step), step_bytes=len(step))
        self._state = evolve(self._state, closed)
        self._carried.close(opened.round_index, self._state.kept, new)
        self.standing = self._stand(adapter)
        done = [report for report in reports.values() if report.outcome == "done"]
        num_examples = sum(report.num_examples for report in done)
        losses = sum(report.num_examples * (report.loss or 0.0) for report in done)
        looking, self._looking = self._looking, None
        return Round(
            round_index=opened.round_index,
            cohort=tuple(reports),
            errors=errors,
            num_examples=num_examples,
            loss=losses / num_examples if num_examples and not opened.measures else None,
            bytes_down=sum(down) + handed_out * len(reports),
            bytes_up=sum(sizes),
            layer_forwards=sum(report.layer_forwards for report in done),
            train_s=time.perf_counter() - start_s,
            standing=self.standing,
            looking=looking,
            trouble=lack,
            lost=lost,
            kept=self.kept,
        )

    def _ring(self, opened: StepOpened) -> Ring:
        """Who masks together; a client's secret is its name."""
        keys = (public_key(name.encode()) for _, name in opened.members)
        at = opened.round_index, opened.attempt, float(opened.round_index)
        try:
            return Ring(self._template.run_id, *at, tuple(keys))
        except WrongInput as error:
            raise SimulationError(f"secure aggregation: {error}") from error

    def _handed_out(self) -> dict[str, str]:
        return {step: sha256(body) for step, body in self._carried.shared.items()}

    def _fetch(self, opened: StepOpened, adapter: bytes) -> None:
        """Those who are asked get what they start from, where the way that it comes is counted."""
        if self._schedule.updates.down == PLAIN:
            return
        is_newest = opened.adapter_sha256 == self._state.adapter_sha256
        steps = self._state.kept.steps_to(len(adapter)) if is_newest else ()
        for _, name in opened.members:
            self._carried.fetched.fetch(name, opened.adapter_sha256, steps)

    def rolled_back(self, event: RolledBack, closed: Round) -> Round:
        """A round whose adapter was left for an earlier one, which is what the run has now."""
        scored = (
            self._devices.judge(self.standing.adapter, self._arm, self._judging)
            if closed.score
            else None
        )
        trouble = f"back to round {event.round_index}: {event.reason}"
        return replace(closed, standing=self.standing, score=scored, trouble=trouble)

    def ended(self, closed: Round) -> Round:
        """The round that may be the last, with the score of the adapter that the run ends with."""
        if self.kept is None or self._schedule.evaluate_share == 1.0:
            return closed
        return replace(closed, kept_score=self._devices.judge(self._good, self._arm))

    def _stand(self, adapter: bytes) -> Standing:
        is_labelling = self._schedule.labelling is not None
        # Without labelling what clients hold never changes: whoever goes on says it again.
        state = self._state if is_labelling else replace(self._state, texts={})
        if state.good is not None and state.good.adapter_sha256 == sha256(adapter):
            self._good = adapter
        good = b"" if state.good is None else self._good
        known = RunState(state, self._devices.books, self._gate, good, self._carried)
        return Standing(adapter, state.round_index, state.evaluated, remembered(known))

    def evaluate(self, opened: StepOpened, trained: Round | None) -> Round:
        """One evaluation step; the round it belongs to, with its score if it is scored."""
        adapter, round_index = self.standing.adapter, opened.round_index
        self._fetch(opened, adapter)
        work_id, _ = opened.members[0]
        report = None
        if self._schedule.is_gated(round_index, self._state.solved):
            report = self._devices.gate(adapter, self._work(opened, work_id))
        if report is not None:
            self._gate = report
            if self._hostile is None:
                self._state = evolve(self._state, gate_answer(work_id, report))
        scored = None
        if self._schedule.is_scored(round_index):
            self._judging = self._work(opened, work_id)
            scored = self._devices.judge(adapter, self._arm, self._judging)
        if self._hostile is not None and (scored is not None or report is not None):
            self._hear(opened, scored, self._hostile, report)
        self._state = evolve(self._state, StepClosed(self._state.adapter_sha256, 0.0))
        if scored is not None and self._hostile is None:
            is_stopping = self._schedule.patience or self._schedule.keep == "best"
            aside = self._devices.check(adapter, self._arm) if is_stopping else None
            self._state = self._judged(opened, aside or scored)
        self.standing = self._stand(adapter)
        told = self._state.scores.get(round_index) if self._hostile else None
        reported = told.accuracy if told else None
        if trained is None:
            before = Round(round_index=round_index, standing=self.standing)
            return replace(before, score=scored, reported=reported, kept=self.kept)
        known = replace(trained, standing=self.standing, score=scored, reported=reported)
        return replace(known, kept=self.kept)

    def _judged(self, opened: StepOpened, scored: Score) -> State:
        """The state that knows a score which nobody told of, as far as the run goes by it."""
        state, told = self._state, told_of(opened, scored, self._template.task)
        if self._schedule.keep == "best":
            state = with_score(state, Good(opened.round_index, opened.adapter_sha256, told))
        if not self._schedule.patience:
            return state
        return replace(state, patience=after_score(state.patience, told))

    def _hear(
        self, opened: StepOpened, scored: Score | None, hostile: Hostile, gate: Report | None
    ) -> None:
        """Every member's evaluation; what hostile ones say is not what they know."""
        said = opened.members, opened.round_index, self._template.task
        for told in evaluations(scored, *said, hostile, self._forgers, gate):
            self._state = evolve(self._state, told)

    def _work(self, opened: StepOpened, work_id: str, name: str = "") -> Work:
        guidance = guidance_of(self._schedule, self._state, opened)
        spec = self._template.adapter_spec
        if rank := self._ranks.get(name, 0):
            spec = spec_at_rank(spec, rank)
        return replace(
            self._template,
            work_id=work_id,
            kind=opened.kind,
            round_index=opened.round_index,
            adapter_spec=spec,
            adapter_sha256=opened.adapter_sha256,
            adapter_bytes=len(self.standing.adapter),
            keep=guidance.keep,
            prior=guidance.prior,
            thresholds=guidance.thresholds,
            most=guidance.most,
            updates=step_orders(self._state, opened, name, lambda _: 0),
            test_share=opened.test_share,
        )


def _unmasked(
    opened: StepOpened, ring: Ring, cohort: Sequence[Admitted], shapes: Shapes
) -> Admitted:
    """The mean of masked updates, as the one update there is; all who sent one unmask it."""
    places = {name: at for at, (_, name) in enumerate(opened.members)}
    updates = {places[one.device_id]: one.update for one in cohort}
    coded = {at: one.coded or {} for at, one in updates.items()}
    shares = {at: one[SHARES] for at, one in coded.items()}
    seals = {at: one[SEALS][0].tobytes() for at, one in coded.items()}
    secured = step_in(opened.updates)
    assert secured is not None
    fewest = secured.fewest(len(ring.keys))
    answers = {
        at: Member(ring, name.encode()).answer(asked_of(ring, at, shares, seals), fewest)
        for name, at in places.items()
        if at in updates
    }
    sent = sent_shapes(opened.updates, shapes, opened.round_index)
    try:
        mean = sum_of(secured, ring, sorted(updates.items()), answers, sent)
    except LostSum as error:
        raise TooFew(f"round {opened.round_index}: {error}") from error
    texts = sum(one.num_examples for one in updates.values())
    return Admitted("", Update("", texts, mean))
