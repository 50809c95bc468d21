"""Checkpoint of interrupted training after a whole optimizer step.

    found = file.found(bound)       # of an earlier process; None: start from the beginning
    file.after_step(lambda: Steps(place, plan, engine.adapter(), engine.moments()))

Law: resuming gives the same bytes as never having stopped. Adapter and moments are exact, the order
of texts follows from the seed and the position, and hashes bind everything else that the bytes
depend on. One file per piece of work: the SHA-256 of the rest, then a safetensors file.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from edge_client.files import PRIVATE, from_json, write_atomically
from edge_client.guest.process import Ended
from edge_client.planning.plan import Plan
from edge_client.wire.messages import WireError
from edge_client.wire.tensors import (
    AdapterState,
    decode_adapter,
    encode_adapter,
    header_of,
    sha256,
)

log = logging.getLogger(__name__)

# A power cut costs this much work at most. An adapter with its moments is some megabytes: written
# twelve times an hour, flash that bears 3,000 cycles of 16 GB bears it for decades.
KEEP_EVERY_S = 300.0
DIGITS = 64  # of a SHA-256
ADAPTER, MEAN, SQUARE = "adapter ", "mean ", "square "  # before a tensor's name; no name has spaces


class Paused(BaseException):
    """Work is left for now, to go on later; not an Exception, as `Ended`."""


@dataclass(frozen=True)
class Moments:
    """An optimizer's state, float32 under the adapter's own names.

    Attributes:
        means: Running means of the gradients; SGD's velocities, none without momentum.
        squares: Running means of their squares; none of SGD.
        counts: Steps that each tensor has made; none of SGD.
    """

    means: AdapterState
    squares: AdapterState
    counts: dict[str, int]


@dataclass(frozen=True)
class ResumePoint:
    """How far training is.

    Attributes:
        epoch: The epoch that it is in, from 0.
        batches: Batches of that epoch that are behind.
        loss_sum: Of these, in nats, each text counted.
        layer_forwards: Of all steps so far.
    """

    epoch: int = 0
    batches: int = 0
    loss_sum: float = 0.0
    layer_forwards: int = 0


@dataclass(frozen=True)
class Steps:
    """What training goes on from.

    Attributes:
        place: How far it is.
        plan: What the last step was computed by.
        adapter: The adapter after that step.
        moments: The optimizer's state after that step.
    """

    place: ResumePoint
    plan: Plan
    adapter: AdapterState
    moments: Moments


class Keeper(Protocol):
    """Knows where training was left, and when it is to be left."""

    def found(self, bound: Mapping[str, str]) -> Steps | None:
        """What there is to go on from; None: begin anew.

        Args:
            bound: What the bytes hang on, by name; a hash each.
        """

    def after_step(self, now: Callable[[], Steps]) -> None:
        """A step is done.

        Raises:
            Ended, Paused: Leave here; what stands now is kept.
        """

    def keep(self, steps: Steps) -> None:
        """Keep this, for training is left."""


class NotTheSame(ValueError):
    """What was kept is damaged, or of something else; says what."""


@dataclass(frozen=True)
class _Header:
    bound: dict[str, str]
    plan: Plan
    counts: dict[str, int]
    epoch: int
    batches: int
    loss_sum: str  # hexadecimal, exact
    layer_forwards: int


def encode_steps(steps: Steps, bound: Mapping[str, str]) -> bytes:
    """A file of it; equal arguments give equal bytes."""
    place, moments = steps.place, steps.moments
    header = _Header(
        dict(sorted(bound.items())),
        steps.plan,
        dict(sorted(moments.counts.items())),
        place.epoch,
        place.batches,
        place.loss_sum.hex(),
        place.layer_forwards,
    )
    tensors = {
        f"{kind}{name}": tensor
        for kind, state in (
            (ADAPTER, steps.adapter),
            (MEAN, moments.means),
            (SQUARE, moments.squares),
        )
        for name, tensor in state.items()
    }
    body = encode_adapter(tensors, msgspec.json.encode(header).decode())
    return sha256(body).encode() + body


def decode_steps(body: bytes, bound: Mapping[str, str]) -> Steps:
    """The file's content; `bound` is what it must have been made for.

    Raises:
        NotTheSame: It is damaged, or of something else.
    """
    digest, body = body[:DIGITS], body[DIGITS:]
    if sha256(body).encode() != digest:
        raise NotTheSame("the file is damaged")
    try:
        tensors = decode_adapter(body)
        header = from_json(header_of(body), _Header)
        loss_sum = float.fromhex(header.loss_sum)
    except (WireError, ValueError) as error:  # msgspec's are ValueErrors
        raise NotTheSame("the file is of another smidgen") from error
    others = [name for name in bound if header.bound.get(name) != bound[name]]
    if others or header.bound.keys() != bound.keys():
        raise NotTheSame(f"other {(*others, 'terms')[0]}")

    def part(kind: str) -> AdapterState:
        return {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)}

    place = ResumePoint(header.epoch, header.batches, loss_sum, header.layer_forwards)
    moments = Moments(part(MEAN), part(SQUARE), header.counts)
    return Steps(place, header.plan, part(ADAPTER), moments)


class StepFile:
    """The file of one piece of work.

    Args:
        path: Where it lies, or will.
        bound: What the caller knows that the bytes hang on.
        between: Called between two steps; raises where work is to be left.
        clock: Seconds, ever growing.
    """

    def __init__(
        self,
        path: Path,
        bound: Mapping[str, str],
        between: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._bound, self._between, self._clock = path, dict(bound), between, clock
        self._kept_s = clock()

    def found(self, bound: Mapping[str, str]) -> Steps | None:
        """See `Keeper`; what does not fit is dropped, which the log says."""
        self._bound |= bound
        try:
            steps = decode_steps(self._path.read_bytes(), self._bound)
        except FileNotFoundError:
            return None
        except NotTheSame as error:
            log.warning("what was kept of this training does not fit (%s); it begins anew", error)
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return None
        except OSError as error:  # it stays: a life after this one may read it
            log.warning("what was kept of this training cannot be read: %s", error.strerror)
            return None
        return steps

    def after_step(self, now: Callable[[], Steps]) -> None:
        """See `Keeper`; every `KEEP_EVERY_S` it is kept, too, for a power cut says nothing."""
        try:
            self._between()
        except (Ended, Paused):
            self.keep(now())
            raise
        if self._clock() - self._kept_s >= KEEP_EVERY_S:
            self.keep(now())

    def keep(self, steps: Steps) -> None:
        """Write it; on a full disk training will begin anew."""
        self._kept_s = self._clock()
        if not math.isfinite(steps.place.loss_sum):
            return  # diverged: the epoch's end says so
        try:
            body = encode_steps(steps, self._bound)
            write_atomically(self._path, body, PRIVATE, is_latest=True)
        except OSError as error:
            log.warning("the steps so far are not kept: %s", error)
