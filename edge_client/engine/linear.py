"""Backends around any other: cores in LoRA's B's place, and ridge regression on the base's states.

For a core (`smidgen.edge_client.updates.forms.Core`) the inner one's LoRA gradients are pulled back
to the trained numbers, which an optimizer in numpy updates; so it is exact with AdamW, SGD, FedProx
and SCAFFOLD, on both engines. With ridge regression (`smidgen.edge_client.updates.ridge`) each text
is read twice, and an answer is the softmax of the sum of both scores.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from smidgen.edge_client.engine.backend import Backend, ExitMonitor
from smidgen.edge_client.engine.ensemble import normalized
from smidgen.edge_client.engine.onnx_backend.optimizers import add_correction, open_optimizer
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.updates.forms import Core
from smidgen.edge_client.updates.ridge import WEIGHT, features
from smidgen.edge_client.updates.step import Correction
from smidgen.edge_client.wire.tensors import AdapterState, check_same_parameters, shapes_of
from smidgen.edge_client.wire.training import Training


class LinearBackend:
    """See `smidgen.edge_client.engine.backend.Backend`; what is not here is the inner one's.

    Args:
        inner: Computes with plain LoRA.
        form: How that is written.
        trained: The numbers at the start.
        training: The optimizer and its settings.
    """

    def __init__(
        self, inner: Backend, form: Core, trained: AdapterState, training: Training
    ) -> None:
        self._inner, self._form, self._training = inner, form, training
        self._trained = {name: np.zeros_like(tensor) for name, tensor in trained.items()}
        self.correction: Correction | None = None
        self.load_adapter(trained)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, batch: Batch, plan: Plan) -> float:
        """Train on a batch and return its loss; a correction by single texts is refused."""
        is_fit = self.correction is None or self.correction.rule is None
        demand(is_fit, "a core has no gradients of single texts", Failed)
        loss, gradients = self.gradients(batch, plan)
        # Those below the plan's depth are zero, and as little trained as the inner one trains them.
        pulled = {name: one for name, one in gradients.items() if one.any()}
        add_correction(pulled, self._trained, self.correction)
        self.optimizer.step(pulled)
        self._inner.put(self._form.expand(self._trained))
        return loss

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        loss, gradients = self._inner.gradients(batch, plan)
        return loss, self._form.pull(gradients)

    def adapter(self) -> AdapterState:
        return dict(self._trained)

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None:
        self.put(state)
        self.optimizer = open_optimizer(self._trained, self._training)

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        check_same_parameters(state, shapes_of(self._trained))
        for name, tensor in self._trained.items():
            tensor[...] = state[name]
        self._inner.put(self._form.expand(self._trained))


def with_core(backend: Backend, lora: AdapterState, training: Training) -> Backend:
    """A backend of LoRA, trained by A and cores.

    Args:
        backend: With LoRA in place.
        lora: Any state of LoRA's.
        training: The optimizer and its settings.
    """
    core = Core(shapes_of(lora))
    return cast(Backend, LinearBackend(backend, core, core.first(lora), training))


class RidgeBackend:
    """Adds the answers of `smidgen.edge_client.updates.ridge` to an adapter's.

    `means` are those of the base alone: the adapter is put back to what it starts from, in which
    it changes nothing, and then in place again.

    Args:
        inner: With the adapter as it starts.
        weight: W, (labels, width + 1); while it is zero, texts are read once.
        layers: Of the base.
    """

    def __init__(self, inner: Backend, weight: np.ndarray, layers: int) -> None:
        self._inner, self._weight, self._layers = inner, weight, layers
        self._first = {name: one.copy() for name, one in inner.adapter().items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(
        self, batch: Batch, plan: Plan, watch: ExitMonitor | None, is_quick: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        left, rows = self._inner.read(batch, plan, watch, is_quick)
        if not self._weight.any():
            return left, rows
        x = features(self.means(batch, self._layers, plan)[left, 0])
        both = rows + x @ self._weight.T.astype(np.float64)
        return left, normalized(both)

    def means(self, batch: Batch, layer: int, plan: Plan) -> np.ndarray:
        held = {name: one.copy() for name, one in self._inner.adapter().items()}
        self._inner.put(self._first)
        try:
            return self._inner.means(batch, layer, plan)
        finally:
            self._inner.put(held)

    def gradients(self, batch: Batch, plan: Plan) -> tuple[float, AdapterState]:
        loss, found = self._inner.gradients(batch, plan)
        return loss, found | {WEIGHT: np.zeros_like(self._weight)}

    def adapter(self) -> AdapterState:
        return self._inner.adapter() | {WEIGHT: self._weight}

    def load_adapter(self, state: Mapping[str, np.ndarray]) -> None:
        self._inner.load_adapter(self._taken(state))

    def put(self, state: Mapping[str, np.ndarray]) -> None:
        self._inner.put(self._taken(state))

    def _taken(self, state: Mapping[str, np.ndarray]) -> AdapterState:
        """The inner one's tensors; W is taken here."""
        inner = {name: one for name, one in state.items() if name != WEIGHT}
        check_same_parameters(state, shapes_of(self.adapter()))
        self._weight = np.array(state[WEIGHT])
        return inner


def with_ridge(backend: Backend, weight: np.ndarray, layers: int) -> Backend:
    """A backend whose answers are read twice."""
    return cast(Backend, RidgeBackend(backend, weight, layers))
