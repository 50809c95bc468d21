"""What rounds without compute took: one kind of result for ours and for the peer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from profiling.instruments.process_tree import TreeUse
from profiling.wire.relay import Exchange, traffic

WARMUP = 1  # rounds that do not count
SAMPLE_S = 2.0  # between two samples of memory: looking costs the cores that are measured


@dataclass(frozen=True)
class Side:
    """The processes of the server, or of one client.

    Attributes:
        cpu_s: Processor time in a round, user and system.
        peak_pss_bytes: Peak of the processes together, a page that they share counted once.
        peak_rss_bytes: The same with such a page counted in each, as `ps` shows it.
    """

    cpu_s: float
    peak_pss_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True)
class Passed:
    """What passed the relay for one client in one round, on average.

    Attributes:
        requests: HTTP requests.
        bytes_up: Bytes from the client: lines, headers and bodies.
        bytes_down: Bytes to it.
    """

    requests: float
    bytes_up: float
    bytes_down: float


@dataclass(frozen=True)
class WireRun:
    """Rounds over one distance; all figures measured.

    Attributes:
        who: `smidgen` or the peer.
        version: Its version; empty where it is not known.
        rtt_s: Round trip that the relay adds.
        clients: Clients, all of them in every round.
        tensors: In how many tensors the adapter's numbers are.
        payload_bytes: These numbers, which a client gets once and sends once in a round.
        rounds_s: Seconds of each round, from its beginning to that of the next.
        training_s: Of each, until the next adapter is there.
        whole: What passed in a round.
        training: Of it, what training takes: its work, the adapter, the update and the report.
        server: The server's processes.
        client: One client's, the largest of them.
        load_1m: Load average before.
    """

    who: str
    version: str
    rtt_s: float
    clients: int
    tensors: int
    payload_bytes: int
    rounds_s: tuple[float, ...]
    training_s: tuple[float, ...]
    whole: Passed
    training: Passed
    server: Side
    client: Side
    load_1m: float

    @property
    def p50_s(self) -> float:
        return median(self.rounds_s)

    @property
    def p95_s(self) -> float:
        ordered = sorted(self.rounds_s)
        return ordered[-(-95 * len(ordered) // 100) - 1]

    def framing(self, passed: Passed) -> tuple[float, float]:
        """What a client sends and receives beside the numbers, as shares of them."""
        up, down = passed.bytes_up, passed.bytes_down
        return up / self.payload_bytes - 1, down / self.payload_bytes - 1


def side(before: Sequence[TreeUse], after: Sequence[TreeUse], rounds: int) -> Side:
    """What one of several equal trees used in a round: processor time on average, the highest peak.

    Args:
        before: Each when the rounds began.
        after: Each at their end.
        rounds: Rounds in between.
    """
    spent_s = sum(use.cpu_s for use in after) - sum(use.cpu_s for use in before)
    return Side(
        spent_s / rounds / len(after),
        max(use.peak_pss_bytes for use in after),
        max(use.peak_rss_bytes for use in after),
    )


def passed(exchanges: Iterable[Exchange], shares: int) -> Passed:
    """What exchanges of several clients and rounds come to for one client in one round.

    Args:
        exchanges: Of all of them.
        shares: Clients times rounds.
    """
    sums = traffic(exchanges)
    return Passed(sums.requests / shares, sums.bytes_up / shares, sums.bytes_down / shares)
