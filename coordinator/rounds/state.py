"""State of a run, folded from its journal of events.

`evolve` folds one event into the state, so replaying the journal after `kill -9` restores it;
`machine.decide` says which event is due next.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import msgspec

from smidgen.coordinator.rounds.bounds import Medians
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Answered,
    Event,
    Extended,
    Finished,
    Folded,
    Left,
    LossTold,
    Paused,
    Resumed,
    Returned,
    RolledBack,
    StepClosed,
    StepOpened,
    Unpaused,
)
from smidgen.coordinator.rounds.learning.memory import DeviceStates, kept_after
from smidgen.coordinator.rounds.scheduling.participation import (
    Heard,
    Patience,
    Silence,
    after_asking,
    after_failure,
    after_score,
    after_step,
    after_training,
    with_loss,
)
from smidgen.coordinator.rounds.scheduling.step import (
    Step,
    StepAnswers,
    Times,
    Underway,
    Works,
    after_answers,
    asking_also,
    moved,
    step_of,
    with_answer,
)
from smidgen.coordinator.rounds.scoring import Good, Score, better, has_tests, prior_of, scored
from smidgen.edge_client.updates.forms import OF_MOMENTS, OF_PRIOR
from smidgen.edge_client.wire.reports import Confidences, Failure


@dataclass(frozen=True)
class State:
    """Where a run stands.

    Attributes:
        adapter_sha256: The adapter of the last closed round.
        round_index: The last closed training round.
        evaluated: The last round whose adapter was evaluated, -1 for none.
        step: The open step.
        is_finished: Nothing more will be asked, unless it is extended.
        first_sha256: The adapter that the run started from; `adapter_sha256` where not said.
        evaluated_sha256: The adapter of the round `evaluated`; `first_sha256` where not said.
        scores: Round 0 and `evaluated` -> how right the adapter is over all answers; none where
            no device keeps texts for it.
        texts: Device -> number of gold-labelled texts in its last counted label or evaluate report.
        without_tests: Devices that held no text to evaluate on when they were last asked.
        priors: The same two rounds -> mean log-probability of each label, over the texts asked.
        confidences: Device -> how sure it last said it is of its unlabelled texts.
        labelled: The last round before which devices labelled; 0 for none.
        left: Devices that take no part for now -> why.
        closed_at_s: Unix time at which the last step closed.
        evaluations: How often devices were asked to evaluate the adapter of the round `evaluated`.
        paused_at_s: Unix time since which the run stands still; None while it does not.
        rounds: Rounds that it was extended to; 0: as its configuration says.
        is_stopped: Whether its operator ended it.
        steps: How many were opened.
        silences: Devices that did not answer when they were last asked.
        times: How long the last steps of each kind took.
        is_gathering: Whether it goes on after its end: the devices that went home come back one by
            one, so it waits for as many as at its beginning.
        medians: How long and how heavy the last rounds' updates were.
        good: The best adapter that was evaluated, of equals the newest.
        rollbacks: How often the run went back by itself since an operator ordered anything.
        asked: Attempt of the step of the next round that was opened last and has not closed.
        dropped: Highest attempt of a step of the next round that was given up; its work ids are
            spent.
        failed: Attempts at the open round before this one in which every device failed.
        failing: The devices that were asked in those.
        trouble: What last went wrong with it, or why it ended early, in words; empty of nothing.
        memory_sha256: What the last closed round left for the next, a blob; empty: nothing.
        shared: What update steps hand out to devices, a blob each, by step.
        kept: What counts of what devices keep: variates, what updates left out, adapters.
        patience: How many evaluations in a row found nothing better.
        heard: What asking devices to train last gave, of those that were.
        underway: Training of asynchronous rounds that goes on while no such step is open.
        forgets: How often devices were forgotten; work ids go by it, for rounds come again then.
        masked: The training step whose sum the open step unmasks.
        shut_out: Devices that dealt inconsistent shares in a secure aggregation.
        lost: Rounds in a row that secure aggregation gave no sum of.
        solved: The round whose moments the adapter's ridge regression is of (`updates.ridge`); 0:
            none yet.
        calibrated: The round in which the bias last came off that; 0: none.
    """

    adapter_sha256: str
    round_index: int = 0
    evaluated: int = -1
    step: Step | None = None
    is_finished: bool = False
    first_sha256: str = ""
    evaluated_sha256: str = ""
    scores: Mapping[int, Score] = field(default_factory=dict)
    texts: Mapping[str, int] = field(default_factory=dict)
    without_tests: frozenset[str] = frozenset()
    priors: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    confidences: Mapping[str, Confidences] = field(default_factory=dict)
    labelled: int = 0
    left: Mapping[str, Failure] = field(default_factory=dict)
    closed_at_s: float = 0.0
    evaluations: int = 0
    paused_at_s: float | None = None
    rounds: int = 0
    is_stopped: bool = False
    is_gathering: bool = False
    medians: Medians = field(default_factory=Medians)
    good: Good | None = None
    rollbacks: int = 0
    asked: int = 0
    dropped: int = 0
    failed: int = 0
    failing: frozenset[str] = frozenset()
    trouble: str = ""
    steps: int = 0
    silences: Mapping[str, Silence] = field(default_factory=dict)
    times: Times = field(default_factory=dict)
    memory_sha256: str = ""
    shared: Mapping[str, str] = field(default_factory=dict)
    kept: DeviceStates = field(default_factory=DeviceStates)
    patience: Patience = field(default_factory=Patience)
    underway: Mapping[str, Underway] = field(default_factory=dict)
    heard: Mapping[str, Heard] = field(default_factory=dict)
    forgets: int = 0
    masked: Step | None = None
    shut_out: frozenset[str] = frozenset()
    lost: int = 0
    solved: int = 0
    calibrated: int = 0

    def __post_init__(self) -> None:
        first = self.first_sha256 or self.adapter_sha256
        object.__setattr__(self, "first_sha256", first)
        object.__setattr__(self, "evaluated_sha256", self.evaluated_sha256 or first)

    @property
    def is_paused(self) -> bool:
        return self.paused_at_s is not None

    @property
    def phase(self) -> str:
        """`waiting` (for devices), `paused`, a step's kind, or `finished`."""
        if self.is_finished or self.is_paused:
            return "finished" if self.is_finished else "paused"
        return self.step.opened.kind if self.step else "waiting"


def evolve(state: State, event: Event) -> State:
    """Fold one event into the state.

    An answer to work that is not open, or that is answered already, or that comes after enough
    others, changes nothing. What stands for the events before it gives what they gave, whatever the
    state was.

    Raises:
        ValueError: A step is closed that is not open, or without the adapter after it.
    """
    if isinstance(event, StepOpened):
        before = state.step
        steps = state.steps + (event.kind != "unmask")  # which a device's rests go by
        state = replace(_left_alone(state, event.opened_at_s), steps=steps)
        state = _failed(state, before) if before and before.is_failed else _unfailed(state)
        state = replace(_given_up(state, before, event), is_gathering=False, asked=event.attempt)
        opened, heard = step_of(event, state.underway), after_asking(state.heard, event)
        underway: Works = {} if event.is_asynchronous else state.underway
        masked = before if event.kind == "unmask" else None
        return replace(state, step=opened, underway=underway, heard=heard, masked=masked)
    if isinstance(event, AlsoAsked):
        if state.step is None or not state.step.opened.is_asynchronous:
            raise ValueError("AlsoAsked needs an open step that is asynchronous")
        heard = after_asking(state.heard, event)
        return replace(state, step=asking_also(state.step, event), heard=heard)
    if isinstance(event, Answered):
        return _answered(state, event)
    if isinstance(event, LossTold):
        return replace(state, heard=with_loss(state.heard, event.device_id, event.loss))
    if isinstance(event, Left):
        return _left(state, event)
    if isinstance(event, Returned):
        # What it said of its texts is old: its owner has been there.
        left, texts = dict(state.left), dict(state.texts)
        left.pop(event.device_id, None)
        texts.pop(event.device_id, None)
        without = state.without_tests - {event.device_id}
        return replace(state, left=left, texts=texts, without_tests=without)
    if isinstance(event, Finished):
        # Where the run is extended, a step that was open is asked anew: by other work ids.
        dropped, index = max(state.dropped, state.asked), _round_used(state)
        ended = replace(
            state,
            step=None,
            masked=None,
            asked=0,
            dropped=dropped,
            round_index=index,
            heard=heard_so_far(state),
        )
        ended = replace(ended, is_finished=True, is_stopped=event.is_stopped)
        trouble = event.reason or state.trouble
        return replace(ended, paused_at_s=None, trouble=trouble, underway={})
    if isinstance(event, Extended):
        again = replace(state, rounds=event.rounds, is_finished=False, is_stopped=False)
        trouble = "" if state.is_finished else state.trouble
        again = replace(again, rollbacks=0, trouble=trouble, patience=Patience(state.patience.mark))
        again = replace(again, lost=0)
        return replace(again, is_gathering=state.is_finished or state.is_gathering)
    if isinstance(event, Resumed):
        # What a pause is still to add to the deadline counts from here too.
        since = event.resumed_at_s if state.is_paused and state.step else state.paused_at_s
        underway = moved(state.underway, to_s=event.resumed_at_s)
        again = replace(_opened_at(state, event.resumed_at_s), paused_at_s=since, underway=underway)
        return replace(again, step=again.step and replace(again.step, is_measured=False))
    if isinstance(event, Paused):
        if state.is_paused:
            return state
        trouble = event.reason or state.trouble
        return replace(state, paused_at_s=event.paused_at_s, trouble=trouble)
    if isinstance(event, Unpaused):
        again = _unfailed(_unpaused(state, event.unpaused_at_s))
        return replace(again, rollbacks=0, trouble="", lost=0)
    if isinstance(event, RolledBack):
        return _rolled_back(state, event)
    if isinstance(event, Folded):
        return msgspec.convert(event.state, State, str_keys=True)
    if state.step is None or event.adapter_sha256 is None:
        raise ValueError("StepClosed needs an open step and the adapter after it")
    closed = _left_alone(state, event.closed_at_s)
    closed = replace(closed, closed_at_s=event.closed_at_s, asked=0)
    if state.step.is_measured:
        answers = state.step.answers.values()
        times = after_answers(state.times, state.step.opened.kind, answers)
        closed = replace(closed, times=times)
    return _closed(closed, state.step, event)


def _failed(state: State, step: Step) -> State:
    failing = state.failing | set(step.members.values())
    return replace(state, failed=state.failed + 1, failing=failing)


def _unfailed(state: State) -> State:
    return replace(state, failed=0, failing=frozenset())


def _left_alone(state: State, now_s: float) -> State:
    """The open step, if there is one, is over: who has not answered by now has missed it.

    A simulation closes at the moment at which it opens; nobody is late there.
    """
    step = state.step
    if step is None or now_s <= step.opened.opened_at_s:
        return state
    answered = {step.members[work_id] for work_id in step.answers}
    # Whoever was asked to spare has missed nothing: enough others were quicker.
    # In asynchronous rounds, whose work goes on, it is known only when that is given up.
    is_patient = step.is_full or step.opened.is_asynchronous
    asked = answered if is_patient else step.members.values()
    return replace(state, silences=after_step(state.silences, asked, answered, state.steps))


def _given_up(state: State, before: Step | None, event: StepOpened) -> State:
    """What goes on from the step before, if that is not closed; who is given up has missed it."""
    if before is not None and before.works:
        state = replace(state, underway=before.left_over(is_closed=False))
    is_masked = event.kind == "unmask"
    if before is not None and before.opened.kind == "train" != event.kind and not is_masked:
        # its round comes again
        state = replace(state, dropped=max(state.dropped, state.asked))
    names = [state.underway[key].device_id for key in event.given_up if key in state.underway]
    return replace(state, silences=after_step(state.silences, names, (), state.steps))


def _opened_at(state: State, at_s: float) -> State:
    """The open step, if there is one, as if it were opened then."""
    if state.step is None:
        return state
    by_s = at_s - state.step.opened.opened_at_s
    opened = replace(state.step.opened, opened_at_s=at_s)
    works = moved(state.step.works, by_s)
    return replace(state, step=replace(state.step, opened=opened, works=works))


def _unpaused(state: State, now_s: float) -> State:
    """Everything that is counted from moves by the pause, so nothing but times has changed."""
    if state.paused_at_s is None:
        return state
    stood_s = max(0.0, now_s - state.paused_at_s)  # a clock may have been set back
    later = replace(state, paused_at_s=None, closed_at_s=state.closed_at_s + stood_s)
    later = replace(later, underway=moved(state.underway, stood_s))
    return _opened_at(later, state.step.opened.opened_at_s + stood_s) if state.step else later


def _left(state: State, event: Left) -> State:
    state = replace(state, left={**state.left, event.device_id: event.failure})
    if event.failure == "revoked" and event.device_id in state.confidences:
        others = {name: one for name, one in state.confidences.items() if name != event.device_id}
        state = replace(state, confidences=others)
    works = {key: one.device_id for key, one in state.underway.items()}
    works |= state.step.members if state.step else {}
    for work_id, device_id in works.items():
        if device_id == event.device_id:
            failed = Answered(work_id, "failed", None, 0, failure=event.failure)
            if event.failure == "revoked":  # what it answered in the open step counts no more
                state = _without_answer(state, work_id)
            state = _answered(state, failed)
    return state


def _without_answer(state: State, work_id: str) -> State:
    if work_id in state.underway:
        return replace(state, underway=with_answer(state.underway, None, work_id))
    if state.step is None:
        return state
    answers = {key: one for key, one in state.step.answers.items() if key != work_id}
    return replace(state, step=replace(state.step, answers=answers))


def _answered(state: State, answer: Answered) -> State:
    step, underway = state.step, state.underway
    if answer.work_id in underway:
        is_new = underway[answer.work_id].answer is None
        told = with_answer(underway, answer, answer.work_id) if is_new else underway
        return replace(state, underway=told)
    if step is None or answer.work_id not in step.members or answer.work_id in step.answers:
        return state
    if step.turns_away:
        return state
    texts, without, name = state.texts, state.without_tests, step.members[answer.work_id]
    is_told = not step.opened.brings_files and answer.labelled is not None
    if is_told and texts.get(name) != answer.labelled:  # no copy for what is known: replay's pace
        texts = {**texts, name: answer.labelled or 0}
    has_evaluated = step.opened.kind == "evaluate" and answer.outcome == "done"
    if has_evaluated and (not has_tests(answer)) != (name in without):
        without = without ^ {name}
    known = step.answers if isinstance(step.answers, StepAnswers) else StepAnswers(step.answers)
    heard = state.heard
    if step.opened.kind == "train" and answer.outcome == "failed":
        heard = after_failure(heard, name)
    step = replace(step, answers=known.plus(answer))
    return replace(state, step=step, texts=texts, without_tests=without, heard=heard)


def _rolled_back(state: State, event: RolledBack) -> State:
    good, index = state.good, state.evaluated
    back = _unpaused(state, event.rolled_back_at_s) if event.is_ordered else state
    known = good if good and good.adapter_sha256 == event.adapter_sha256 else None
    # The labelling gate looks at what is evaluated: that is the adapter gone back to now.
    scores = {key: one for key, one in state.scores.items() if key == 0}
    priors = {key: one for key, one in state.priors.items() if key == 0}
    if known and index > 0:
        scores[index] = known.score
        priors |= {index: known.prior} if known.prior else {}
    # What a run left by itself it does not calibrate: the adapter before it may be so already.
    is_left = event.round_index < state.solved and not event.is_ordered
    calibrated = state.calibrated * (state.calibrated <= event.round_index)
    return replace(
        _unfailed(back),
        step=None,
        masked=None,
        round_index=_round_used(state),
        heard=heard_so_far(state),
        underway={},  # it starts from what was left
        adapter_sha256=event.adapter_sha256,
        evaluated_sha256=event.adapter_sha256,
        scores=scores,
        priors=priors,
        memory_sha256="",  # it belongs to the adapter that was left
        shared={},  # nor does the other path's drift say anything
        kept=DeviceStates(),
        medians=state.medians.without(state.round_index - event.round_index),
        good=known,
        asked=0,
        dropped=max(state.dropped, state.asked),
        rollbacks=0 if event.is_ordered else state.rollbacks + 1,
        # A run that went back by itself has found that it does harm.
        solved=state.solved * (event.round_index >= state.solved or not event.is_ordered),
        calibrated=state.solved if is_left and state.calibrated else calibrated,
        lost=0 if event.is_ordered else state.lost,
        trouble=f"back to round {event.round_index}: {event.reason}",
    )


def _round_used(state: State) -> int:
    """The last round, where the open step ends without a sum.

    A round that was being unmasked is over: two sums of equal updates of one round, over different
    devices, would tell the updates of those in which they differ.
    """
    return state.round_index if state.masked is None else state.masked.opened.round_index


def heard_so_far(state: State) -> Mapping[str, Heard]:
    """What asking devices to train gave, a round included whose sum somebody may have seen."""
    if state.masked is None:
        return state.heard
    return after_training(state.heard, _round_used(state), state.masked.updates())


def _closed(state: State, step: Step, event: StepClosed) -> State:
    round_index = step.opened.round_index
    if step.opened.brings_files:
        if state.masked is not None:
            step, lost = state.masked, state.lost + 1 if event.refused else 0
            shut_out = state.shut_out.union(event.blamed)
            state = replace(state, masked=None, shut_out=shut_out, lost=lost)
        closed = replace(_unfailed(state), step=None, round_index=round_index, dropped=0)
        heard = after_training(state.heard, round_index, step.updates())
        closed = replace(closed, underway=step.left_over(is_closed=True), heard=heard)
        if event.refused:
            return replace(closed, trouble=f"round {round_index} was not taken: {event.refused}")
        medians = state.medians.after(step.opened, step.updates())
        measured = step.opened.measures
        adapter_sha256 = event.adapter_sha256 or closed.adapter_sha256
        return replace(
            closed,
            adapter_sha256=adapter_sha256,
            memory_sha256=event.memory_sha256,
            shared=event.shared,
            kept=kept_after(state.kept, step, event),
            medians=medians,
            solved=round_index if measured == OF_MOMENTS else state.solved,
            calibrated=round_index if measured == OF_PRIOR else state.calibrated,
        )
    if step.opened.kind == "label":
        # All at once: who answers first sees what who answers last does.
        told = {name: one.confidences for name, one in step.updates() if one.confidences}
        merged = {**state.confidences, **told}
        return replace(state, step=None, labelled=round_index, confidences=merged)
    done = [answer for _, answer in step.updates()]
    prior = prior_of(answer for answer in done if has_tests(answer))
    score = scored(step.opened, done)
    if round_index < state.evaluated:  # the first adapter once more, by more devices
        others = {key: one for key, one in state.scores.items() if key}
        again = Good(round_index, step.opened.adapter_sha256, score, prior)
        return with_score(replace(state, step=None, scores=others), again)
    is_new = round_index > state.evaluated  # one that is asked for again is not another
    is_progress = is_new and round_index != state.calibrated  # what that brings is no training's
    closed = replace(
        state,
        step=None,
        evaluated=round_index,
        evaluations=step.opened.attempt,
        patience=after_score(state.patience, score) if is_progress else state.patience,
        evaluated_sha256=step.opened.adapter_sha256,
    )
    return with_score(closed, Good(round_index, closed.evaluated_sha256, score, prior))


def with_score(state: State, found: Good) -> State:
    """What an evaluation found, whoever heard it: the gate, roll-backs and the best go by it."""
    # The gate compares the newest adapter with the first.
    decides = (0, max(found.round_index, state.evaluated))
    scores = {key: one for key, one in state.scores.items() if key in decides}
    priors = {key: one for key, one in state.priors.items() if key in decides}
    scores |= {found.round_index: found.score} if found.score.texts else {}
    priors |= {found.round_index: found.prior} if found.prior else {}
    return replace(state, good=better(state.good, found), scores=scores, priors=priors)


def replay(adapter_sha256: str, events: Iterable[Event]) -> State:
    """The state of a run that started from an adapter, after all its events."""
    return reduce(evolve, events, State(adapter_sha256))
