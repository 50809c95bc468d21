"""FedProx: each optimizer step pulls back to the weights that the device received.

Li et al. 2020 (arXiv:1812.06127): the objective has mu/2 * ||w - received||^2 beside the loss.
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
        """With mu."""
        return replace(correction, proximal=self._mu)
