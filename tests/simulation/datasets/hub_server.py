"""A hub of one data set on the loopback interface, as far as huggingface_hub asks."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def serving(
    repo: str, revisions: Mapping[str, Mapping[str, bytes]], card: Mapping[str, Any]
) -> Iterator[str]:
    """Serve a set until the block ends.

    Args:
        repo: `OWNER/NAME`.
        revisions: Revision -> path -> content; all of them have the commit `COMMIT`.
        card: Metadata of the card.

    Yields:
        The endpoint's URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            body, kind = find(path)
            self.send_response(404 if body is None else 200)
            body = body or b"{}"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    def find(path: str) -> tuple[bytes | None, str]:
        api, resolve = f"/api/datasets/{repo}", f"/datasets/{repo}/resolve/{COMMIT}/"
        if path == api or path.startswith(f"{api}/revision/"):
            name = path.removeprefix(api).removeprefix("/revision/").replace("%2F", "/") or "main"
            if name not in revisions:
                return None, "application/json"
            siblings = [{"rfilename": file} for file in revisions[name]]
            info = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "cardData": card}
            return json.dumps(info).encode(), "application/json"
        every = {name: body for files in revisions.values() for name, body in files.items()}
        return every.get(path.removeprefix(resolve)), "application/octet-stream"

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
