"""Differential privacy's account of a run: how much of its budget each device has used.

All that a device gives in k rounds, or a text in k passes over it, is one Gaussian mechanism of
multiplier z / sqrt(k) (`smidgen.edge_client.updates.privacy`), whose epsilon is exact (Balle and
Wang 2018, arXiv:1805.06530, theorem 8). Noise that devices add under masks
(`smidgen.edge_client.updates.discrete`) is not quite Gaussian: its rounds add up in zCDP, to the
same multiplier and a somewhat larger epsilon. Nothing is gained by chance: neither cohorts nor
shuffled batches are Poisson samples, so no amplification is claimed.

`dp-accounting` computes the same; it would bring scipy (150 MB) to every coordinator, and tests
compare with it.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from smidgen.coordinator.rounds.scheduling.participation import Heard
from smidgen.edge_client.updates.privacy import Privacy, bands_of

USED_UP = "privacy: epsilon"  # how a pause for a budget begins
LARGEST = 1e9  # epsilon that is told of what protects nobody


@dataclass(frozen=True)
class PrivacySpent:
    """Where a run's differential privacy stands.

    Attributes:
        unit: What is protected: all texts of a `device` together, or each `text`.
        epsilon: Of the device that has counted most often; 0 before any has.
        budget: Epsilon that no device may exceed.
        delta: Of both.
        noise_multiplier: Noise on a round's sum by clip.
        clip: Longest update.
        separation: Rounds from one that a device counts in to the next.
        participations: Rounds of the device with most of them: that it counted in, or of texts that
            it was asked in, since what it sends is released to the coordinator.
        most_participations: Of each.
        passes: Gaussian mechanisms of one participation: of texts, passes over them.
        is_distributed: Whether devices add the noise themselves, under secure aggregation.
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
    passes: int
    is_distributed: bool = False

    def __str__(self) -> str:
        passes = f" of {self.passes} passes" if self.unit == "text" else ""
        shared = ", added by the devices under secure aggregation" if self.is_distributed else ""
        return (
            f"epsilon {self.epsilon:.3g} of {self.budget:g} at delta {self.delta:g} for each "
            f"{self.unit} ({self.participations} of {self.most_participations} rounds{passes}, "
            f"clip {self.clip:g}, noise multiplier {self.noise_multiplier:.3g}{shared})"
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


def concentrated_epsilon(multiplier: float, delta: float) -> float:
    """Epsilon of rho-zCDP, rho = 1 / 2 z^2, from above; at most `LARGEST`.

    Canonne, Kamath and Steinke 2020 (arXiv:2004.00010), proposition 12, at the best of its alphas.

    Args:
        multiplier: z, of the Gaussian mechanism that is as concentrated.
        delta: Beside epsilon.
    """

    def epsilon(log_beyond: float) -> float:
        beyond = math.exp(log_beyond)  # alpha - 1
        logs = -math.log(delta) - log_beyond - (1.0 + beyond) * math.log1p(1.0 / beyond)
        return (1.0 + beyond) * 0.5 / multiplier**2 + logs / beyond

    low, high = -12.0, 30.0
    for _ in range(100):  # it falls and then rises; any alpha gives a bound
        third = (high - low) / 3.0
        is_right = epsilon(low + third) > epsilon(high - third)
        low, high = (low + third, high) if is_right else (low, high - third)
    return min(max(0.0, epsilon((low + high) / 2.0)), LARGEST)


@cache
def concentrated_multiplier(epsilon: float, delta: float) -> float:
    """The least multiplier whose zCDP has epsilon and delta."""
    return _root(lambda multiplier: concentrated_epsilon(multiplier, delta) - epsilon, 1e-4, 1e9)


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


@dataclass(frozen=True)
class Account:
    """What a run's rounds cost in epsilon, and who may still count.

    Args:
        privacy: The run's.
        rounds: That it has at first; being extended gives no budget.
        passes: Over each text in a round; of texts alone.
        masked: Bits of secure aggregation, under which devices add the noise of unit `device`
            themselves; empty: the coordinator does.
        min_updates: Updates that a round needs in any case.
    """

    privacy: Privacy
    rounds: int
    passes: int = 1
    masked: str = ""
    min_updates: int = 1

    @cached_property
    def multiplier(self) -> float:
        """z: the one that was given, or the least for the rounds that a run has at first."""
        privacy = self.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        participations = -(-self.rounds // privacy.separation)
        return self.least * math.sqrt(participations * self.releases)

    @property
    def is_distributed(self) -> bool:
        """Whether devices add the noise of all that they give, under masks."""
        return bool(self.masked) and self.privacy.unit == "device"

    @cached_property
    def least(self) -> float:
        """The least noise multiplier of one mechanism that has the budget."""
        found = concentrated_multiplier if self.is_distributed else gaussian_multiplier
        return found(self.privacy.epsilon, self.privacy.delta)

    @property
    def releases(self) -> int:
        """Gaussian mechanisms of one participation."""
        return self.passes if self.privacy.unit == "text" else 1

    @property
    def step(self) -> str:
        """The update step that makes it so."""
        privacy, known = self.privacy, [repr(self.privacy.clip), repr(self.multiplier)]
        name = "dp-text" if privacy.unit == "text" else "dp"
        if self.is_distributed:
            name, known = f"secure:{self.masked}", [known[0], "1", known[1], str(self.min_updates)]
        elif privacy.unit == "device":
            known += [str(privacy.separation)]
        return ":".join([name, *known, repr(privacy.epsilon), repr(privacy.delta)])

    def epsilon(self, participations: int) -> float:
        """Of a device that has taken part in so many rounds, or of its texts."""
        if not participations:
            return 0.0
        multiplier = self.multiplier / math.sqrt(participations * self.releases)
        found = concentrated_epsilon if self.is_distributed else gaussian_epsilon
        return found(multiplier, self.privacy.delta)

    @cached_property
    def most_participations(self) -> int:
        """Rounds in which a device may take part within its budget."""
        return math.floor((self.multiplier / self.least) ** 2 / self.releases * (1.0 + 1e-9))

    def signal_to_noise(self, devices: int, parameters: int) -> float:
        """Longest sum of what is clipped by the length of its noise.

        Args:
            devices: Whose updates count in a round; of texts, those of an optimizer step.
            parameters: Numbers of an update.
        """
        noise = self.multiplier * math.hypot(*bands_of(self.privacy.separation))
        return devices / (noise * math.sqrt(parameters))

    def spent(self, heard: Mapping[str, Heard]) -> PrivacySpent:
        """Where the run stands, by each device's history in it."""
        privacy, most = self.privacy, max(map(self._participations, heard.values()), default=0)
        return PrivacySpent(
            privacy.unit,
            round(self.epsilon(most), 4),
            privacy.epsilon,
            privacy.delta,
            self.multiplier,
            privacy.clip,
            privacy.separation,
            most,
            self.most_participations,
            self.releases,
            self.is_distributed,
        )

    def eligible(
        self, heard: Mapping[str, Heard], names: Collection[str], round_index: int
    ) -> list[str]:
        """Devices that may count in a round: within their budget, and rested since the last one.

        Args:
            heard: Each device's history in the run.
            names: Of whom.
            round_index: The round.
        """
        last = max(0, round_index - self.privacy.separation)
        able = self._within_budget(heard, names)
        return [name for name in able if name not in heard or heard[name].round_index <= last]

    def _participations(self, one: Heard) -> int:
        return one.asked if self.privacy.unit == "text" else one.counted

    def _within_budget(self, heard: Mapping[str, Heard], names: Collection[str]) -> list[str]:
        def is_able(name: str) -> bool:
            return self._participations(heard[name]) < self.most_participations

        return [name for name in names if name not in heard or is_able(name)]

    def lack(
        self,
        heard: Mapping[str, Heard],
        known: Collection[str],
        round_index: int,
        min_updates: int,
    ) -> str:
        """Why privacy keeps a round from opening; empty where it does not.

        Waiting for those that are away does not help then: rounds, by which they rest, stand still.

        Args:
            heard: Each device's history in the run.
            known: Devices that could train, those that are away too.
            round_index: The round.
            min_updates: Devices that it needs.
        """
        ready = self.eligible(heard, known, round_index)
        if len(ready) >= min_updates or len(known) < min_updates:
            return ""
        able = self._within_budget(heard, known)
        if len(able) < min_updates:
            return (
                f"{USED_UP} {self.privacy.epsilon:g} is used up by "
                f"{len(known) - len(able)} of {len(known)} devices "
                f"({self.most_participations} rounds each); export the adapter, or connect devices "
                "that took no part yet"
            )
        return (
            f"privacy: {len(able) - len(ready)} of {len(able)} devices with budget left rest, "
            f"separation is {self.privacy.separation} rounds and min_updates {min_updates}; "
            "connect more devices and resume"
        )
