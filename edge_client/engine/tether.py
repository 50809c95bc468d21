"""What holds a device's training near the others': added to each step's gradient.

Devices whose texts differ train towards different places. FedProx (Li et al. 2020,
arXiv:1812.06127) pulls each back to the weights that it received.
"""

from dataclasses import dataclass

from edge_client.wire.tensors import AdapterState


@dataclass(frozen=True)
class Tether:
    """Of one round's training.

    Law: with `proximal` 0 every step is what it is without a tether, bit by bit.

    Attributes:
        received: The weights that training starts from; read, never written.
        proximal: mu: mu * (w - received) is added to the gradient.
    """

    received: AdapterState
    proximal: float = 0.0
