"""Rounds as a pure state machine over a journal of events.

A run is a row of steps: evaluate the adapter it starts from (round 0), train round 1, evaluate,
train round 2 and so on; with labelling, devices label their texts before rounds 1, 1 + f, ...
`evolve` folds an event into the state; `decide` says which event is due next. Time, secrets and
who is there come in as arguments, so a journal replayed after `kill -9` gives the state that was
lost.
"""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from coordinator.rounds.events import (
    Answered,
    Event,
    Extended,
    Finished,
    Kind,
    Left,
    Paused,
    Resumed,
    Returned,
    StepClosed,
    StepOpened,
    Unpaused,
)
from coordinator.rounds.schedule import Schedule
from coordinator.rounds.scoring import Score, has_tests, is_worse, scored
from coordinator.rounds.selection import candidates, cohort, evaluators, labellers
from coordinator.rounds.thresholds import class_thresholds
from edge_client.wire.confidences import Confidences
from edge_client.wire.failures import Failure
from edge_client.wire.labelling import Labelling, keep_in

ASK_AGAIN_S = 60.0  # between two questions whether anybody has texts to train on by now


@dataclass(frozen=True)
class Step:
    """The open step: what was asked of whom, and who has answered by work id."""

    opened: StepOpened
    members: Mapping[str, str]  # work_id -> device_id
    answers: Mapping[str, Answered] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        """Whether nobody is left to wait for."""
        return len(self.answers) == len(self.members)

    def updates(self) -> list[tuple[str, Answered]]:
        """(device_id, answer) of everyone who is done, by device id."""
        done = [(self.members[key], item) for key, item in self.answers.items()]
        return sorted(
            (pair for pair in done if pair[1].outcome == "done"), key=lambda pair: pair[0]
        )


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
        evaluations: How often the adapter of the round `evaluated` was evaluated.
        paused_at_s: Unix time since which the run stands still; None while it does not.
        rounds: Rounds that it was extended to; 0: as its configuration says.
        is_stopped: Whether its operator ended it.
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

    def __post_init__(self) -> None:
        first = self.first_sha256 or self.adapter_sha256
        object.__setattr__(self, "first_sha256", first)
        object.__setattr__(self, "evaluated_sha256", self.evaluated_sha256 or first)

    @property
    def is_paused(self) -> bool:
        return self.paused_at_s is not None

    @property
    def phase(self) -> str:
        """`waiting` (for devices), `paused`, `train`, `label`, `evaluate` or `finished`."""
        if self.is_finished or self.is_paused:
            return "finished" if self.is_finished else "paused"
        return self.step.opened.kind if self.step else "waiting"


def evolve(state: State, event: Event) -> State:
    """Fold one event into the state.

    An answer to work that is not open, or that is answered already, changes nothing.

    Raises:
        ValueError: A step is closed that is not open, or without the adapter after it.
    """
    if isinstance(event, StepOpened):
        return replace(state, step=Step(event, dict(event.members)))
    if isinstance(event, Answered):
        return _answered(state, event)
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
        ended = replace(state, step=None, is_finished=True, is_stopped=event.is_stopped)
        return replace(ended, paused_at_s=None)
    if isinstance(event, Extended):
        return replace(state, rounds=event.rounds, is_finished=False, is_stopped=False)
    if isinstance(event, Resumed):
        # What a pause is still to add to the deadline counts from here too.
        since = event.resumed_at_s if state.is_paused and state.step else state.paused_at_s
        return replace(_opened_at(state, event.resumed_at_s), paused_at_s=since)
    if isinstance(event, Paused):
        return state if state.is_paused else replace(state, paused_at_s=event.paused_at_s)
    if isinstance(event, Unpaused):
        return _unpaused(state, event.unpaused_at_s)
    if state.step is None or event.adapter_sha256 is None:
        raise ValueError("StepClosed needs an open step and the adapter after it")
    closed = replace(state, closed_at_s=event.closed_at_s)
    return _closed(closed, state.step, event.adapter_sha256)


def _opened_at(state: State, at_s: float) -> State:
    """The open step, if there is one, as if it were opened then."""
    if state.step is None:
        return state
    opened = replace(state.step.opened, opened_at_s=at_s)
    return replace(state, step=replace(state.step, opened=opened))


def _unpaused(state: State, now_s: float) -> State:
    """Everything that is counted from moves by the pause, so nothing but times has changed."""
    if state.paused_at_s is None:
        return state
    stood_s = max(0.0, now_s - state.paused_at_s)  # a clock may have been set back
    moved = replace(state, paused_at_s=None, closed_at_s=state.closed_at_s + stood_s)
    return _opened_at(moved, state.step.opened.opened_at_s + stood_s) if state.step else moved


def _left(state: State, event: Left) -> State:
    state = replace(state, left={**state.left, event.device_id: event.failure})
    for work_id, device_id in state.step.members.items() if state.step else ():
        if device_id == event.device_id:
            failed = Answered(work_id, "failed", None, 0, failure=event.failure)
            state = _answered(state, failed)
    return state


def _answered(state: State, answer: Answered) -> State:
    step = state.step
    if step is None or answer.work_id not in step.members or answer.work_id in step.answers:
        return state
    texts, without, name = state.texts, state.without_tests, step.members[answer.work_id]
    is_told = step.opened.kind != "train" and answer.labelled is not None
    if is_told and texts.get(name) != answer.labelled:  # no copy for what is known: replay's pace
        texts = {**texts, name: answer.labelled or 0}
    has_evaluated = step.opened.kind == "evaluate" and answer.outcome == "done"
    if has_evaluated and (not has_tests(answer)) != (name in without):
        without = without ^ {name}
    answers = {**step.answers, answer.work_id: answer}
    step = replace(step, answers=answers)
    return replace(state, step=step, texts=texts, without_tests=without)


def _closed(state: State, step: Step, adapter_sha256: str) -> State:
    round_index = step.opened.round_index
    if step.opened.kind == "train":
        return replace(state, step=None, round_index=round_index, adapter_sha256=adapter_sha256)
    if step.opened.kind == "label":
        # All at once: who answers first sees what who answers last does.
        told = {name: one.confidences for name, one in step.updates() if one.confidences}
        merged = {**state.confidences, **told}
        return replace(state, step=None, labelled=round_index, confidences=merged)
    done = [answer for _, answer in step.updates()]
    asked = [answer for answer in done if has_tests(answer)]
    prior = _mean([(one.mean_log_probabilities, one.num_examples) for one in asked])
    score = scored(step.opened, done)
    scores = {**state.scores, round_index: score} if score.texts else state.scores
    priors = {**state.priors, round_index: prior} if prior else state.priors
    decides = (0, round_index)  # the gate compares the newest adapter with the first
    return replace(
        state,
        step=None,
        evaluated=round_index,
        evaluations=state.evaluations + 1 if state.evaluated == round_index else 1,
        evaluated_sha256=step.opened.adapter_sha256,
        scores={index: one for index, one in scores.items() if index in decides},
        priors={index: one for index, one in priors.items() if index in decides},
    )


def _mean(parts: list[tuple[tuple[float, ...], int]]) -> tuple[float, ...]:
    """Weighted mean of rows of equal length; of those that say anything."""
    told = [(row, weight) for row, weight in parts if row and weight]
    total = sum(weight for _, weight in told)
    columns = zip(*(row for row, _ in told), strict=True)
    weights = [weight for _, weight in told]
    return tuple(
        sum(value * weight for value, weight in zip(column, weights, strict=True)) / total
        for column in columns
    )


def replay(adapter_sha256: str, events: Iterable[Event]) -> State:
    """The state of a run that started from an adapter, after all its events."""
    return reduce(evolve, events, State(adapter_sha256))


def decide(
    config: Schedule, state: State, alive: Collection[str], secret: str, now_s: float
) -> Event | None:
    """The next event that is due, or None if there is something to wait for.

    Args:
        config: The run.
        state: The run's state.
        alive: Ids of the devices that are there.
        secret: What unguessable work ids are derived from.
        now_s: Unix time.
    """
    if state.is_finished or state.is_paused:
        return None
    alive = set(alive) - state.left.keys()
    if state.step is None:
        return _next_step(config, state, alive, secret, now_s)
    step, opened = state.step, state.step.opened
    is_overdue = now_s >= opened.opened_at_s + config.deadline_s
    if opened.kind != "train":
        is_over = step.is_answered or is_overdue
        return StepClosed(state.adapter_sha256, now_s) if is_over else None
    if len(step.updates()) >= config.min_updates:
        return StepClosed(None, now_s) if step.is_answered or is_overdue else None
    # When everyone failed at once there is nobody to wait for, but no reason to ask in a hot loop.
    pause_s = min(config.deadline_s, 2.0 ** min(opened.attempt, 30))
    if is_overdue or (step.is_answered and now_s >= opened.opened_at_s + pause_s):
        return _train(config, state, alive, secret, now_s, opened.attempt + 1)
    return None


def rounds_of(config: Schedule, state: State) -> int:
    """Rounds until the run is finished, those that it was extended by included.

    What grows over a run's rounds (`keep_in`) goes by the configuration's and then stays.
    """
    return state.rounds or config.rounds


def devices_needed(config: Schedule, state: State) -> int:
    """Devices that must be there for the next step to open."""
    return config.min_clients if state.round_index == 0 and state.evaluated < 0 else 1


def _next_step(
    config: Schedule, state: State, alive: Collection[str], secret: str, now_s: float
) -> Event | None:
    is_last = state.round_index >= rounds_of(config, state)
    every = config.evaluate_every
    is_due = state.round_index == 0 or is_last or (every and state.round_index % every == 0)
    if is_due and state.evaluated < state.round_index:
        if len(alive) < devices_needed(config, state):
            return None
        return _evaluate(config, state, alive, secret, now_s, 1)
    if is_last:
        return Finished(now_s)
    labelling = config.labelling
    is_labelled = state.labelled > state.round_index
    if labelling and not is_labelled and state.round_index % labelling.infer_every == 0:
        chosen = labellers(alive, labelling.infer_clients, config.seed, state.round_index + 1)
        sha256 = labels_with(labelling, state)[0]
        labels = _open(sha256, "label", state.round_index + 1, 1, chosen, secret, now_s)
        return labels if chosen else None
    opened = _train(config, state, alive, secret, now_s, 1)
    if opened is None and alive and now_s - state.closed_at_s >= ASK_AGAIN_S:
        # Nobody who is there had a text to train on; an evaluation hears whether that has changed.
        return _evaluate(config, state, alive, secret, now_s, state.evaluations + 1)
    return opened


def _evaluate(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    attempt: int,
) -> StepOpened:
    index, size = state.round_index, config.evaluate_cohort
    chosen, population = evaluators(alive, state.without_tests, size, config.seed, index, attempt)
    opened = _open(state.adapter_sha256, "evaluate", index, attempt, chosen, secret, now_s)
    return replace(opened, population=population)


def thresholds_before(config: Schedule, state: State, round_index: int) -> tuple[float, ...]:
    """Least confidence of each class's pseudo-labels in a training round; none without labelling.

    By what devices told in the label steps closed so far and by k of the round: whoever is asked
    in one step is told the same.
    """
    if config.labelling is None:
        return ()
    told = [state.confidences[name] for name in sorted(state.confidences)]
    share = keep_in(config.labelling, max(1, round_index), config.rounds)
    return class_thresholds(told, config.labelling, config.labels, share)


def labels_with(labelling: Labelling, state: State) -> tuple[str, int]:
    """The adapter that devices label with: the capacity gate of AUG-FedPrompt.

    Gated, it is the newest evaluated one unless that does worse than the first, by more than what
    asking a cohort explains; a share that nobody could tell is good enough. Ungated, it is the
    newest one, whatever it does.

    Returns:
        Its SHA-256, and the round after which it stood.
    """
    if not labelling.is_gated:
        return state.adapter_sha256, state.round_index
    newest, first = state.scores.get(state.evaluated), state.scores.get(0)
    if newest and first and is_worse(newest, first):
        return state.first_sha256, 0
    return state.evaluated_sha256, max(0, state.evaluated)


def _train(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    attempt: int,
) -> StepOpened | None:
    round_index = state.round_index + 1
    least = thresholds_before(config, state, round_index)
    names = candidates(alive, state.texts, state.confidences, least)
    seed, most = config.seed, config.max_cohort
    chosen = cohort(names, config.fraction, seed, round_index, attempt, most)
    opened = _open(state.adapter_sha256, "train", round_index, attempt, chosen, secret, now_s)
    return opened if len(chosen) >= config.min_updates else None


def _open(
    adapter_sha256: str,
    kind: Kind,
    round_index: int,
    attempt: int,
    chosen: Iterable[str],
    secret: str,
    now_s: float,
) -> StepOpened:
    members = tuple(
        (_work_id(secret, kind, round_index, attempt, device_id), device_id) for device_id in chosen
    )
    return StepOpened(kind, round_index, attempt, adapter_sha256, members, now_s)


def _work_id(secret: str, *work: str | int) -> str:
    text = "\x1f".join(str(part) for part in work)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]
