"""What a coordinator says of its runs: to devices that wait, and in its own log."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice

from coordinator.rounds.events import Event, Finished, Paused, RolledBack, StepClosed, StepOpened
from coordinator.rounds.guidance import guidance_of
from coordinator.rounds.learning.handing import spec_at_rank
from coordinator.rounds.machine import closes_at_s, devices_needed, ended_of
from coordinator.rounds.pace.silence import Silence, rest_after
from coordinator.rounds.pace.step import Step
from coordinator.rounds.scoring import scored
from coordinator.rounds.state import State
from coordinator.serving.ledger import Live
from edge_client.adapters.card import portable_name
from edge_client.tables import size
from edge_client.wire.failures import SAID
from edge_client.wire.fleet import Terms
from edge_client.wire.messages import DOING, ENDED, PROTOCOL, Over, Report, Waiting, Work
from edge_client.wire.packs import Pack

Names = Callable[[Iterable[str]], list[str]]  # of devices, by their ids, in alphabetical order

GOES_ON = (
    "`smidgen coordinator resume` asks again, `smidgen coordinator rollback --round N` goes back "
    "to an earlier adapter"
)
MOST_NAMES = 8  # that a device is told
LOOKED_AT = 64  # of those who have not answered, for their names in alphabetical order
MOST_ROUNDS = 1000  # whose accuracy a device is told; more would not fit a message


def terms_of(live: Live, pack: Pack | None = None) -> Terms:
    """What a run asks of its devices.

    Args:
        live: The run.
        pack: What its base is, where that is known.
    """
    config = live.config
    return Terms(
        run_id=live.run.run_id,
        run_name=config.name,
        base_id=live.run.base_id,
        base_name=base_name_of(live),
        adapter_spec=config.adapter,
        task=config.task,
        training=config.training,
        rounds=live.rounds,
        min_clients=config.min_clients,
        labelling=config.labelling,
        pack=pack,
    )


def base_name_of(live: Live) -> str:
    """A base's name for others: what is not loaded by the name that was given is a folder."""
    named = live.config.base
    return portable_name(named if named == live.run.base_reference else f"./{named}")


def work_of(
    live: Live, opened: StepOpened, work_id: str, bytes_of: Callable[[str], int], device_id: str
) -> Work:
    """A piece of work, as its device is told.

    Args:
        live: The run.
        opened: The step that asks for it.
        work_id: Names it.
        bytes_of: Sizes of adapters by their SHA-256.
        device_id: Who is asked.
    """
    guidance, state = guidance_of(live.config, live.state, opened), live.state
    rank, name = opened.given(device_id)
    work = Work(
        protocol=PROTOCOL,
        work_id=work_id,
        kind=opened.kind,
        run_id=live.run.run_id,
        round_index=opened.round_index,
        base_id=live.run.base_id,
        adapter_spec=spec_at_rank(live.config.adapter, rank),
        adapter_sha256=name,
        adapter_bytes=bytes_of(name),
        task=live.config.task,
        training=live.config.training,
        seed=live.config.seed,
        labelling=live.config.labelling,
        keep=guidance.keep,
        prior=guidance.prior,
        thresholds=guidance.thresholds,
        most=guidance.most,
    )
    if name == state.adapter_sha256:
        work = replace(work, steps=state.kept.steps_to(work.adapter_bytes))
    if opened.kind != "train":
        return work
    if opened.codec:
        before = state.kept.residuals.get(device_id, 0)
        work = replace(work, codec=opened.codec, residual_round=before)
    if not live.config.training.scaffold:
        return work
    control = state.control_sha256
    return replace(
        work,
        control_sha256=control,
        control_bytes=bytes_of(control) if control else 0,
        control_round=state.kept.controls.get(device_id, 0),
    )


def waiting_of(
    live: Live,
    alive: Callable[[], set[str]],
    names_of: Names,
    now_s: float,
    is_full: bool = False,
) -> Waiting:
    """What a run waits for, as a device that has nothing to do is told.

    Args:
        live: The run.
        alive: Who is there; asked only where that matters.
        names_of: Names of devices.
        now_s: Unix time.
        is_full: Whether the coordinator's disk has no room for more.
    """
    config, state, step = live.config, live.state, live.state.step
    next_round = step.opened.round_index if step else min(state.round_index + 1, live.rounds)
    if state.is_paused or is_full:
        return Waiting(
            "paused" if state.is_paused else "full", config.name, next_round, live.rounds
        )
    if step is None:
        needed = devices_needed(config, state)
        missing = max(0, needed - len(alive() - state.left.keys()))
        return Waiting("waiting", config.name, next_round, live.rounds, missing, needed)
    return Waiting(
        step.opened.kind,
        config.name,
        step.opened.round_index,
        live.rounds,
        missing_of(live),
        len(step.members),
        round(max(0.0, closes_at_s(config, step) - now_s), 1),
        _named(live, names_of) if config.tell_names else (),
    )


def _named(live: Live, names_of: Names) -> tuple[str, ...]:
    """Some of those who have not answered: of a crowd the first few that were asked.

    Each of many that wait is told, so that nobody looks at all of them for each.
    """
    step = live.state.step
    if step is None:
        return ()
    left = (one for work_id, one in step.members.items() if work_id not in step.answers)
    is_crowd = missing_of(live) > LOOKED_AT
    return tuple(names_of(islice(left, MOST_NAMES) if is_crowd else left)[:MOST_NAMES])


def missing_of(live: Live) -> int:
    """How many devices have not answered in the open step."""
    step = live.state.step
    return 0 if step is None else len(step.members) - len(step.answers)


def missing_in(live: Live) -> list[str]:
    """Devices that were asked in the open step and have not answered."""
    step = live.state.step
    if step is None:
        return []
    return [one for work_id, one in step.members.items() if work_id not in step.answers]


def over_of(live: Live, devices: int, accuracies: Mapping[int, float]) -> Over:
    """What came of a finished run.

    Args:
        live: The run.
        devices: How many joined it.
        accuracies: By round; of many rounds a part is told.
    """
    return Over(
        run_id=live.run.run_id,
        run_name=live.config.name,
        adapter_sha256=live.state.adapter_sha256,
        rounds=live.state.round_index,
        devices=devices,
        accuracies=thinned(accuracies, MOST_ROUNDS),
        ended=ended_of(live.config, live.state) or "rounds",
    )


def thinned(by_round: Mapping[int, float], most: int) -> dict[int, float]:
    """At most so many rounds, two or more: the first, the last, and evenly between them."""
    rounds = sorted(by_round)
    last = len(rounds) - 1
    if last >= most:
        rounds = [rounds[index * last // (most - 1)] for index in range(most)]
    return {one: by_round[one] for one in rounds}


# The log


def step_text(live: Live, event: Event, names_of: Names) -> str:
    """A line on an event that the coordinator decided; empty where nobody needs one.

    Args:
        live: The run before the event.
        event: What happened.
        names_of: Names of devices.
    """
    config, step = live.config, live.state.step
    if isinstance(event, StepOpened):
        again = "" if event.attempt == 1 else f", attempt {event.attempt}"
        names = listed(names_of(device_id for _, device_id in event.members))
        is_sooner = 0.0 < event.deadline_s < config.deadline_s
        sooner = f", in {event.deadline_s:.0f} s once half are done" if is_sooner else ""
        what = f"{round_text(live, event)}{again}"
        some = f"when {event.enough} are done, or " if event.enough else ""
        closes = f"closes {some}in {config.deadline_s:g} s at most{sooner}"
        passed = f"; not asked: {passed_text(event)}" if event.passed else ""
        return f"{config.name}: {what}: asked {names}; {closes}{passed}"
    if isinstance(event, StepClosed) and step is not None:
        done = f"{len(step.updates())} of {len(step.members)} done"
        if step.opened.is_asynchronous:
            return _version_text(live, step, event, names_of)
        spent = f"after {event.closed_at_s - step.opened.opened_at_s:.1f} s"
        gave, late = _accuracy(step), names_of(missing_in(live))
        missing = f"; no answer from {listed(late)}" if late else ""
        what = f"{config.name}: {round_text(live, step.opened)} closed {spent}"
        refused = f"; the new adapter is not taken: {event.refused}" if event.refused else ""
        lost = "" if event.lost is None else f", {_lost_text(event.lost)}"
        return f"{what}: {done}{gave}{lost}{missing}{refused}"
    if isinstance(event, RolledBack):
        return f"{config.name}: back to round {event.round_index}: {event.reason}"
    if isinstance(event, Paused):
        return f"{config.name}: stops asking: {event.reason}; {GOES_ON}"
    if isinstance(event, Finished):
        why = event.reason or ENDED["stopped" if event.is_stopped else "rounds"]
        return f"{config.name}: finished, round {live.state.round_index} of {live.rounds}: {why}"
    return ""


def passed_text(opened: StepOpened) -> str:
    """Why others that were there are not asked, in a line; empty where all are."""
    return ", ".join(f"{one.count} ({one.reason})" for one in opened.passed)


def _version_text(live: Live, step: Step, event: StepClosed, names_of: Names) -> str:
    """A line on a version of the adapter that asynchronous rounds made."""
    what = f"{live.config.name}: {round_text(live, step.opened)} closed"
    spent = f"after {event.closed_at_s - step.opened.opened_at_s:.1f} s"
    counted = step.counted()
    old = sum(step.staleness(work_id) > 0 for work_id in counted)
    older = f", {old} from older versions" if old else ""
    going = names_of(missing_in(live))
    at_it = f"; still at it: {listed(going)}" if going else ""
    refused = f"; the new adapter is not taken: {event.refused}" if event.refused else ""
    return f"{what} {spent}: {len(counted)} updates{older}{at_it}{refused}"


def pace_texts(live: Live, event: Event, after: State, names_of: Names) -> list[str]:
    """Lines on devices that begin to rest, are asked again, or answer again; see `rounds.pace`.

    As many as there are lengths of a rest at most, whatever the number of devices.

    Args:
        live: The run before the event.
        event: A step that opened or closed.
        after: The run's state after it.
        names_of: Names of devices.
    """
    before, now = live.state.silences, after.silences
    if not isinstance(event, StepOpened | StepClosed) or not (before or now):
        return []
    found: list[str] = []
    members = event.members if isinstance(event, StepOpened) else ()  # it may follow a lost step
    asked = {key for _, key in members} & now.keys()
    silent = {key for key, one in now.items() if before.get(key) != one} - asked
    for misses, names in _by_misses(now, silent, names_of):
        rest = _steps(rest_after(misses))
        found.append(f"{names}: no answer in time; asked again after a rest of {rest}")
    for misses, names in _by_misses(now, asked, names_of):
        found.append(f"{names}: asked again after {_steps(misses)} without an answer")
    if back := before.keys() - now.keys():
        found.append(f"{listed(names_of(back))}: answered again; asked as often as others")
    return [f"{live.config.name}: {text}" for text in found]


def _by_misses(
    silences: Mapping[str, Silence], device_ids: Collection[str], names_of: Names
) -> list[tuple[int, str]]:
    """Devices that missed equally many steps in a row, their names in a line."""
    by_misses: dict[int, list[str]] = {}
    for device_id in device_ids:
        by_misses.setdefault(silences[device_id].misses, []).append(device_id)
    return [(misses, listed(names_of(some))) for misses, some in sorted(by_misses.items())]


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _accuracy(step: Step) -> str:
    """What an evaluation found over all texts; empty where nobody evaluated."""
    score = scored(step.opened, [answer for _, answer in step.updates()])
    if not score.texts:
        return ""
    error = "?" if score.error is None else f"{score.error:.3f}"
    within = f" +- {error}" if score.error != 0.0 else ""
    return f", accuracy {score.accuracy:.3f}{within} on {score.texts} texts"


def round_text(live: Live, opened: StepOpened) -> str:
    """A step's name for people."""
    if opened.round_index == 0:
        return "before round 1, evaluation"
    return f"round {opened.round_index} of {live.rounds}, {DOING[opened.kind]}"


def answer_text(
    live: Live,
    device_id: str,
    asked: StepOpened,
    report: Report,
    spent_s: float,
    is_late: bool,
    names_of: Names,
) -> str:
    """A line on a device's answer: what it gave, and who is still waited for.

    Args:
        live: The run, the answer folded in.
        device_id: Who answered.
        asked: The step that asked.
        report: The answer.
        spent_s: Seconds since it was asked.
        is_late: Whether the answer came after its step had closed.
        names_of: Names of devices.
    """
    name = f"{live.config.name}: {round_text(live, asked)}: {names_of([device_id])[0]}"
    if report.failure is not None:
        gone = "; it has left until it is started again" if report.is_leaving else ""
        refused = f"; it has {size(report.refused_bytes)}" if report.refused_bytes else ""
        return f"{name} failed after {spent_s:.1f} s: {SAID[report.failure]}{refused}{gone}"
    if is_late:
        return f"{name} answered after {spent_s:.1f} s, too late to count"
    step = live.state.step
    is_open = step is not None and step.opened == asked
    left = f"; waiting for {_missing(live, names_of)}" if is_open and missing_of(live) else ""
    return f"{name} answered after {spent_s:.1f} s{left}"


def _missing(live: Live, names_of: Names) -> str:
    """Who has not answered; of many their number alone, since each answer has such a line."""
    count = missing_of(live)
    return f"{count} devices" if count > MOST_NAMES else listed(names_of(missing_in(live)))


def listed(names: Collection[str], most: int = MOST_NAMES) -> str:
    """Names in a line, the first of many."""
    if not names:
        return "none"
    shown = list(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more


def lack_text(live: Live, alive: Collection[str], names_of: Names) -> str:
    """What a run that has no open step waits for, in words; empty where it waits for nothing."""
    if live.state.step is not None or live.state.is_finished or live.state.is_paused:
        return ""
    here = names_of(set(alive) - live.state.left.keys())
    needed = devices_needed(live.config, live.state)
    name, lacking = live.config.name, needed - len(here)
    if lacking > 0:
        devices = f"{lacking} more device{'s' if lacking > 1 else ''}"
        option = f" (--min-clients {needed})" if needed == live.config.min_clients else ""
        return f"{name}: waiting for {devices}{option}; here: {listed(here)}"
    round_index = live.state.round_index + 1
    return f"{name}: round {round_index} needs devices that can train; here: {listed(here)}"


def run_text(live: Live, devices: int) -> str:
    """A line on where a run stands, for the beginning of a log."""
    state, config = live.state, live.config
    where = f"{state.phase}, round {state.round_index} of {live.rounds}"
    return f"run {config.name} ({live.run.run_id}): {where}, devices in it: {devices}"


def _lost_text(share: float) -> str:
    """What the run's rank leaves out of the mean."""
    told = "less than 0.01 %" if share < 1e-4 else f"{100 * share:.2f} %"
    return f"the run's rank leaves out {told} of the mean's squared norm"
