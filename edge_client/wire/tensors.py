"""Tensor messages of the wire protocol: adapters, updates, coded steps, their hashes, and seeds.

An adapter is a safetensors file of float32 tensors under PEFT's own names. An update holds the
change by training in the same form, or in a codec's tensors (`smidgen.edge_client.codecs`), and a
header in the file's metadata: protocol, work, weight in the mean, codec. A step is the change by a
round, likewise coded, and names the adapter to add it to. Equal values give equal bytes; bytes from
outside end in a value or a `WireError`. A run's root seed gives those of each client, round and
purpose, in any order.

    body = encode_update(Update("work-7", 12, delta))
    decode_update(body).num_examples  # 12
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from smidgen.edge_client.codecs import (
    PLAIN,
    CodecError,
    Kind,
    Shapes,
    check_residual,
    decode,
    encode,
    kind_of,
)
from smidgen.edge_client.errors import demand
from smidgen.edge_client.wire.messages import PROTOCOL, WireError, encode_brief
from smidgen.edge_client.wire.messages import decode as decode_message

Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


def derive_seed(root: int | str, *purpose: str | int) -> int:
    """Hash a root seed and a purpose into a 63-bit seed.

    Args:
        root: The run's seed; of what devices must not foresee, its secret.
        purpose: What the seed is for, for instance `("train", "hub-01", 3)`.
    """
    text = "\x1f".join(str(part) for part in (root, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seeds_under(root: int | str, *purpose: str | int) -> Callable[[str], int]:
    """`derive_seed` of one word more, for many: what they have in common is hashed once."""
    common = hashlib.sha256("".join(f"{part}\x1f" for part in (root, *purpose)).encode())

    def seed_of(word: str) -> int:
        own = common.copy()
        own.update(word.encode())
        return int.from_bytes(own.digest()[:8], "big") >> 1

    return seed_of


MAX_UPDATE_OVERHEAD_BYTES = 64 * 1024  # what an update may weigh beyond the adapter it answers
MASKED: Literal["masked"] = "masked"  # of an update of secure aggregation, in a codec's place
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
        codec: How its tensors are coded; `float32`: they are not.
    """

    protocol: int
    work_id: str
    num_examples: int
    steps: int = 0
    codec: Kind | Literal["masked"] = PLAIN

    def __post_init__(self) -> None:
        demand(1 <= self.num_examples <= 10**9, "num_examples: 1 to 10^9")
        demand(0 <= self.steps < 2**53, "steps: 0 to 2^53")


@dataclass(frozen=True)
class StepHeader:
    """What a step says of itself, in the safetensors file's metadata.

    Attributes:
        start_sha256: The adapter that it is added to.
        codec: How its tensors are coded.
        moved: Which tensors it holds, in order of their names a bit each, as hexadecimal digits;
            empty: all.
    """

    start_sha256: str
    codec: Kind
    moved: str = ""


@dataclass(frozen=True)
class Update:
    """A trained adapter's `delta` with its header, as one safetensors file.

    Attributes:
        work_id: The work it answers.
        num_examples: The update's weight in the mean.
        delta: Trained minus received weights, float32, PEFT's own names.
        steps: Optimizer steps that made it, of a run with control variates; 0: not said.
        coded: The tensors that are sent in the delta's place, where they are coded.
        codec: How; `delta` is then as whoever decodes them has it, empty where they are masked.
    """

    work_id: str
    num_examples: int
    delta: AdapterState
    steps: int = 0
    coded: AdapterState | None = None
    codec: Kind | Literal["masked"] = PLAIN


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
    return _checked(_loaded(body))


def _loaded(body: bytes) -> AdapterState:
    try:
        state: AdapterState = load_safetensors(body)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise WireError(f"not a safetensors file: {error}") from error
    return state


def _checked(state: AdapterState) -> AdapterState:
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


def codec_of(body: bytes) -> str:
    """In what an update's tensors are coded.

    Args:
        body: As `encode_update` gave it.
    """
    return decode_message(header_of(body), UpdateHeader).codec


def encode_update(update: Update) -> bytes:
    """Encode an update: its tensors, or what codes them, and its header in the file's metadata."""
    codec = PLAIN if update.coded is None else update.codec
    header = UpdateHeader(PROTOCOL, update.work_id, update.num_examples, update.steps, codec)
    if update.coded is None or codec == PLAIN:
        return encode_adapter(update.delta, encode_brief(header).decode())
    return _file(update.coded, header)


def _file(coded: Mapping[str, np.ndarray], header: UpdateHeader | StepHeader) -> bytes:
    told = {"smidgen": encode_brief(header).decode()}
    return bytes(save_safetensors(dict(sorted(coded.items())), metadata=told))


def decode_update(body: bytes, shapes: Shapes | None = None, since: int = PROTOCOL) -> Update:
    """Decode an update.

    Args:
        body: A safetensors file.
        shapes: Those of the adapter that it answers; without them a coded one is refused.
        since: The oldest protocol that is read; `UPDATES_SINCE` of updates in a store, which were
            taken before it was upgraded.

    Raises:
        WireError: Not safetensors, no header, another protocol, no examples, or not what its codec
            gives of such an adapter.
    """
    tensors = _loaded(body)
    header = decode_message(header_of(body), UpdateHeader)
    if not since <= header.protocol <= PROTOCOL:
        raise WireError(
            f"update of protocol {header.protocol}, {PROTOCOL} expected: another version tokenizes "
            "texts otherwise; install the same version of smidgen on both sides"
        )
    if header.codec == MASKED:
        return Update(header.work_id, header.num_examples, {}, header.steps, tensors, MASKED)
    if header.codec == PLAIN:
        delta = _checked(tensors)
    elif shapes is None:
        raise WireError("a coded update is read beside the adapter that it answers")
    else:
        delta = _decoded(tensors, header.codec, shapes)
    return Update(header.work_id, header.num_examples, delta, header.steps)


def _decoded(tensors: AdapterState, kind: Kind, shapes: Shapes) -> AdapterState:
    try:
        return decode(tensors, kind, shapes)
    except CodecError as error:
        raise WireError(str(error)) from error


def encode_step(
    adapter: AdapterState,
    after: AdapterState,
    codec: str,
    residual: AdapterState,
    start: str,
    moved: Collection[str] | None = None,
) -> tuple[bytes, AdapterState, AdapterState]:
    """Encode a step in a codec's tensors, with what earlier ones left out.

    Tang et al. 2019 (arXiv:1905.05957) have this way down beside the devices' own way up. Laws: the
    adapter that is given is what `add_step` makes of the file, to the last bit, so it takes the
    place of `after` everywhere; what was decoded and what is left out are step and residual, to
    rounding.

    Args:
        adapter: What the step starts from.
        after: Where it was to lead; equal names and shapes.
        codec: The codec's name, not `float32`.
        residual: What earlier steps left out; empty: nothing.
        start: SHA-256 of the adapter's file.
        moved: Tensors that this round was to change; those of others stay, and so does what steps
            left out of them. None: all.

    Returns:
        The file, the adapter after it, and what is left out now.

    Raises:
        CodecError: NaN or an infinity, or a residual of another adapter.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the codec says what it cannot hold
        names = [name for name in adapter if moved is None or name in moved]
        kind, step = kind_of(codec), {name: after[name] - adapter[name] for name in names}
    if not residual.keys() <= adapter.keys():
        check_residual(residual, shapes_of(adapter))  # which raises
    known = {name: residual[name] for name in names if name in residual}
    coded, left = encode(step, codec, known)
    taken = [name in names for name in sorted(adapter)]
    told = "" if all(taken) else np.packbits(taken).tobytes().hex()
    body = _file(coded, StepHeader(start, kind, told))
    decoded = decode(coded, kind, {name: adapter[name].shape for name in names})
    return body, adapter | _added({name: adapter[name] for name in names}, decoded), residual | left


def _moved(state: AdapterState, bits: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that a step holds.

    Raises:
        WireError: It is of another adapter.
    """
    shapes, size = shapes_of(state), -(-len(state) // 8)
    if not bits:
        return shapes
    if not re.fullmatch(f"([0-9a-f]{{2}}){{{size}}}", bits):
        raise WireError(f"moved: {2 * size} hexadecimal digits expected, {len(bits)} came")
    there = np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8))
    return {name: shapes[name] for name, bit in zip(sorted(state), there, strict=False) if bit}


def add_step(adapter: bytes, step: bytes) -> bytes:
    """The adapter after a step.

    Args:
        adapter: The one that it is added to, a safetensors file.
        step: What `encode_step` gave.

    Raises:
        WireError: It is not a step, or one of another adapter.
    """
    tensors = _loaded(step)
    header, start = decode_message(header_of(step), StepHeader), sha256(adapter)
    if header.start_sha256 != start:
        raise WireError(
            f"a step of adapter {header.start_sha256[:12]}, not of {start[:12]}, which is here"
        )
    state = decode_adapter(adapter)
    shapes = _moved(state, header.moved)
    found = _checked(_decoded(tensors, header.codec, shapes))
    check_same_parameters(found, shapes)
    return encode_adapter(state | _added({name: state[name] for name in shapes}, found))


def _added(adapter: AdapterState, step: AdapterState) -> AdapterState:
    """Each number rounded once, so that every machine gets the same."""
    with np.errstate(over="ignore"):  # an infinity is of no use to anybody, who all check
        return {name: tensor + step[name] for name, tensor in adapter.items()}


def shapes_of(state: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in state.items()}


def check_same_parameters(
    delta: Mapping[str, np.ndarray], reference: Mapping[str, tuple[int, ...]]
) -> None:
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
