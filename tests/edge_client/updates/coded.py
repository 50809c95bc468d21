"""A coded update as a device sends it."""

from smidgen.edge_client.updates.codec import Codec
from smidgen.edge_client.updates.step import DeviceContext
from smidgen.edge_client.wire.tensors import AdapterState, Update, encode_update
from smidgen.edge_client.wire.training import Training


def encode_coded(
    update: Update, codec: str, residual: AdapterState
) -> tuple[bytes, AdapterState, AdapterState]:
    """Its file, its delta as the coordinator has it, and what is left out."""
    step = Codec(*codec.split(":"))
    step.state = residual
    sent = step.outgoing(update, DeviceContext(Training(), 1))
    return encode_update(sent), sent.delta, step.state
