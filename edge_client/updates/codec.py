"""Compressed updates with error feedback: int8, int4, top-k.

The device keeps a codec's error and adds it to what it sends next (Seide et al. 2014; Karimireddy
et al. 2019, arXiv:1901.09847); `smidgen.edge_client.codecs` does the coding. The server half is in
the wire: an update is decoded on arrival, against the shapes of its adapter.
"""

import logging
from dataclasses import replace

import numpy as np

from smidgen.edge_client.codecs import (
    AUTO,
    PLAIN,
    CodecError,
    check_residual,
    decode,
    encode,
    kind_of,
)
from smidgen.edge_client.updates.step import DeviceContext, UpdateStep
from smidgen.edge_client.wire.tensors import Update, encode_adapter, shapes_of

SOON_S = 10.0  # an update that is sent within this is not made smaller
# Codecs by their exactness, with their share of float32's bytes, see docs/reference/run-file.md.
EXACT = ((PLAIN, 1.0), ("int8", 0.27), ("int4", 0.15))

log = logging.getLogger(__name__)


class Codec(UpdateStep):
    """Sends the update coded; its state is what coded updates have left out so far.

    Args:
        codec: As the run names it, or `auto`.
        arguments: The share behind `topk:`.
    """

    name, keeps = "codec", True

    def __init__(self, codec: str, *arguments: str) -> None:
        super().__init__()
        self._codec = ":".join((codec, *arguments))

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """The delta as whoever decodes it has it, with the tensors that are sent.

        Raises:
            CodecError: NaN or an infinity.
        """
        codec, shapes = self._codec, shapes_of(update.delta)
        if codec == AUTO:
            codec = codec_for(len(encode_adapter(update.delta)), context.bytes_per_s)
        before = self.state or {}
        residual = {name: before[name] for name in shapes if name in before}
        try:
            if residual:
                check_residual(residual, {name: shapes[name] for name in residual})
        except CodecError as error:
            log.warning("%s; it is dropped", error)
            before = residual = {}
        if residual:  # tensors that were not sent before have left nothing out
            residual = {
                name: residual.get(name, np.zeros_like(update.delta[name])) for name in shapes
            }
        coded, left = encode(update.delta, codec, residual)
        self.state = {name: one for name, one in before.items() if name not in shapes} | left
        kind = kind_of(codec)
        return replace(update, delta=decode(coded, kind, shapes), coded=coded, codec=kind)


def codec_for(plain_bytes: int, bytes_per_s: float | None) -> str:
    """What `auto` comes to: the most exact codec whose file is sent within so many seconds.

    Laws: a slower link never gets a more exact codec, nor does a larger adapter. A link that nobody
    has measured gets `int8`, and one on which nothing is sent in time the smallest.

    Args:
        plain_bytes: Size of the update as float32.
        bytes_per_s: What the link carries; None: not known.
    """
    if bytes_per_s is None:
        return EXACT[1][0]
    in_time = [name for name, share in EXACT if plain_bytes * share <= SOON_S * bytes_per_s]
    return in_time[0] if in_time else EXACT[-1][0]
