"""What holds a device's training near the others': added to each step's gradient.

Devices whose texts differ train towards different places. FedProx (Li et al. 2020,
arXiv:1812.06127) pulls each back to the weights that it received; SCAFFOLD shifts each gradient
from the device's own towards the population's (`edge_client.wire.control`).
"""

from dataclasses import dataclass, field

from edge_client.wire.tensors import AdapterState


@dataclass(frozen=True)
class Tether:
    """Of one round's training.

    Law: with `proximal` 0 and no shift every step is what it is without a tether, bit by bit.

    Attributes:
        received: The weights that training starts from; read, never written.
        proximal: mu: mu * (w - received) is added to the gradient.
        shift: Added to the gradient as it is; empty: nothing.
    """

    received: AdapterState
    proximal: float = 0.0
    shift: AdapterState = field(default_factory=dict)
