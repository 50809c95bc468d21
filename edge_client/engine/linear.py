"""A backend for cores in place of LoRA's B (`smidgen.edge_client.updates.forms.Core`).

It pulls any backend's LoRA gradients back to the trained numbers, which an optimizer in numpy
updates; so a core is exact with AdamW, SGD, FedProx and SCAFFOLD, on both engines.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from smidgen.edge_client.engine.backend import Backend
from smidgen.edge_client.engine.onnx_backend.optimizers import add_correction, open_optimizer
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.texts.batches import Batch
from smidgen.edge_client.updates.forms import Core
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
