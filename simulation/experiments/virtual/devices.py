"""Virtual devices: one resident engine in this process, or one per processor of a Ray cluster.

Clients are indices into shared texts, assigned to engines in turn. The same work gives the same
bytes wherever it is done, and answers come back in the order asked, so a run on a cluster equals
one in this process. A cluster's machines need smidgen installed and the base at the same path;
texts are sent once.
"""

import atexit
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

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
from smidgen.edge_client.labelling.pseudo_labels import OwnTexts, tests_of
from smidgen.edge_client.personal.bank import drawn_bank
from smidgen.edge_client.planning.cuda_memory import CPU
from smidgen.edge_client.planning.resources import usable_cores
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

    def do_one(
        self,
        adapter: bytes,
        name: str,
        work: Work,
        book: LabelJournal | None,
        known: StepInputs | None,
    ) -> tuple[FinishedWork, LabelJournal | None]:
        """One client's work, and what it knows of its unlabelled texts after it."""
        self.books = {} if book is None else {name: book}
        finished = next(self.do(adapter, [(name, work)], {} if known is None else {name: known}))
        return finished, self.books.get(name)

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
        if work.labelling is not None or net_in(work.adapter_spec) or work.updates:
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


LOCAL = "local"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
Asked = TypeVar("Asked")
Done = TypeVar("Done")


class RayDevices:
    """See `smidgen.simulation.experiments.federation.Devices`.

    Args:
        on: Base, texts and clients.
        address: A cluster's, or `local` for one on this machine that ends with this process.

    Raises:
        SimulationError: There is no such cluster, or its workers cannot open the base.
    """

    def __init__(self, on: Stage, address: str) -> None:
        self._ray = ray = _joined(address)
        threads = on.experiment.threads
        count = int(ray.cluster_resources().get("CPU", 0)) // threads
        if not count:
            raise SimulationError(f"--ray {address}: no worker has {threads} processors")
        worker: Any = ray.remote(num_cpus=threads)(InProcess)
        shared = ray.put(on)
        self._workers = [worker.remote(shared) for _ in range(count)]
        self.books: dict[str, LabelJournal] = {}
        self._pool = ray.util.ActorPool(self._workers)

    def start(self) -> Standing:
        standing: Standing = self._got(self._workers[0].start.remote())
        return standing

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        """Answer training or label work, in the order asked; who fails says so in its report."""
        body, names = self._ray.put(adapter), [name for name, _ in asked]
        known = [(name, work, self.books.get(name), inputs.get(name)) for name, work in asked]
        try:
            answers = self._pool.map(lambda one, work: one.do_one.remote(body, *work), known)
            for name, (finished, book) in zip(names, answers, strict=True):
                if book is not None:
                    self.books[name] = book
                yield finished
        except self._ray.exceptions.RayError as error:
            raise _failed(error) from error

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        report: Report | None = self._got(self._workers[0].gate.remote(adapter, work))
        return report

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        scored: Score = self._got(self._workers[0].judge.remote(adapter, arm, work))
        return scored

    def check(self, adapter: bytes, arm: str) -> Score | None:
        scored: Score | None = self._got(self._workers[0].check.remote(adapter, arm))
        return scored

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)

    def _got(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise _failed(error) from error


def each(
    address: str, work: Callable[[Stage, Asked], Done], on: Stage, asked: Sequence[Asked]
) -> Iterator[Done]:
    """What a function gives for each, in the order asked; on a cluster's processors.

    Args:
        address: A cluster's, or `local`.
        work: The function; a module's, so that it can travel.
        on: Base, texts and clients, which travel once.
        asked: What is asked besides.

    Raises:
        SimulationError: There is no such cluster, or a worker failed.
    """
    ray = _joined(address)
    remote: Any = ray.remote(num_cpus=on.experiment.threads)(work)
    shared = ray.put(on)
    waiting = [remote.remote(shared, one) for one in asked]
    try:
        for one in waiting:
            yield ray.get(one)
    except ray.exceptions.RayError as error:
        raise _failed(error) from error
    finally:
        for one in waiting:
            ray.cancel(one, force=True)


def _joined(address: str) -> Any:
    """Ray, as a part of that cluster; nothing of it is left behind when this process ends."""
    known = sys.modules.get("ray")
    if known is not None and known.is_initialized():
        return known
    if address not in (LOCAL, "auto"):
        _probe(address)
    how: dict[str, Any] = {"address": address}
    if address == LOCAL:
        how |= _of_my_own()
    os.environ.update(QUIET)
    import ray  # reads the environment

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**how, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody(address, str(error).splitlines()[0]) from error
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray puts its own there
    return ray


def _of_my_own() -> dict[str, Any]:
    """What a cluster on this machine is started with.

    Without a token in the environment Ray would write one into the user's home; its ports listen
    on every interface.
    """
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    folder = tempfile.mkdtemp(prefix="smidgen-ray-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after Ray's own, made later
    return {
        "num_cpus": usable_cores(),
        "include_dashboard": False,
        # About the least that Ray takes; one adapter per round is all that lies there
        "object_store_memory": 80 << 20,
        "_temp_dir": folder,
    }


def _probe(address: str) -> None:
    """Ask whether anybody listens: Ray itself would ask for ten minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _nobody(address, str(error)) from error


def _nobody(address: str, reason: str) -> SimulationError:
    return SimulationError(
        f"--ray {address}: no cluster there ({reason}); HOST:PORT of one that `ray start --head` "
        f"made is expected, or `{LOCAL}`"
    )


def _failed(error: Exception) -> SimulationError:
    cause = getattr(error, "cause", None) or error
    return SimulationError(f"a Ray worker failed: {type(cause).__name__}: {cause}")
