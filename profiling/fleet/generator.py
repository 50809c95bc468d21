"""Load generator: many light devices in one process on one event loop; writes a file of results.

SIGTERM ends it early; the results until then are still written.

    python -m smidgen.profiling.fleet.generator '{"url": "https://...", "devices": 500, ...}'
"""

import asyncio
import asyncio.sslproto
import json
import resource
import signal
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from smidgen.profiling.fleet.device import Connection, Device, LoadLog
from smidgen.profiling.fleet.run import Met
from smidgen.profiling.instruments.made_up_run import is_sum
from smidgen.profiling.instruments.stepping import tell

AT_ONCE = 64  # devices that enrol at the same time
TIMEOUT_S = 60.0
LAG_S = 0.1  # between two looks at how late this process itself is
END_S = 10.0  # what devices have for ending after a SIGTERM
OWN_FILES = 100  # beside one socket per device


@dataclass(frozen=True)
class LoadRequest:
    """What one process of devices is to do.

    Attributes:
        url: Of the coordinator.
        ca: File of the authority to trust; empty with plain HTTP.
        token: Enrolment token.
        first: Number of its first device.
        devices: How many it has.
        base_id: Of the base that they claim to hold.
        rounds: Of the run, to see at its end whether the work was done.
        out: File for what they met.
    """

    url: str
    ca: str
    token: str
    first: int
    devices: int
    base_id: str
    rounds: int
    out: str


async def generate(asked: LoadRequest) -> Met:
    """Let the devices live until the run is over, or a SIGTERM."""
    book = LoadLog(tell)
    met = book.met
    trust = ssl.create_default_context(cafile=asked.ca) if asked.ca else None

    def connection(headers: Mapping[str, str]) -> Connection:
        return Connection(asked.url, trust, headers, TIMEOUT_S)

    numbers = range(asked.first, asked.first + asked.devices)
    devices = [Device(connection, f"device-{number:05}", asked.base_id, book) for number in numbers]
    gate = asyncio.Semaphore(AT_ONCE)

    async def live(device: Device, site: int) -> None:
        async with gate:
            await device.enrol(asked.token, {"site": f"site-{site}"})
        if met.enrolled == asked.devices and not met.enrolled_s:
            met.enrolled_s = time.monotonic()
            tell("enrolled", devices=met.enrolled)
        await device.take_part()

    async def look() -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(LAG_S)
            met.lag_s.append(round(time.monotonic() - before_s - LAG_S, 6))

    met.began_s = time.monotonic()
    looking = asyncio.create_task(look())
    tasks = [asyncio.create_task(live(device, n % 10)) for n, device in enumerate(devices)]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    stopping, through = asyncio.create_task(stop.wait()), asyncio.create_task(asyncio.wait(tasks))
    await asyncio.wait([stopping, through], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=END_S)
    for other in (looking, stopping, through):
        other.cancel()
    for task in tasks:
        if task.done() and not task.cancelled() and (failure := task.exception()) is not None:
            book.wrong(f"a device ended: {type(failure).__name__}: {failure}")
    for device in devices:
        device.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    met.cpu_s = used.ru_utime + used.ru_stime
    met.is_right = is_sum(book.first, book.last, asked.rounds) if book.last else None
    return met


def raise_file_limit(files: int) -> int:
    """Let this process open so many files, where the hard limit allows; what it may open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return files if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def spare_memory() -> None:
    """Let each TLS connection keep 32 KiB: from Python 3.11 on asyncio takes 256 KiB at once."""
    if hasattr(asyncio.sslproto.SSLProtocol, "max_size"):
        setattr(asyncio.sslproto.SSLProtocol, "max_size", 32 << 10)  # noqa: B010


def main() -> None:
    spare_memory()
    asked = msgspec.convert(json.loads(sys.argv[1]), LoadRequest)
    raise_file_limit(asked.devices + OWN_FILES)
    met = asyncio.run(generate(asked))
    part = Path(f"{asked.out}.part")
    part.write_bytes(msgspec.json.encode(met))
    part.replace(asked.out)
    tell("done", enrolled=met.enrolled, errors=sum(met.errors.values()))


if __name__ == "__main__":
    main()
