"""How one client's own adapter comes to be: by a device's own code, on the experiment's base."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from edge_client.adapters.spec import parse_adapter
from edge_client.personal.fitting import fit
from edge_client.personal.form import Plain
from edge_client.personal.methods import Own, own_adapter
from edge_client.texts.examples import ClientData
from edge_client.wire.seeds import derive_seed
from edge_client.wire.tensors import decode_adapter
from simulation.experiments.personal.settings import BY_GENERATOR, TUNED
from simulation.experiments.stage import Stage


@contextmanager
def fitted(on: Stage, data: ClientData, seed: int, shared: bytes = b"") -> Iterator[Own]:
    """Train one client's own adapter. Equal arguments give equal bytes.

    Args:
        on: An experiment with a personal phase.
        data: The client's texts.
        seed: Seed of its draws and of the order of its texts.
        shared: What the rounds before have trained, encoded; empty without any.
    """
    personal, said = on.experiment.personal, on.experiment.adapter
    assert personal is not None, f"{on.experiment.name} has no personal phase"
    if personal.method == TUNED:
        with closing(on.open_engine()) as engine:
            terms, order = personal.way.terms, derive_seed(seed, "own")
            found = fit(engine, Plain(), decode_adapter(shared), data.labelled, terms, order)
            yield Own(engine, parse_adapter(said), found.loss, engine.layer_forwards, {})
        return
    generator = decode_adapter(shared) if personal.method == BY_GENERATOR else None
    known = (personal.way, on.base.shape, lambda spec: on.open_engine(str(spec)), data, seed)
    with own_adapter(*known, generator) as own:
        yield own
