"""FedProx: each optimizer step is pulled back towards the weights that the device received.

Li et al. 2020 (arXiv:1812.06127): the objective adds mu/2 * ||w - received||^2 to the loss.
"""

from dataclasses import replace

from edge_client.updates.step import Correction, DeviceContext, UpdateStep


class Proximal(UpdateStep):
    """Adds mu * (w - received) to each gradient.

    Args:
        mu: As a text.
    """

    name = "proximal"

    def __init__(self, mu: str) -> None:
        super().__init__()
        self._mu = float(mu)

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        return replace(correction, proximal=self._mu)
