"""Virtual devices in this process: one resident engine, clients are indices into shared texts."""

from collections.abc import Iterator, Sequence

import numpy as np

from edge_client.answers import train_answer
from edge_client.state import Finished
from edge_client.texts import Example
from edge_client.wire import Report, Work, decode_adapter
from simulation.federation import Standing
from simulation.population import Population, merged
from simulation.scoring import Score, score
from simulation.stage import Stage


class InProcess:
    """See `simulation.federation.Devices`.

    Args:
        on: Base, texts and clients; an engine is opened on them.
    """

    def __init__(self, on: Stage) -> None:
        self._on, self._engine = on, on.open_engine()
        self._first = Standing(on.first_adapter(self._engine))  # before anybody trains
        self.serve(on.population)
        index = {label: row for row, label in enumerate(on.dataset.task.labels)}
        self._gold = np.array([index[example.label or ""] for example in on.dataset.test])

    def serve(self, population: Population) -> None:
        """Stand in for these clients from now on."""
        self._owned = {client.name: client.test for client in population}
        everybody = (*population, merged(population))
        self._clients = {client.name: client for client in everybody}

    def start(self) -> Standing:
        """The adapter before the first round."""
        return self._first

    def train(self, adapter: bytes, asked: Sequence[tuple[str, Work]]) -> Iterator[Finished]:
        """Answer training work, in the order asked; a client that fails says so in its report."""
        state = decode_adapter(adapter)
        for name, work in asked:
            self._engine.load_adapter(state)
            try:
                yield train_answer(self._engine, self.texts(name), work, name)
            except (RuntimeError, ValueError) as error:
                reason = f"{name}: {error}"
                yield Finished(Report(work.work_id, "failed", error=reason[:2000]), None)

    def texts(self, name: str) -> list[Example]:
        """A client's labelled texts."""
        return [self._on.dataset.train[row] for row in self._clients[name].labelled]

    def judge(self, adapter: bytes, arm: str) -> Score:
        """Score an adapter on a client's own test texts; for nobody, on all."""
        self._engine.load_adapter(decode_adapter(adapter))
        tests = self._on.dataset.test
        rows = self._owned[arm] if arm else np.arange(len(tests))
        answers = self._engine.predict([tests[row] for row in rows])
        spoken = [tests[row].language for row in rows]
        owned = {arm: np.arange(len(rows))} if arm else self._owned
        return score(answers, self._gold[rows], spoken, owned)

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()
