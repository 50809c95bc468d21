"""Layer-forwards: the unit in which compute is compared across runs and machines.

One text through one encoder layer, forward, is one; a recompute counts one more and a backward
two. Counted by formula from texts, epochs and layers, not measured.
"""

from edge_client.adapters import parse_adapter
from simulation.experiment import FULL, Experiment


def training_layer_forwards(experiment: Experiment, layers: int, num_examples: int) -> int:
    """Of training on texts for a round's epochs; nothing is made again in a simulation.

    Args:
        experiment: Adapter and epochs.
        layers: Of the base.
        num_examples: Texts trained on.
    """
    is_in_layers = experiment.adapter in FULL or parse_adapter(experiment.adapter).is_in_layers
    passes = 3 if is_in_layers else 1  # forward; and back through all layers, if it leads there
    return passes * layers * experiment.training.epochs * num_examples
