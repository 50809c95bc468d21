"""Rounds as a pure state machine over a journal of events.

A run is a sequence of steps: evaluate the initial adapter (round 0), train round 1, evaluate, train
round 2 and so on; with labelling, devices label their texts before rounds 1, 1 + f, ...
`state.evolve` folds an event into the state; `decide` says which event is due next. Time, secrets
and the devices present come in as arguments.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import median_low

from smidgen.coordinator.rounds.bounds import (
    FEWEST,
    next_most_examples,
    next_norm_bound,
    pull_bound,
    wide_bound,
)
from smidgen.coordinator.rounds.events import (
    AlsoAsked,
    Event,
    Finished,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.extensions import PluginError
from smidgen.coordinator.rounds.learning.server_update import gain_of
from smidgen.coordinator.rounds.learning.unmasking import step_in
from smidgen.coordinator.rounds.policies import FOR_PRIVACY, choose, passed_over
from smidgen.coordinator.rounds.schedule import Schedule
from smidgen.coordinator.rounds.scheduling.asking import (
    also_asked,
    open_step,
    train_on,
    work_secret,
)
from smidgen.coordinator.rounds.scheduling.participation import awake, lack_of_progress
from smidgen.coordinator.rounds.scheduling.step import Step, busy, closes_after_s, deadline_of_next
from smidgen.coordinator.rounds.scoring import class_thresholds, is_collapsed, is_worse
from smidgen.coordinator.rounds.selection import (
    Facts,
    asked_size,
    candidates,
    counted_size,
    evaluators,
    labellers,
    trainable,
)
from smidgen.coordinator.rounds.state import State
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.updates.forms import OF_MOMENTS, OF_PRIOR, RIDGE
from smidgen.edge_client.updates.masks import MOST as MOST_MASKED
from smidgen.edge_client.updates.ridge import FEW
from smidgen.edge_client.updates.secure_sum import SecureSum, widest_for
from smidgen.edge_client.wire.messages import Ended
from smidgen.edge_client.wire.tensors import AdapterState
from smidgen.edge_client.wire.training import Labelling, keep_in

MOST_FAILURES = 6  # attempts at a round in a row in which every device fails; about two minutes
MANY_DEVICES = 20  # that failed stand for all: no run needs to ask thousands to know that it fails
MOST_ROLLBACKS = 3  # by itself, until its operator orders something: a run comes to its end
MOST_LOST = 3  # rounds in a row without a sum, until somebody looks
MOST_TRIES = 3  # at an evaluation that nobody answers
NOBODY = Facts()  # of whom anything is known
ASK_AGAIN_S = 60.0  # between two questions whether anybody has texts to train on by now


def decide(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    facts: Facts = NOBODY,
) -> Event | None:
    """The next event that is due, or None if there is something to wait for.

    Args:
        config: The run.
        state: The run's state.
        alive: Ids of the devices that are there.
        secret: What draws and work ids, which nobody must guess, are derived from.
        now_s: Unix time.
        facts: What is known of devices, where the run's selection goes by it.
    """
    if state.is_finished or state.is_paused:
        return None
    try:
        return _due(config, state, alive, secret, now_s, facts)
    except PluginError as error:
        return Paused(now_s, str(error))


def waits(config: Schedule, state: State, now_s: float) -> bool:
    """Whether nothing is due now, whoever is there: `decide` gives None then.

    So most looks at a run need not find out who is there.
    """
    if state.is_finished or state.is_paused:
        return True
    step = state.step
    if step is None or step.is_answered or step.opened.is_asynchronous:
        return False
    return now_s < closes_at_s(config, step)


def _due(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    facts: Facts,
) -> Event | None:
    alive = set(alive) - state.left.keys() - state.shut_out
    if state.step is None and state.lost >= MOST_LOST:
        why = f"{state.trouble}; devices drop out, or one spoils it"
        return Paused(now_s, f"{state.lost} rounds in a row gave no sum: {why}")
    if state.step is None:
        return _back(config, state, now_s) or _next_step(config, state, alive, secret, now_s, facts)
    step, opened = state.step, state.step.opened
    is_overdue = now_s >= closes_at_s(config, step)
    if opened.kind == "unmask":
        return _unmasked(state, opened, now_s) if step.is_answered or is_overdue else None
    if opened.kind != "train":
        if step.is_answered or (is_overdue and not _is_made_up(state, opened, step)):
            return StepClosed(state.adapter_sha256, now_s)
        if is_overdue and alive:
            return _evaluate(config, state, alive, secret, now_s, opened.attempt + 1)
        return None
    known = config, state, alive, secret, now_s
    if more := None if step.is_full or is_overdue else _also(*known, facts):
        return more
    if len(step.updates()) >= _least_updates(config, opened):
        is_over = step.is_answered or is_overdue
        if is_over and config.updates.secured:
            return _unmask(config, state, step, secret, now_s)
        return StepClosed(None, now_s) if is_over else None
    # When everyone failed at once there is nobody to wait for, but no reason to ask in a hot loop.
    pause_s = min(config.deadline_s, 2.0 ** min(opened.attempt, 30))
    if is_overdue or (step.is_answered and now_s >= opened.opened_at_s + pause_s):
        again = _train(*known, opened.attempt + 1, facts)
        # Who trains for long does not poll meanwhile: as long as somebody has not answered, the
        # step stays open, since its update would come too late for another.
        if again is None and (lack := _lack_of_privacy(config, state, alive)):
            return Paused(now_s, lack)
        if again is None and step.is_answered and not _able(config, state, alive):
            return _evaluate_anew(*known)
        if again is not None and _is_hopeless(config, state, step, alive):
            return Paused(
                now_s,
                f"every device failed at round {opened.round_index}, {state.failed + 1} times",
            )
        return again
    return None


def _also(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    facts: Facts,
) -> AlsoAsked | None:
    """More devices for the open step, where it is asynchronous and some are idle."""
    if state.step is None or not state.step.opened.is_asynchronous:
        return None
    least = thresholds_before(config, state, state.step.opened.round_index)
    return also_asked(config, state, alive, least, secret, now_s, facts)


def _is_hopeless(config: Schedule, state: State, step: Step, alive: Collection[str]) -> bool:
    """Whether a run may stop asking: everybody who could train has failed, again and again.

    Devices that only some cohorts hold are not everybody; else one that fails on purpose would end
    a run whenever it is asked alone.
    """
    if not step.is_failed or state.failed + 1 < MOST_FAILURES:
        return False
    failing = state.failing | set(step.members.values())
    there = awake(alive, state.silences, state.steps + 1) or alive
    return len(failing) >= MANY_DEVICES or _able(config, state, there) <= failing


def _able(config: Schedule, state: State, there: Collection[str]) -> set[str]:
    """Those of some devices that may train in the next round."""
    least = thresholds_before(config, state, state.round_index + 1)
    return set(candidates(there, state.texts, state.confidences, least))


def _back(config: Schedule, state: State, now_s: float) -> RolledBack | None:
    """Back to the best adapter, where the one that was just evaluated has come to harm."""
    newest, good = state.scores.get(state.evaluated), state.good
    measure = kind_named(config.kind).measure
    if newest is None or good is None or state.evaluated_sha256 != state.adapter_sha256:
        return None
    if good.adapter_sha256 == state.adapter_sha256 or state.rollbacks >= MOST_ROLLBACKS:
        return None
    if not is_collapsed(newest, good.score, measure.chance(config.labels)):
        return None
    did = measure.said.format(f"{newest.accuracy:.1%}")
    before = f"after round {good.round_index} {good.score.accuracy:.1%}"
    return RolledBack(
        good.round_index,
        good.adapter_sha256,
        f"after round {state.evaluated} {did}, {before}",
        now_s,
    )


def bounded(
    opened: StepOpened, config: Schedule, state: State, adapter: Callable[[], AdapterState]
) -> StepOpened:
    """A training step with the bounds of its updates (`rounds.bounds`); any other as it is.

    They follow from the journal before the step and from the run's first adapter.

    Args:
        opened: What `decide` said.
        config: The run.
        state: The state that it was decided on.
        adapter: Reads what the step starts from.
    """
    if opened.kind != "train" or is_bounded_by_noise(config):
        return opened
    least = thresholds_before(config, state, opened.round_index)
    told = trainable(state.texts, {} if opened.measures else state.confidences, least)
    most = config.max_examples
    if config.updates.secured:
        return _secured(opened, config, told)
    if most == "adaptive":
        most = next_most_examples(state.medians.examples or told)
    bound = config.norm_bound or None
    if bound == "adaptive":
        known = adapter()
        parameters = sum(tensor.size for tensor in known.values())
        wide = wide_bound(config.training, told, parameters) * gain_of(config.learning, known)
        bound = next_norm_bound(state.medians.norms, wide)
    is_told = config.norm_bound == config.max_examples == "adaptive"
    pull = pull_bound(bound or 0.0, most) if is_told else None
    return replace(opened, norm_bound=bound, most_examples=most, most_pull=pull)


def _secured(opened: StepOpened, config: Schedule, told: Sequence[float]) -> StepOpened:
    """With the range of numbers and the weight that devices bound themselves by: nobody else can.

    Nothing follows from rounds before, whose updates nobody knows.
    """
    most = config.max_examples
    heaviest = max(1, math.ceil(max(told, default=1)))
    if most == "adaptive":
        most = next_most_examples(told)
    coded, clip_range = config.updates.secured[0], wide_bound(config.training, told, 1)
    if opened.measures:  # what is 1 at most, and of which most is far smaller
        coded = f"{SecureSum.name}:int{widest_for(len(opened.members))}"
        clip_range = 1.0
    if opened.measures == OF_PRIOR:
        most = FEW
    spec = f"{coded}:{clip_range!r}:{most or heaviest}"
    others = [one for one in opened.updates if one not in config.updates.secured]
    return replace(opened, updates=(*others, spec))


def narrowed(config: Schedule, state: State, step: Step) -> StepOpened:
    """A training step that closes, bounded by its own updates in what no round before it says.

    By their lower medians, so by the shorter and lighter of two; one by itself stays as it is. With
    `scaffold` nothing is narrowed: which control variates count was decided as updates came.

    Args:
        config: The run.
        state: The state as it closes.
        step: The open step.
    """
    opened, answers = step.opened, [answer for _, answer in step.updates()]
    norms = [one.norm for one in answers if one.norm is not None]
    is_fixed = config.training.scaffold or is_bounded_by_noise(config)
    is_fixed = is_fixed or bool(config.updates.secured) or bool(opened.measures)
    if state.medians.norms or is_fixed or not norms:
        return opened
    bound, most = opened.norm_bound, opened.most_examples
    if config.norm_bound == "adaptive" and bound is not None:
        bound = min(bound, next_norm_bound([median_low(norms)], bound))
    if config.max_examples == "adaptive":
        most = most or next_most_examples([one.num_examples for one in answers])
    is_told = config.norm_bound == config.max_examples == "adaptive"
    pull = pull_bound(bound or 0.0, most) if is_told else None
    return replace(opened, norm_bound=bound, most_examples=most, most_pull=pull)


def closes_at_s(config: Schedule, step: Step) -> float:
    """Unix time at which an open step stops waiting, as it stands."""
    opened = step.opened
    return opened.opened_at_s + closes_after_s(config.deadline_s, opened, step.answers.values())


def _is_made_up(state: State, opened: StepOpened, step: Step) -> bool:
    """Whether a step that is overdue is an evaluation that devices are asked for once more.

    Without an answer its round would have no accuracy; not for ever, where none can be had.
    """
    before = state.evaluations if state.evaluated == opened.round_index else 0
    is_last = opened.attempt - max(before, state.dropped) >= MOST_TRIES
    return opened.kind == "evaluate" and not step.updates() and not is_last


def rounds_of(config: Schedule, state: State) -> int:
    """Rounds until the run is finished, those that it was extended by included.

    What grows over a run's rounds (`keep_in`) goes by the configuration's and then stays.
    """
    return state.rounds or config.rounds


def ended_of(config: Schedule, state: State) -> Ended | None:
    """Why a run is finished; None while it goes on."""
    if not state.is_finished:
        return None
    if state.is_stopped:
        return "stopped"
    return "rounds" if state.round_index >= rounds_of(config, state) else "patience"


def kept_of(config: Schedule, state: State) -> tuple[int, str]:
    """The adapter that is the run's as it stands, and in the end: its round and its SHA-256.

    The best of those that were evaluated, where the run keeps that and there is one; of equals the
    newest; and whatever it keeps, where it may not go back by itself any more. A run that went back
    by its operator's order chooses among what came since.
    """
    is_best = config.keep == "best" or state.rollbacks >= MOST_ROLLBACKS
    if is_best and state.good is not None:
        return state.good.round_index, state.good.adapter_sha256
    return state.round_index, state.adapter_sha256


def devices_needed(config: Schedule, state: State) -> int:
    """Devices that must be there for the next step to open."""
    is_at_begin = state.round_index == 0 and state.evaluated < 0 and not state.forgets
    return config.min_clients if is_at_begin or state.is_gathering else 1


def _next_step(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    facts: Facts,
) -> Event | None:
    is_last = state.round_index >= rounds_of(config, state)
    every = config.evaluate_every
    is_due = state.round_index == 0 or is_last or (every and state.round_index % every == 0)
    is_due = is_due or (config.labelling is not None and state.round_index == state.solved)
    is_due = is_due or state.round_index == state.calibrated
    is_due = is_due and state.evaluated < state.round_index
    if is_last and not is_due:
        return Finished(now_s)
    lack = lack_of_progress(state.patience, config.patience)
    measured = _measures(config, state, alive)
    if lack and not is_due and measured != OF_PRIOR:
        return Finished(now_s, reason=lack)
    if len(alive) < devices_needed(config, state):
        return None
    if is_due:
        return _evaluate(config, state, alive, secret, now_s, state.dropped + 1)
    if _began_with_few(config, state, alive):
        # More attempts than steps there never were.
        return _evaluate(config, state, alive, secret, now_s, state.steps + 1, is_first=True)
    labelling = config.labelling
    is_waiting = state.labelled > state.round_index or bool(measured)
    if labelling and not is_waiting and labels_after(labelling, state.round_index, state.solved):
        chosen = labellers(
            _free(state, alive), labelling.infer_clients, secret, state.round_index + 1
        )
        sha256 = labels_with(labelling, state)[0]
        index, attempt = state.round_index + 1, state.dropped + 1
        key = work_secret(state, secret)
        labels = open_step(sha256, "label", index, attempt, chosen, key, now_s)
        return _timed(config, state, labels) if chosen else None
    opened = _train(config, state, alive, secret, now_s, state.dropped + 1, facts)
    if opened is None and (lack := _lack_of_privacy(config, state, alive)):
        return Paused(now_s, lack)
    return _evaluate_anew(config, state, alive, secret, now_s) if opened is None else opened


def is_bounded_by_noise(config: Schedule) -> bool:
    """Whether updates are bounded by the step that adds a coordinator's noise."""
    return config.privacy is not None and config.privacy.unit == "device"


def _lack_of_privacy(config: Schedule, state: State, alive: Collection[str]) -> str:
    """Why no device may train for the sake of a budget; empty where that is not the reason."""
    if config.account is None:
        return ""
    known = {*alive, *state.heard} - state.left.keys()
    least = thresholds_before(config, state, state.round_index + 1)
    able = candidates(sorted(known), state.texts, state.confidences, least)
    return config.account.lack(state.heard, able, state.round_index + 1, config.min_updates)


def _began_with_few(config: Schedule, state: State, alive: Collection[str]) -> bool:
    """Whether the first adapter's score, to go back by, is one or two devices' and more are here.

    Who begins alone may ruin the adapter and say that it was worse before.
    """
    first, there = state.scores.get(0), len(_free(state, alive))
    asked = min(config.evaluate_cohort or there, there)
    return state.round_index > 0 and first is not None and first.is_of_few and asked >= FEWEST


def _evaluate_anew(
    config: Schedule, state: State, alive: Collection[str], secret: str, now_s: float
) -> StepOpened | None:
    """Where nobody who is there had a text to train on, hear whether that has changed by now.

    A training step that is still open, as those that it asked are gone, is given up for it. Of
    fewer devices than a round still needs updates nothing is asked: whatever they say, it cannot
    open.
    """
    has_waited = not 0.0 <= now_s - state.closed_at_s < ASK_AGAIN_S  # a clock may be set back
    works = state.step.left_over(is_closed=False) if state.step else state.underway
    is_enough = len(alive) + len(works) >= config.min_updates
    if not alive or not is_enough or not has_waited:
        return None
    attempt = max(state.evaluations, state.dropped, state.asked) + 1
    return _evaluate(config, state, alive, secret, now_s, attempt)


def _evaluate(
    config: Schedule,
    state: State,
    alive: Collection[str],
    secret: str,
    now_s: float,
    attempt: int,
    is_first: bool = False,
) -> StepOpened:
    index, size = 0 if is_first else state.round_index, config.evaluate_cohort
    there, sha256 = _free(state, alive), state.first_sha256 if is_first else state.adapter_sha256
    chosen, population = evaluators(there, state.without_tests, size, secret, index, attempt)
    key = work_secret(state, secret)
    opened = open_step(sha256, "evaluate", index, attempt, chosen, key, now_s)
    share = 1.0 if index >= rounds_of(config, state) else config.evaluate_share
    opened = replace(opened, population=population, test_share=share)
    # What a share took says little of how long all texts take: the decisive evaluation waits.
    return opened if share > config.evaluate_share else _timed(config, state, opened)


def _least_updates(config: Schedule, opened: StepOpened) -> int:
    """Updates without which a training step is not closed; masked ones are to hide each other."""
    secured = step_in(opened.updates)
    least = 0 if secured is None else secured.fewest(len(opened.members))
    return max(config.min_updates, least)


def _unmask(config: Schedule, state: State, step: Step, secret: str, now_s: float) -> StepOpened:
    """Ask those whose update came for what takes the masks off their sum."""
    at, chosen = step.opened, sorted(device_id for device_id, _ in step.updates())
    index, attempt = at.round_index, at.attempt
    key = work_secret(state, secret)
    opened = open_step(at.adapter_sha256, "unmask", index, attempt, chosen, key, now_s)
    return _timed(config, state, replace(opened, updates=at.updates))


def _unmasked(state: State, opened: StepOpened, now_s: float) -> StepClosed:
    """The end of an unmasking; whoever aggregates fills in the adapter, or why there is none."""
    included = state.masked.updates() if state.masked else []
    if any(state.left.get(device_id) == "revoked" for device_id, _ in included):
        said = "a device whose update is in the sum was revoked"
        return StepClosed(opened.adapter_sha256, now_s, said, state.memory_sha256, state.shared)
    return StepClosed(None, now_s)


def _free(state: State, alive: Collection[str]) -> Collection[str]:
    """Who may be asked between two training steps: whoever neither rests nor trains, if any."""
    there = awake(alive, state.silences, state.steps + 1)
    return there - busy(state.underway) or there or alive


def _timed(config: Schedule, state: State, opened: StepOpened) -> StepOpened:
    """A step that is about to open, with its deadline where that adapts."""
    if not config.adaptive_deadline:
        return opened
    chosen = [device_id for _, device_id in opened.members]
    return replace(
        opened,
        deadline_s=deadline_of_next(
            config.deadline_s, state.times, opened.kind, state.silences, chosen
        ),
    )


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


def labels_after(labelling: Labelling, round_index: int, solved: int) -> bool:
    """Whether devices label before the next round, which does not come if it asks for moments.

    The first pseudo-labels of a run with ridge regression are by that, not by the base alone.

    Args:
        labelling: How often.
        round_index: The last round.
        solved: See `State`.
    """
    return round_index == solved or round_index % labelling.infer_every == 0


def _measures(config: Schedule, state: State, alive: Collection[str]) -> str:
    """What the next training step asks for in place of training (`updates.ridge`); empty: nothing.

    Moments once, and the prior in the last round, which is the next where nothing has become better
    for `patience` evaluations; both of enough holders of labelled texts, and with too few of them
    rounds go on, or end, without. A second bias would come off the first: where rounds were added,
    moments are asked for anew, unless nothing would come after them.
    """
    if RIDGE not in config.update_steps:
        return ""
    if sum(state.texts.get(name) != 0 for name in alive) < config.min_updates:
        return ""
    is_last = state.round_index + 1 == rounds_of(config, state)
    is_last = is_last or bool(lack_of_progress(state.patience, config.patience))
    if state.solved > state.calibrated:
        return OF_PRIOR if is_last else ""
    return "" if is_last and state.calibrated else OF_MOMENTS


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
    facts: Facts,
) -> StepOpened | None:
    round_index = state.round_index + 1
    least = thresholds_before(config, state, round_index)
    if config.asynchronous is not None:
        begun = train_on(config, state, alive, least, secret, now_s, attempt, facts)
        return begun and replace(begun, updates=config.update_steps)
    most, sha256, account = config.max_cohort, state.adapter_sha256, config.account
    if config.updates.secured:  # that a ring has room for
        room = int(MOST_MASKED / config.over_selection)
        most = min(most or room, room)
    at, steps, fraction = (round_index, attempt), config.update_steps, config.fraction
    over_selection, confidences = config.over_selection, state.confidences
    if measured := _measures(config, state, alive):
        # Of all who hold texts labelled by hand; it costs little more than reading these.
        fraction, over_selection, confidences = 1.0, 1.0, {}
        most = MOST_MASKED if config.updates.secured else 0
        steps = (measured, *config.updates.secured)
    for there in (awake(alive, state.silences, state.steps + 1), alive):
        names = candidates(there, state.texts, confidences, least)
        able, size = names, counted_size(fraction, len(names), most)
        if account is not None:
            # So many that others are left for the rounds in which these rest.
            size = min(size, len({*state.heard, *names}) // account.privacy.separation)
            names = account.eligible(state.heard, names, round_index)
        asked = asked_size(size, over_selection)
        chosen, why_not = choose(config, state, names, asked, secret, at, least, facts)
        if min(size, len(chosen)) >= config.min_updates:
            key = work_secret(state, secret)
            opened = open_step(sha256, "train", *at, chosen, key, now_s)
            if account is not None:
                why_not = {**why_not, **dict.fromkeys(set(able) - set(names), FOR_PRIVACY)}
            passed = passed_over(state, alive, able, chosen, why_not)
            enough, population = size if size < len(chosen) else 0, len(names) if steps else 0
            opened = replace(opened, enough=enough, passed=passed)
            return _timed(config, state, replace(opened, updates=steps, population=population))
    return None
