"""What computes: the one protocol behind which torch and ONNX Runtime stand.

Numpy at the border, never torch tensors, so that no caller needs torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from edge_client.adapters.spec import AdapterSpec
from edge_client.bases.architectures import Shape
from edge_client.bases.base import Base
from edge_client.engine.activation_cache import ActivationCache
from edge_client.engine.watch import Watch
from edge_client.planning.allocator import use_one_arena
from edge_client.planning.planner import AUTO, Plan
from edge_client.texts.examples import Example
from edge_client.texts.tasks import Task
from edge_client.texts.tokens import Batch, Encoder
from edge_client.wire.messages import AdapterState, Training

# Engine -> the library it computes with, and how one gets it.
INSTALL = {
    "torch": ("torch", "pip install 'smidgen[torch]'"),
    "onnx": ("onnxruntime", "pip install smidgen"),
}


ENGINE_HELP = "auto, torch or onnx; auto is torch where it is installed."


class EngineError(RuntimeError):
    """No engine can be had here for what is asked."""


@dataclass(frozen=True)
class StepReport:
    """One optimizer step.

    Attributes:
        loss: Mean cross-entropy over the batch, in nats, before the step.
        num_examples: Rows in the batch.
    """

    loss: float
    num_examples: int


class Engine(Protocol):
    """A frozen base with one trainable adapter, a task and an optimizer."""

    @property
    def encoder(self) -> Encoder:
        """How texts become batches."""

    @property
    def plan(self) -> Plan:
        """How a step is computed now."""

    @property
    def layers(self) -> int:
        """Layers of the base."""

    @property
    def layer_forwards(self) -> int:
        """Computed since the engine was opened: texts times layers.

        One text through one layer counts 1, computed again for backward 1 more, backward 2. Layers
        that need no backward have none; states that come from a cache cost nothing. The top layer
        counts as a whole one though only the answer goes all the way through it.
        """

    def use(self, plan: Plan, ceiling_bytes: int | None = None) -> None:
        """Compute the next steps by another plan; the adapter and the optimizer stay.

        Args:
            plan: How.
            ceiling_bytes: Resident bytes above which memory that was freed inside a step is given
                back to the kernel; None: it is not.
        """

    def train_step(self, batch: Batch) -> StepReport:
        """One AdamW step on the adapter; the base never changes.

        A step that fails for want of memory leaves adapter and optimizer as they were.
        """

    def predict(self, examples: Sequence[Example]) -> np.ndarray:
        """Log-probabilities, float32, shape (texts, labels); each row's exp sums to one.

        Of a task that is an ensemble, the answers of all its patterns, averaged.
        """

    def read(self, examples: Sequence[Example], watch: Watch | None = None) -> np.ndarray:
        """As `predict`, of the encoder's own pattern alone and never in int8.

        Args:
            examples: The texts.
            watch: Is shown the answers' states on the way, and lets texts go, whose rows are nan.
                With a cache, layers below the lowest trained one are not shown, but for what they
                give in the end.
        """

    def features(self, examples: Sequence[Example], layer: int) -> np.ndarray:
        """Mean token state after encoder layer `layer` (0 = embeddings), shape (texts, hidden)."""

    def remember(self, cache: ActivationCache | None) -> None:
        """Keep what the layers below the lowest trained one give, and read it from there.

        Whatever lies in the cache, results are the same: of the texts' states at the cut, and of
        features below it, as float16 holds them. Without a cache nothing is rounded.

        Args:
            cache: Of this base; None: nothing is kept.
        """

    def rest(self) -> None:
        """Give back what only computing needs; the next step takes it again."""

    def adapter(self) -> AdapterState:
        """A copy of the adapter, PEFT's own names, float32."""

    def load_adapter(self, state: AdapterState) -> None:
        """Put an adapter in place and start the optimizer afresh."""

    def close(self) -> None:
        """Free what the engine holds."""


def open_engine(
    kind: str,
    base: Base,
    task: Task,
    spec: AdapterSpec,
    training: Training,
    plan: Plan | None = None,
) -> Engine:
    """Build an engine; the modules that compute are imported here and not before.

    Args:
        kind: `torch`, `onnx`, or `auto` for the best one installed.
        base: The frozen base.
        task: Labels and patterns.
        spec: The adapter.
        training: Learning rate, longest input.
        plan: How a step is computed; by default in float32, whole and without recomputation.

    Raises:
        EngineError: The engine's libraries are not installed.
        TaskError: A label word is unknown to this base's tokenizer, or a pattern too long.
    """
    module = load_engine(kind)
    if base.shape.is_decoder:
        raise EngineError(
            f"base {base.name} is a causal language model ({base.architecture}); tasks are asked "
            "of a masked one, such as roberta (`engine.torch_backend.network` trains decoders)"
        )
    build = {"torch": "TorchEngine", "onnx": "OnnxEngine"}[engine_name(kind)]
    engine: Engine = getattr(module, build)(
        base, task, spec, training, plan or unplanned(base.shape, training, spec.top)
    )
    return engine


def engine_name(kind: str) -> str:
    """The engine that is meant: `auto` is torch where it is installed, and else onnx.

    Raises:
        EngineError: None is known by this name.
    """
    if kind == AUTO:
        return "torch" if find_spec("torch") else "onnx"
    if kind not in INSTALL:
        raise EngineError(f"--engine {kind} is not known; {AUTO}, {' or '.join(INSTALL)}")
    return kind


def installed_engine(kind: str) -> str:
    """The engine that is meant, without importing it.

    Raises:
        EngineError: None is known by this name, or its libraries are not installed.
    """
    name = engine_name(kind)
    library, command = INSTALL[name]
    if find_spec(library) is None:
        raise EngineError(f"the {name} engine needs {library}; {command}")
    return name


def load_engine(kind: str) -> Any:
    """Import the module that computes, with all its libraries.

    Raises:
        EngineError: They are not installed.
    """
    name = installed_engine(kind)
    use_one_arena()
    return import_module(f"edge_client.engine.{name}_backend.backend")


def unplanned(shape: Shape, training: Training, top: int = 0) -> Plan:
    """The plan where memory is no matter: float32, whole batches, nothing computed twice.

    Args:
        shape: Of the base.
        training: Batch and longest input.
        top: Of the adapter: its top layers, 0 for all.
    """
    return Plan(
        dtype="float32",
        micro_batch=training.batch,
        recompute=(),
        depth=top or shape.layers,
        tokens=min(training.tokens, shape.positions),
    )
