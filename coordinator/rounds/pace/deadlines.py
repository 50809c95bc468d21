"""How long a step waits, by how long the steps before it took: fixed and journaled as it opens.

A fleet that answers within a minute need not wait ten for a device that hangs. So the deadline of a
step is a multiple of what the last steps of its kind took nearly all who answered, never above the
run's own `deadline_s`. It holds only once half of those asked are done: where most are slow, the
work is, and the run's own deadline counts. Whoever comes back from a rest (`pace.silence`) is given
longer each time, so a slow device gets to answer, and is measured then.
"""

import math
from collections.abc import Collection, Iterable, Mapping

from coordinator.rounds.events import Answered, Kind, StepOpened
from coordinator.rounds.pace.silence import Silence

FACTOR = 3.0
LEAST_S = 60.0  # twice the longest pause of a client that waits for the coordinator
SHARE = 0.9  # of those who answered; of less than ten it is all
STEPS = 5  # of a kind that are remembered

Times = Mapping[Kind, tuple[float, ...]]  # seconds that the last steps of each kind took


def after_answers(times: Times, kind: Kind, answers: Iterable[Answered]) -> Times:
    """What is known of answering times once a step is over.

    Args:
        times: What was known before.
        kind: The step's.
        answers: Its answers; of failures, and where nobody measured, nothing is learned.
    """
    took = sorted(one.took_s for one in answers if one.outcome == "done" and one.took_s is not None)
    if not took:
        return times
    slowest_s = took[math.ceil(SHARE * len(took)) - 1]
    return {**times, kind: (*times.get(kind, ()), slowest_s)[-STEPS:]}


def deadline_of_next(
    deadline_s: float,
    times: Times,
    kind: Kind,
    silences: Mapping[str, Silence],
    chosen: Iterable[str],
) -> float:
    """Seconds after which a step that opens now need not wait longer; 0 where nothing is known.

    Args:
        deadline_s: The run's own.
        times: Of its steps so far.
        kind: The step's.
        silences: Who was silent lately.
        chosen: Its members.
    """
    known = times.get(kind)
    if not known:
        return 0.0
    misses = max((silences[name].misses for name in chosen if name in silences), default=0)
    patience_s = max(LEAST_S, FACTOR * max(known)) * 2.0 ** min(misses, 30)
    return min(deadline_s, patience_s)


def closes_after_s(deadline_s: float, opened: StepOpened, answers: Collection[Answered]) -> float:
    """Seconds after which an open step stops waiting, as it stands.

    Args:
        deadline_s: The run's own.
        opened: The step.
        answers: Those that have come.
    """
    done = sum(one.outcome == "done" for one in answers)
    is_known = opened.deadline_s > 0.0 and 2 * done >= len(opened.members)
    return min(opened.deadline_s, deadline_s) if is_known else deadline_s
