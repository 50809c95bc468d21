"""The tensor half of the contract: adapters, updates, and the hashes that name them.

An adapter is a safetensors file of float32 tensors under PEFT's own names. An update is the same
with what training changed, and a header in the file's metadata: protocol, work, weight in the
mean. Equal values give equal bytes, and bytes from outside end in a value or a `WireError`.

    body = encode_update(Update("work-7", 12, delta))
    decode_update(body).num_examples  # 12
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from edge_client.errors import demand
from edge_client.wire.messages import PROTOCOL, WireError, decode, encode_brief

MAX_UPDATE_OVERHEAD_BYTES = 64 * 1024  # what an update may weigh beyond the adapter it answers
UPDATES_SINCE = 2  # the protocol whose updates had this form first; a store may hold some
AdapterState = dict[str, np.ndarray]


@dataclass(frozen=True)
class UpdateHeader:
    """What an update says of itself, in the safetensors file's metadata.

    Attributes:
        protocol: Version of this contract.
        work_id: The work it answers.
        num_examples: The update's weight in the mean, 1 to 10^9.
        steps: Optimizer steps that made it, of a run with control variates; 0: not said.
    """

    protocol: int
    work_id: str
    num_examples: int
    steps: int = 0

    def __post_init__(self) -> None:
        demand(1 <= self.num_examples <= 10**9, "num_examples: 1 to 10^9")
        demand(0 <= self.steps < 2**53, "steps: 0 to 2^53")


@dataclass(frozen=True)
class Update:
    """A trained adapter's `delta` with its header, as one safetensors file.

    Attributes:
        work_id: The work it answers.
        num_examples: The update's weight in the mean.
        delta: Trained minus received weights, float32, PEFT's own names.
        steps: Optimizer steps that made it, of a run with control variates; 0: not said.
    """

    work_id: str
    num_examples: int
    delta: AdapterState
    steps: int = 0


def encode_adapter(state: AdapterState, header: str = "") -> bytes:
    """Encode tensors as a safetensors file; equal arguments give equal bytes.

    The header travels as the one entry `smidgen` of the file's metadata: safetensors writes
    several entries in no fixed order.
    """
    ordered = {name: np.ascontiguousarray(state[name], np.float32) for name in sorted(state)}
    return bytes(save_safetensors(ordered, metadata={"smidgen": header} if header else None))


def decode_adapter(body: bytes) -> AdapterState:
    """Decode a safetensors file of finite float32 tensors.

    Raises:
        WireError: Not safetensors, another dtype, or a NaN or infinity in it.
    """
    try:
        state: AdapterState = load_safetensors(body)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise WireError(f"not a safetensors file: {error}") from error
    for name, tensor in state.items():
        if tensor.dtype != np.float32:
            raise WireError(f"tensor {name!r} is {tensor.dtype}, float32 expected")
        if not np.isfinite(tensor).all():
            raise WireError(f"tensor {name!r} holds NaN or infinity")
    return state


def header_of(body: bytes) -> bytes:
    """The header that `encode_adapter` was given; empty without one.

    Args:
        body: A safetensors file that `decode_adapter` reads.
    """
    header_bytes = int.from_bytes(body[:8], "little")
    metadata = json.loads(body[8 : 8 + header_bytes]).get("__metadata__") or {}
    return str(metadata.get("smidgen", "")).encode()


def encode_update(update: Update) -> bytes:
    """Encode an update: the delta's tensors, its header in the file's metadata."""
    header = UpdateHeader(PROTOCOL, update.work_id, update.num_examples, update.steps)
    return encode_adapter(update.delta, encode_brief(header).decode())


def decode_update(body: bytes) -> Update:
    """Decode an update.

    Raises:
        WireError: Not safetensors, no header, another protocol, or no examples.
    """
    delta = decode_adapter(body)
    header = decode(header_of(body), UpdateHeader)
    if not UPDATES_SINCE <= header.protocol <= PROTOCOL:
        raise WireError(f"update of protocol {header.protocol}, {PROTOCOL} expected")
    return Update(header.work_id, header.num_examples, delta, header.steps)


def check_same_parameters(delta: AdapterState, reference: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a delta whose names or shapes are not those of the adapter it answers.

    Raises:
        WireError: Names the first tensor that differs.
    """
    for name in sorted(set(delta) ^ set(reference)):
        raise WireError(f"tensor {name!r} is {'missing' if name in reference else 'not expected'}")
    for name, tensor in delta.items():
        if tensor.shape != tuple(reference[name]):
            raise WireError(
                f"tensor {name!r} has shape {tensor.shape}, not {tuple(reference[name])}"
            )


def sha256(body: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits, how every blob is named."""
    return hashlib.sha256(body).hexdigest()


def digest_header(name: str) -> str:
    """Value of the `Repr-Digest` header (RFC 9530) for a file of this SHA-256."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(name)).decode()}:"


def digest_in(header: str) -> str | None:
    """The SHA-256 that a `Repr-Digest` header tells, as blobs are named; None where it does not."""
    found = re.search("(?:^|[ ,])sha-256=:([A-Za-z0-9+/]{43}=):", header)
    return base64.b64decode(found[1]).hex() if found else None
