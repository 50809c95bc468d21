"""Virtual devices in this process: one resident engine, clients are indices into shared texts."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.rounds.learning.handing import handed
from edge_client.adapters.spec import net_in
from edge_client.client.answers import answer
from edge_client.client.failures import code_of
from edge_client.client.state import Answer
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.engine import Engine
from edge_client.labelling.book import Book, MemoryNotes
from edge_client.labelling.own_texts import OwnTexts
from edge_client.personal.bank import drawn_bank
from edge_client.texts.examples import ClientData, Example
from edge_client.wire.control import Held
from edge_client.wire.messages import Report, Work
from edge_client.wire.tensors import decode_adapter
from simulation.experiments.federation.outcomes import NOTHING, Standing
from simulation.experiments.scoring import Score, score
from simulation.experiments.stage import Stage
from simulation.population.clients import Population, merged


class InProcess:
    """See `simulation.experiments.federation.Devices`.

    Args:
        on: Base, texts and clients; an engine is opened on them.
    """

    def __init__(self, on: Stage) -> None:
        self._on, self._engine = on, on.open_engine()
        self._open = ExitStack()
        self._open.callback(self._engine.close)
        self._lower: dict[str, Engine] = {}  # of adapters of a lower rank, once they are asked for
        if on.experiment.cache_bytes:
            folder = tempfile.TemporaryDirectory(prefix="smidgen-activations-")
            limit, base_id = on.experiment.cache_bytes, on.base.base_id
            cache = ActivationCache(Path(self._open.enter_context(folder)), limit, base_id)
            self._engine.remember(cache)
        self._first = Standing(on.first_adapter(self._engine))  # before anybody trains
        self._books: dict[str, Book] = {}
        self._own: dict[str, OwnTexts] = {}  # of clients that label: their texts are tokenized once
        self.serve(on.population)
        index = {label: row for row, label in enumerate(on.dataset.task.labels)}
        self._gold = np.array([index[example.label or ""] for example in on.dataset.test])

    def serve(self, population: Population) -> None:
        """Stand in for these clients from now on."""
        self._owned = {client.name: client.test for client in population}
        everybody = (*population, merged(population))
        self._clients = {client.name: client for client in everybody}
        self._own.clear()

    def start(self) -> Standing:
        return self._first

    def notes(self) -> Mapping[str, Book]:
        return self._books

    def recall(self, notes: Mapping[str, Book]) -> None:
        self._books = dict(notes)

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        helds: Mapping[str, Held] = NOTHING,
    ) -> Iterator[Answer]:
        """Answer training or label work, in the order asked; who fails says so in its report."""
        state = decode_adapter(adapter)
        for name, work in asked:
            engine = self._engine_of(work)
            notes = MemoryNotes(self._books.get(name))
            if work.labelling is not None:
                self._books[name] = notes.book  # before it is answered: who asks may not come back
            try:
                own, held = self._texts(name, work), helds.get(name)
                start = handed(state, work.adapter_spec)
                yield answer(engine, start, own, work, name, notes, held=held)
            except (RuntimeError, ValueError) as error:
                failed = Report(work.work_id, "failed", failure=code_of(error))
                yield Answer(failed, None, f"{name}: {error}")

    def _engine_of(self, work: Work) -> Engine:
        """The engine that trains a piece of work's adapter."""
        said = work.adapter_spec
        if said == self._on.experiment.adapter:
            return self._engine
        if said not in self._lower:
            self._lower[said] = engine = self._on.open_engine(said)
            self._open.callback(engine.close)
        return self._lower[said]

    def _texts(self, name: str, work: Work) -> OwnTexts:
        """A client's texts as the engine reads them."""
        share = self._engine.encoder.unknown_share
        if work.labelling is None:
            return OwnTexts(self.data(name, work), share)
        if name not in self._own:
            self._own[name] = OwnTexts(self.data(name, work), share)
        return self._own[name]

    def data(self, name: str, work: Work) -> ClientData:
        """A client's texts, the unlabelled ones without their labels and where they are wanted."""
        client, train = self._clients[name], self._on.dataset.train
        unlabelled: tuple[Example, ...] = ()
        if work.labelling is not None or net_in(work.adapter_spec):
            unlabelled = tuple(replace(train[row], label=None) for row in client.unlabelled)
        return ClientData(tuple(train[row] for row in client.labelled), unlabelled, ())

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        if work.labelling is None:
            return None
        start = decode_adapter(adapter)
        own = OwnTexts(ClientData((), (), self._on.gate), self._engine.encoder.unknown_share)
        return answer(self._engine, start, own, work, "gate", MemoryNotes()).report

    def judge(self, adapter: bytes, arm: str) -> Score:
        """By test texts; a net answers none, so the base is judged in its place."""
        if net_in(self._on.experiment.adapter):
            self._engine.put(drawn_bank(self._engine.adapter()))
        else:
            self._engine.load_adapter(decode_adapter(adapter))
        tests = self._on.dataset.test
        rows = self._owned[arm] if arm else np.arange(len(tests))
        answers = self._engine.predict([tests[row] for row in rows])
        spoken = [tests[row].language for row in rows]
        owned = {arm: np.arange(len(rows))} if arm else self._owned
        return score(answers, self._gold[rows], spoken, owned)

    def close(self) -> None:
        self._open.close()
