"""FFA-LoRA: A is drawn once and frozen, B alone is trained and sent.

Sun et al. 2024 (arXiv:2403.12313): with A the same on every device, the mean of B A is (mean of B)
A. Half of LoRA's numbers travel; A is drawn by its name on each machine.
"""

from edge_client.adapters.forms.linear import LORA_A, Shapes, fixed_factor
from edge_client.wire.tensors import AdapterState


class FrozenA:
    """See the module and `linear.Form`."""

    def __init__(self, shapes: Shapes) -> None:
        named = {name: shape for name, shape in shapes.items() if name.endswith(LORA_A)}
        self._fixed = {name: fixed_factor(name, shape) for name, shape in named.items()}

    def first(self, lora: AdapterState) -> AdapterState:
        return self.pull(lora)  # B is zero

    def expand(self, trained: AdapterState) -> AdapterState:
        return trained | self._fixed

    def pull(self, gradients: AdapterState) -> AdapterState:
        return {name: one for name, one in gradients.items() if name not in self._fixed}
