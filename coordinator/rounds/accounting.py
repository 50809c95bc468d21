"""Differential privacy's account of a run: how much of its budget each device has used.

All that a device gives in k rounds is one Gaussian mechanism of multiplier z / sqrt(k)
(`smidgen.edge_client.updates.privacy`), whose epsilon is exact (Balle and Wang 2018,
arXiv:1805.06530, theorem 8). Nothing is gained by chance: devices that are drawn by a coordinator
are no Poisson sample, so no amplification is claimed.

`dp-accounting` computes the same; it would bring scipy (150 MB) to every coordinator, and tests
compare with it.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache

from smidgen.coordinator.rounds.scheduling.participation import Heard
from smidgen.edge_client.updates.privacy import Privacy, bands_of

LARGEST = 1e9  # epsilon that is told of what protects nobody


@dataclass(frozen=True)
class PrivacySpent:
    """Where a run's differential privacy stands.

    Attributes:
        unit: What is protected: `device`, all texts of one together.
        epsilon: Of the device that has counted most often; 0 before any has.
        budget: Epsilon that no device may exceed.
        delta: Of both.
        noise_multiplier: Noise on a round's sum by clip.
        clip: Longest update.
        separation: Rounds from one that a device counts in to the next.
        participations: Rounds that the device with most of them has counted in.
        most_participations: In which each may count.
    """

    unit: str
    epsilon: float
    budget: float
    delta: float
    noise_multiplier: float
    clip: float
    separation: int
    participations: int
    most_participations: int

    def __str__(self) -> str:
        return (
            f"epsilon {self.epsilon:.3g} of {self.budget:g} at delta {self.delta:g} for each "
            f"{self.unit} ({self.participations} of {self.most_participations} rounds, clip "
            f"{self.clip:g}, noise multiplier {self.noise_multiplier:.3g})"
        )


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Epsilon of one Gaussian mechanism, exact to 1e-9 of itself; at most `LARGEST`."""
    if _delta(multiplier, 0.0) <= delta:
        return 0.0
    return _root(lambda epsilon: _delta(multiplier, epsilon) - delta, 0.0, LARGEST)


@cache
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least noise multiplier of one Gaussian mechanism that has epsilon and delta."""
    return _root(lambda multiplier: _delta(multiplier, epsilon) - delta, 1e-4, 1e9)


def _delta(multiplier: float, epsilon: float) -> float:
    """Phi(1 / 2z - epsilon z) - e^epsilon Phi(-1 / 2z - epsilon z)."""
    middle, moved = 0.5 / multiplier, epsilon * multiplier
    tail = _normal(-middle - moved)
    return _normal(middle - moved) - (math.exp(epsilon + math.log(tail)) if tail else 0.0)


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function is zero, from above."""
    while high - low > 1e-12 * max(1.0, high):
        middle = math.sqrt(low * high) if low > 0.0 and high > 2.0 * low else (low + high) / 2.0
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return high


def multiplier_of(privacy: Privacy, rounds: int) -> float:
    """z: the one that was given, or the least for the rounds that a run has at first."""
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier
    participations = -(-rounds // privacy.separation)
    return gaussian_multiplier(privacy.epsilon, privacy.delta) * math.sqrt(participations)


def epsilon_of(privacy: Privacy, rounds: int, participations: int) -> float:
    """Epsilon of a device that has counted in so many rounds."""
    if not participations:
        return 0.0
    return gaussian_epsilon(
        multiplier_of(privacy, rounds) / math.sqrt(participations), privacy.delta
    )


def most_participations(privacy: Privacy, rounds: int) -> int:
    """Rounds in which a device may count within its budget."""
    share = multiplier_of(privacy, rounds) / gaussian_multiplier(privacy.epsilon, privacy.delta)
    return math.floor(share * share * (1.0 + 1e-9))


def spent(privacy: Privacy | None, rounds: int, heard: Mapping[str, Heard]) -> PrivacySpent | None:
    """Where a run's privacy stands; None where it has none.

    Args:
        privacy: The run's.
        rounds: That it has at first.
        heard: Each device's history in it.
    """
    if privacy is None:
        return None
    most = max((one.counted for one in heard.values()), default=0)
    return PrivacySpent(
        "device",
        round(epsilon_of(privacy, rounds, most), 4),
        privacy.epsilon,
        privacy.delta,
        multiplier_of(privacy, rounds),
        privacy.clip,
        privacy.separation,
        most,
        most_participations(privacy, rounds),
    )


def signal_to_noise(privacy: Privacy, rounds: int, devices: int, parameters: int) -> float:
    """Longest sum of a round's updates by the length of its noise.

    Args:
        privacy: The run's.
        rounds: It has.
        devices: Whose updates count in a round.
        parameters: Numbers of an update.
    """
    noise = multiplier_of(privacy, rounds) * math.hypot(*bands_of(privacy.separation))
    return devices / (noise * math.sqrt(parameters))


def eligible(
    privacy: Privacy,
    rounds: int,
    heard: Mapping[str, Heard],
    names: Collection[str],
    round_index: int,
) -> list[str]:
    """Devices that may count in a round: within their budget, and the last one is long enough ago.

    Args:
        privacy: The run's.
        rounds: That it has at first.
        heard: Each device's history in it.
        names: Of whom.
        round_index: The round.
    """
    last, able = round_index - privacy.separation, _within_budget(privacy, rounds, heard, names)
    return [name for name in able if name not in heard or heard[name].round_index <= max(0, last)]


def _within_budget(
    privacy: Privacy, rounds: int, heard: Mapping[str, Heard], names: Collection[str]
) -> list[str]:
    most = most_participations(privacy, rounds)
    return [name for name in names if name not in heard or heard[name].counted < most]


def lack_of_privacy(
    privacy: Privacy,
    rounds: int,
    heard: Mapping[str, Heard],
    known: Collection[str],
    round_index: int,
    min_updates: int,
) -> str:
    """Why a round cannot open with the devices that are known; empty where it can.

    Waiting for those that are away does not help then: rounds, by which they rest, stand still.

    Args:
        privacy, rounds, heard: As `eligible` has them.
        known: All devices, those that are away too.
        round_index: The round.
        min_updates: Devices that it needs.
    """
    ready = eligible(privacy, rounds, heard, known, round_index)
    if len(ready) >= min_updates:
        return ""
    able, most = _within_budget(privacy, rounds, heard, known), most_participations(privacy, rounds)
    used_up = len(known) - len(able)
    if len(able) < min_updates:
        return (
            f"privacy: epsilon {privacy.epsilon:g} is used up by {used_up} of {len(known)} devices "
            f"({most} rounds each); export the adapter, or connect devices that took no part yet"
        )
    return (
        f"privacy: {len(able) - len(ready)} of {len(able)} devices with budget left rest, "
        f"separation is {privacy.separation} rounds and min_updates {min_updates}; connect more "
        "devices and resume"
    )
