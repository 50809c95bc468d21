"""Cost of a round without compute, for many clients: selection, encoding, checks and the mean.

Every client returns the adapter with 0.01 added to each number. `benchmarks.comparisons.flwr` runs
the same task in flwr's simulation. Also measured: resident bytes per virtual client, including its
texts, the engine and a whole round of real training.
"""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from smidgen.edge_client.adapters.initial import first_adapter
from smidgen.edge_client.adapters.spec import parse_adapter
from smidgen.edge_client.bases.base import EMBEDDED, open_base
from smidgen.edge_client.client.state import FinishedWork
from smidgen.edge_client.labelling.label_journal import LabelJournal
from smidgen.edge_client.metering.memory import peak_rss_bytes
from smidgen.edge_client.planning.allocator import resident_bytes, trim
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.updates.states import StepInputs
from smidgen.edge_client.wire.messages import PROTOCOL, Report, Work
from smidgen.edge_client.wire.tensors import (
    AdapterState,
    Update,
    decode_adapter,
    encode_adapter,
    encode_update,
)
from smidgen.edge_client.wire.training import Training
from smidgen.profiling.instruments.made_up_run import ADDED
from smidgen.simulation.datasets.dataset import DataSet
from smidgen.simulation.demo.messages import DATA, TASK, load_messages
from smidgen.simulation.experiments.experiment import Experiment
from smidgen.simulation.experiments.federation.devices import (
    NOTHING,
    Round,
    Rounds,
    Standing,
    schedule_of,
)
from smidgen.simulation.experiments.federation.run import federate
from smidgen.simulation.experiments.scoring import Score, Tally
from smidgen.simulation.experiments.stage import Stage
from smidgen.simulation.experiments.virtual.devices import InProcess
from smidgen.simulation.population.deal import Deal, population_of


@dataclass(frozen=True)
class ZeroRounds:
    """Rounds without computing; all figures measured.

    Attributes:
        clients: Virtual clients; all take part in every round.
        round_s: Seconds of each round.
        adapter_bytes: Length of one encoded adapter.
        peak_rss_bytes: The process's peak (VmHWM).
    """

    clients: int
    round_s: tuple[float, ...]
    adapter_bytes: int
    peak_rss_bytes: int


class Echoes:
    """Devices that add 0.01 and answer. See `smidgen.simulation.experiments.federation.Devices`."""

    def __init__(self, adapter: bytes) -> None:
        self._adapter, self.books = adapter, dict[str, LabelJournal]()

    def start(self) -> Standing:
        return Standing(self._adapter)

    def gate(self, adapter: bytes, work: Work) -> Report | None:
        return None

    def do(
        self,
        adapter: bytes,
        asked: Sequence[tuple[str, Work]],
        inputs: Mapping[str, StepInputs] = NOTHING,
    ) -> Iterator[FinishedWork]:
        """Answer each with the same delta."""
        for _, work in asked:
            state = decode_adapter(adapter)  # as every device does for itself
            delta = {name: (tensor + ADDED) - tensor for name, tensor in state.items()}
            update = encode_update(Update(work.work_id, 1, delta))
            yield FinishedWork(Report(work.work_id, "done", 1, 0.0), update)

    def judge(self, adapter: bytes, arm: str, work: Work | None = None) -> Score:
        return Score(Tally(0, 1), None, {}, {})

    def check(self, adapter: bytes, arm: str) -> Score | None:
        return None

    def close(self) -> None:
        """Nothing to free."""


def first_state() -> AdapterState:
    """The embedded base's `lora:8`, as a run starts from it."""
    return first_adapter(open_base(EMBEDDED), parse_adapter("lora:8"), TASK, "", 0, Training.tokens)


def zero_rounds(clients: int, rounds: int) -> ZeroRounds:
    """Rounds of the embedded base's `lora:8`, all clients in each."""
    base, adapter = open_base(EMBEDDED), encode_adapter(first_state())
    seconds: list[float] = []
    last = time.perf_counter()

    def on_round(closed: Round) -> None:
        nonlocal last
        now = time.perf_counter()
        if closed.round_index:
            seconds.append(now - last)
        last = now

    template = Work(
        PROTOCOL, "own", "train", "zero", 0, base.base_id, "lora:8", "own", 0, TASK, Training(), 0
    )
    names = [f"client-{number:04d}" for number in range(clients)]
    devices = Echoes(adapter)
    federate(Rounds(rounds=rounds), template, devices.start(), names, devices, on_round)
    return ZeroRounds(clients, tuple(seconds), len(adapter), peak_rss_bytes())


@dataclass(frozen=True)
class Footprint:
    """What virtual clients take; measured.

    Attributes:
        clients: How many were made, all of which trained once.
        few: How many trained before the first reading.
        bytes_per_client: Growth of resident memory from few clients to all, a client.
        round_s: Seconds of the round with all of them.
    """

    clients: int
    few: int
    bytes_per_client: float
    round_s: float


def footprint(clients: int, few: int = 10) -> Footprint:
    """Let few clients train for a round, then many, on the same engine; see what memory grew by."""
    messages = load_messages(DATA)
    train = tuple(
        Example(m.text, label=m.label, language=m.language) for m in messages if m.split != "test"
    )
    texts = DataSet("hub", TASK, train, train[:100], "embedded", "Apache-2.0", "", ())
    clients = min(clients, len(train))  # so that each has a text to train on
    labelled = max(clients, 2 * few)
    deal = Deal(clients=few, labelled=labelled)
    experiment = Experiment(
        name="footprint", dataset="hub", adapter="lora:8", deal=deal, rounds=1, evaluate_every=0
    )
    experiment = replace(experiment, training=Training(epochs=1, batch=8, tokens=32))
    on = Stage(
        experiment,
        open_base(EMBEDDED),
        texts,
        population_of(experiment.deal, texts.train, texts.test, experiment.seed),
    )
    devices = InProcess(on)
    federate(schedule_of(experiment, few), on.template(), devices.start(), _names(on), devices)
    before = _resident()
    many = replace(experiment, deal=replace(deal, clients=clients))
    on = replace(
        on, experiment=many, population=population_of(many.deal, texts.train, texts.test, many.seed)
    )
    devices.serve(on.population)
    start = time.perf_counter()
    federate(schedule_of(many, clients), on.template(), devices.start(), _names(on), devices)
    elapsed = time.perf_counter() - start
    grown = _resident() - before
    devices.close()
    return Footprint(clients, few, grown / (clients - few), elapsed)


def _names(on: Stage) -> list[str]:
    return [client.name for client in on.population if len(client.labelled)]


def _resident() -> int:
    gc.collect()
    trim()
    return resident_bytes()
