"""What a scripted coordinator says: a run's terms, its invitation, its end."""

import json

from smidgen.edge_client.bases.base import Base
from smidgen.edge_client.tasks.task import Task
from smidgen.edge_client.wire.fleet import Enrolled, Terms
from smidgen.edge_client.wire.messages import PROTOCOL, Next, Over, Receipt, Waiting, encode
from smidgen.edge_client.wire.training import Labelling, Training
from tests.edge_client.client.servers import Answer

IDLE = encode(Next(waiting=Waiting("idle")))


def terms_for(
    base: Base,
    task: Task,
    training: Training | None = None,
    labelling: Labelling | None = None,
    spec: str = "lora:2",
) -> Terms:
    """Terms of a run of three rounds."""
    return Terms(
        *("run", "mail", base.base_id, "tiny", spec, task),
        training=training or Training(),
        rounds=3,
        min_clients=1,
        labelling=labelling,
    )


def enrolled_as(name: str) -> Enrolled:
    return Enrolled(PROTOCOL, f"d-{name}", name)


def over(sha256: str, run_id: str = "run", run_name: str = "mail") -> Over:
    """The run's end."""
    return Over(run_id, run_name, sha256, 3, 1, {0: 0.25, 3: 0.5})


class Door:
    """A coordinator's answers to who a device is and how it stands to runs.

    Args:
        *invitations: Terms that are said before anything else, once.

    Attributes:
        names: Under which devices enrolled.
        said: State and failure of each membership, by run.
    """

    def __init__(self, *invitations: Terms) -> None:
        self._left = list(invitations)
        self.names: list[str] = []
        self.said: list[tuple[str, str, str | None]] = []

    def answer(self, path: str, body: bytes) -> Answer | None:
        """The answer to what it knows of; None: somebody else's."""
        if path == "/v1/enrol":
            self.names.append(json.loads(body)["name"])
            return 200, encode(enrolled_as("hub"))
        if path.endswith("/membership"):
            message = json.loads(body)
            self.said.append((path.split("/")[3], message["state"], message.get("failure")))
            return 200, encode(Receipt(True))
        if path.startswith("/v1/work?") and self._left:
            return 200, encode(Next(terms=self._left.pop(0)))
        return None

    @property
    def is_home(self) -> bool:
        """Whether the device has the last run's adapter, or cannot have it."""
        return bool(self.said) and self.said[-1][1] == "home"
