"""Differential privacy under secure aggregation: each device adds its share of whole-number noise.

The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke 2021, arXiv:2102.06387): a
device scales its update down to clip, which is q whole steps of a grid, rounds it at random to one
no longer than D, adds discrete Gaussian noise of variance V in each number, and masks it. Whoever
sees the sum of n updates, of which m are of devices that keep their noise to themselves, learns of
one device no more than rho-zCDP allows,

    D^2 = q^2 + d / 4 + q + sqrt(d) / 2,   2 rho = D^2 / (m V) + d tau / 2 <= 1 / z^2,
    tau = 10 sum over k = 1 .. n - 1 of exp(-2 pi^2 V k / (k + 1)),

for d numbers (theorem 1 with beta = exp(-1/2), so that a rounding is kept with a chance of 0.39 or
more). It holds for every rounding, since each that is kept is within D. m is what a round promises:
the fewest updates that it is closed with, less the devices that may collude.

Law: numbers are exact in distribution (Canonne, Kamath and Steinke 2020, arXiv:2004.00010) if the
words that they are drawn from are even and independent; they come from SHAKE-256. No float has a
part in them, so that equal keys give equal numbers on every machine.

Law: a sum beyond the range that its numbers travel in wraps, which costs accuracy and no privacy;
the grid leaves room for `TAIL` standard deviations of a sum's noise (a chance below 1e-30).
"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from smidgen.edge_client.errors import Failed, WrongInput, demand

TAIL = 12.0
LEAST_VARIANCE, MOST_VARIANCE = 4, 1 << 24  # below tau counts; above products leave 64 bits
SLACK = 2.0**-20  # of the variance, for tau
MOST_TRIES = 1000  # at rounding; each succeeds with a chance of 0.39 or more
COIN = 1 << 53
AT_ONCE = 1 << 16  # numbers drawn


@dataclass(frozen=True)
class Grid:
    """How an update becomes whole numbers.

    Attributes:
        steps: q, into which clip is divided.
        longest_squared: D^2, rounded down: what the numbers' squares sum up to at most.
        variance: V, of one device's noise.
    """

    steps: int
    longest_squared: int
    variance: int


def tau_of(devices: int, variance: int) -> float:
    """How far the sum of devices' discrete Gaussians is from one discrete Gaussian."""
    each = (math.exp(-2.0 * math.pi**2 * variance * k / (k + 1)) for k in range(1, devices))
    return 10.0 * math.fsum(each)


def grid_of(
    levels: int, numbers: int, multiplier: float, fewest: int, colluding: int, devices: int
) -> Grid:
    """The finest grid whose sums fit; the same on every machine.

    Args:
        levels: The furthest from zero that a device's part in the sum may be.
        numbers: d.
        multiplier: z.
        fewest: Updates of a sum.
        colluding: Devices among them that may tell the coordinator their noise.
        devices: Updates of a sum at most.

    Raises:
        WrongInput: There is none.
    """

    demand(
        fewest > colluding,
        f"privacy: {fewest} updates of {devices} devices may make a sum, and {colluding} of them "
        "may collude: no noise is left",
        WrongInput,
    )

    def grid(steps: int) -> Grid:
        squared = int(steps * steps + numbers / 4 + steps + math.sqrt(numbers) / 2)
        least = multiplier * multiplier * squared / (fewest - colluding) * (1.0 + SLACK)
        return Grid(steps, squared, max(LEAST_VARIANCE, math.ceil(least)))

    def fits(one: Grid) -> bool:
        reached = one.steps + 1 + TAIL * math.sqrt(one.variance / fewest)
        return reached <= levels and one.variance <= MOST_VARIANCE

    low, high = 0, levels
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(grid(middle)) else (low, middle - 1)
    found = grid(low)
    rho = found.longest_squared / ((fewest - colluding) * found.variance)
    demand(
        low > 0 and rho + tau_of(devices, found.variance) * numbers / 2 <= multiplier**-2,
        f"privacy: noise of multiplier {multiplier:.3g} on {numbers:,} numbers, shared by "
        f"{fewest - colluding} devices or more, does not fit in {levels} levels: take "
        "secure_aggregation = int16, a smaller adapter or more devices",
        WrongInput,
    )
    return found


class Words:
    """Even and independent whole numbers, drawn by a key."""

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    def below(self, bound: int, count: int) -> np.ndarray:
        """Each of 0 to bound - 1 as likely, int64, (count,); bound: 1 to 2^62."""
        even = (1 << 64) // bound * bound  # words from there on would favour some
        found = self._some(count)
        if even < 1 << 64:
            while (wrong := np.flatnonzero(found >= np.uint64(even))).size:
                found[wrong] = self._some(wrong.size)
        return (found % np.uint64(bound)).astype(np.int64)

    def _some(self, count: int) -> np.ndarray:
        self._calls += 1
        stream = hashlib.shake_256(self._key + self._calls.to_bytes(8, "big"))
        return np.frombuffer(stream.digest(8 * count), "<u8").astype(np.uint64)


def rounded(exact: np.ndarray, longest_squared: int, words: Words) -> np.ndarray:
    """Numbers rounded up or down at random, right in the mean, to no longer than that; int64.

    Args:
        exact: (numbers,), float64.
        longest_squared: See `Grid`.
        words: What it is drawn by.

    Raises:
        Failed: They are longer than a grid has them.
    """
    down = np.floor(exact)
    share = np.rint((exact - down) * COIN).astype(np.int64)
    for _ in range(MOST_TRIES):
        whole: np.ndarray = down.astype(np.int64) + (words.below(COIN, exact.size) < share)
        if int(np.square(whole).sum()) <= longest_squared:
            return whole
    raise Failed("secure: an update that is longer than its clip")


def discrete_gaussians(variance: int, count: int, words: Words) -> np.ndarray:
    """Numbers of weights exp(-x^2 / 2V), int64, (count,).

    Canonne et al. 2020, algorithm 3: discrete Laplace numbers of scale t, each kept with the
    chance exp(-(|x| t - V)^2 / 2 V t^2).

    Args:
        variance: V, 1 to `MOST_VARIANCE`.
        count: How many.
        words: What they are drawn by.
    """
    parts = [np.zeros(0, np.int64)]
    for first in range(0, count, AT_ONCE):
        found = np.zeros(min(AT_ONCE, count - first), np.int64)
        scale, left = math.isqrt(variance) + 1, np.arange(found.size)
        while left.size:
            drawn = _laplace(scale, left.size, words)
            # Beyond 180 scales, which have a chance of e^-180, this square would leave 63 bits.
            off = np.square(np.abs(drawn) * scale - variance)
            is_kept = _is_heads(off, 2 * variance * scale * scale, words)
            found[left[is_kept]] = drawn[is_kept]
            left = left[~is_kept]
        parts.append(found)
    return np.concatenate(parts)


def _laplace(scale: int, count: int, words: Words) -> np.ndarray:
    """Numbers of weights exp(-|x| / scale)."""
    found, left = np.zeros(count, np.int64), np.arange(count)
    while left.size:
        rest = words.below(scale, left.size)
        left_over = _is_heads(rest, scale, words)
        whole = np.zeros(left.size, np.int64)
        going = np.flatnonzero(left_over)
        while (going := going[_is_heads(np.ones(going.size, np.int64), 1, words)]).size:
            whole[going] += 1
        size, is_minus = rest + scale * whole, words.below(2, left.size) == 1
        is_kept = left_over & ~(is_minus & (size == 0))
        found[left[is_kept]] = np.where(is_minus, -size, size)[is_kept]
        left = left[~is_kept]
    return found


def _is_heads(over: np.ndarray, under: int, words: Words) -> np.ndarray:
    """Coins that come up heads with the chances exp(-over / under), bool; algorithm 1."""
    found, left = np.ones(over.size, bool), over // under
    going = np.flatnonzero(left)
    while going.size:  # a coin of exp(-1) for each whole one, until one is tails
        is_heads = _at_most_one(np.ones(going.size, np.int64), 1, words)
        found[going[~is_heads]] = False
        left[going] -= 1
        going = going[is_heads & (left[going] > 0)]
    going = np.flatnonzero(found)
    found[going] = _at_most_one(over[going] % under, under, words)
    return found


def _at_most_one(over: np.ndarray, under: int, words: Words) -> np.ndarray:
    """As `_is_heads`, of chances above exp(-1) or equal."""
    found, going, turn = np.zeros(over.size, bool), np.arange(over.size), 1
    while going.size:
        goes_on = words.below(under * turn, going.size) < over[going]
        found[going[~goes_on]] = turn % 2 == 1
        going, turn = going[goes_on], turn + 1
    return found
