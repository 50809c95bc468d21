"""Coordinators behind a real proxy, as the page sets it up, started anew one after another."""

import random
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import httpx
import pytest

from smidgen.coordinator.storage.database import StorePlace
from smidgen.edge_client.bases.base import Base
from tests.coordinator.servers import wait_until
from tests.coordinator.serving.many.processes import (
    NAMES,
    Coordinators,
    Witness,
    adapter_of,
    calm,
    check_counted_once,
    coordinators,
    witnesses,
)
from tests.coordinator.test_cli import created
from tests.end_to_end.disturbed.proxies import PAGE, proxy, snippet

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(300)]
MANY = PAGE.with_name("many-servers.md")
UPSTREAMS = ("10.0.0.11:8700", "10.0.0.12:8700")  # of the page
ROUNDS = 24
LONGEST_PAUSE_S = 2.0  # of a device before its work, until all have been started anew
DRAIN = "--drain 5"  # of the page
SETTLED_S = 4.0  # in which a proxy hears that one is back


def site_of(language: str, ports: list[int]) -> str:
    """The page's configuration, of coordinators on loopback."""
    site = snippet(language, MANY)
    if language == "nginx":
        one = snippet(language).replace("http://127.0.0.1:8700;", "http://coordinators;")
        assert "proxy_pass http://coordinators;" in one
        site += one
    for named, port in zip(UPSTREAMS, ports, strict=True):
        assert site.count(named) == 1
        site = site.replace(named, f"127.0.0.1:{port}")
    return site


def works_behind(url: str, believed: Path, device: Witness, seed: int, over: Event) -> list[str]:
    """A device that knows the proxy alone, and asks again what failed; all that did."""
    draw, failed = random.Random(f"{seed} {device.name}"), list[str]()

    def look(answer: httpx.Response) -> None:
        if answer.status_code >= 400:
            request = answer.request
            failed.append(f"{request.method} {request.url.path}: {answer.status_code}")

    known = ssl.create_default_context(cafile=believed)
    hooks = {"response": [look]}
    with httpx.Client(base_url=url, verify=known, timeout=60, event_hooks=hooks) as http:
        one, end = replace(device, http=http), time.monotonic() + 240
        while time.monotonic() < end:
            try:
                given = one.next(5.0)
                if given.over is not None:
                    one.take_home(given.over)
                    return failed
                if given.work is not None:
                    over.wait(draw.uniform(0.0, LONGEST_PAUSE_S))
                    one.do(given.work)
            except httpx.TransportError as error:
                failed.append(f"{error.request.method} {error.request.url.path}: {error!r}")
            except AssertionError:
                time.sleep(0.1)
    raise AssertionError(f"no end; {failed}")


def start_anew(many: Coordinators, port: int) -> None:
    """Let a coordinator end as systemd does, which it tells before, and start it again."""
    process, url = many.processes[port], f"http://127.0.0.1:{port}"
    process.terminate()
    wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503, "it is ready still", 5.0)
    assert httpx.get(f"{url}/readyz").text == "stopping"
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert process.wait(60) == 0
    many.end(port)
    many.start(port)
    time.sleep(SETTLED_S)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_base: Base) -> bytes:
    """The adapter of the same run by one process on SQLite."""
    return calm(tmp_path_factory.mktemp("undisturbed") / "calm", tiny_base, ROUNDS)


@pytest.mark.parametrize("language", ["caddyfile", "nginx"])
def test_coordinators_started_anew_in_turn_are_not_noticed(
    tmp_path: Path,
    place: StorePlace,
    tiny_base: Base,
    undisturbed: bytes,
    seed: int,
    language: str,
) -> None:
    folder = tmp_path / "rolling"
    folder.mkdir()
    assert DRAIN in MANY.read_text()
    shared = ("--database", place.database, "--blobs", place.blobs)
    token = created(folder, tiny_base, ROUNDS, "--min-clients", str(len(NAMES)), *shared)
    with (
        coordinators(folder, place, 2, *DRAIN.split()) as many,
        proxy(
            language, folder / "proxy", min(many.processes), site_of(language, [*many.processes])
        ) as there,
        ThreadPoolExecutor(len(NAMES)) as pool,
    ):
        devices = witnesses(f"http://127.0.0.1:{min(many.processes)}", token)
        ca, over = there.folder / "ca.pem", Event()
        done = [pool.submit(works_behind, there.url, ca, one, seed, over) for one in devices]
        for port in list(many.processes):
            start_anew(many, port)
        assert not any(one.done() for one in done), "the run was over before"
        over.set()
        failed = [line for one in done for line in one.result(240)]
        print(f"{language}: {len(failed)} failed", *failed, sep="\n")
        assert adapter_of(folder, many.options) == undisturbed
    check_counted_once(many, devices)
    if language == "caddyfile":
        assert not failed
