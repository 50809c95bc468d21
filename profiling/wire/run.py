"""Result of a wire benchmark: processor time, memory and bytes per round, for ours and the peer."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from smidgen.edge_client.tables import Column, Table, seconds, size
from smidgen.profiling.instruments.environment import conditions, versions
from smidgen.profiling.instruments.sampler import TreeUse
from smidgen.profiling.records.record import Figure, Record
from smidgen.profiling.wire.relay import Exchange

WHO = "smidgen"
WARMUP = 1  # rounds that do not count
SAMPLE_S = 2.0  # between two samples of memory: looking costs the cores that are measured


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
        training: Of it, what training takes: the adapter, the update and its report.
        server: Its processes in a round, on average; their peak of memory.
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
    server: TreeUse
    client: TreeUse
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


def side(before: Sequence[TreeUse], after: Sequence[TreeUse], rounds: int) -> TreeUse:
    """What one of several equal trees used in a round: processor time on average, the highest peak.

    Args:
        before: Each when the rounds began.
        after: Each at their end.
        rounds: Rounds in between.
    """
    spent_s = sum(use.cpu_s for use in after) - sum(use.cpu_s for use in before)
    return TreeUse(
        spent_s / rounds / len(after),
        max(use.peak_pss_bytes for use in after),
        max(use.peak_rss_bytes for use in after),
    )


def passed(exchanges: Iterable[Exchange], shares: int = 1) -> Passed:
    """What exchanges of several clients and rounds come to for one client in one round.

    Args:
        exchanges: Of all of them.
        shares: Clients times rounds; 1: the sums.
    """
    every = list(exchanges)
    return Passed(
        sum(bool(one.method) for one in every) / shares,
        sum(one.bytes_up for one in every) / shares,
        sum(one.bytes_down for one in every) / shares,
    )


NOTES = (
    "All figures are measured. A round lasts until the next one begins. In ours every client "
    "trains, then evaluates the new adapter; in flwr's clients train alone.",
    "Requests and bytes: of one client in one round, counted by the relay, lines and headers "
    "included. For training: the adapter, the update and its report. Framing: what "
    "passes beyond the adapter's numbers in float32, as a share of them.",
    "Processor time: user and system, of all processes of the server or of one client, in a round. "
    "Memory: their peak, with shared pages counted once (Pss) or in every process (Rss), sampled "
    "every 2 s. A process that lives shorter than that is undercounted, which favours flwr: it "
    "starts one per message.",
    "The relay adds distance alone: no slow start, no loss, no limit of bandwidth.",
)


def wire_table(runs: Sequence[WireRun]) -> Table:
    """Figures by row, runs by column."""
    rows: list[tuple[str, Callable[[WireRun], str]]] = [
        ("a round, median", lambda run: seconds(run.p50_s)),
        ("a round, 95th percentile", lambda run: seconds(run.p95_s)),
        ("its training, median", lambda run: seconds(median(run.training_s))),
        ("rounds measured", lambda run: str(len(run.rounds_s))),
        ("requests", lambda run: f"{run.whole.requests:.0f}"),
        ("requests for training", lambda run: f"{run.training.requests:.0f}"),
        ("sent", lambda run: size(run.whole.bytes_up)),
        ("received", lambda run: size(run.whole.bytes_down)),
        ("framing, sent", lambda run: _share(run.framing(run.whole)[0])),
        ("framing, received", lambda run: _share(run.framing(run.whole)[1])),
        ("framing for training, sent", lambda run: _share(run.framing(run.training)[0])),
        ("framing for training, received", lambda run: _share(run.framing(run.training)[1])),
        ("server's processor time", lambda run: seconds(run.server.cpu_s)),
        ("server's memory, Pss", lambda run: size(run.server.peak_pss_bytes)),
        ("server's memory, Rss", lambda run: size(run.server.peak_rss_bytes)),
        ("client's processor time", lambda run: seconds(run.client.cpu_s)),
        ("client's memory, Pss", lambda run: size(run.client.peak_pss_bytes)),
        ("client's memory, Rss", lambda run: size(run.client.peak_rss_bytes)),
    ]
    first = runs[0]
    payload = f"{first.tensors} tensors, {first.payload_bytes / 1e6:.3f} MB"
    return Table(
        [Column("figure", "word"), *(Column(_head(run)) for run in runs)],
        [[name, *(cell(run) for run in runs)] for name, cell in rows],
        f"rounds without computing: {payload} each way, {first.clients} clients",
        NOTES,
    )


def _head(run: WireRun) -> str:
    name = run.who if run.who == WHO else f"{run.who} {run.version}".strip()
    return f"{name}, {1e3 * run.rtt_s:g} ms"


def _share(value: float) -> str:
    return f"{100 * value:.2f} %"


def to_record(run: WireRun, base_id: str, session: str) -> Record:
    """A run as it is kept."""
    libraries = versions() | {run.who: run.version or None}
    return Record(
        kind="wire",
        subject={
            "who": run.who,
            "rtt_ms": 1e3 * run.rtt_s,
            "clients": run.clients,
            "tensors": run.tensors,
            "payload_bytes": run.payload_bytes,
        },
        figures=_figures(run),
        conditions=replace(conditions(base_id, libraries=libraries), load_1m=run.load_1m),
        session=session,
        is_peer=run.who != WHO,
        details=asdict(run),
    )


def _figures(run: WireRun) -> dict[str, Figure]:
    clock, relay, ticks = "clock", "bytes and turns at the relay", "utime and stime of /proc"
    figures = {
        "round_s": Figure(run.rounds_s, clock),
        "training_s": Figure(run.training_s, clock),
    }
    for name, passed in (("round", run.whole), ("training", run.training)):
        for what, value in asdict(passed).items():
            figures[f"{name}_{what}"] = Figure((value,), relay)
    for name, side in (("server", run.server), ("client", run.client)):
        figures[f"{name}_cpu_s"] = Figure((side.cpu_s,), ticks)
        figures[f"{name}_peak_pss_bytes"] = Figure((float(side.peak_pss_bytes),), "smaps_rollup")
        figures[f"{name}_peak_rss_bytes"] = Figure((float(side.peak_rss_bytes),), "smaps_rollup")
    return figures


def to_json(run: WireRun) -> dict[str, Any]:
    more = {
        "p50_s": run.p50_s,
        "p95_s": run.p95_s,
        "framing": run.framing(run.whole),
        "training_framing": run.framing(run.training),
    }
    return asdict(run) | more
