"""Log lines about runs, steps and answers; those that would repeat are logged once per state.

Such lines are about devices that back off because they did not answer, and are back; tasks that
cannot be done for now; what runs wait for; clocks that disagree with the database server's, which
would make devices look absent that another process has just heard, and close steps early or late.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from smidgen.coordinator.rounds.events import (
    Event,
    Finished,
    Paused,
    RolledBack,
    StepClosed,
    StepOpened,
)
from smidgen.coordinator.rounds.machine import devices_needed, kept_of
from smidgen.coordinator.rounds.scheduling.participation import Silence, rest_after
from smidgen.coordinator.rounds.scheduling.step import Step
from smidgen.coordinator.rounds.scoring import has_tests, ratio_of, scored
from smidgen.coordinator.rounds.state import State
from smidgen.coordinator.serving.device_messages import MOST_NAMES, Names, missing_of
from smidgen.coordinator.serving.ledger import Live
from smidgen.coordinator.storage.blobs import BlobDamaged, BlobsAway
from smidgen.coordinator.storage.database import Database, DatabaseBusy, DatabaseDamaged, StoreError
from smidgen.coordinator.storage.dialects.postgres import DatabaseAway
from smidgen.coordinator.watch.logs import about
from smidgen.edge_client.errors import demand
from smidgen.edge_client.tables import size
from smidgen.edge_client.tasks.kind import kind_named
from smidgen.edge_client.tasks.scores import perplexity
from smidgen.edge_client.updates.forms import MEASURED
from smidgen.edge_client.wire.messages import DOING, ENDED, Report
from smidgen.edge_client.wire.reports import SAID

GOES_ON = (
    "`smidgen coordinator resume` asks again, `smidgen coordinator rollback --round N` goes back "
    "to an earlier adapter"
)


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
        before = ""
        if step is not None and event.kind == "unmask":  # the end of the training before it
            late = names_of(missing_in(live))
            missing = f", no answer from {listed(late)}" if late else ""
            before = f"{len(step.updates())} of {len(step.members)} have trained{missing}; "
        return f"{config.name}: {before}{what}: asked {names}; {closes}{passed}"
    if isinstance(event, StepClosed) and step is not None:
        done = f"{len(step.updates())} of {len(step.members)} done"
        if step.opened.is_asynchronous:
            return _version_text(live, step, event, names_of)
        spent = f"after {event.closed_at_s - step.opened.opened_at_s:.1f} s"
        gave, late = _score(step, config.kind), names_of(missing_in(live))
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
        done = f"{config.name}: finished, round {live.state.round_index} of {live.rounds}: {why}"
        kept_round, name = kept_of(config, live.state)
        is_last = name == live.state.adapter_sha256
        return done if is_last else f"{done}; the adapter of round {kept_round} is kept"
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


def _score(step: Step, kind: str) -> str:
    """What an evaluation found over all texts; empty where nobody evaluated.

    Where a run goes by another figure than all texts' it is named, too (`scored`).
    """
    done, measure = [answer for _, answer in step.updates()], kind_named(kind).measure
    score = scored(step.opened, done)
    if not score.texts:
        return ""
    error = "?" if score.error is None else f"{score.error:.3f}"
    within = f" +- {error}" if score.error != 0.0 else ""
    told = [one.entities for one in done if one.entities is not None]
    asked = sum(sum(one.there) for one in told) if told else score.texts
    on = f" on {asked} {measure.asked}"
    words = perplexity(score.loss) if measure.has_perplexity else None
    beside = "" if words is None else f", perplexity {words:.2f}"
    ratios = [ratio_of(one) for one in done if has_tests(one)]
    plain = f"{sum(right for right, _ in ratios) / sum(texts for _, texts in ratios):.3f}"
    by = f"{score.accuracy:.3f}"
    less = "" if by == plain else f"; without outliers {by}, which decides"
    return f", {measure.word} {plain}{within}{on}{beside}{less}"


def round_text(live: Live, opened: StepOpened) -> str:
    if opened.round_index == 0:
        return "before round 1, evaluation"
    doing = MEASURED[opened.measures] if opened.measures else DOING[opened.kind]
    return f"round {opened.round_index} of {live.rounds}, {doing}"


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
    own_s = sum(spent for phase, spent in report.cost.phases_s.items() if phase != "wait")
    # It was started again, did another run's work, or heard late that it was asked.
    is_elsewhere = spent_s - own_s > max(1.0, spent_s / 10)
    after = f"after {spent_s:.1f} s" + (f", {own_s:.1f} s of work" if is_elsewhere else "")
    if report.failure is not None:
        gone = "; it has left until it is started again" if report.is_leaving else ""
        refused = f"; it has {size(report.refused_bytes)}" if report.refused_bytes else ""
        return f"{name} failed {after}: {SAID[report.failure]}{refused}{gone}"
    if is_late:
        return f"{name} answered {after}, too late to count"
    step = live.state.step
    is_open = step is not None and step.opened == asked
    left = f"; waiting for {_missing(live, names_of)}" if is_open and missing_of(live) else ""
    # A report follows its update, which may have closed the step.
    had = "" if is_open or asked.is_asynchronous else "had "
    return f"{name} {had}answered {after}{left}"


def _missing(live: Live, names_of: Names) -> str:
    """Who has not answered; of many their number alone, since each answer has such a line."""
    count = missing_of(live)
    return f"{count} devices" if count > MOST_NAMES else listed(names_of(missing_in(live)))


def missing_in(live: Live) -> list[str]:
    """Devices that were asked in the open step and have not answered."""
    step = live.state.step
    if step is None:
        return []
    return [one for work_id, one in step.members.items() if work_id not in step.answers]


def listed(names: Collection[str], most: int = MOST_NAMES) -> str:
    if not names:
        return "none"
    shown = list(names)[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more


def lack_text(live: Live, alive: Collection[str], names_of: Names) -> str:
    """What a run that has no open step waits for, in words; empty where it waits for nothing."""
    if live.state.step is not None or live.state.is_finished or live.state.is_paused:
        return ""
    here = names_of(set(alive) - live.state.left.keys() - live.state.shut_out)
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


# These say all of it in a line.
DAMAGES = (BlobDamaged, BlobsAway, DatabaseAway, DatabaseBusy, DatabaseDamaged, StoreError)
SILENCE_S = 2.0  # between two lines of one run: many devices may come at once
LOG = logging.getLogger(__name__)


class Troubles:
    """What could not be done, and why, as it was last said; used by one thread at a time."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Go on after a failure; the log says why once, until it is another or all is well."""
        try:
            yield
        except Exception as error:  # the edge: a full disk or a damaged blob is for its owner
            said = (str(error).splitlines() or [""])[0]  # a database adds what it was to write
            if self._said.get(what) != said:
                why = f": {said}" if isinstance(error, DAMAGES) else ""
                LOG.log(
                    *(logging.ERROR, "%s: stands still; trying again each second%s", what, why),
                    exc_info=not why,
                )
            self._said[what] = said
        else:
            self._said.pop(what, None)


class Lacks:
    """What each run was last said to wait for; used by one thread at a time."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, float]] = {}

    def say(
        self,
        live: Live,
        alive: Collection[str],
        names_of: Callable[[Iterable[str]], list[str]],
        now_s: float,
    ) -> None:
        """Say what a run waits for, if it is something else than before.

        Args:
            live: The run.
            alive: Devices that are there.
            names_of: What people call them.
            now_s: Unix time.
        """
        said, at_s = self._said.get(live.run.run_id, ("", -SILENCE_S))
        lack = lack_text(live, alive, names_of)
        if lack and lack != said and now_s - at_s >= SILENCE_S:
            LOG.info("%s", lack, extra=about(live.config.name))
            self._said[live.run.run_id] = (lack, now_s)
        elif not lack:
            self.forget(live)

    def forget(self, live: Live) -> None:
        """A run waits for nobody now: what it waits for next is said anew."""
        self._said.pop(live.run.run_id, None)


MOST_APART_S = 10.0
EVERY_S = 60.0  # between two looks
SET = "set both by the network (NTP) and start it again"


def check_clock(database: Database, now_s: Callable[[], float] = time.time) -> None:
    """Refuse to serve beside others by a clock that is not theirs.

    Raises:
        WrongInput: Says how far it is off.
    """
    apart_s = database.apart_s(now_s)
    demand(abs(apart_s) <= MOST_APART_S, f"this machine's clock is {told(apart_s)}; {SET}")


def told(apart_s: float) -> str:
    """How far a clock is off, in words."""
    where = "ahead of" if apart_s > 0 else "behind"
    return (
        f"{abs(apart_s):.0f} s {where} the database server's, and clocks of one fleet may be "
        f"{MOST_APART_S:.0f} s apart"
    )


class Clocks:
    """Says when the clock of a process that serves is not the database server's; for one thread.

    Args:
        database: The fleet's.
        now_s: The clock.
    """

    def __init__(self, database: Database, now_s: Callable[[], float]) -> None:
        self._database, self._now_s = database, now_s
        self._looked_s, self._is_apart = time.monotonic(), False

    def look(self) -> None:
        """Look once in a while, and say what has changed.

        Raises:
            DatabaseAway: It cannot be asked.
        """
        if time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        apart_s = self._database.apart_s(self._now_s)
        is_apart = abs(apart_s) > MOST_APART_S
        if is_apart and not self._is_apart:
            LOG.warning(
                "the clock that this coordinator goes by is %s: devices are taken for gone, and "
                "steps close early or late; %s",
                told(apart_s),
                SET,
            )
        if self._is_apart and not is_apart:
            LOG.info("the clock that this coordinator goes by is the database server's again")
        self._is_apart = is_apart
