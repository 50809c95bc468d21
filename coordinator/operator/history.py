"""What the rounds of runs gave and cost, in memory: only rounds that may still change are read.

One round's answers are held at a time, however many rounds a run has.

An answer counts for the open step and the two before it; older rounds are as they were.
"""

from threading import Lock

from coordinator.operator.told import Told, round_told
from coordinator.rounds.history import KNOWN_ROUNDS
from coordinator.serving.ledger import Live
from coordinator.storage.figures import rows_of_round
from coordinator.storage.store import Store

OPEN = 2  # rounds before the newest known one that answers may still come for


class History:
    """Rounds of all runs of one store, each read once; safe to use from several threads.

    Args:
        store: Holds the reports.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._rounds: dict[str, dict[int, Told]] = {}

    def of(self, live: Live) -> list[Told]:
        """A run's rounds that somebody has answered in, oldest first; the newest of very many.

        Args:
            live: The run, as it stands now or did a moment ago.
        """
        run_id, state = live.run.run_id, live.state
        with self._lock:
            known = self._rounds.setdefault(run_id, {})
            since = min(max(known, default=0), state.round_index) - OPEN
            last = state.round_index + 1
            for index in range(max(0, since, last - KNOWN_ROUNDS), last + 1):
                if table := rows_of_round(self._store, run_id, index):
                    known[index] = round_told(
                        index, table, live.config.task, live.past.scores.get(index)
                    )
                    known[index]["lost"] = live.past.lost.get(index)
                    known.pop(index - KNOWN_ROUNDS, None)
            return [known[index] for index in sorted(known)]
