"""SCAFFOLD's control variates: what device and coordinator compute alike, each on its own.

Karimireddy et al. 2020 (arXiv:1910.06378), option II. A device's c_i is the mean gradient of its
last training, the population's c is the mean of all c_i; c - c_i is added to each gradient, so that
a device with few labels steps as the population would. A device keeps its c_i and sends nothing
but its delta, as ever: the coordinator knows c, the number of steps and lr, and so the change.

    held = Held(control, own)                   # as files; empty are zeros
    change_of(held.c, delta, steps=12, lr=0.1)  # c_i after minus before: -c - delta / (steps * lr)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge_client.codecs.codec import PLAIN
from edge_client.wire.tensors import AdapterState, decode_adapter


@dataclass(frozen=True)
class Held:
    """What a device goes on from in one training: control variates, and what updates left out.

    Attributes:
        control: c, a safetensors file; empty: zeros.
        own: c_i, likewise; None: it is lost or there is none, so the device trains without, and
            says no steps.
        residual: What its coded updates have left out, likewise; empty: nothing.
        codec: What `auto` comes to.
    """

    control: bytes = b""
    own: bytes | None = b""
    residual: bytes = b""
    codec: str = PLAIN

    @property
    def c(self) -> AdapterState:
        """The population's; empty: zeros."""
        return decode_adapter(self.control) if self.control else {}

    def shift(self) -> AdapterState:
        """c - c_i, float32, which is added to each gradient; empty: nothing is."""
        if self.own is None:
            return {}
        c, own = self.c, decode_adapter(self.own) if self.own else {}
        return {name: _part(c, name) - _part(own, name) for name in {**c, **own}}

    def own_after(self, delta: AdapterState, steps: int, lr: float) -> AdapterState:
        """c_i after a training, float32.

        Args:
            delta: Trained minus received weights.
            steps: Optimizer steps that made it.
            lr: Their learning rate.
        """
        own = decode_adapter(self.own) if self.own else {}
        change = change_of(self.c, delta, steps, lr)
        return {name: (_part(own, name) + one).astype(np.float32) for name, one in change.items()}


def change_of(
    c: Mapping[str, np.ndarray], delta: AdapterState, steps: int, lr: float
) -> dict[str, np.ndarray]:
    """What a training adds to its device's control variate: -c - delta / (steps * lr), float64.

    Law: where c - c_i was added to each of the steps' gradients, c_i plus this is their mean.
    A tensor whose delta is zero all over was not trained; its part of c_i stays.

    Args:
        c: The population's control variate in that training; empty: zeros.
        delta: Trained minus received weights.
        steps: Optimizer steps that made it, 1 or more.
        lr: Their learning rate.
    """
    return {
        name: -_part(c, name) - tensor.astype(np.float64) / (steps * lr)
        if tensor.any()
        else np.zeros(tensor.shape)
        for name, tensor in delta.items()
    }


def _part(state: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return state.get(name, np.float32(0.0))  # type: ignore[arg-type]  # broadcasts
