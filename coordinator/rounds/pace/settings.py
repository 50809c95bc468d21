"""How a run's rounds keep from waiting, as its run file says it."""

from dataclasses import dataclass

from edge_client.errors import demand

LARGEST = 10  # buffer that is not said: FedBuff's K


@dataclass(frozen=True)
class Asynchronous:
    """Buffered asynchronous rounds, FedBuff (Nguyen et al. 2022, arXiv:2106.06639).

    Attributes:
        buffer: Updates that make a new version of the adapter; 0: half as many as can train when it
            is begun, from 1 to `LARGEST`.
        concurrency: Most devices that train at the same time; 0 for all that are there.
        discount: a; an update that is s versions old counts (1 + s)^-a, so 0 takes it as new.
        most_staleness: Versions that an update may be old; what is older is out of date.
    """

    buffer: int = 0
    concurrency: int = 0
    discount: float = 0.5
    most_staleness: int = 20

    def __post_init__(self) -> None:
        demand(0 <= self.buffer <= 1_000_000, "buffer: 0 to 1000000")
        demand(0 <= self.concurrency <= 1_000_000, "concurrency: 0 to 1000000")
        demand(0.0 <= self.discount <= 10.0, "discount: 0 to 10")
        demand(0 <= self.most_staleness <= 1000, "most_staleness: 0 to 1000")

    def enough(self, able: int) -> int:
        """Updates that make the next version; where two or more can train not all of them need to.

        Args:
            able: Devices that can train by now, those that do included.
        """
        at_once = min(able, self.concurrency or able)
        return self.buffer or max(1, min(LARGEST, at_once // 2))

    def share(self, staleness: int) -> float:
        """How much an update counts that is so many versions old: 1 of a new one, never more."""
        return float((1.0 + staleness) ** -self.discount)
