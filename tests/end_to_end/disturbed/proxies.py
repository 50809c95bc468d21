"""Real nginx and Caddy before a coordinator on loopback, by the snippets of docs/server.md.

Each is started with a configuration of its own, in a folder of its own, and ended by its pid; who
has none of them sees the tests skipped.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import pytest

from smidgen.coordinator.trust.folder import draw_authority, sign_server

PAGE = Path(__file__).parents[3] / "docs" / "server.md"
PROGRAMS = {"nginx": "nginx", "caddyfile": "caddy"}  # the language of a snippet, and its program
DEFAULTS = {  # no more than what passes requests on
    "nginx": """server {
    listen 443 ssl;
    ssl_certificate /etc/letsencrypt/live/hub.example.org/fullchain.pem;
    ssl_certificate_key /etc/letsencrypt/live/hub.example.org/privkey.pem;
    location / { proxy_pass http://127.0.0.1:8700; }
}
""",
    "caddyfile": "hub.example.org {\n    reverse_proxy 127.0.0.1:8700\n}\n",
}
# What Debian's own nginx.conf says beside the sites, but for the paths.
NGINX = """daemon off;
{user}pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 768; }}
http {{
    sendfile on;
    tcp_nopush on;
    types_hash_max_size 2048;
    default_type application/octet-stream;
    gzip on;
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site;
}}
"""
CADDY = """{{
    admin localhost:{admin}
    auto_https off
}}
"""


def snippet(language: str, page: Path = PAGE) -> str:
    """The one of this language in a page."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"{page.name}: one block of {language} expected, not {len(found)}"
    return str(found[0])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@dataclass
class Proxy:
    """A proxy with TLS on loopback.

    Attributes:
        language: `nginx` or `caddyfile`.
        folder: All that it writes; `ca.pem` is what devices believe.
        upstream: Port of the coordinator.
        site: Its configuration, as the page has it.
        port: Where it listens.
    """

    language: str
    folder: Path
    upstream: int
    site: str
    port: int = field(default_factory=free_port)
    admin: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def write(self) -> list[str]:
        """Write its files; how it is started."""
        site = self.site.replace("127.0.0.1:8700", f"127.0.0.1:{self.upstream}")
        assert str(self.upstream) in site
        if self.language == "nginx":
            site = site.replace("listen 443 ssl;", f"listen 127.0.0.1:{self.port} ssl;")
            site = site.replace("/etc/letsencrypt/live/hub.example.org", str(self.folder))
            user = "user root;\n" if os.geteuid() == 0 else ""
            (self.folder / "site").write_text(site)
            (self.folder / "nginx.conf").write_text(NGINX.format(folder=self.folder, user=user))
            return ["nginx", "-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log"]
        named = f"{self.url} {{\n    tls {self.folder}/fullchain.pem {self.folder}/privkey.pem"
        site = site.replace("hub.example.org {", named)
        assert named in site
        (self.folder / "Caddyfile").write_text(CADDY.format(admin=self.admin) + site)
        return ["caddy", "run", "--adapter", "caddyfile", "--config", str(self.file)]

    @property
    def file(self) -> Path:
        return self.folder / "Caddyfile"

    def start(self) -> None:
        """Start it and wait until it listens."""
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        with (self.folder / "said.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.write(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **home},
                start_new_session=True,
            )
        end = time.monotonic() + 90
        while True:
            assert self.process.poll() is None, (self.folder / "said.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.05)

    def reload(self) -> None:
        """Let it read its configuration again, as its operator would."""
        assert self.process is not None
        if self.language == "nginx":
            self.process.send_signal(signal.SIGHUP)
            return
        where = ["--adapter", "caddyfile", "--config", str(self.file), "--force"]
        line = ["caddy", "reload", *where, "--address", f"localhost:{self.admin}"]
        subprocess.run(line, check=True, capture_output=True, timeout=60)

    def stop(self) -> None:
        """End it at once, whatever is under way."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def proxy(language: str, folder: Path, upstream: int, site: str) -> Iterator[Proxy]:
    """A proxy that runs; skips where its program is missing."""
    program = PROGRAMS[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: apt-get install {program})")
    folder.mkdir(parents=True)
    authority = draw_authority(datetime.now(timezone.utc))
    pair = sign_server(authority, ["127.0.0.1"], datetime.now(timezone.utc), 30)
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "fullchain.pem").write_bytes(pair.certificate)
    (folder / "privkey.pem").write_bytes(pair.key)
    running = Proxy(language, folder, upstream, site)
    try:
        running.start()
        yield running
    finally:
        running.stop()
