"""The engine: a frozen base with one trainable adapter, a task, an optimizer and maybe a budget.

A `Backend` does the computing: torch, ONNX Runtime, or full fine-tuning in the simulation. Arrays
at its interface are numpy, never torch tensors, so that no caller needs torch.

    engine = open_within("auto", base, task, spec, training, parse_budget("512M"), state_folder)
    trained = train(engine, examples, training, seed)
    engine.end_round()  # the round's measured peak corrects the next prediction

Within a budget, a step whose allocation fails is repeated by the next smaller plan. When the
measured peak exceeds the budget, later steps take the next smaller plan; the one just done stands,
since every plan gives the same gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from smidgen.edge_client.bases.architectures import Shape
from smidgen.edge_client.engine.activation_cache import ActivationCache
from smidgen.edge_client.engine.backend import Backend, BatchWatch, ExitMonitor
from smidgen.edge_client.engine.ensemble import averaged
from smidgen.edge_client.engine.frozen_layers_cache import FrozenPrefix
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.guest.steps import Moments, ResumePoint, Steps
from smidgen.edge_client.metering.work import phase
from smidgen.edge_client.planning.allocator import trim
from smidgen.edge_client.planning.budget import Budget, is_allocation_failure
from smidgen.edge_client.planning.cuda_memory import DevicePeak
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.planning.planner import Option
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.kind import kind_of
from smidgen.edge_client.tasks.scores import TrainingError
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.texts.examples import Example
from smidgen.edge_client.texts.tokens import Prompt
from smidgen.edge_client.updates.ridge import WEIGHT, features, moments_of, prior_of
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState

Computed = TypeVar("Computed")
GUESSED = 8  # places of a text that are read at once, of all words each


class EngineError(WrongInput):
    """No engine here can do what is asked."""


class Engine:
    """A frozen base with one trainable adapter, a task and an optimizer.

    Args:
        backend: What computes.
        encoder: How texts become batches.
        shape: The base's.
        plan: How a step is computed; `use` changes it.
        frozen_layers: Layers below the lowest trained one.
        budget: Plans this engine may change to, and the peak it must not pass; None: no limit.

    Attributes:
        on_texts: Told how many texts a step was on, or a reading, when it is done; what it raises
            ends the work there.
    """

    def __init__(
        self,
        backend: Backend,
        encoder: Encoder,
        shape: Shape,
        plan: Plan,
        frozen_layers: int,
        budget: Budget | None = None,
    ) -> None:
        self.encoder, self.plan, self.budget = encoder, plan, budget
        self.layers, self.frozen_layers, self._hidden = shape.layers, frozen_layers, shape.hidden
        self.on_texts: Callable[[int], None] = lambda texts: None
        self._loss = kind_of(encoder.task).head(encoder.task).loss
        self._backend = backend
        self._prefix: FrozenPrefix | None = None
        if budget is not None:
            self._take(budget.option)

    @property
    def layer_forwards(self) -> int:
        """The layer-forwards since the engine was opened: texts times layers.

        One text through one layer counts 1, recomputed for backward 1 more, backward 2. Layers
        that need no backward have none; states that come from a cache cost nothing. The top layer
        counts as a whole one though only the answer goes all the way through it.
        """
        return self._backend.layer_forwards

    # Memory

    @property
    def option(self) -> Option:
        """The plan in use and its estimate; for an engine with a budget."""
        return self._held.option

    @property
    def budget_bytes(self) -> int:
        """The bytes this process may take; for an engine with a budget."""
        return self._held.guard.budget_bytes

    def device_peak(self) -> DevicePeak | None:
        """The highest peak on a CUDA device since the engine was opened; None: it has none.

        Of an engine with a budget.
        """
        return self._held.guard.device_peak()

    @property
    def _held(self) -> Budget:
        assert self.budget is not None, "the engine was opened without a budget"
        return self.budget

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute the next steps by another plan; the adapter and the optimizer stay.

        Args:
            plan: The plan; within a budget, one of the budget's.
            ceiling_bytes: Resident bytes above which memory that was freed inside a step is given
                back to the kernel; on a card, reserved bytes above which it is after one. None: it
                never is. Within a budget each plan has its own.

        Raises:
            ValueError: The budget knows no such plan.
        """
        if self.budget is not None:
            self._take(self.budget.option_of(plan))
        else:
            self._compute_by(plan, ceiling_bytes)

    def _compute_by(self, plan: Plan, ceiling_bytes: int | None) -> None:
        if plan != self.plan:
            self._backend.rest()  # what lies ready is of the old plan's sizes
        self.plan = plan
        self._backend.use(plan, ceiling_bytes)

    def _take(self, option: Option) -> None:
        self._compute_by(option.plan, option.ceiling_bytes)
        self._held.begin(option)

    def end_round(self) -> None:
        """Remember the peak since the round or the plan in use began; give memory back."""
        if self.budget is not None:
            self.budget.remember()
        self.rest()

    def rest(self) -> None:
        """Give back what only computing needs; the next step takes it again."""
        self._backend.rest()
        trim()

    # Training

    def train_step(self, batch: Batch) -> float:
        """One optimizer step on the adapter; its mean loss in nats before that. The base stays.

        Within a budget by a smaller plan if memory cannot be had. A step that fails for want of
        memory leaves adapter and optimizer as they were.

        Raises:
            MemoryRanOut: Even the smallest plan needs more memory than there is.
        """
        loss = self._computed(self._backend.step, batch)
        self.on_texts(len(batch.ids))
        return loss

    def gradients(self, batch: Batch) -> tuple[float, AdapterState]:
        """The batch's mean loss in nats, and its gradients at the adapter in place; nothing moves.

        For whoever trains numbers that an adapter is made of: `put` is how they come back. Without
        a correction, float32, every tensor of the adapter; within a budget as `train_step`.

        Raises:
            MemoryRanOut: Even the smallest plan needs more memory than there is.
        """
        found = self._computed(self._backend.gradients, batch)
        self.on_texts(len(batch.ids))
        return found

    def _computed(self, compute: Callable[[Batch, Plan], Computed], batch: Batch) -> Computed:
        """By the plan in use, or the largest smaller one that there is memory for."""
        if self.budget is None:
            return compute(batch, self.plan)
        while (found := self._tried(compute, batch, self.budget)) is None:
            self._take(self.budget.after_failure())
        if (smaller := self.budget.after_step()) is not None:
            self._take(smaller)
        return found

    def _tried(
        self, compute: Callable[[Batch, Plan], Computed], batch: Batch, budget: Budget
    ) -> Computed | None:
        """None if memory ran out; what the failed step held is freed before this returns."""
        budget.before_step(batch.ids.shape[1])
        if budget.option.work.is_vocabulary_let_go and self.encoder.tokens.let_go(self.rest):
            trim()
        try:
            return compute(batch, self.plan)
        except (MemoryError, RuntimeError) as error:
            if not is_allocation_failure(error):
                raise
        return None

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""
        return dict(map(_copied, self._backend.adapter().items()))

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place; start the optimizer and the measured peak afresh.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        self._backend.load_adapter(state)
        if self.budget is not None:
            self.budget.restart()

    def put(self, state: AdapterState) -> None:
        """Give the adapter other values; the optimizer and the measured peak go on as they were.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        self._backend.put(state)

    def hold(self, correction: Correction | None) -> None:
        """Add a correction to every gradient from now on; None: nothing."""
        self._backend.correction = correction

    def held(self) -> AdapterState:
        """The adapter's own numbers, which the next step changes; of a card's, a copy."""
        return self._backend.adapter()

    def moments(self) -> Moments:
        """A copy of the optimizer's state."""
        found = self._backend.optimizer.moments()
        means, squares = (dict(map(_copied, part.items())) for part in (found.means, found.squares))
        return Moments(means, squares, found.counts)

    def steps(self, place: ResumePoint) -> Steps:
        """What training goes on from; the next step changes its tensors.

        Args:
            place: How far it is.
        """
        return Steps(place, self.plan, self._backend.adapter(), self._backend.optimizer.moments())

    def go_on(self, steps: Steps) -> bool:
        """Take up training where it was left: further steps give the bytes that they would have.

        Returns:
            False where that cannot be: neither the plan that they were computed by nor another that
            gives the same bytes fits the budget any more. Then nothing has changed.

        Raises:
            WireError: Names or shapes are not this adapter's.
        """
        plan = steps.plan if self.budget is None else self.budget.like(steps.plan)
        if plan is None:
            return False
        if plan != self.plan:
            self.use(plan)
        self._backend.load_adapter(steps.adapter)
        self._backend.optimizer.load(steps.moments)
        return True

    # Reading

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one.

        Of a task that is an ensemble, the answers of all its patterns, averaged.
        """
        return self._backend.predict(examples, self._answers)

    def _answers(self, examples: Sequence[Example], is_quick: bool) -> np.ndarray:
        views = self.encoder.views()
        answers = [self._ask(view, examples, None, is_quick) for view in views]
        return averaged(answers, is_normalized=self._loss == "softmax")

    def read(self, examples: Sequence[Example], watch: ExitMonitor | None = None) -> np.ndarray:
        """As `predict`, by the encoder's own pattern alone and never in int8.

        Args:
            examples: The texts.
            watch: Sees each text's state after selected layers and may stop it there; the row of a
                stopped text is NaN. With a cache, layers below the lowest trained one are not
                shown, but for what they give in the end.
        """
        return self._ask(self.encoder, examples, watch, is_quick=False)

    def _ask(
        self, view: Encoder, examples: Sequence[Example], watch: ExitMonitor | None, is_quick: bool
    ) -> np.ndarray:
        rows = np.full((len(examples), len(view.task.labels)), np.nan, np.float32)
        for chosen, batch in self._batches(examples, view):
            seen = None if watch is None else BatchWatch(watch, chosen)
            left, found = self._backend.read(batch, self.plan, seen, is_quick)
            if len(left):
                rows[np.array(chosen)[left]] = found
            self.on_texts(len(chosen))
        return rows

    def judge(self, examples: Sequence[Example], draw: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Each right answer's cross-entropy in nats, and whether it is the likeliest.

        Both (answers,), in the texts' order; by the encoder's own pattern alone.

        Args:
            examples: Texts whose answers are known.
            draw: Seed of which words are masked, see `Encoder.prompts`.
        """
        losses, is_right = zip(*self.judge_each(examples, draw), strict=True)
        return np.concatenate(losses), np.concatenate(is_right)

    def judge_each(
        self, examples: Sequence[Example], draw: int = 0
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """As `judge`, of each text."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for chosen, batch in self._batches(examples, self.encoder, draw):
            parts = map(batch.by_text, self._backend.judge(batch, self.plan))
            found |= zip(chosen, zip(*parts, strict=True), strict=True)
            self.on_texts(len(chosen))
        return [found[row] for row in range(len(examples))]

    def tag(self, examples: Sequence[Example]) -> list[np.ndarray]:
        """Log-probabilities of each word's tags, float32, of each text (words, tags).

        Of a text that is too long fewer words are read than it has.
        """
        found: dict[int, np.ndarray] = {}
        for chosen, batch in self._batches(examples, self.encoder):
            _, rows = self._backend.read(batch, self.plan, None, False)
            found |= zip(chosen, batch.by_text(rows), strict=True)
            self.on_texts(len(chosen))
        return [found[row] for row in range(len(examples))]

    def guess(self, prompt: Prompt) -> Iterator[np.ndarray]:
        """Log-probabilities of all words, float32, (words,), at each place that an input asks.

        Few places at once, for a vocabulary is long. Of tasks that ask for all words.
        """
        for start in range(0, len(prompt.places), GUESSED):
            some = slice(start, start + GUESSED)
            asked = replace(prompt, places=prompt.places[some], answers=prompt.answers[some])
            batch = self.encoder.batch([asked])
            yield from self._backend.read(batch, self.plan, None, False)[1]
        self.on_texts(1)

    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""
        rows = np.zeros((len(examples), self._hidden), np.float32)
        compute = partial(self._backend.means, layer=layer, plan=self.plan)
        for chosen, batch in self._batches(examples, self.encoder):
            out = rows[chosen][:, None]  # (B, 1, H)
            if self._prefix is not None and 0 < layer <= self._prefix.layers:
                self._prefix.means(batch, layer, self.plan.dtype, compute, out)
            else:
                out[:] = compute(batch)
            rows[chosen] = out[:, 0]
            self.on_texts(0)  # they are read again
        return rows

    def second_moments(self, examples: Sequence[Example]) -> np.ndarray:
        """Moments of labelled texts' states, of an adapter with `+ridge`; see `moments_of`.

        Raises:
            TrainingError: No texts, or a state that is not finite.
        """
        demand(bool(examples), "no labelled texts to train on", TrainingError)
        states, labels = self.features(examples, self.layers), self.encoder.labels(examples)
        demand(bool(np.isfinite(states).all()), "a text's state is not finite", TrainingError)
        return moments_of(states, labels, len(self.encoder.task.labels))

    def prior(self, examples: Sequence[Example]) -> np.ndarray:
        """How an adapter with `+ridge` answers texts of each label; see `prior_of`.

        Raises:
            TrainingError: No texts, or an answer that is not finite.
        """
        demand(bool(examples), "no texts to calibrate by", TrainingError)
        adapter = self.adapter()
        scores = features(self.features(examples, self.layers)) @ adapter[WEIGHT].T
        self.put(adapter | {WEIGHT: np.zeros_like(adapter[WEIGHT])})
        logs = self.predict(examples)
        self.put(adapter)
        is_finite = np.isfinite(scores).all() and np.isfinite(logs).all()
        demand(bool(is_finite), "an answer is not finite", TrainingError)
        return prior_of(scores, logs)

    def spread(self, examples: Sequence[Example]) -> np.ndarray:
        """Mean and standard deviation of what each layer gets, (layers, 2), float64.

        Over texts, their tokens and hidden units; padding and soft prompts do not count, and how
        texts come to be in batches moves nothing but the last digits. The texts are asked by the
        encoder's own pattern, with the adapter in place.

        Args:
            examples: At least one; labels are not read.
        """
        sums, count = np.zeros((self.layers, 2)), 0
        for _, batch in self._batches(examples, self.encoder):
            sums += self._backend.sums(batch, self.plan)
            count += int(batch.attention.sum()) * self._hidden
            self.on_texts(len(batch.ids))
        means, squares = (sums / count).T
        return np.stack([means, np.sqrt(np.maximum(squares - np.square(means), 0.0))], axis=1)

    def _batches(
        self, examples: Sequence[Example], view: Encoder, draw: int = 0
    ) -> Iterator[tuple[list[int], Batch]]:
        batches = view.by_length(examples, self.plan.micro_batch, self.plan.tokens, draw)
        while True:
            with phase("tokenize"):
                found = next(batches, None)
            if found is None:
                return
            yield found

    def remember(self, cache: ActivationCache | None) -> None:
        """Keep what the layers below the lowest trained one give, and read it from there.

        Whatever lies in the cache, results are the same: of the texts' states at the cut, and of
        features below it, as float16 holds them. Without a cache nothing is rounded.

        Args:
            cache: This base's cache; None: nothing is kept.
        """
        cut = self.frozen_layers
        self._prefix = FrozenPrefix(cache, cut) if cache is not None and cut else None
        self._backend.remember(self._prefix)

    def close(self) -> None:
        self._backend.close()
        trim()


def _copied(item: tuple[str, np.ndarray]) -> tuple[str, np.ndarray]:
    name, tensor = item
    return name, tensor.copy()
