"""Checkpoint of interrupted training after a whole optimizer step.

    found = file.found(bound)       # of an earlier process; None: start from the beginning
    file.after_step(lambda: engine.steps(place))

Law: resuming gives the same bytes as never having stopped. Adapter and moments are exact, the order
of texts follows from the seed and the position, and hashes bind everything else that the bytes
depend on. One file per piece of work: the SHA-256 of the rest, then a safetensors file. It is
written and read tensor by tensor, without a copy of the whole.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from smidgen.edge_client.bases.header import write_header
from smidgen.edge_client.errors import WrongInput, demand
from smidgen.edge_client.files import PRIVATE, from_json, write_atomically
from smidgen.edge_client.guest.process import Ended
from smidgen.edge_client.planning.plan import Plan
from smidgen.edge_client.wire.tensors import shapes_of

log = logging.getLogger(__name__)

# A power cut costs this much work at most. An adapter with its moments is some megabytes: written
# twelve times an hour, flash that bears 3,000 cycles of 16 GB bears it for decades.
KEEP_EVERY_S = 300.0
DIGITS = 64  # of a SHA-256
ADAPTER, MEAN, SQUARE = "adapter ", "mean ", "square "  # before a tensor's name; no name has spaces
HEADER = "smidgen"  # in the file's metadata


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

    means: Mapping[str, np.ndarray]
    squares: Mapping[str, np.ndarray]
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
    adapter: Mapping[str, np.ndarray]
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
    place: ResumePoint


def _encoded(steps: Steps, bound: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file of it, part by part; equal arguments give equal bytes."""
    moments = steps.moments
    counts = dict(sorted(moments.counts.items()))
    header = _Header(dict(sorted(bound.items())), steps.plan, counts, steps.place)
    parts = {ADAPTER: steps.adapter, MEAN: moments.means, SQUARE: moments.squares}
    shapes = shapes_of(steps.adapter)
    entries = {
        f"{kind}{name}": ("F32", shapes[name]) for kind in parts for name in sorted(parts[kind])
    }
    yield write_header(entries, {HEADER: msgspec.json.encode(header).decode()})[0]
    for state in parts.values():
        for name in sorted(state):
            yield np.ascontiguousarray(state[name], np.float32).reshape(-1).view(np.uint8).data


class _Part(Mapping[str, np.ndarray]):
    """Tensors of a file, each read when it is asked for."""

    def __init__(self, path: Path, places: Mapping[str, tuple[int, tuple[int, ...]]]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> np.ndarray:
        place, shape = self._places[name]
        found = np.fromfile(self._path, np.float32, math.prod(shape), offset=place)
        return found.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _place(entry: Mapping[str, Any], start: int, size: int) -> tuple[int, tuple[int, ...]]:
    """Where a tensor lies in a file of this size, whose tensors start there, and its shape."""
    (first, end), shape = entry["data_offsets"], tuple(entry["shape"])
    is_whole = 0 <= first <= end <= size - start and end - first == 4 * math.prod(shape)
    if entry["dtype"] != "F32" or not is_whole or min(shape, default=0) < 0:
        raise ValueError("no tensor of float32 numbers")
    return start + first, shape


def _read(path: Path, bound: Mapping[str, str]) -> Steps:
    """A file's content, whose tensors are read as they are asked for.

    Args:
        path: The file.
        bound: What it must have been made for.

    Raises:
        NotTheSame: It is damaged, or of something else.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        digest, whole = file.read(DIGITS), hashlib.sha256()
        while chunk := file.read(1 << 20):
            whole.update(chunk)
        demand(whole.hexdigest().encode() == digest, "the file is damaged", NotTheSame)
        size = file.seek(0, os.SEEK_END)
        file.seek(DIGITS)
        length = int.from_bytes(file.read(8), "little")
        start = DIGITS + 8 + length
        try:
            table = json.loads(file.read(min(length, size)))
            header = from_json(table.pop("__metadata__")[HEADER].encode(), _Header)
            places = {name: _place(entry, start, size) for name, entry in table.items()}
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise NotTheSame("the file is of another smidgen") from error
    others = [name for name in bound if header.bound.get(name) != bound[name]]
    if others or header.bound.keys() != bound.keys():
        raise NotTheSame(f"other {(*others, 'terms')[0]}")

    def part(kind: str) -> _Part:
        own = {n.removeprefix(kind): place for n, place in places.items() if n.startswith(kind)}
        return _Part(path, own)

    moments = Moments(part(MEAN), part(SQUARE), header.counts)
    return Steps(header.place, header.plan, part(ADAPTER), moments)


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
            steps = _read(self._path, self._bound)
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
            digest = hashlib.sha256()
            for part in _encoded(steps, self._bound):
                digest.update(part)
            body = chain([digest.hexdigest().encode()], _encoded(steps, self._bound))
            write_atomically(self._path, body, PRIVATE, is_latest=True)
        except (OSError, WrongInput) as error:  # of a file that moments lie in, too
            log.warning("the steps so far are not kept: %s", error)
