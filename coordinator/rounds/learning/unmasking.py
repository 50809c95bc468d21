"""The coordinator's half of secure aggregation: who stands beside whom, and the sum without masks.

See `smidgen.edge_client.updates.masks` for what travels.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from smidgen.coordinator.rounds.events import StepOpened
from smidgen.edge_client.codecs import Shapes, shaped
from smidgen.edge_client.updates.masks import (
    CORRUPT,
    Ring,
    Unmasking,
    add_mask,
    parts_of,
    sign_of,
)
from smidgen.edge_client.updates.registry import made
from smidgen.edge_client.updates.secure_sum import (
    NUMBERS,
    SEALS,
    SHARES,
    SecureSum,
    lane_of,
    largest_level,
    levels_of,
    share_of,
    unpacked,
)
from smidgen.edge_client.updates.shamir import correct, recover, weights_of
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import (
    UPDATES_SINCE,
    AdapterState,
    Update,
    decode_update,
    seeds_under,
)


class LostSum(Exception):
    """A sum that stays masked; says why.

    Args:
        said: For people.
        dealers: Places of devices that dealt inconsistent shares.
    """

    def __init__(self, said: str, dealers: Iterable[int] = ()) -> None:
        super().__init__(said)
        self.dealers = tuple(dealers)


def places_of(opened: StepOpened, secret: str) -> tuple[str, ...]:
    """Device ids in the order of a training step's ring, which no device foresees.

    Args:
        opened: The step.
        secret: The run's.
    """
    seed_of = seeds_under(secret, "ring", opened.round_index, opened.attempt)
    return tuple(sorted((name for _, name in opened.members), key=seed_of))


def step_in(specs: Iterable[str]) -> SecureSum | None:
    """The step of secure aggregation among a run's; None where it has none."""
    return next((one for one in made(specs) if isinstance(one, SecureSum)), None)


def asked_of(
    ring: Ring, place: int, shares: Mapping[int, np.ndarray], seals: Mapping[int, bytes]
) -> Unmasking:
    """What one device is asked.

    Args:
        ring: The step's.
        place: The device's.
        shares: By place, of every device whose update came: those that it sent.
        seals: Likewise, the seal of its b.
    """
    included = sorted(shares)
    wanted = []
    for dealer in (one for one in ring.neighbours(place) if one in shares):
        places = ring.neighbours(dealer)
        own = parts_of(shares[dealer][places.index(place)].tobytes())
        gone = (own[1 + places.index(one)] for one in ring.gone(dealer, included))
        wanted.append(b"".join((seals[dealer], own[0], *gone)))
    return Unmasking(ring.body, tuple(included), tuple(wanted))


def sizes_asked(ring: Ring, place: int, included: Sequence[int]) -> list[int]:
    """Shares that a device gives for each of its neighbours whose update came."""
    known = set(included)
    return [1 + len(ring.gone(one, known)) for one in ring.neighbours(place) if one in known]


def given_in(body: bytes) -> bytes:
    """The shares of a device's answer to an unmasking.

    Args:
        body: A safetensors file, as it came.

    Raises:
        WireError: It is none.
    """
    coded = decode_update(body, since=UPDATES_SINCE).coded or {}
    shares = coded.get(SHARES)
    if coded.keys() != {SHARES} or shares is None or shares.dtype != np.uint8:
        raise WireError(f"an unmasking: {SHARES} as uint8 expected")
    return shares.tobytes()


@dataclass
class _Recovery:
    """Secrets by what devices answered; whose shares are found corrupted is not heard again."""

    ring: Ring
    included: frozenset[int]
    answers: dict[int, dict[int, list[bytes]]]  # by holder, then dealer

    def of(self, dealer: int, seals: np.ndarray) -> tuple[bytes, dict[int, bytes]]:
        """b of one device, and its h with each neighbour that dropped out.

        Raises:
            LostSum: Too few answered, or their shares are inconsistent.
        """
        places = self.ring.neighbours(dealer)
        gone = self.ring.gone(dealer, self.included)
        sealed = [0, *(1 + places.index(one) for one in gone)]
        found = self._secrets(dealer, places, [seals[at].tobytes() for at in sealed])
        return found[0], dict(zip(gone, found[1:], strict=True))

    def _secrets(self, dealer: int, places: Sequence[int], seals: Sequence[bytes]) -> list[bytes]:
        ring, least = self.ring, self.ring.graph.threshold
        found, weights, first = list[bytes](), list[int](), list[int]()
        for index, seal in enumerate(seals):
            here = [1 + at for at, one in enumerate(places) if one in self.answers]
            if len(here) < least:
                raise LostSum(
                    f"{len(self.answers)} of {len(self.included)} devices answered the unmasking; "
                    f"each needs the answers of {least} others, and one has {len(here)}"
                )
            if here[:least] != first:
                first = here[:least]
                weights = weights_of(first)
            shares = {at: self.answers[places[at - 1]][dealer][index] for at in here}
            secret = recover((shares[at] for at in first), weights)
            if secret is None or ring.seal(secret) != seal:
                secret = self._corrected(dealer, places, shares, seal)
            found.append(secret)
        return found

    def _corrected(
        self, dealer: int, places: Sequence[int], shares: Mapping[int, bytes], seal: bytes
    ) -> bytes:
        corrected = correct(shares, self.ring.graph.threshold)
        if corrected is None or self.ring.seal(corrected[0]) != seal:
            # So many corrupted answers would make an honest dealer look so.
            liars = max(1, math.floor(CORRUPT * len(places)))
            is_dealers = len(shares) >= self.ring.graph.threshold + 2 * liars
            raise LostSum("a device dealt inconsistent shares", [dealer] if is_dealers else [])
        for at in corrected[1]:
            self.answers.pop(places[at - 1], None)
        return corrected[0]


def sum_of(
    step: SecureSum,
    ring: Ring,
    updates: Iterable[tuple[int, Update]],
    answers: Mapping[int, bytes],
    shapes: Shapes,
) -> AdapterState:
    """The weighted mean of a ring's updates, float32.

    Args:
        step: The run's.
        ring: The training step's.
        updates: By place, of all devices whose update came; read once.
        answers: Shares by place, of those that answered the unmasking.
        shapes: Of an update.

    Raises:
        LostSum: It cannot be told, or is no sum of such updates.
    """
    lane, size = lane_of(step.bits, len(ring.keys)), sum(map(math.prod, shapes.values()))
    total, weight = unpacked(np.zeros(0, np.uint8), size, lane), 0.0
    seals, furthest, most = dict[int, np.ndarray](), 0, levels_of(step.bits)
    for place, update in updates:
        coded = update.coded or {}
        np.add(total, unpacked(coded[NUMBERS], size, lane), out=total)
        share = share_of(update.num_examples, step.most)
        weight, furthest = weight + share, furthest + largest_level(most, share)
        seals[place] = coded[SEALS]
    if step.multiplier and len(seals) < step.fewest(len(ring.keys)):
        raise LostSum(f"{len(seals)} updates have less noise than the run promises")
    recovery = _Recovery(ring, frozenset(seals), _by_dealer(ring, seals, answers))
    lost, blamed = "", list[int]()
    for place in sorted(seals):
        try:
            own, pairs = recovery.of(place, seals[place])
        except LostSum as error:
            lost = lost or str(error)
            blamed += error.dealers
            continue
        if not lost:
            add_mask(total, own, -1)
            for other, seed in pairs.items():
                add_mask(total, seed, -sign_of(ring, place, other))
    if lost:  # of many at once it is those who answered
        raise LostSum(lost, blamed if len(blamed) <= max(1, CORRUPT * len(ring.keys)) else ())
    shift = 32 - lane
    whole = (total.astype(np.uint32) << np.uint32(shift)).view(np.int32) >> shift
    if np.abs(whole).max(initial=0) > furthest:
        raise LostSum("the sum is larger than such updates can be: a device sent something else")
    mean = whole * (step.clip_range / (step.steps(len(ring.keys), size) * weight))
    return shaped(mean.astype(np.float32), shapes)


def _by_dealer(
    ring: Ring, included: Collection[int], answers: Mapping[int, bytes]
) -> dict[int, dict[int, list[bytes]]]:
    found = dict[int, dict[int, list[bytes]]]()
    for place, body in answers.items():
        parts, at = parts_of(body), 0
        found[place] = {}
        for dealer in (one for one in ring.neighbours(place) if one in included):
            count = 1 + len(ring.gone(dealer, included))
            found[place][dealer] = parts[at : at + count]
            at += count
    return found
