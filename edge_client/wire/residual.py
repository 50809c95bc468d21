"""What a device's coded updates left out, as a file that says of which run and adapter it is."""

import logging
from dataclasses import dataclass

from edge_client.codecs.blocks import CodecError
from edge_client.codecs.codec import Shapes, check_residual
from edge_client.wire.messages import WireError, Work, decode, encode_brief
from edge_client.wire.tensors import AdapterState, decode_adapter, encode_adapter, header_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bound:
    """What a residual belongs to, in its file's metadata.

    Attributes:
        run_id: The run.
        adapter_spec: The form of its adapter.
    """

    run_id: str
    adapter_spec: str


def residual_file(left: AdapterState, work: Work) -> bytes:
    """What an update left out, as a safetensors file that is never sent."""
    return encode_adapter(left, encode_brief(Bound(work.run_id, work.adapter_spec)).decode())


def residual_in(body: bytes, work: Work, shapes: Shapes) -> AdapterState:
    """What earlier updates of a run left out; nothing, said in one line, if it is of another.

    Args:
        body: What `residual_file` gave; empty: nothing was left out.
        work: What is asked.
        shapes: Those of its adapter.
    """
    if not body:
        return {}
    try:
        left, bound = decode_adapter(body), decode(header_of(body), Bound)
        if bound != Bound(work.run_id, work.adapter_spec):
            raise CodecError(
                f"what is kept of earlier updates is of adapter {bound.adapter_spec} in run "
                f"{bound.run_id}, not of {work.adapter_spec} in {work.run_id}"
            )
        if left:  # `auto` may have come to float32, which leaves nothing out
            check_residual(left, shapes)
    except (CodecError, WireError) as error:
        log.warning("%s; it is dropped", error)
        return {}
    return left
