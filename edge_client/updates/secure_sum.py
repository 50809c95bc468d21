"""Fixed-point updates for secure aggregation: the coordinator learns their weighted sum alone.

A device scales its update by its weight, rounds it to `levels` steps of the range R on either side,
and masks it (`smidgen.edge_client.updates.masks`). Numbers travel in as many bits as the sum of all
devices needs, so it cannot wrap. What rounding and the range leave out is kept and added to the
next update (error feedback, `smidgen.edge_client.updates.codec`).

With a noise multiplier each update has its share of differential privacy's noise
(`smidgen.edge_client.updates.discrete`): weights are equal, and nothing is kept.

Law: |sum| <= devices * levels < 2^(lane - 1); with noise but for chance.
"""

import hashlib
import hmac
import logging
import math
from dataclasses import replace

import numpy as np

from smidgen.edge_client.codecs import CodecError, Shapes, shaped
from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.updates.discrete import Grid, Words, discrete_gaussians, grid_of, rounded
from smidgen.edge_client.updates.masks import (
    CORRUPT,
    GONE,
    SEAL_BYTES,
    Member,
    Ring,
    fewest_of,
    ring_in,
)
from smidgen.edge_client.updates.ridge import MOMENTS, PRIOR
from smidgen.edge_client.updates.step import (
    Correction,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from smidgen.edge_client.wire.messages import WireError
from smidgen.edge_client.wire.tensors import MASKED, AdapterState, Update, shapes_of

BITS = {"int4": 4, "int8": 8, "int16": 16}  # as runs name them
WIDEST = 25  # bits of whole numbers that float32 holds
NUMBERS, SHARES, SEALS = "y", "shares", "seals"  # tensors of an update
PACKED_AT_ONCE = 1 << 16  # numbers
log = logging.getLogger(__name__)


def levels_of(bits: int) -> int:
    return int(2 ** (bits - 1)) - 1


def lane_of(bits: int, devices: int) -> int:
    """Bits of each number on its way: the sum of all devices fits, whatever they send."""
    return (2 * devices * levels_of(bits)).bit_length()


def widest_for(devices: int) -> int:
    """The most bits of a number whose sum over so many devices travels in 32."""
    return max(bits for bits in range(4, WIDEST + 1) if lane_of(bits, devices) <= 32)


def share_of(num_examples: int, most: int) -> float:
    """A device's weight by that of the heaviest one, above 0 to 1."""
    return min(num_examples, most) / most


def largest_level(levels: int, share: float) -> int:
    """The furthest from zero that a device of so much weight sends a number."""
    return math.ceil(levels * share)


class SecureSum(UpdateStep):
    """See the module; it is the last step of a run that has it.

    Args:
        bits: `int4` to `int25`; runs name those of `BITS`.
        clip_range: R, as a text: numbers are clipped to -R to R; 0 before a step is open. With
            noise: clip, the Euclidean norm that an update is scaled down to.
        most: Largest weight, likewise; with noise 1.
        multiplier: z, of the noise on a sum by clip; 0: there is none.
        least: Updates that a round needs in any case; these are of runs with noise.
        epsilon: The run's budget, which the device logs.
        delta: Likewise.
    """

    name, keeps, is_secret = "secure", True, True

    def __init__(
        self,
        bits: str,
        clip_range: str = "0",
        most: str = "1",
        multiplier: str = "0",
        least: str = "1",
        epsilon: str = "0",
        delta: str = "0",
    ) -> None:
        super().__init__()
        width = int(bits.removeprefix("int"))
        demand(4 <= width <= WIDEST, f"secure: int4 to int{WIDEST} is expected")
        self.bits, self.clip_range, self.most = width, float(clip_range), int(most)
        self.multiplier, self._least = float(multiplier), int(least)
        self._budget = float(epsilon), float(delta)
        is_fit = self.multiplier == 0.0 or (self.multiplier > 0.0 and self.most == 1)
        demand(is_fit, "secure: noise is of updates that weigh the same")
        self._ring: Ring | None = None

    def fewest(self, devices: int) -> int:
        """Updates in the sum of a ring of so many devices; with noise, as many as bear it."""
        staying = math.ceil((1.0 - GONE) * devices) if self.multiplier else 0
        return max(staying, fewest_of(devices, self._least))

    def colluding(self, devices: int) -> int:
        """Devices of a ring whose noise somebody knows: at least the one that looks at the sum."""
        return max(1, math.floor(CORRUPT * devices))

    def grid(self, devices: int, numbers: int) -> Grid:
        """How updates of a ring of so many devices get their noise.

        Raises:
            WrongInput: It does not fit in these bits.
        """
        known = levels_of(self.bits), numbers, self.multiplier
        return grid_of(*known, self.fewest(devices), self.colluding(devices), devices)

    def steps(self, devices: int, numbers: int) -> int:
        """Into how many steps R is divided."""
        if not self.multiplier:
            return levels_of(self.bits)
        return self.grid(devices, numbers).steps

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """Nothing; the device says what it adds to its update."""
        if self.multiplier:
            log.info(
                "each device clips its update to %g and adds its share of noise of %g times that "
                "to a round's sum: epsilon %g at delta %g for each device",
                *(self.clip_range, self.multiplier, *self._budget),
            )
        return correction

    def counts(self, update: Update, norm: float, share: float, context: ServerContext) -> bool:
        """With noise nothing is kept."""
        return not self.multiplier

    def take(self, body: bytes) -> None:
        """The ring of the step."""
        self._ring = ring_in(body) if body else None

    def outgoing(self, update: Update, context: DeviceContext) -> Update:
        """The update as it is added up: masked numbers, in the delta's place.

        Raises:
            Failed: There is no ring or no secret, or NaN came.
            WireError: The ring is another step's.
        """
        ring = self._ring
        if ring is None or not context.secret:
            raise Failed("update step secure: no other devices or no secret to mask with")
        if (ring.run_id, ring.round_index) != (context.run_id, context.round_index):
            raise WireError("the devices of a secure aggregation are another round's")
        exact = flat(update.delta)
        demand(bool(np.isfinite(exact).all()), "secure: NaN or infinity", CodecError)
        if self.multiplier:
            self.state, whole = None, self._noised(exact, ring, context)
        else:
            whole = self._whole(exact, update)
        lane = lane_of(self.bits, len(ring.keys))
        numbers = whole.astype(np.int32).astype(np.uint16 if lane <= 16 else np.uint32)
        member = Member(ring, context.secret)
        shares, seals = member.masked(numbers)
        coded = {NUMBERS: packed(numbers, lane), SHARES: shares, SEALS: seals}
        return replace(update, delta={}, coded=coded, codec=MASKED)

    def _noised(self, exact: np.ndarray, ring: Ring, context: DeviceContext) -> np.ndarray:
        """Clipped, rounded and with this device's noise, whole; equal arguments give equal ones."""
        grid = self.grid(len(ring.keys), exact.size)
        norm = math.sqrt(math.fsum(np.square(exact)))
        scaled = exact * (grid.steps / max(norm, self.clip_range))
        said = hashlib.sha256(scaled.tobytes() + repr(grid).encode()).digest()
        key = hmac.digest(context.secret, b"noise" + ring.name + said, "sha256")
        whole = rounded(scaled, grid.longest_squared, Words(key + b"rounding"))
        whole += discrete_gaussians(grid.variance, exact.size, Words(key + b"noise"))
        return whole

    def _whole(self, exact: np.ndarray, update: Update) -> np.ndarray:
        """In fixed point, with what earlier updates left out; what this one does is kept."""
        shapes, share = shapes_of(update.delta), share_of(update.num_examples, self.most)
        exact = exact + self._left_out(shapes)
        most = levels_of(self.bits)
        reached = largest_level(most, share)
        whole = np.clip(np.rint(exact * (share * most / self.clip_range)), -reached, reached)
        left = exact - whole * (self.clip_range / (share * most))
        if not shapes.keys() & {MOMENTS, PRIOR}:  # which no other update follows
            kept = shaped(left.astype(np.float32), shapes)
            self.state = {**(self.state or {}), **kept}
        return whole

    def _left_out(self, shapes: Shapes) -> np.ndarray:
        """What earlier updates left out of these tensors, float64."""
        before, wanted = self.state or {}, shapes.items()
        fit = {key for key, shape in wanted if key in before and before[key].shape == shape}
        zeros = {key: np.zeros(shape) for key, shape in wanted if key not in fit}
        return flat(zeros | {key: before[key] for key in fit})


def check_masked(step: SecureSum, ring: Ring, update: Update, shapes: Shapes) -> None:
    """Refuse what no device on a ring sends.

    Args:
        step: The run's.
        ring: Its own.
        update: As it came.
        shapes: Of the tensors that are added up.

    Raises:
        WireError: Says what is expected.
    """
    size = sum(map(math.prod, shapes.values()))
    lane, neighbours = lane_of(step.bits, len(ring.keys)), ring.graph.neighbours
    expected = {
        NUMBERS: (-(-size * lane // 8),),
        SHARES: (neighbours, ring.shares_bytes),
        SEALS: (1 + neighbours, SEAL_BYTES),
    }
    check_bytes("a masked update", update, expected)


def check_bytes(what: str, update: Update, expected: Shapes) -> None:
    """Refuse tensors that are not of these names and shapes, in bytes.

    Raises:
        WireError: Says what is expected.
    """
    coded = update.coded or {}
    found = {name: one.shape for name, one in coded.items() if one.dtype == np.uint8}
    if found != expected or len(coded) != len(found):
        raise WireError(f"{what}: uint8 of {dict(expected)} expected, {found} came")


def flat(tensors: AdapterState) -> np.ndarray:
    """All numbers in order of the tensors' names, float64."""
    parts = [np.asarray(tensors[name], np.float64).ravel() for name in sorted(tensors)]
    return np.concatenate(parts) if parts else np.zeros(0)


def packed(numbers: np.ndarray, lane: int) -> np.ndarray:
    """The low bits of unsigned numbers, one behind the other, as uint8."""
    parts = []
    for first in range(0, numbers.size, PACKED_AT_ONCE):
        some = numbers[first : first + PACKED_AT_ONCE].astype(">u4")
        bits = np.unpackbits(some.view(np.uint8).reshape(-1, 4), axis=1)
        parts.append(np.packbits(bits[:, 32 - lane :]))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def unpacked(stored: np.ndarray, size: int, lane: int) -> np.ndarray:
    """The inverse of `packed`, without the high bits; zeros where nothing is stored."""
    found = np.zeros(size, np.uint16 if lane <= 16 else np.uint32)
    each = PACKED_AT_ONCE * lane // 8
    for index, first in enumerate(range(0, stored.size, each)):
        start = index * PACKED_AT_ONCE
        count = min(PACKED_AT_ONCE, size - start)
        bits = np.unpackbits(stored[first : first + each], count=count * lane)
        wide = np.zeros((count, 32), np.uint8)
        wide[:, 32 - lane :] = bits.reshape(count, lane)
        found[start : start + count] = np.packbits(wide, axis=1).view(">u4").ravel()
    return found
