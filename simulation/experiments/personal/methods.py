"""How one client's own adapter comes to be: by a device's own code, on the experiment's base."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edge_client.adapters.spec import AdapterSpec, parse_adapter
from edge_client.personal.methods import Beneath, Given, Own, own_adapter
from edge_client.texts.examples import ClientData
from edge_client.wire.tensors import decode_adapter
from simulation.experiments.experiment import FULL
from simulation.experiments.stage import Stage


@dataclass(frozen=True)
class Asked:
    """A client that is to train for itself.

    Attributes:
        name: The client.
        shared: The encoded adapter that the rounds before gave; empty without any.
        first: That of an earlier round, where the client's own begins there.
        beneath: Those that it is trained above, in turn; the last is there in the end.
    """

    name: str
    shared: bytes = b""
    first: bytes = b""
    beneath: tuple[bytes, ...] = ()


@contextmanager
def fitted(on: Stage, data: ClientData, seed: int, asked: Asked) -> Iterator[Own]:
    """Train one client's own adapter. Equal arguments give equal bytes.

    Args:
        on: An experiment with a personal phase.
        data: The client's texts.
        seed: Seed of its draws and of the order of its texts.
        asked: The client, and what the rounds before have trained.
    """
    personal, said = on.experiment.personal, on.experiment.adapter
    assert personal is not None, f"{on.experiment.name} has no personal phase"
    # Of a base whose every weight is trained there is no form: `open_engine` knows what it opens.
    spec = AdapterSpec() if said in FULL else parse_adapter(said)
    given = Given(spec, decode_adapter(asked.shared)) if asked.shared else None
    first = decode_adapter(asked.first) if asked.first else None
    beneath = None
    if asked.beneath:
        turns = tuple(map(decode_adapter, asked.beneath))
        beneath = Beneath(parse_adapter(personal.above), turns)
    way = personal.way(on.dataset.task)
    known = (way, on.base.shape, lambda spec: on.open_engine(str(spec)), data, seed)
    with own_adapter(*known, given, first, beneath) as own:
        yield own
