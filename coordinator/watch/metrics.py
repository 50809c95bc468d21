"""Prometheus metrics, in a registry of their own.

Counters are kept where events happen; the state of runs and devices is read at each scrape. Label
values are smidgen's own few words (phases, kinds, outcomes, routes), never a name from outside.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONTENT_TYPE = prometheus.CONTENT_TYPE_LATEST
# Seconds; a long poll's waiting is in its route's.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
PHASES = ("waiting", "paused", "train", "label", "evaluate", "unmask", "finished")


@dataclass(frozen=True)
class CoordinatorStatus:
    """Where the coordinator stands, when somebody asks.

    Attributes:
        phases: Runs by phase.
        rounds: Rounds of training that were closed, of all runs.
        devices: Devices that enrolled and are not revoked.
        here: Those among them that were heard of lately.
        asked: Pieces of work that are open.
        answers: Devices' answers since the process began, by (kind, outcome).
    """

    phases: Mapping[str, int]
    rounds: int
    devices: int
    here: int
    asked: int
    answers: Mapping[tuple[str, str], int]


class Metrics:
    """What is counted of one coordinator.

    Args:
        standing: Says where it stands.
    """

    def __init__(self, standing: Callable[[], CoordinatorStatus]) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._registry.register(_Standing(standing))
        prometheus.ProcessCollector(registry=self._registry)
        labels = ("route", "method", "status")
        self._seconds = prometheus.Histogram(
            "smidgen_request_seconds",
            "Seconds until an answer began, by route; a long poll's waiting is in it.",
            labels,
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._received = self._bytes("received", "Bytes of requests' bodies, by route.")
        self._sent = self._bytes("sent", "Bytes of answers' bodies, by route.")

    def _bytes(self, way: str, said: str) -> prometheus.Counter:
        return prometheus.Counter(f"smidgen_{way}_bytes", said, ("route",), registry=self._registry)

    def text(self) -> bytes:
        return prometheus.generate_latest(self._registry)

    def asked(self, scope: Scope, status: int, spent_s: float) -> None:
        """Count a request whose answer begins."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        family = f"{status // 100}xx"
        self._seconds.labels(route_of(scope), method, family).observe(spent_s)

    def moved(self, scope: Scope, received_bytes: int, sent_bytes: int) -> None:
        """Count the bodies of a request and of its answer."""
        route = route_of(scope)
        self._received.labels(route).inc(received_bytes)
        self._sent.labels(route).inc(sent_bytes)


class _Standing(Collector):
    """Reads where the coordinator stands, at each request for it."""

    def __init__(self, standing: Callable[[], CoordinatorStatus]) -> None:
        self._standing = standing

    def describe(self) -> list[Metric]:
        return []  # asking for it now would read what is not there yet

    def collect(self) -> Iterator[Metric]:
        now = self._standing()
        runs = GaugeMetricFamily("smidgen_runs", "Runs by phase.", labels=("phase",))
        for phase in PHASES:
            runs.add_metric((phase,), now.phases.get(phase, 0))
        yield runs
        rounds = "Rounds of training that were closed, of all runs of the store."
        yield CounterMetricFamily("smidgen_rounds", rounds, value=now.rounds)
        yield GaugeMetricFamily("smidgen_devices", "Devices that are let in.", value=now.devices)
        here = "Devices that were heard of in the last two minutes."
        yield GaugeMetricFamily("smidgen_devices_here", here, value=now.here)
        asked = "Pieces of work that were asked for in open steps and are not answered."
        yield GaugeMetricFamily("smidgen_work_open", asked, value=now.asked)
        said = "Devices' answers since this process began."
        answers = CounterMetricFamily("smidgen_answers", said, labels=("kind", "outcome"))
        for (kind, outcome), count in sorted(now.answers.items()):
            answers.add_metric((kind, outcome), count)
        yield answers


def route_of(scope: Scope) -> str:
    """A request's route as it was declared; what nobody declared is one route for all."""
    return str(getattr(scope.get("route"), "path", "other"))


class Counted:
    """The application, its requests counted.

    Args:
        app: The application.
        metrics: Counts them.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, moved = time.perf_counter(), Counter[str]()

        async def received() -> Message:
            message = await receive()
            moved["received"] += len(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.asked(scope, message["status"], time.perf_counter() - began_s)
            moved["sent"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, received, sent)
        finally:
            self._metrics.moved(scope, moved["received"], moved["sent"])
