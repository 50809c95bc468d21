"""Plays a list of entries: what cannot be run is told and left out, the rest goes on."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from edge_client.errors import Failed, Stopped, WrongInput
from simulation.experiments.experiment import Experiment
from simulation.experiments.runner import Tell, run_all
from simulation.experiments.stage import Stage
from simulation.papers.index.entry import Entry, EntryState, Given, Slot, look
from simulation.papers.report import written

BACKWARD = 2  # a pass back costs as much as so many forward


@dataclass
class Clock:
    """Time that is left, by efforts done and to do.

    Attributes:
        total: Effort of all.
        start_s: When it began, of `time.monotonic`.
        done: Effort of entries behind us.
        first: Rounds that the entry at hand had when it began; None before anything is known.
    """

    total: float
    start_s: float
    done: float = 0.0
    first: int | None = None

    def ended(self, effort: float) -> None:
        """Take an entry as done."""
        self.done, self.first = self.done + effort, None

    def left_s(self, effort: float, done: int, total: int, now_s: float) -> float | None:
        """Seconds left, estimated; None while less than a hundredth is done.

        Args:
            effort: Of the entry at hand, what was not there when it began.
            done: Its rounds that are there.
            total: All its rounds.
            now_s: Now.
        """
        self.first = done if self.first is None else self.first
        share = (done - self.first) / (total - self.first) if total > self.first else 1.0
        spent = self.done + share * effort
        if spent <= 0.01 * self.total:
            return None
        return (now_s - self.start_s) * max(0.0, self.total - spent) / spent


Say = Callable[[Entry, int, int, str, float | None], None]
"""Told the entry at hand, its rounds done and in all, what runs, and seconds left of the list."""


def looked(entries: Sequence[Entry], given: Given) -> list[EntryState]:
    """What there is of entries; nothing is run."""
    return [look(entry, given) for entry in entries]


def play_all(
    states: list[EntryState], given: Given, say: Say, kept: Callable[[EntryState], None]
) -> None:
    """Play entries in turn; each is put back into its place as soon as it is played.

    Args:
        states: What there is of them; changed in place.
        given: What they are played with.
        say: Told how far it is.
        kept: Told each entry that has been played.
    """
    efforts = _efforts(states)
    clock = Clock(sum(efforts), time.monotonic())
    for place, (state, effort) in enumerate(zip(list(states), efforts, strict=True)):
        tell = partial(_tell, say, state.entry, clock, effort)
        states[place] = _played(state, given, tell)
        clock.ended(effort)
        kept(states[place])


def _efforts(states: Sequence[EntryState]) -> list[float]:
    """Of each, what those before it leave to be run."""
    known: set[str] = set()
    found = []
    for state in states:
        left = {key: on for key, on in state.left.items() if key not in known}
        known |= set(left)
        found.append(sum(map(effort_of, left.values())))
    return found


def _tell(
    say: Say, entry: Entry, clock: Clock, effort: float, done: int, total: int, name: str
) -> None:
    say(entry, done, total, name, clock.left_s(effort, done, total, time.monotonic()))


def _played(before: EntryState, given: Given, tell: Tell) -> EntryState:
    """Run an entry's cells; of those that cannot be run it says why."""
    entry, start_s = before.entry, time.monotonic()
    if before.piece is None:  # what was missing may be there by now
        before = look(entry, given)
    able = [slot for slot in before.cells if not slot.trouble]
    told: dict[Experiment, str] = {}
    after = before
    if not all(slot.is_whole for slot in able):
        told = _run(able, given, tell)
        after = look(entry, given)
    if after.is_whole and after.piece is not None:
        results = [result for slot in after.cells for result in slot.results if result]
        written(after.piece, given.order, results, time.monotonic() - start_s)
    return after.with_troubles([told.get(slot.cell.experiment, "") for slot in after.cells])


def _run(able: Sequence[Slot], given: Given, tell: Tell) -> dict[Experiment, str]:
    """Run cells at once; where one cannot go on, each by itself. Returns what stopped whom."""
    try:
        run_all(_asked(able), given.order.place, given.order.jobs, tell)
    except Stopped:
        raise
    except (WrongInput, Failed):
        pass
    else:
        return {}
    troubles: dict[Experiment, str] = {}
    for slot in able:
        try:
            run_all(_asked([slot]), given.order.place, given.order.jobs, tell)
        except Stopped:
            raise
        except (WrongInput, Failed) as error:
            troubles[slot.cell.experiment] = str(error)
    return troubles


def _asked(cells: Sequence[Slot]) -> list[Experiment]:
    """What has not been run of cells, here or elsewhere."""
    pairs = [pair for slot in cells for pair in zip(slot.stages, slot.results, strict=True)]
    return [on.experiment for on, result in pairs if result is None]


def effort_of(on: Stage) -> float:
    """Estimated, in a unit of its own: layers x hidden squared x tokens, of every text read.

    Attention, tokenizing and the head are left out; a personal phase counts its passes alone.
    """
    asked, shape = on.experiment, on.base
    per_text = shape.layers * shape.hidden**2 * asked.training.tokens
    trained = _visits(on, asked) + _own_visits(on, asked)
    return per_text * ((1 + BACKWARD) * trained + _judged(on, asked) + _read(on, asked))


def _visits(on: Stage, asked: Experiment) -> float:
    """Texts trained on in all rounds."""
    there = [client for client in on.population if not asked.alone or client.name in asked.alone]
    sizes = [len(client.labelled) for client in there if len(client.labelled)]
    share = 1.0
    if asked.paradigm == "centralised":
        sizes = [sum(sizes)]
    elif asked.paradigm == "federated" and asked.cohort:
        share = min(1.0, asked.cohort / max(1, len(sizes)))
    each = sum(asked.training.samples_of(size) for size in sizes)
    return asked.rounds * asked.training.epochs * share * each


def _own_visits(on: Stage, asked: Experiment) -> float:
    if asked.personal is None:
        return 0.0
    return asked.personal.epochs * float(sum(len(client.labelled) for client in on.homes()))


def _judged(on: Stage, asked: Experiment) -> float:
    every = asked.evaluate_every
    times = 1 + (math.ceil(asked.rounds / every) if every else asked.rounds > 0)
    return float(times * len(on.dataset.test))


def _read(on: Stage, asked: Experiment) -> float:
    """Unlabelled texts read in all label steps."""
    labelling = asked.labelling
    if labelling is None:
        return 0.0
    texts, clients = len(on.dataset.train), len(on.population)
    share = min(1.0, (labelling.infer_clients or clients) / clients)
    return asked.rounds / labelling.infer_every * (share * texts + len(on.gate))
