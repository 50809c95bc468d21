"""A stand-in for the engine's backend: what it trains follows from the adapter and the batch.

It computes in microseconds, and takes as much virtual time as `step_s` says.
"""

import time
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from smidgen.edge_client.adapters.initial import initial_adapter
from smidgen.edge_client.adapters.spec import AdapterSpec, frozen_layers
from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.client import enrolment, worker
from smidgen.edge_client.client.answers import answer
from smidgen.edge_client.engine.budgeted import workload
from smidgen.edge_client.engine.engine import Engine
from smidgen.edge_client.engine.linear import with_ridge
from smidgen.edge_client.engine.onnx_backend.optimizers import add_correction
from smidgen.edge_client.guest.steps import Moments
from smidgen.edge_client.metering import memory
from smidgen.edge_client.metering import work as work_metering
from smidgen.edge_client.planning import allocator, resources
from smidgen.edge_client.planning.budget import Budget
from smidgen.edge_client.planning.planner import Option, options
from smidgen.edge_client.planning.resources import read_facts
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.updates.ridge import WEIGHT
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.messages import Work
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters
from smidgen.edge_client.wire.training import Training
from tests.stories.clock import of_greenlet, put
from tests.stories.lies import told

step_s = [1.0]  # virtual seconds of one optimizer step, as the story says


class StandIn:
    """See `smidgen.edge_client.engine.backend.Backend`; only what LoRA of labels asks of one."""

    layer_forwards = 0

    def __init__(self, state: AdapterState, labels: int, lr: float, width: int) -> None:
        self._state = {name: tensor.copy() for name, tensor in state.items()}
        self._labels, self._lr, self._width = labels, lr, width
        self.correction: Correction | None = None

    def step(self, batch: Batch, plan: object) -> float:
        """Move every number by what the texts' tokens and the number itself give."""
        time.sleep(step_s[0])
        seed = zlib.crc32(batch.ids.tobytes() + np.asarray(batch.labels).tobytes())
        gradients = {}
        for place, (name, tensor) in enumerate(sorted(self._state.items())):
            waves = np.sin(np.arange(tensor.size, dtype=np.float32) + (seed + place) % 997)
            gradients[name] = (waves.reshape(tensor.shape) + tensor).astype(np.float32)
        add_correction(gradients, self._state, self.correction)
        for name, gradient in gradients.items():
            self._state[name] -= np.float32(self._lr) * gradient
        self.layer_forwards += len(batch.ids)
        return 0.5

    def read(self, batch: Batch, plan: object, watch: object, is_quick: bool) -> Any:
        time.sleep(step_s[0] / 4)
        rows = np.full((len(batch.ids), self._labels), -np.log(self._labels), np.float32)
        return np.arange(len(rows)), rows

    def means(self, batch: Batch, layer: int, plan: object) -> np.ndarray:
        """States that follow from each text's tokens, (texts, 1, width)."""
        seeds = [zlib.crc32(ids[ids > 0].tobytes()) % 997 for ids in batch.ids]
        waves = np.sin(np.arange(1, self._width + 1) * np.array(seeds)[:, None])
        states: np.ndarray = waves[:, None].astype(np.float32)
        return states

    def predict(self, examples: Sequence[Any], answer: Any) -> np.ndarray:
        found: np.ndarray = answer(examples, False)
        return found

    def adapter(self) -> AdapterState:
        return dict(self._state)

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        check_same_parameters(state, {name: one.shape for name, one in self._state.items()})
        for name, tensor in self._state.items():
            np.copyto(tensor, np.asarray(state[name], np.float32))

    load_adapter = put

    @property
    def optimizer(self) -> "StandIn":
        return self

    def moments(self) -> Moments:
        return Moments({}, {}, {})

    def load(self, moments: Moments) -> None:
        """There are none."""

    def use(self, plan: object, ceiling_bytes: int | None) -> None:
        """Any plan gives the same."""

    def remember(self, prefix: object) -> None:
        """Nothing is kept."""

    def rest(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is open."""


class NoGuard:
    """Memory is never short. See `smidgen.edge_client.planning.budget.PeakGuard`."""

    budget_bytes = 1 << 40

    def peak_bytes(self) -> None:
        """Nobody measures."""

    def reset(self) -> bool:
        return False

    def is_over(self) -> bool:
        return False

    def device_peak(self) -> None:
        """There is no card."""


def stood_in() -> None:
    """Let clients of this interpreter open the stand-in, and let its instruments stand still.

    A plan is still chosen by the planner, once for all devices, which are alike.
    """
    tokens, first = cache(open_tokens), cache(initial_adapter)
    plans = dict[str, list[Option]]()

    def open_within(
        kind: str, base: Base, task: Task, spec: AdapterSpec, training: Training, *_: Any, **__: Any
    ) -> Engine:
        work = workload("onnx", base, task, spec, training)
        if str(work) not in plans:
            plans[str(work)] = list(options(work, 80 << 20, read_facts(runtime=80 << 20).nominal))
        found = plans[str(work)]
        state = dict(first(spec, base, len(task.labels), seed=0))
        weight = state.pop(WEIGHT, None)
        backend: Any = StandIn(state, len(task.labels), training.lr, base.shape.hidden)
        backend = backend if weight is None else with_ridge(backend, weight, base.shape.layers)
        budget = Budget(found, found[0], NoGuard(), None, base.base_id)
        cut = frozen_layers(spec, base.shape.layers)
        encoder = Encoder(tokens(base), task, True, training.tokens, 0)
        return Engine(backend, encoder, base.shape, found[0].plan, cut, budget)

    def answered(engine: Engine, start: AdapterState, own: Any, work: Work, *more: Any) -> Any:
        finished, process = answer(engine, start, own, work, *more), of_greenlet("process")
        return told(lie.kind, finished, work) if (lie := process.fault_of_answer()) else finished

    put(worker, open_within=open_within, let_go_of_code=lambda: 0, answer=answered)
    put(
        enrolment,
        check_budget=lambda *known, **_: open_within(*known[:2], known[4], *known[2:4]).option,
    )
    put(allocator, is_glibc_linux=lambda: False)
    put(work_metering, _reading=lambda read: None, _faults=lambda: (0, 0))
    put(resources, meminfo=cache(resources.meminfo))
    put(memory, read_memory=cache(memory.read_memory), reset_peak_rss=lambda: False)
