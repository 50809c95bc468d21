"""An engine inside a memory budget: planned before it is opened, watched while it trains.

    engine = open_within("auto", base, task, spec, training, parse_budget("512M"), state_folder)
    trained = train(engine, examples, training, seed)
    engine.end_round()  # what the round's peak was corrects the next prediction

When an allocation fails the step is done again by the next smaller plan. When the measured peak
passes the budget, the steps that follow take the next smaller plan; the one just done stands,
since every plan gives the same gradients.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.base import Base
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.engine import Engine, EngineError, StepReport
from edge_client.engine.opening import engine_name, load_engine, open_engine, runtime_bytes
from edge_client.engine.watch import Watch
from edge_client.planning.allocator import trim
from edge_client.planning.corrections import Corrections, Key
from edge_client.planning.guard import Guard, is_allocation_failure
from edge_client.planning.plan import Plan, Workload
from edge_client.planning.planner import Option, choose, estimate, next_smaller, options
from edge_client.planning.resources import read_facts
from edge_client.planning.sizes import auto_budget, size_text
from edge_client.texts.batches import Batch, Encoder
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.wire.messages import Training
from edge_client.wire.tensors import AdapterState

log = logging.getLogger(__name__)


class BudgetedEngine:
    """See `edge_client.engine.engine.Engine`; steps down instead of dying.

    Args:
        engine: Opened with `option`'s plan.
        found: Every plan there is for this work.
        option: The one chosen.
        guard: Watches this process's peak.
        corrections: Where peaks are remembered, or None.
        base_id: SHA-256 of the base, under which they are.
    """

    def __init__(
        self,
        engine: Engine,
        found: Sequence[Option],
        option: Option,
        guard: Guard,
        corrections: Corrections | None,
        base_id: str,
    ) -> None:
        self._engine, self._found, self.option = engine, found, option
        self._guard, self._corrections, self._base_id = guard, corrections, base_id
        self._longest = 0  # tokens of the longest batch by the plan in use
        self._take(option)

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""
        return self._engine.encoder

    @property
    def plan(self) -> Plan:
        """How a step is computed now."""
        return self._engine.plan

    @property
    def layers(self) -> int:
        """Layers of the base."""
        return self._engine.layers

    @property
    def layer_forwards(self) -> int:
        """Texts times layers computed since the engine was opened; failed steps' too."""
        return self._engine.layer_forwards

    @property
    def budget_bytes(self) -> int:
        """What this process may take."""
        return self._guard.budget_bytes

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute the next steps by another of this work's plans.

        Args:
            plan: One of those found for this work.
            ceiling_bytes: Not used: each plan has its own.

        Raises:
            ValueError: It is none of them.
        """
        option = next((option for option in self._found if option.plan == plan), None)
        if option is None:
            raise ValueError(f"{plan} is no plan for this work")
        self._take(option)

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on the adapter, by a smaller plan if memory cannot be had.

        Raises:
            EngineError: Not even the smallest plan's memory can be had.
        """
        while (report := self._try_step(batch)) is None:
            smaller = next_smaller(self._found, self.option)
            if smaller is None:
                size = size_text(self.option.predicted_peak_bytes)
                raise EngineError(
                    f"memory ran out in the smallest plan ({size} predicted); free some, lower "
                    "--tokens or pack the base with fewer --bits"
                )
            log.warning("memory ran out; going on by %s", smaller.plan)
            self._take(smaller)
        if not self._is_cornered and self._guard.is_over():
            self._step_down()
        return report

    def _try_step(self, batch: Batch) -> StepReport | None:
        """None where memory ran out; what the failed step held is free when this returns."""
        self._longest = max(self._longest, batch.ids.shape[1])
        try:
            return self._engine.train_step(batch)
        except (MemoryError, RuntimeError) as error:
            if not is_allocation_failure(error):
                raise
        return None

    def _step_down(self) -> None:
        """Take the next smaller plan, if there is one, since the peak has passed the budget."""
        peak, smaller = self._guard.peak_bytes() or 0, next_smaller(self._found, self.option)
        log.warning(
            "peak %s of %s allowed; %s",
            size_text(peak),
            size_text(self._guard.budget_bytes),
            f"going on by {smaller.plan}" if smaller else "no smaller plan is left",
        )
        self._remember()
        self._is_cornered = smaller is None
        if smaller is not None:
            self._take(smaller)

    def _take(self, option: Option) -> None:
        self.option, self._longest, self._is_cornered = option, 0, False
        self._engine.use(option.plan, option.memory.ceiling)
        trim()
        self._guard.reset()

    def end_round(self) -> None:
        """Remember the peak since the round or the plan in use began; give memory back."""
        self._remember()
        self.rest()

    def rest(self) -> None:
        """Give back what only computing needs; the next step takes it again."""
        self._engine.rest()
        trim()

    def _remember(self) -> None:
        peak = self._guard.peak_bytes()
        if self._corrections is None or not self._longest or peak is None:
            return
        work = self.option.work
        plan = replace(self.option.plan, tokens=min(self._longest, self.option.plan.tokens))
        key = Key(self._base_id, work.engine, str(work.spec), plan.dtype)
        estimated = estimate(work, plan, self.option.memory.runtime).total
        try:
            self._corrections.record(key, plan, estimated, peak)
        except OSError as error:
            log.warning("the round's peak could not be remembered: %s", error)

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one."""
        return self._engine.predict(examples)

    def read(self, examples: Sequence[Example], watch: Watch | None = None) -> np.ndarray:
        """As `predict`, of the encoder's own pattern alone and never in int8; see `Engine`."""
        return self._engine.read(examples, watch)

    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""
        return self._engine.features(examples, layer)

    def remember(self, cache: ActivationCache | None) -> None:
        """Keep what the layers below the lowest trained one give; None: no more."""
        self._engine.remember(cache)

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""
        return self._engine.adapter()

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place and start the optimizer and the measured peak afresh."""
        self._engine.load_adapter(state)
        self._longest = 0
        self._guard.reset()

    def close(self) -> None:
        """Free what the engine holds."""
        self._engine.close()
        trim()


def open_within(
    kind: str,
    base: Base,
    task: Task,
    spec: AdapterSpec,
    training: Training,
    budget_bytes: int | None,
    state: Path | None = None,
    dtypes: Collection[str] | None = None,
) -> BudgetedEngine:
    """Plan for this device as it is now, and open an engine by that plan.

    Args:
        kind: `torch`, `onnx` or `auto`.
        base: The frozen base.
        task: Labels and patterns.
        spec: The adapter.
        training: Batch, longest input, learning rate.
        budget_bytes: Resident bytes this process may reach; None: 60 % of what is available now.
        state: Folder in which measured peaks are remembered.
        dtypes: What may be computed in; None: whatever is fast here.

    Raises:
        BudgetError: No plan fits.
        EngineError: The engine's libraries are not installed.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    load_engine(kind)  # so that what its libraries take is measured in this process
    trim()
    facts = read_facts(runtime=runtime_bytes(engine_name(kind)))
    budget = auto_budget(facts.available_bytes) if budget_bytes is None else budget_bytes
    corrections = Corrections(state / "corrections.json") if state else None
    name, labels = engine_name(kind), len(task.labels)
    work = Workload(base.shape, base.bits, spec, training.batch, training.tokens, labels, name)
    correct = [corrections.corrector(base.base_id, name, str(spec))] if corrections else []
    every = options(work, facts.runtime_bytes, facts.nominal, *correct)
    found = [option for option in every if dtypes is None or option.plan.dtype in dtypes]
    option = choose(found, budget)
    engine = open_engine(kind, base, task, spec, training, option.plan)
    return BudgetedEngine(engine, found, option, Guard(budget), corrections, base.base_id)
