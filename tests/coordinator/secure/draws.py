"""What masks and noise hide, for somebody who knows all secrets: none may hide two updates."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from smidgen.coordinator.rounds.learning.unmasking import sizes_asked
from smidgen.edge_client.updates.masks import Member, Ring, add_mask, parts_of, public_key, sign_of
from smidgen.edge_client.updates.secure_sum import NUMBERS, SEALS, SecureSum, lane_of, unpacked
from smidgen.edge_client.updates.shamir import recover, weights_of
from smidgen.edge_client.wire.tensors import Update
from tests.edge_client.updates.masked import asked


@dataclass(frozen=True)
class Sent:
    """A masked update that left a device.

    Attributes:
        device: Who it is.
        ring: That it was masked on.
        secret: The device's in that run.
        update: As it was sent.
    """

    device: str
    ring: Ring
    secret: bytes
    update: Update

    @property
    def place(self) -> int:
        return self.ring.keys.index(public_key(self.secret))

    @property
    def hidden(self) -> bytes:
        return bytes((self.update.coded or {})[NUMBERS].tobytes())

    @property
    def seal(self) -> bytes:
        """Of the mask that is its own."""
        return bytes((self.update.coded or {})[SEALS][0].tobytes())


def opened(sent: Mapping[int, Sent], bits: int, size: int) -> Iterator[tuple[Sent, np.ndarray]]:
    """What devices of one ring added up, with their noise, int64; of those that can be opened.

    Args:
        sent: By place.
        bits: Of the run's step.
        size: Numbers of an update.
    """
    updates = {at: one.update for at, one in sent.items()}
    shares = defaultdict[int, dict[int, bytes]](dict)
    ring = next(iter(sent.values())).ring
    for place, one in sent.items():
        answer = Member(ring, one.secret).answer(asked(ring, place, updates))
        parts, at = parts_of(answer), 0
        near = [other for other in ring.neighbours(place) if other in sent]
        for dealer, count in zip(near, sizes_asked(ring, place, sorted(sent)), strict=True):
            shares[dealer][1 + ring.neighbours(dealer).index(place)] = parts[at]
            at += count
    lane, least = lane_of(bits, len(ring.keys)), ring.graph.threshold
    for place, one in sent.items():
        holders = sorted(shares[place])[:least]
        own = recover((shares[place][at] for at in holders), weights_of(holders))
        assert own is not None and ring.seal(own) == one.seal
        numbers = unpacked((one.update.coded or {})[NUMBERS], size, lane)
        add_mask(numbers, own, -1)
        member = Member(ring, one.secret)
        for other in ring.neighbours(place):
            add_mask(numbers, member.pair_seed(other), -sign_of(ring, place, other))
        shift = 32 - lane
        wide = (numbers.astype(np.uint32) << np.uint32(shift)).view(np.int32) >> shift
        yield one, wide.astype(np.int64)


def reused(sent: Sequence[Sent], step: SecureSum, size: int) -> list[str]:
    """Masks and draws of noise that two different updates share, a line each.

    Two updates with the same noise are no further apart than twice their length; those with noise
    of their own are, of which the caller makes sure by `is_seen`.
    """
    by_seal, rings = defaultdict[bytes, set[bytes]](set), defaultdict[bytes, list[Sent]](list)
    for one in sent:
        by_seal[one.seal].add(one.hidden)
        rings[one.ring.name].append(one)
    wrong = [f"a mask hides {len(some)} updates" for some in by_seal.values() if len(some) > 1]
    if not step.multiplier or wrong:
        return wrong
    whole = defaultdict[str, dict[bytes, np.ndarray]](dict)
    for known in rings.values():
        first = {one.place: one for one in reversed(known)}
        for one in known:  # others' updates of the same ring open this one's
            chosen = first | {one.place: one}
            if len(chosen) > one.ring.graph.threshold:
                for whose, numbers in opened(chosen, step.bits, size):
                    whole[whose.device][whose.hidden] = numbers
    near = 3 * step.steps(len(sent[0].ring.keys), size)
    for device, found in whole.items():
        for before, after in combinations(found.values(), 2):
            if math.dist(before.tolist(), after.tolist()) < near:
                wrong.append(f"{device}: two updates have the same noise")
    return sorted(wrong)


def is_seen(step: SecureSum, devices: int, size: int) -> bool:
    """Whether noise is so long that `reused` tells two draws from one."""
    grid = step.grid(devices, size)
    return math.sqrt(2.0 * grid.variance * size) > 2 * 3 * grid.steps


def mean_of(whole: Sequence[np.ndarray], step: SecureSum, devices: int, size: int) -> np.ndarray:
    """The mean that a coordinator makes of updates with noise, float32."""
    scale = step.clip_range / (step.steps(devices, size) * float(len(whole)))
    found: np.ndarray = (sum(whole, np.zeros(size, np.int64)) * scale).astype(np.float32)
    return found


def whole_requests(requests: Iterable[bytes]) -> Iterator[bytes]:
    """Bodies of updates among requests, of those that were sent whole."""
    for request in requests:
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"PUT /v1/work/") and b"content-range" not in head.lower():
            yield body
