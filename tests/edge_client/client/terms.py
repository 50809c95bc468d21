"""A run's terms, as a scripted coordinator says them."""

from edge_client.bases.base import Base
from edge_client.texts.tasks import Task
from edge_client.wire.fleet import Enrolled, Terms
from edge_client.wire.labelling import Labelling
from edge_client.wire.messages import PROTOCOL, Over
from edge_client.wire.training import Training


def terms_for(
    base: Base,
    task: Task,
    training: Training | None = None,
    labelling: Labelling | None = None,
    spec: str = "lora:2",
) -> Terms:
    """Terms of a run of three rounds."""
    return Terms(
        *(PROTOCOL, "run", "mail", base.base_id, "tiny", spec, task),
        training=training or Training(),
        rounds=3,
        min_clients=1,
        labelling=labelling,
    )


def enrolled_as(name: str, terms: Terms) -> Enrolled:
    return Enrolled(name, "key", terms)


def over(sha256: str) -> Over:
    """The run's end."""
    return Over(sha256, 3, 1, {0: 0.25, 3: 0.5})
