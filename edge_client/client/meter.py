"""What a piece of work costs: seconds by phase, bytes by direction, the process's peak memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edge_client.wire.messages import Phase


@dataclass
class WorkMeter:
    """Counts for one piece of work; mutable, because work goes on while it counts.

    Attributes:
        phases_s: Seconds by phase.
        bytes_up: Bytes sent, bodies and headers.
        bytes_down: Bytes received, bodies and headers.
        requests: HTTP requests answered.
    """

    phases_s: dict[Phase, float] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    requests: int = 0

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.phases_s[name] = self.phases_s.get(name, 0.0) + spent
