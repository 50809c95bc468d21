"""Differential privacy of devices, and of texts: what is clipped, and its Gaussian noise.

Of devices:

DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963) and, where a device rests between two rounds that
it counts in, DP-FTRL: noise of neighbouring rounds partly cancels (banded square root factorization
of prefix sums, Kalinin and Lampert 2024, arXiv:2405.13763; Choquette-Choo et al. 2023,
arXiv:2306.08153).

Each update counts once, scaled down to `clip`. What is protected is all that a device gives, from
whoever sees adapters; the coordinator itself sees updates, and which devices take part is no
secret. With z the noise multiplier and b the separation, round t's sum gets

    n_t = e_t - c_1 n_(t-1) - ... - c_(b-1) n_(t-b+1),   e_t ~ N(0, (z |c| clip)^2),
    c_0 = 1,   c_j = c_(j-1) (2 j - 1) / (2 j)

A device that counts in k rounds, b or more apart, moves C x by at most sqrt(k) |c| clip, because
the b-banded columns of C do not overlap: all that it gives is one Gaussian mechanism of multiplier
z / sqrt(k). `smidgen.coordinator.rounds.accounting` says its epsilon.

Law: the sum and its noise lie on one grid of powers of two, so that no low bit of a float tells
them apart (Mironov 2012); the grid is 2^-24 of the noise, and its rounding counts as sensitivity.

Law: equal updates after equal rounds get equal noise, so a coordinator that was killed ends in the
same bytes; other updates, another clip or multiplier, and other runs get noise that is independent
of it, also where a store was restored.
"""

import hashlib
import hmac
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from smidgen.edge_client.errors import Failed, demand
from smidgen.edge_client.updates.step import (
    Contribution,
    Correction,
    DeviceContext,
    ServerContext,
    UpdateStep,
)
from smidgen.edge_client.wire.tensors import AdapterState

GRID = 2.0**-24  # of the noise's standard deviation
AT_ONCE = 1 << 16  # numbers that a device adds noise to
log = logging.getLogger(__name__)

LAST, BEFORE = "round", "before."  # in the server's state: the round that it is of, n_(t-1), ...


@dataclass(frozen=True)
class Privacy:
    """A run's differential privacy, as its run file has it.

    Attributes:
        epsilon: Budget of each device, or text; the run pauses before the round that exceeds it.
        clip: Euclidean norm down to which each update, or each text's gradient, is scaled.
        unit: What is protected: all texts of a `device` together, by the coordinator, from those
            who see adapters; or each `text`, by its device, from the coordinator too.
        delta: Probability for which epsilon may fail to hold; well below one in the devices.
        noise_multiplier: Noise on a sum by clip; None: the least with which a device may take part
            as often as the run's rounds and `separation` let it.
        separation: Rounds from one that a device counts in to the next; above 1 noise of
            neighbouring rounds partly cancels.
    """

    epsilon: float
    clip: float
    unit: Literal["device", "text"] = "device"
    delta: float = 1e-5
    noise_multiplier: float | None = None
    separation: int = 1

    def __post_init__(self) -> None:
        demand(0.01 <= self.epsilon <= 100.0, "privacy: epsilon: 0.01 to 100; more protects nobody")
        demand(0.0 < self.clip <= 1e6, "privacy: clip: above 0 to 1000000")
        demand(1e-15 <= self.delta <= 0.01, "privacy: delta: 1e-15 to 0.01")
        given = self.noise_multiplier
        demand(given is None or 0.01 <= given <= 1e4, "privacy: noise_multiplier: 0.01 to 10000")
        demand(1 <= self.separation <= 1000, "privacy: separation: 1 to 1000")
        demand(self.unit in ("device", "text"), "privacy: unit: device or text")
        is_fit = self.separation == 1 or self.unit == "device"
        demand(is_fit, "privacy: separation: of unit device alone; each text is in every round")


def bands_of(separation: int) -> np.ndarray:
    """c, the first column of C: (separation,), float64; the square root of prefix sums, cut off."""
    steps = np.arange(1, separation)
    found: np.ndarray = np.cumprod(np.concatenate([[1.0], (2.0 * steps - 1.0) / (2.0 * steps)]))
    return found


class DeviceNoise(UpdateStep):
    """See the module.

    Args:
        clip: As a text, as are the others.
        multiplier: z.
        separation: b.
        epsilon: The run's budget, which the device logs.
        delta: Likewise.
    """

    name = "dp"

    def __init__(
        self, clip: str, multiplier: str, separation: str, epsilon: str, delta: str
    ) -> None:
        super().__init__()
        self._clip, self.multiplier = float(clip), float(multiplier)
        self._bands, self._budget = bands_of(int(separation)), (float(epsilon), float(delta))
        self._devices, self._digest = 0, hashlib.sha256()

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """Nothing: the coordinator does it, and the device says what the run promises."""
        told = (self._clip, self.multiplier, *self._budget)
        log.info(
            "the coordinator clips each device's update to %g and adds noise of %g times that to "
            "a round's sum: epsilon %g at delta %g for each device",
            *told,
        )
        return correction

    def incoming(
        self, cohort: Iterable[Contribution], context: ServerContext
    ) -> Iterator[Contribution]:
        """Each with weight 1, and no longer than clip."""
        for one in cohort:
            self._digest.update(one.device_id.encode())
            for name in sorted(one.delta):
                self._digest.update(one.delta[name].tobytes())
            self._devices += 1
            yield replace(one, weight=1.0, share=min(1.0, self._clip / max(one.norm, self._clip)))

    def finish(self, mean: AdapterState, context: ServerContext) -> AdapterState:
        """The mean with noise.

        Raises:
            Failed: The context has no key that noise could be drawn by.
        """
        demand(bool(context.key), "update step dp: no key to draw noise by", Failed)
        names, devices = sorted(mean), self._devices
        flat = np.concatenate([mean[name].ravel() for name in names]).astype(np.float64)
        before = self._before(context.round_index, flat.size)
        drawn = gaussians(self._key(context, before), flat.size)
        noise = float(np.linalg.norm(self._bands)) * self.multiplier * drawn - sum(
            (c * one for c, one in zip(self._bands[1:], before, strict=False)), np.zeros(flat.size)
        )
        self._keep(context.round_index, [noise, *before])
        # A mean in float32 differs from the exact one by less than that share of clip.
        sensitivity = self._clip / devices * (1.0 + devices * 2.0**-22)
        noised = with_noise(flat, noise, sensitivity, self.multiplier)
        parts = np.split(noised, np.cumsum([mean[name].size for name in names])[:-1])
        return {
            name: part.astype(np.float32).reshape(mean[name].shape)
            for name, part in zip(names, parts, strict=True)
        }

    def _key(self, context: ServerContext, before: list[np.ndarray]) -> bytes:
        for one in before:
            self._digest.update(one.tobytes())
        said = f"{context.round_index}:{self._devices}:{self._clip!r}:{self.multiplier!r}"
        self._digest.update(said.encode())
        return hmac.digest(context.key, self._digest.digest(), "sha256")

    def _before(self, round_index: int, size: int) -> list[np.ndarray]:
        """n_(t-1), n_(t-2), ... in units of clip; none after a gap, where noise begins anew."""
        state = self.state or {}
        if not state or int(state[LAST]) != round_index - 1:
            return []
        kept = [state[f"{BEFORE}{index}"] for index in range(len(state) - 1)]
        return kept if all(one.size == size for one in kept) else []

    def _keep(self, round_index: int, noises: list[np.ndarray]) -> None:
        kept = noises[: len(self._bands) - 1]
        self.state = {f"{BEFORE}{index}": one for index, one in enumerate(kept)}
        if kept:
            self.state[LAST] = np.array(round_index, np.int64)


class TextNoise(UpdateStep):
    """DP-SGD (Abadi et al. 2016, arXiv:1607.00133) on the device: each text's gradient is clipped.

    What is protected is what each text says, from the coordinator too, which gets updates that have
    their noise already. In every pass each text is in one step, whatever it or another one says:
    batches are not sorted by length. So k passes in all are one Gaussian mechanism of multiplier
    z / sqrt(k). A sum is divided by the run's batch, also where fewer texts are left.

    Args:
        clip: As a text, as are the others.
        multiplier: z: noise on the sum of a step's clipped gradients, by clip.
        epsilon: The run's budget, which the device logs.
        delta: Likewise.
    """

    name, is_secret = "dp-text", True
    held_bytes = 24  # sums, what noise is drawn from, gradients; see `ClippedTexts`

    def __init__(self, clip: str, multiplier: str, epsilon: str, delta: str) -> None:
        super().__init__()
        self._clip, self.multiplier = float(clip), float(multiplier)
        self._budget = float(epsilon), float(delta)

    def correct(self, correction: Correction, context: DeviceContext) -> Correction:
        """With the rule that clips and adds noise.

        Raises:
            Failed: The context has no secret that noise could be drawn by.
        """
        demand(bool(context.secret), "update step dp-text: no secret to draw noise by", Failed)
        known = self._clip, self.multiplier
        log.info(
            "each text's gradient is clipped to %g, and noise of %g times that is added to a "
            "step's sum: epsilon %g at delta %g for each text",
            *(*known, *self._budget),
        )
        rule = ClippedTexts(*known, context.training.batch, context.secret, correction.frozen)
        return replace(correction, rule=rule)


@dataclass(frozen=True)
class ClippedTexts:
    """The mean of texts' gradients, none longer than clip, with noise; see `GradientRule`.

    By each trained number it holds a sum (8 bytes), what its noise is drawn from (12), and then the
    gradient (4).
    """

    clip: float
    multiplier: float
    batch: int
    secret: bytes = field(repr=False)
    frozen: frozenset[str] = frozenset()

    def gradients(
        self, texts: int, of_text: Callable[[int], tuple[float, AdapterState]], at: AdapterState
    ) -> tuple[float, AdapterState]:
        """As `GradientRule` has it; tensors that are frozen have none."""
        losses, sums = 0.0, dict[str, np.ndarray]()
        for index in range(texts):
            loss, found = of_text(index)
            trained = {name: found[name] for name in sorted(found) if name not in self.frozen}
            sums = sums or {name: np.zeros(one.shape) for name, one in trained.items()}
            squares = (float(np.square(one, dtype=np.float64).sum()) for one in trained.values())
            norm = math.sqrt(math.fsum(squares))
            if math.isfinite(norm):  # one text alone does not end a training
                losses += loss
                for name, one in trained.items():
                    sums[name] += self.clip / max(norm, self.clip) * one.astype(np.float64)
        digest, numbers = hashlib.sha256(), sum(one.size for one in sums.values())
        for tensor in (*sums.values(), *(at[name] for name in sorted(at))):
            digest.update(np.ascontiguousarray(tensor).data)
        digest.update(f"{texts}:{self.batch}:{self.clip!r}:{self.multiplier!r}".encode())
        drawn = Gaussians(hmac.digest(self.secret, digest.digest(), "sha256"), numbers)
        found, place, sensitivity = AdapterState(), 0, self.clip * (1.0 + 2.0**-30)
        for name in list(sums):  # some numbers at a time, and each sum for the last time
            exact = sums.pop(name)
            parts = np.array_split(exact.ravel(), max(1, -(-exact.size // AT_ONCE)))
            found[name] = np.empty(exact.shape, np.float32)
            start = 0
            for part in parts:
                noise = self.multiplier * drawn.some(place, place + part.size)
                noised = with_noise(part, noise, sensitivity, self.multiplier, numbers) / self.batch
                found[name].ravel()[start : start + part.size] = noised
                start, place = start + part.size, place + part.size
        return losses / texts, found


def with_noise(
    exact: np.ndarray,
    noise: np.ndarray,
    sensitivity: float,
    multiplier: float,
    numbers: int | None = None,
) -> np.ndarray:
    """Numbers with noise, both on one grid, (numbers,), float64.

    Args:
        exact: (numbers,), float64.
        noise: By the sensitivity, (numbers,).
        sensitivity: How far one device or text moves the numbers at most.
        multiplier: About the noise's standard deviation; the grid is as much finer.
        numbers: How many there are, where these are some of them; None: these.
    """
    grid = 2.0 ** math.floor(math.log2(multiplier * sensitivity * GRID))
    # Two sums that are so far apart are as far on the grid, and one step more in each number.
    sensitivity += grid * math.sqrt(exact.size if numbers is None else numbers)
    found: np.ndarray = np.rint(exact / grid) * grid + np.rint(sensitivity * noise / grid) * grid
    return found


class Gaussians:
    """Standard normal numbers of a key, in order, some at a time: SHAKE-256 by Box and Muller.

    Radii are of 106 bits, so that they lie nearer each other than the grid in the tail, too.

    Args:
        key: What they are drawn by.
        count: How many; 12 bytes of each are held.
    """

    def __init__(self, key: bytes, count: int) -> None:
        self._pairs = -(-count // 2)
        stream = hashlib.shake_256(key).digest(24 * self._pairs)
        self._words = np.frombuffer(stream, "<u8").reshape(3, -1)

    def some(self, start: int, stop: int) -> np.ndarray:
        """Those from a place to another, float64: cosines of all pairs come first, then sines."""
        found = []
        for first, wave in ((0, np.cos), (self._pairs, np.sin)):
            low, high = max(start - first, 0), min(stop - first, self._pairs)
            if low < high:
                words = self._words[:, low:high] >> np.uint64(11)
                uniform = (words[0] + (words[1] + 1.0) * 2.0**-53) * 2.0**-53
                radius, angle = np.sqrt(-2.0 * np.log(uniform)), 2.0 * math.pi * 2.0**-53 * words[2]
                found.append(radius * wave(angle))
        return np.concatenate(found)


def gaussians(key: bytes, count: int) -> np.ndarray:
    """Standard normal numbers, float64, (count,); see `Gaussians`."""
    return Gaussians(key, count).some(0, count)
