"""What the comparisons on AG News have in common: how clients train, and what."""

from edge_client.wire.training import Training
from simulation.experiments.experiment import Experiment

TRAINING = Training(epochs=2, batch=4, lr=5e-3, tokens=64)
AG_NEWS = Experiment("comparison", "ag_news", adapter="lora:8", training=TRAINING)
