"""The client's progress log: what it waits for, progress in a round, the result of each work."""

import logging
import math
import time
from collections.abc import Callable

from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.codecs import PLAIN
from smidgen.edge_client.labelling.pseudo_labels import share_of
from smidgen.edge_client.tables import size
from smidgen.edge_client.tasks.counts import scores_of
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.texts.examples import ClientData
from smidgen.edge_client.updates.forms import MEASURED, measured_in
from smidgen.edge_client.wire.fleet import Terms
from smidgen.edge_client.wire.messages import DOING, Waiting, Work
from smidgen.edge_client.wire.tensors import codec_of

log = logging.getLogger(__name__)

SILENCE_S = 10.0


def _what(work: Work, rounds: int = 0) -> str:
    asked = measured_in(order.step for order in work.updates)
    doing = MEASURED[asked] if asked else DOING[work.kind]
    return f"{round_text(work.round_index, rounds)}: {doing}"


class Teller:
    """Says what the device waits for, once until it changes."""

    def __init__(self) -> None:
        self._told: tuple[object, ...] = ()

    def waiting(self, waiting: Waiting) -> None:
        """Say it unless it was said already; the time that is left is no news."""
        where = (waiting.run_name, waiting.phase, waiting.round_index)
        news = (*where, waiting.missing, waiting.names)
        if news != self._told:
            log.info("%s", waiting_text(waiting))
        self._told = news

    def worked(self) -> None:
        """What was said before is old."""
        self._told = ()


def waiting_text(waiting: Waiting) -> str:
    if waiting.phase == "idle":
        return "no run wants this device now (finished runs take nobody in); waiting for one"
    said = _waiting_text(waiting)
    return f"{waiting.run_name}: {said}" if waiting.run_name else said


def _waiting_text(waiting: Waiting) -> str:
    if waiting.phase == "full":
        return "the coordinator's disk is full; waiting until its operator frees some"
    if waiting.phase == "paused":
        return f"paused, {round_text(waiting.round_index, waiting.rounds)}"
    devices = f"{waiting.missing} more device{'s' if waiting.missing != 1 else ''}"
    names = f" ({', '.join(waiting.names)})" if waiting.names else ""
    if waiting.phase == "waiting":
        if not waiting.missing:
            return f"waiting for round {waiting.round_index} of {waiting.rounds} to begin"
        return (
            f"waiting for {devices} before round {waiting.round_index} of {waiting.rounds}; "
            f"{waiting.asked} needed"
        )
    what = f"{round_text(waiting.round_index, waiting.rounds)}, {DOING[waiting.phase]}"
    if not waiting.missing:
        return f"{what}: all {waiting.asked} devices asked have answered"
    closes = ""
    if waiting.closes_in_s:
        closes = f"; it goes on without them in {time_text(waiting.closes_in_s)}"
    done = waiting.asked - waiting.missing
    return f"{what}: {done} of {waiting.asked} devices have answered; waiting{names}{closes}"


def called(terms: Terms) -> str:
    return f"{terms.run_name} ({terms.run_id})"


def begun(work: Work, terms: Terms | None) -> str:
    """What is begun; of a run whose terms are not here without its name."""
    if terms is None:
        return _what(work)
    return f"{terms.run_name}: {_what(work, terms.rounds)}"


def round_text(round_index: int, rounds: int) -> str:
    """A round's name; nothing is trained before the first. Of how many, where that is known."""
    of = f" of {rounds}" if rounds else ""
    return f"round {round_index}{of}" if round_index else "before round 1"


def time_text(seconds: float) -> str:
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 6000:
        return f"{math.ceil(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


class Progress:
    """Says every ten seconds how far a piece of work is.

    Args:
        work: The work.
        total: Texts it takes in all, each once an epoch; None where nobody knows.
        clock: Seconds, ever growing.
    """

    def __init__(
        self, work: Work, total: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        epochs = work.training.epochs if work.kind == "train" else 1
        over = f" over {epochs} epochs" if epochs > 1 else ""
        self._what, self._clock, self._done = _what(work), clock, 0
        self._texts = "texts" if total is None else f"of {total} texts{over}"
        self._began_s = self._told_s = clock()

    def __call__(self, texts: int) -> None:
        """So many texts more are done."""
        self._done += texts
        now_s = self._clock()
        if now_s - self._told_s >= SILENCE_S:
            self._told_s = now_s
            spent_s = now_s - self._began_s
            log.info("%s: %d %s, %.0f s so far", self._what, self._done, self._texts, spent_s)


def texts_in(work: Work, data: ClientData) -> int | None:
    """Texts that a piece of work goes through, repetitions included; None: it depends."""
    patterns = len(work.task.patterns) if work.task.ensemble else 1
    if work.kind == "evaluate":
        return share_of(len(data.test), work.test_share) * patterns
    if work.kind == "train" and work.labelling is None:
        return work.training.samples_of(len(data.labelled)) * work.training.epochs
    return None


def in_short(work: Work | None, finished: FinishedWork, is_counted: bool) -> str:
    """One line for the log on an answer whose update the coordinator has, if it has one.

    Args:
        work: What was asked; None for an answer from before a restart.
        finished: The answer, costs filled in.
        is_counted: Whether it counts for its round.
    """
    report = finished.report
    what = _what(work) if work else "work done earlier"
    if report.outcome == "failed":
        return f"{what} failed ({report.failure}){finished.reason and f': {finished.reason}'}"
    seconds = sum(spent for phase, spent in report.cost.phases_s.items() if phase != "wait")
    gave = f"loss {report.loss:.3f}" if report.loss is not None else "done"
    is_asked = work is not None and report.accuracy is not None
    asked = kind_of(work.task).asked if work is not None and is_asked else "texts"
    if report.pseudo_labels:
        gave += f", {report.pseudo_labels} pseudo-labels"
    if report.accuracy is not None:
        gave += f", accuracy {report.accuracy:.3f}"
    if report.entities is not None and (f1 := scores_of(report.entities).strict) is not None:
        name = kind_of(work.task).measure.name if work is not None else "F1"
        gave += f", {name} {f1:.3f}"
    late = "" if is_counted else "; it came too late and does not count"
    return (
        f"{what}: {report.num_examples} {asked}, {gave}; {seconds:.1f} s, "
        f"{size(report.cost.up_bytes)} up{_as_coded(finished)}, "
        f"{size(report.cost.down_bytes)} down{late}"
    )


def _as_coded(finished: FinishedWork) -> str:
    """The codec of an update that is not sent as it is, for people."""
    codec = codec_of(finished.update) if finished.update is not None else PLAIN
    return "" if codec == PLAIN else f" as {codec}"
