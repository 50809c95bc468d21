"""How one client's own adapter comes to be: by a device's own code, on the experiment's base."""

from collections.abc import Iterator
from contextlib import contextmanager

from edge_client.adapters.spec import parse_adapter
from edge_client.personal.methods import Given, Own, own_adapter
from edge_client.texts.examples import ClientData
from edge_client.wire.tensors import decode_adapter
from simulation.experiments.stage import Stage


@contextmanager
def fitted(
    on: Stage, data: ClientData, seed: int, shared: bytes = b"", first: bytes = b""
) -> Iterator[Own]:
    """Train one client's own adapter. Equal arguments give equal bytes.

    Args:
        on: An experiment with a personal phase.
        data: The client's texts.
        seed: Seed of its draws and of the order of its texts.
        shared: What the rounds before have trained, encoded; empty without any.
        first: What they had trained where its own begins, if that is earlier; encoded.
    """
    personal, said = on.experiment.personal, on.experiment.adapter
    assert personal is not None, f"{on.experiment.name} has no personal phase"
    given = Given(parse_adapter(said), decode_adapter(shared)) if shared else None
    known = (personal.way, on.base.shape, lambda spec: on.open_engine(str(spec)), data, seed)
    with own_adapter(*known, given, decode_adapter(first) if first else None) as own:
        yield own
