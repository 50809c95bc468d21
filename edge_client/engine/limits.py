"""Limits that a device's owner sets on one piece of work, whatever the coordinator asks.

    limits = parse_limits("epochs=20,seconds=3600")  # defaults for the rest

Honest runs stay below the defaults. Work that asks for more is refused before it begins, and work
that takes longer is ended between two steps.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from smidgen.edge_client.errors import Failed, WrongInput, demand
from smidgen.edge_client.wire.training import Training

MOST = 1e9  # of any limit
# What of a run's training is bounded by the limit of which name.
BOUNDED = {name: name for name in ("epochs", "batch", "tokens", "lr")} | {
    "least_samples": "samples"
}


class OverLimits(WrongInput):
    """A run that asks for more than the device's owner allows; names the value."""


class OutOfTime(Failed):
    """A piece of work that took longer than the device's owner allows."""


@dataclass(frozen=True)
class Limits:
    """The most that one piece of work may take, and the least noise that it must add.

    Attributes:
        epochs: Passes over the texts.
        batch: Texts per step.
        tokens: Longest input in tokens.
        lr: Learning rate.
        seconds: Of computing; looked at between steps.
        rank: Of LoRA; of a run with more this device takes this much, if the run allows it.
        samples: Texts that are drawn in a round, whatever the device holds (`least_samples`).
        noise: The least noise multiplier of differential privacy; 0: a run may have none.
    """

    epochs: float = 100
    batch: float = 512
    tokens: float = 2048
    lr: float = 1.0
    seconds: float = 6 * 3600
    rank: float = 9999
    samples: float = 10_000
    noise: float = 0.0

    def check(self, training: Training) -> None:
        """Refuse training that is more than allowed.

        Raises:
            OverLimits: Names the first value that is.
        """
        for name, limit in BOUNDED.items():
            asked, most = getattr(training, name), getattr(self, limit)
            told = f"the run asks for {name} {asked:.10g}, this device does {most:.10g} at most"
            way = f"`--limits {limit}={asked:.10g}` would allow it"
            demand(asked <= most, f"{told}; {way}", OverLimits)

    def check_noise(self, multiplier: float) -> None:
        """Refuse training that adds less noise than the device's owner asks for.

        Args:
            multiplier: The run's; 0 of one without differential privacy.

        Raises:
            OverLimits: Says both.
        """
        has = f"a noise multiplier of {multiplier:.10g}" if multiplier else "no noise"
        way = f"`--limits noise={multiplier:.10g}`" if multiplier else "`--limits` without noise"
        told = f"the run adds {has}, this device asks for {self.noise:.10g} at least"
        demand(multiplier >= self.noise, f"{told}; {way} would allow it", OverLimits)


def parse_limits(said: str) -> Limits:
    """Limits as a user types them; what is not named keeps its default.

    Raises:
        WrongInput: Not NAME=NUMBER, or an unknown name.
    """
    names = [item.name for item in fields(Limits)]
    found: dict[str, float] = {}
    for word in said.split(",") if said else ():
        name, _, value = word.strip().partition("=")
        expected = f"NAME=NUMBER,... with {', '.join(names)} is expected"
        demand(name in names, f"--limits {word[:40]!r}: {expected}")
        demand(name not in found, f"--limits says {name} twice; give one value")
        found[name] = _number(value)
        is_fine = 0 < found[name] <= MOST or (name == "noise" and found[name] == 0)
        demand(is_fine, f"--limits {word[:40]!r}: a number above 0 is expected, {MOST:g} at most")
    return Limits(**found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def limits_in_words(limits: Limits) -> str:
    return ",".join(f"{name}={value:g}" for name, value in asdict(limits).items())


class Watched:
    """Hears of each step of a piece of work, and ends it between two once its time is over.

    Args:
        seconds: What it may take from now on.
        progress: Hears of each step before.
        clock: Seconds, ever growing.
    """

    def __init__(
        self,
        seconds: float,
        progress: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds, self._progress = seconds, progress
        self._clock, self._began_s = clock, clock()

    def leave_out(self, seconds: float) -> None:
        """A pause, which is no work."""
        self._began_s += seconds

    def __call__(self, texts: int) -> None:
        """So many texts more are done.

        Raises:
            OutOfTime: It took too long.
        """
        self._progress(texts)
        spent_s = self._clock() - self._began_s
        if spent_s > self._seconds:
            raise OutOfTime(
                f"{spent_s:.0f} s of work and no end, this device does {self._seconds:g} s at "
                "most; `--limits seconds=NUMBER` would allow more"
            )
