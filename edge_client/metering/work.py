"""What one piece of work costs: seconds by phase, memory, faults, disk, traffic and energy.

    meter = WorkMeter(traffic)
    with meter.phase("wait"): ...
    with meter.working(), meter.phase("train"): ...
    report = replace(report, cost=meter.cost())

Everything is read from the kernel when it is asked for; while work is done a thread looks at memory
ten times a second, since the kernel keeps no peak of its anonymous part.

Where time goes: seconds by phase, each second in one phase alone.

Deep code says what it does without knowing who listens:

    with phase("tokenize"):
        prompts = encoder.prompts(texts)

Without a clock that is nothing at all. With one, the seconds inside go to `tokenize` and not to the
phase around it.

Bytes of TCP connections as the kernel counted them, whatever ran on top of TCP.

`TCP_INFO` holds what the other side has acknowledged and what came in since the connection began
(Linux 4.1 and later), and what was sent again (4.19). TLS, HTTP's headers and broken answers are in
it; Ethernet's and IP's own headers are not.

    traffic = Traffic()
    client.get(url, extensions={"trace": traffic.trace})
    print(traffic.total().received_bytes)

How fast updates get through a device's link, by those that were sent; kept between starts.

    link = Link(folder / "link.json")
    link.sent(1_186_440, 4.2)
    link.rate()  # bytes per second, or None before anything was sent
"""

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import psutil

from smidgen.edge_client.files import PRIVATE, from_json, write_atomically
from smidgen.edge_client.metering.machine import Heat, is_throttled, read_heat
from smidgen.edge_client.metering.memory import PeakSpan, pss_bytes, read_memory
from smidgen.edge_client.metering.power import EnergyMeter, energy_counter
from smidgen.edge_client.wire.reports import Cost, Phase

# Places in Linux's struct tcp_info, which only ever grows at its end; 64-bit counters.
ACKED, RECEIVED, SENT_AGAIN = 120, 128, 208
WIDTH = 8
MOST = 256  # bytes of it asked for
TCP_INFO = getattr(socket, "TCP_INFO", None)


@dataclass(frozen=True)
class TcpBytes:
    """What went through connections; None where the kernel does not count it.

    Attributes:
        acked_bytes: Sent and acknowledged by the other side.
        received_bytes: Received.
        sent_again_bytes: Sent more than once.
        connections: How many there were.
    """

    acked_bytes: int | None = 0
    received_bytes: int | None = 0
    sent_again_bytes: int | None = 0
    connections: int = 0

    def plus(self, other: "TcpBytes") -> "TcpBytes":
        """Both together; unknown where one is."""
        return TcpBytes(
            _sum(self.acked_bytes, other.acked_bytes),
            _sum(self.received_bytes, other.received_bytes),
            _sum(self.sent_again_bytes, other.sent_again_bytes),
            self.connections + other.connections,
        )

    def since(self, before: "TcpBytes") -> "TcpBytes":
        return TcpBytes(
            _sum(self.acked_bytes, before.acked_bytes, -1),
            _sum(self.received_bytes, before.received_bytes, -1),
            _sum(self.sent_again_bytes, before.sent_again_bytes, -1),
            self.connections - before.connections,
        )


NOTHING = TcpBytes()


def _sum(a: int | None, b: int | None, sign: int = 1) -> int | None:
    return None if a is None or b is None else a + sign * b


def read_tcp(opened: socket.socket) -> TcpBytes:
    """What the kernel has counted of one connection up to now.

    Raises:
        OSError: It is closed, or not a TCP connection.
    """
    if TCP_INFO is None:
        return TcpBytes(None, None, None, 1)
    raw = opened.getsockopt(socket.IPPROTO_TCP, TCP_INFO, MOST)
    acked = _counter(raw, ACKED)
    if not acked:  # an older kernel, or one that fills in a part alone
        return TcpBytes(None, None, None, 1)
    # The kernel counts the connection's first sign as a byte that was acknowledged
    return TcpBytes(acked - 1, _counter(raw, RECEIVED), _counter(raw, SENT_AGAIN), 1)


def _counter(raw: bytes, place: int) -> int | None:
    if len(raw) < place + WIDTH:
        return None  # an older kernel
    found: int = struct.unpack_from("=Q", raw, place)[0]
    return found


class Stream(Protocol):
    """One of httpcore's connections."""

    def get_extra_info(self, info: str) -> Any: ...


class Traffic:
    """The traffic of all connections that an HTTP client opens, lost ones included.

    Of a TLS handshake that fails the bytes are lost. Its `trace` is httpcore's extension of this
    name: it learns of each connection when that is made, and reads it when an answer is over or has
    failed, before anybody closes it.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[socket.socket, TcpBytes]] = {}
        self._over = NOTHING

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore at each step of a request."""
        if event.endswith("connect_tcp.complete"):
            self._read()
            self._watch(info["return_value"])
        elif event.endswith("start_tls.complete"):
            self._watch(info["return_value"])  # laid over a connection that is watched already
        elif event.endswith((".failed", "response_closed.started")):
            self._read()

    def total(self) -> TcpBytes:
        self._read()
        found = self._over
        for _, counted in self._open.values():
            found = found.plus(counted)
        return found

    def _watch(self, stream: Stream) -> None:
        opened = stream.get_extra_info("socket")
        if opened is not None:
            _, counted = self._open.get(opened.fileno(), (None, TcpBytes(connections=1)))
            self._open[opened.fileno()] = opened, counted

    def _read(self) -> None:
        for number, (opened, counted) in list(self._open.items()):
            if opened.fileno() != number:  # closed since
                self._over = self._over.plus(counted)
                del self._open[number]
                continue
            with suppress(OSError):
                self._open[number] = opened, read_tcp(opened)


NEW = 0.5  # how much the newest one counts
LEAST_BYTES = 1024  # of less, latency is all that is seen


class Link:
    """The link of one device.

    Law: the rate lies between the slowest and the fastest of what was sent.

    Args:
        path: Written when something was sent.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def rate(self) -> float | None:
        try:
            rate = from_json(self._path.read_bytes(), dict[str, float])["bytes_per_s"]
        except (OSError, KeyError, msgspec.DecodeError):
            return None
        return rate if rate > 0.0 else None

    def sent(self, size_bytes: int, seconds: float) -> None:
        """Learn from an update that got through; tries that failed are in its seconds.

        Args:
            size_bytes: Its size.
            seconds: From the first byte to the receipt.
        """
        if size_bytes < LEAST_BYTES or seconds <= 0.0:
            return
        before, now = self.rate(), size_bytes / seconds
        rate = now if before is None else NEW * now + (1.0 - NEW) * before
        try:
            write_atomically(self._path, msgspec.json.encode({"bytes_per_s": rate}), PRIVATE)
        except OSError as error:
            log.warning("how fast the link is is not kept: %s", error)


class PhaseClock:
    """Wall-clock and processor seconds by phase.

    Law: the seconds of all phases add up to the time spent in the outermost ones.

    Args:
        on_outer: Told of an outermost phase when it is over.
    """

    def __init__(self, on_outer: Callable[[Phase], None] = lambda name: None) -> None:
        self.wall_s: dict[Phase, float] = {}
        self.cpu_s: dict[Phase, float] = {}
        self._on_outer = on_outer
        self._stack: list[Phase] = []
        self._since = 0.0, 0.0

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count what is spent inside, for this phase and not for the one around it."""
        self._settle()
        self._stack.append(name)
        token = _clock.set(self)
        try:
            yield
        finally:
            self._settle()
            self._stack.pop()
            _clock.reset(token)
            if not self._stack:
                self._on_outer(name)

    def _settle(self) -> None:
        """Give the time since the last change to the innermost phase."""
        now = time.perf_counter(), time.process_time()
        if self._stack:
            name = self._stack[-1]
            self.wall_s[name] = self.wall_s.get(name, 0.0) + now[0] - self._since[0]
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + now[1] - self._since[1]
        self._since = now


_clock: ContextVar[PhaseClock | None] = ContextVar("phase_clock", default=None)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Count what is spent inside for whoever measures here; nothing where nobody does."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    with clock.phase(name):
        yield


SAMPLE_S = 0.1
T = TypeVar("T")

log = logging.getLogger(__name__)


class WorkMeter:
    """Counts for one piece of work, from the moment it is made; changes while work goes on.

    Args:
        traffic: The connections that the work is asked for and answered through.

    Attributes:
        payload_up_bytes: Bodies sent.
        payload_down_bytes: Bodies received.
        requests: HTTP requests answered.
        accelerator_peak_bytes: What the engine says of its GPU; None where it has none.
    """

    def __init__(self, traffic: Traffic | None = None) -> None:
        self.payload_up_bytes = self.payload_down_bytes = self.requests = 0
        self.accelerator_peak_bytes: int | None = None
        self._traffic = traffic or Traffic()
        self._tcp_before = self._traffic.total()
        self._faults_before = _reading(_faults) or (None, None)
        self._disk_before = _reading(_disk_bytes)
        self._clock = PhaseClock(self._on_outer)
        self._span = PeakSpan()
        self._peak = self._span.peak_bytes()
        self._peak_phase: Phase | None = None
        self._anon: int | None = None
        self._file: int | None = None
        self._pss: int | None = None
        self._heat: tuple[Heat, Heat] | None = None
        self._energy: EnergyMeter | None = None

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        return self._clock.phase(name)

    def waited(self, spent_s: float) -> None:
        """Count what was waited for this work before the meter was made."""
        self._clock.wall_s["wait"] = self._clock.wall_s.get("wait", 0.0) + spent_s

    @contextmanager
    def working(self) -> Iterator[None]:
        """Watch memory, energy and heat while something is computed inside.

        An instrument that breaks is not there; it never costs the work that it measures.
        """
        before = _reading(read_heat)
        with ExitStack() as instruments:
            _reading(lambda: instruments.enter_context(self._watching()))
            if (energy := _reading(energy_counter)) is not None:
                self._energy = _reading(lambda: instruments.enter_context(energy))
            yield
        after, self._pss = _reading(read_heat), _reading(pss_bytes)
        self._heat = (before, after) if before and after else None

    @contextmanager
    def _watching(self) -> Iterator[None]:
        is_over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(is_over,), name="meter", daemon=True)
        watch.start()
        try:
            yield
        finally:
            is_over.set()
            watch.join()

    def cost(self) -> Cost:
        """What it has cost up to now; a figure that cannot be is "not available here"."""
        tcp = self._traffic.total().since(self._tcp_before)
        minor, major = _reading(_faults) or (None, None)
        disk, energy = _reading(_disk_bytes), self._energy
        mode = self._heat[1].power_mode if self._heat else None
        joules = _reading(lambda: energy.joules_since_start) if energy else None
        temperatures = [heat.hottest_c for heat in self._heat or () if heat.hottest_c is not None]
        return Cost(
            phases_s={name: round(spent, 6) for name, spent in self._clock.wall_s.items()},
            cpu_s={name: round(spent, 6) for name, spent in self._clock.cpu_s.items()},
            peak_rss_bytes=self._span.peak_bytes() or None,
            is_peak_of_work=self._span.is_own,
            peak_phase=self._peak_phase,
            peak_anon_bytes=self._anon,
            peak_file_bytes=self._file,
            pss_bytes=self._pss,
            minor_faults=_since(minor, self._faults_before[0]),
            major_faults=_since(major, self._faults_before[1]),
            disk_read_bytes=_since(disk, self._disk_before),
            payload_up_bytes=self.payload_up_bytes,
            payload_down_bytes=self.payload_down_bytes,
            tcp_up_bytes=tcp.acked_bytes,
            tcp_down_bytes=tcp.received_bytes,
            tcp_retransmitted_bytes=tcp.sent_again_bytes,
            requests=self.requests,
            connections=tcp.connections,
            energy_j=None if joules is None else round(joules, 3),
            energy_source=energy.source if energy and joules is not None else None,
            hottest_c=max(temperatures, default=None),
            is_throttled=is_throttled(*self._heat) if self._heat else None,
            power_mode=mode.mode_id if mode else None,
            accelerator_peak_bytes=self.accelerator_peak_bytes,
        ).sound()

    def _on_outer(self, name: Phase) -> None:
        peak = self._span.peak_bytes()
        if peak > self._peak:
            self._peak, self._peak_phase = peak, name

    def _watch(self, is_over: threading.Event) -> None:
        while True:
            memory = read_memory()
            if memory is not None:
                self._anon = _higher(self._anon, memory.anon_bytes)
                self._file = _higher(self._file, memory.file_bytes)
            if is_over.wait(SAMPLE_S):
                return


def _reading(read: Callable[[], T]) -> T | None:
    """What an instrument says; None where it breaks, however it does."""
    try:
        return read()
    except Exception as error:
        log.debug("an instrument is not available: %s: %s", type(error).__name__, error)
        return None


def _higher(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _faults() -> tuple[int, int]:
    """Minor and major page faults of this process so far.

    Raises:
        ModuleNotFoundError: This system does not count them.
    """
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_majflt


def _disk_bytes() -> int:
    """Bytes read from disk for this process so far.

    Raises:
        Exception: Of many kinds, by psutil, where the kernel does not count or does not tell.
    """
    return int(psutil.Process().io_counters().read_bytes)


def _since(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
