"""What the rounds of runs gave and cost, in memory: only rounds that have changed are read.

One round's answers are held at a time, however many rounds a run has.

An answer comes for the open step and the two before it, and of asynchronous rounds for as many
versions more as an update may be old; older rounds are as they were.
"""

from threading import Lock

from coordinator.config import RunConfig
from coordinator.operator.told import Told, round_told
from coordinator.rounds.history import KNOWN_ROUNDS
from coordinator.serving.ledger import Live
from coordinator.storage.figures import rows_of_round
from coordinator.storage.rows.reports import counts_by_round
from coordinator.storage.store import Store

OPEN = 2  # rounds before the newest known one that answers may still come for


def open_rounds(config: RunConfig) -> int:
    """How many rounds before the newest known one answers may still come for."""
    return OPEN + (config.asynchronous.most_staleness if config.asynchronous else 0)


class History:
    """Rounds of all runs of one store, each read once; safe to use from several threads.

    Args:
        store: Holds the reports.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._rounds: dict[str, dict[int, tuple[object, Told]]] = {}  # with what it was told by

    def of(self, live: Live) -> list[Told]:
        """A run's rounds that somebody has answered in, oldest first; the newest of very many.

        Args:
            live: The run, as it stands now or did a moment ago.
        """
        run_id, state, past = live.run.run_id, live.state, live.past
        with self._lock:
            known = self._rounds.setdefault(run_id, {})
            newest = min(max(known, default=0), state.round_index)
            last = state.round_index + 1
            first = max(0, newest - open_rounds(live.config), last - KNOWN_ROUNDS)
            counts = counts_by_round(self._store.database, run_id, first)
            for index in sorted(one for one in counts if one <= last):
                score, lost = past.scores.get(index), past.lost.get(index)
                by = counts[index], score, lost
                if index in known and known[index][0] == by:
                    continue
                table = rows_of_round(self._store, run_id, index)
                told = round_told(index, table, live.config.task, score)
                known[index] = by, told | {"lost": lost}
                known.pop(index - KNOWN_ROUNDS, None)
            return [known[index][1] for index in sorted(known)]
