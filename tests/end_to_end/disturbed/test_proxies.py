"""Whole runs behind real proxies: their defaults, limits, reloads, and proxies that are gone."""

import random
import re
import time
from collections.abc import Callable
from functools import cache

import pytest

from smidgen.edge_client.bases.base import Base, open_base
from smidgen.simulation.demo.setting import fleet
from tests.end_to_end.conftest import CLIENTS, Scene, wait_for
from tests.end_to_end.disturbed.proxies import DEFAULTS, Proxy, proxy, snippet
from tests.tiny import write_tiny_base

pytestmark = [pytest.mark.slow, pytest.mark.fault, pytest.mark.timeout(900)]
WITHIN_S = 600.0
ROUNDS = 4
LARGE = ("--adapter", "lora:128@q,v,k,o,up,down")  # above 1 MB with this base
LARGE_BYTES = 1 << 20


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """Wide enough for `LARGE`."""
    return open_base(str(write_tiny_base(tmp_path_factory.mktemp("wide") / "base", hidden=128)))


def begin(scene: Scene, *arguments: str, epochs: int = 4) -> int:
    """Create the run and serve it; the port."""
    fixed = ("--deadline", "3600", *arguments, scene.fixed_deadlines())
    scene.create(ROUNDS, len(CLIENTS), epochs, *fixed)
    return int(scene.serve().rsplit(":", 1)[1])


def answered_early(log: str) -> int:
    """Long polls shorter than a device asks for by itself that were answered, in nginx's log."""
    found = re.findall(r"wait_s=([0-9.]+)\S* HTTP/1.1\" 200 ", log)
    return sum(0 < float(wait_s) < 25 for wait_s in found)


def start(scene: Scene, there: Proxy) -> None:
    for name in CLIENTS:
        ca = str(there.folder / "ca.pem")
        scene.client(name, there.url, "--engine", "onnx", "--ca", ca, "--patience", "60")


@pytest.fixture(scope="module")
def direct(
    tmp_path_factory: pytest.TempPathFactory, tiny_base: Base
) -> Callable[[tuple[str, ...], int], bytes]:
    """The final weights of the same run without a proxy."""

    @cache
    def adapter(arguments: tuple[str, ...], epochs: int) -> bytes:
        folder = tmp_path_factory.mktemp("direct")
        with fleet(folder / "logs", cores_each=1) as processes:
            scene = Scene(folder, tiny_base, processes)
            port = begin(scene, *arguments, epochs=epochs)
            for name in CLIENTS:
                scene.client(name, f"http://127.0.0.1:{port}", "--engine", "onnx")
            scene.finish(WITHIN_S)
            return scene.adapter()

    return adapter


@pytest.mark.parametrize("language", ["nginx", "caddyfile"])
def test_the_snippet_of_the_page_lets_updates_above_a_megabyte_through(
    scene: Scene, direct: Callable[[tuple[str, ...], int], bytes], language: str
) -> None:
    port = begin(scene, *LARGE)
    with proxy(language, scene.folder / "proxy", port, snippet(language)) as there:
        start(scene, there)
        scene.finish(WITHIN_S)
    assert len(scene.adapter()) > LARGE_BYTES
    assert scene.adapter() == direct(LARGE, 4)


def test_what_nginx_refuses_by_itself_is_told_and_nobody_ends(scene: Scene) -> None:
    port = begin(scene, *LARGE)
    with proxy("nginx", scene.folder / "proxy", port, DEFAULTS["nginx"]) as there:
        start(scene, there)
        told = "raise the proxy's limit on bodies (nginx: client_max_body_size"
        wait_for(
            lambda: scene.log("coordinator").count(told) >= 3 * len(CLIENTS),
            scene.fleet.check,
            WITHIN_S,
        )
        status = scene.smidgen("coordinator", "status", "--store", str(scene.folder / "store"))
        assert "too_large, 1." in status.stdout and "client_max_body_size" in status.stdout
        logs = {name: scene.log(name) for name in CLIENTS}
        for log in logs.values():
            assert "as too large (413)" in log and "Traceback" not in log
            assert "not trained, for the last update was not let through" in log
        there.site = snippet("nginx")  # its operator reads the line
        there.write()
        there.reload()
        scene.finish(WITHIN_S)
    assert len(scene.adapter()) > LARGE_BYTES


@pytest.mark.parametrize("language", ["nginx", "caddyfile"])
def test_reloads_and_a_proxy_that_is_gone_for_a_while_change_no_byte(
    scene: Scene, direct: Callable[[tuple[str, ...], int], bytes], language: str
) -> None:
    port, chance = begin(scene, epochs=20), random.Random(17)
    with proxy(language, scene.folder / "proxy", port, DEFAULTS[language]) as there:
        start(scene, there)
        last = f"round {ROUNDS} of {ROUNDS}"
        times = 0
        while times < 12 and last not in scene.log("coordinator"):
            time.sleep(chance.uniform(0.05, 0.4))
            times += 1
            if times % 4:
                there.reload()
            else:
                there.stop()
                time.sleep(chance.uniform(0.1, 2.0))
                there.start()
        scene.finish(WITHIN_S)
        assert times >= 4
    assert scene.adapter() == direct((), 20)


def test_polls_longer_than_the_proxys_patience_are_asked_for_shorter(
    scene: Scene, direct: Callable[[tuple[str, ...], int], bytes]
) -> None:
    port = begin(scene)
    site = snippet("nginx").replace("proxy_read_timeout 90s;", "proxy_read_timeout 3s;")
    assert "3s" in site
    with proxy("nginx", scene.folder / "proxy", port, site) as there:
        ca = str(there.folder / "ca.pem")
        scene.client("a", there.url, "--engine", "onnx", "--ca", ca)
        asked = there.folder / "access.log"
        wait_for(lambda: answered_early(asked.read_text()) >= 5, scene.fleet.check, WITHIN_S)
        scene.client("b", there.url, "--engine", "onnx", "--ca", ca)
        scene.finish(WITHIN_S)
        polls = asked.read_text()
    assert "wait_s=25" in polls and 1 <= polls.count(" 504 ") < answered_early(polls)
    assert scene.adapter() == direct((), 4)
