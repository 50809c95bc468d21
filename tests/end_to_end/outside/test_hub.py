"""To a hub and from it by `hf`, which comes with huggingface_hub: data sets as texts, adapters.

The hub is on the loopback interface and keeps what it is sent, as far as `hf` asks.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.command_line import smidgen

HF = Path(sys.executable).with_name("hf")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = "text,label\n" + "my card was stolen,card\nthe bill is too high,bill\n" * 4
TASK = 'name = "mail"\nlabels = ["card", "bill"]\npatterns = ["{text} [MASK]"]\n'


class Hub(ThreadingHTTPServer):
    """Repositories by name, each a file's path -> its bytes."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = dict[str, dict[str, bytes]]()
        self.made = list[dict[str, Any]]()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").removeprefix("datasets/")
        name, _, rest = path.partition("/resolve/")
        if rest:
            files = self.server.repositories[name]
            return self.answer(files.get(rest.partition("/")[2]))
        kind, _, name = path.removeprefix("api/").partition("/")
        name = name.partition("/tree/")[0].partition("/revision/")[0]
        known = self.server.repositories.get(name) if kind in ("models", "datasets") else None
        tree = [
            {"type": "file", "path": path, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for path, body in (known or {}).items()
        ]
        info = {"id": name, "sha": COMMIT, "tags": [], "siblings": []}
        is_tree = "/tree/" in path
        return self.answer(json.dumps(tree if is_tree else info).encode() if known else None)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = "/".join(self.path.split("/")[3:5])
        answer: dict[str, Any] = {"errors": [], "warnings": []}
        if self.path == "/api/repos/create":
            self.server.made.append(asked := json.loads(body))
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repositories[name] = {}
            answer = {"url": f"{self.server.url}/{name}"}
        elif "/preupload/" in self.path:
            plain = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            answer = {"files": [{"path": f["path"], **plain} for f in json.loads(body)["files"]]}
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[name][line["value"]["path"]] = content
            answer = {"commitOid": COMMIT, "commitUrl": f"{self.server.url}/{name}/commit/{COMMIT}"}
        self.answer(json.dumps(answer).encode())

    def answer(self, body: bytes | None) -> None:
        self.send_response(404 if body is None else 200)
        body = body or b"{}"
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def hf(hub: Hub, folder: Path, *words: str) -> None:
    here = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_TOKEN": "hf_a"}
    line = [str(HF), *words]
    done = subprocess.run(line, cwd=folder, env=os.environ | here, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def parquet(folder: Path) -> dict[str, bytes]:
    """The splits of a set as `datasets` pushes it, with class numbers in place of labels."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    features = {"label": {"names": ["card", "bill"], "_type": "ClassLabel"}}
    said = {"huggingface": json.dumps({"info": {"features": features}})}
    texts = [line.split(",")[0] for line in ROWS.splitlines()[1:]]
    table = pa.table({"text": texts, "label": [0, 1] * 4}).replace_schema_metadata(said)
    parquet.write_table(table, folder / "rows")
    body = (folder / "rows").read_bytes()
    return {f"data/{split}-00000-of-00001.parquet": body for split in ("train", "test")}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_set_of_the_hub_is_a_devices_texts(hub: Hub, tmp_path: Path, form: str) -> None:
    rows = {f"{split}.csv": ROWS.encode() for split in ("train", "test")}
    files = rows if form == "csv" else parquet(tmp_path)
    hub.repositories["org/mail"] = {"README.md": b"mail", **files}
    hf(hub, tmp_path, "download", "org/mail", "--repo-type", "dataset", "--local-dir", "mail")
    (tmp_path / "task.toml").write_text(TASK)
    given = ("--task", str(tmp_path / "task.toml"), "--data", str(tmp_path / "mail"))
    out = ("--out", str(tmp_path / "adapter"), "--adapter", "lora:2")
    done = smidgen("client", "train", *given, *out, "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["num_examples"], said["test_examples"]) == (8, 8)


def test_a_set_of_other_columns_says_which_options_name_them(hub: Hub, tmp_path: Path) -> None:
    rows = ROWS.replace("text,label", "sentence,topic").encode()
    hub.repositories["org/mail"] = {"train.csv": rows, "test.csv": rows}
    hf(hub, tmp_path, "download", "org/mail", "--repo-type", "dataset", "--local-dir", "mail")
    (tmp_path / "task.toml").write_text(TASK)
    given = ("--task", str(tmp_path / "task.toml"), "--data", str(tmp_path / "mail"))
    line = ("client", "train", *given, "--out", str(tmp_path / "adapter"), "--adapter", "lora:2")
    done = smidgen(*line)
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert "columns text,label are expected" in done.stderr and "--text-column and" in done.stderr
    columns = ("--text-column", "sentence", "--label-column", "topic")
    assert smidgen(*line, *columns).exit_code == 0


@pytest.mark.parametrize("there", [1, 2])
def test_a_split_in_several_files_is_refused(tmp_path: Path, there: int) -> None:
    for number in range(there):
        (tmp_path / f"train-0000{number}-of-00002.csv").write_text(ROWS)
    (tmp_path / "task.toml").write_text(TASK)
    out = ("--out", str(tmp_path / "out"))
    said = ("--task", str(tmp_path / "task.toml"), "--data", str(tmp_path))
    done = smidgen("client", "train", *said, *out)
    assert (
        done.exit_code == 2 and "train-00000-of-00002.csv, a part of a split; join" in done.stderr
    )


def test_an_adapter_goes_to_the_hub_and_comes_back(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "labelled.csv").write_text(ROWS)
    (tmp_path / "task.toml").write_text(TASK)
    out = ("--out", str(tmp_path / "adapter"), "--adapter", "lora:2")
    assert smidgen("client", "train", "--data", str(tmp_path), *out).exit_code == 0
    hf(hub, tmp_path, "upload", "me/mail", "adapter", "--private")
    assert hub.made[0]["visibility"] == "private"
    assert hub.repositories["me/mail"]["README.md"].startswith(b"---\n")
    hf(hub, tmp_path, "download", "me/mail", "--local-dir", "back")
    texts = ("where is my card", "the bill came twice")
    answers = [
        smidgen("client", "predict", "--adapter", str(tmp_path / name), *texts).stdout
        for name in ("adapter", "back")
    ]
    assert answers[0] == answers[1] != ""
