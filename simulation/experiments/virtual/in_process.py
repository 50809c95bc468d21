"""Virtual devices in this process: one resident engine; clients are indices into shared texts."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from smidgen.coordinator.rounds.learning.exact import handed
from smidgen.edge_client.adapters.spec import net_in
from smidgen.edge_client.client.answers import answer
from smidgen.edge_client.client.failures import code_of
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.frozen_layers_cache import is_kept
from smidgen.edge_client.labelling.label_journal import LabelJournal, MemoryNotes
from smidgen.edge_client.labelling.own_texts import OwnTexts, tests_of
from smidgen.edge_client.personal.bank import drawn_bank
from smidgen.edge_client.planning.cuda.accelerator import CPU
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.texts.examples import ClientData, Example
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import Report, Work
from smidgen.edge_client.wire.tensors import decode_adapter
from smidgen.simulation.experiments.federation.devices import NOTHING, SimulationError, Standing
from smidgen.simulation.experiments.scoring import Score, judged, score
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.texts import OwnedTexts
from smidgen.simulation.population.clients import Population, merged


def is_of_card(error: Exception, device: str) -> bool:
    """Whether the CUDA device failed, as nobody's texts or settings make it fail."""
    told = str(error)
    is_named = any(name in told for name in ("CUDA", "CUBLAS"))
    return device != CPU and isinstance(error, RuntimeError) and is_named


@contextmanager
def told_of_card(device: str) -> Iterator[None]:
    """Let a CUDA device that fails, such as a full one, end as one line.

    Raises:
        SimulationError: It failed inside; results so far are whole.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_of_card(error, device):
            raise
        first = next(iter(str(error).strip().splitlines()), "").rstrip(".")
        raise SimulationError(
            f"--device {device}: {first}; run fewer experiments at once, or --device {CPU}"
        ) from error


class InProcess:
    """See `smidgen.simulation.experiments.federation.Devices`.

    Args:
        on: Base, texts and clients; an engine is opened on them.
    """

    def __init__(self, on: Stage) -> None:
        self._on, self._engine = on, on.open_engine()
        self._open = ExitStack()
        self._open.callback(self._engine.close)
        self._lower: dict[str, Engine] = {}  # of adapters of a lower rank, once they are asked for
        is_cached = is_kept(on.dataset.task, self._engine.frozen_layers)
        if on.experiment.cache_bytes and is_cached:
            folder = tempfile.TemporaryDirectory(prefix="smidgen-activations-")
            limit, base_id = on.experiment.cache_bytes, on.base.base_id
            cache = ActivationCache(Path(self._open.enter_context(folder)), limit, base_id)
            self._engine.remember(cache)
        self._first = Standing(on.first_adapter(self._engine))  # before anybody trains
        self.books: dict[str, LabelJournal] = {}
        self._own: dict[str, OwnTexts] = {}  # of clients that label: their texts are tokenized once
        self.serve(on.population)

    def serve(self, population: Population) -> None:
        """Stand in for these clients from now on."""
        owned = {client.name: client.test for client in population}
        self._tests = OwnedTexts(self._on.dataset.test, owned)
        everybody = (*population, merged(population))
        self._clients = {client.name: client for client in everybody}
        self._own.clear()

    def start(self) -> Standing:
        return self._first

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        """Answer training or label work, in the order asked; who fails says so in its report."""
        state = decode_adapter(adapter)
        for name, work in asked:
            engine = self._engine_of(work)
            notes = MemoryNotes(self.books.get(name))
            if work.labelling is not None:
                self.books[name] = notes.book  # before it is answered: who asks may not come back
            try:
                own, known = self._texts(name, work), inputs.get(name)
                start = handed(state, work.adapter_spec)
                yield answer(engine, start, own, work, name, notes, inputs=known)
            except (RuntimeError, ValueError) as error:
                if is_of_card(error, self._on.device):
                    raise
                failed = Report(work.work_id, "failed", failure=code_of(error))
                yield FinishedWork(failed, None, f"{name}: {error}")

    def _engine_of(self, work: Work) -> Engine:
        said = work.adapter_spec
        if said == self._on.experiment.adapter:
            return self._engine
        if said not in self._lower:
            self._lower[said] = engine = self._on.open_engine(said)
            self._open.callback(engine.close)
        return self._lower[said]

    def _texts(self, name: str, work: Work) -> OwnTexts:
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

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        """By test texts; a net answers none, so the base is judged in its place."""
        return self._scored(self._tests, adapter, arm, work)

    def check(self, adapter: bytes, arm: str) -> Score | None:
        """By the texts kept aside; None where there are none."""
        return None if self._on.dev is None else self._scored(self._on.dev, adapter, arm)

    def _scored(self, by: OwnedTexts, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        if net_in(self._on.experiment.adapter):
            self._engine.put(drawn_bank(self._engine.adapter()))
        else:
            self._engine.load_adapter(decode_adapter(adapter))
        is_own = bool(arm) and not self._on.experiment.is_judged_by_all
        rows = by.owned[arm] if is_own else np.arange(len(by.texts))
        owned = {arm: np.arange(len(rows))} if is_own else by.owned
        if work is not None and work.test_share < 1.0:
            drawn = {name: own[tests_of(work, name, len(own))] for name, own in owned.items()}
            asked = np.unique(np.concatenate([*drawn.values()]))
            owned = {name: np.searchsorted(asked, own) for name, own in drawn.items()}
            rows = rows[asked]
        tests, task = [by.texts[row] for row in rows], self._on.dataset.task
        if not kind_of(task).is_one_label:
            return judged(self._engine, tests, owned)
        index = {label: row for row, label in enumerate(task.labels)}
        gold = np.array([index.get(example.label or "", -1) for example in tests])
        answers = self._engine.predict(tests)
        return score(answers, gold, [example.language for example in tests], owned)

    def close(self) -> None:
        self._open.close()
