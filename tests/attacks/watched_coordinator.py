"""A coordinator in a process of its own: a run per case, and all that its owner can see."""

import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import httpx
from safetensors.numpy import load_file, save_file

import smidgen
from smidgen.edge_client.bases.base import EMBEDDED
from smidgen.edge_client.bases.packing import pack_model
from tests.attacks.private_device import ROOT
from tests.edge_client.tasks.tiny_decoder import TEMPLATE, write_tiny_decoder
from tests.tiny import write_tiny_base

LABELS = 'name = "hub"\nlabels = ["security", "weather", "family"]\n'
TASKS = {
    "labels": f'{LABELS}patterns = ["{{text}} . this is about [MASK] ."]\n',
    "label words": f'{LABELS}patterns = ["{{text}}:[MASK]"]\n',
    "chat": 'name = "hub"\nkind = "chat"\n',
    "multilabel": f'{LABELS}kind = "multilabel"\npatterns = ["{{text}} . about [MASK] ."]\n',
    "tagging": 'name = "hub"\nkind = "tagging"\nlabels = ["Place", "Time"]\n',
    "mlm": 'name = "hub"\nkind = "mlm"\n',
    "completion": 'name = "hub"\nkind = "completion"\n',
}
API, FLAGS = "/v1/operator", ("--labelling", "--scaffold")
# What it raises quotes what was said to it.
REFUSING = (
    "{% for m in messages %}"
    "{{ raise_exception('no: ' + m.content) if 'refuse' in m.content }}{% endfor %}"
)


def command(*arguments: str) -> str:
    """A command through the front door, in this process; what it said, whatever its exit code."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["smidgen", *arguments]
    try:
        with redirect_stdout(said), redirect_stderr(said):
            smidgen.main()
    except SystemExit:
        pass
    finally:
        sys.argv = before
    return said.getvalue()


class Coordinator:
    """A store that is served, with a run for every case.

    Args:
        folder: Where everything is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        write_tiny_base(folder / "base")
        write_tiny_base(folder / "wide", hidden=64)
        write_huge_base(folder / "huge")
        write_tiny_base(folder / "packed", seed=1)
        pack_model(str(folder / "packed"), 8, folder / "pack", "mit")
        write_tiny_decoder(folder / "decoder", REFUSING + TEMPLATE)
        for name, task in TASKS.items():
            (folder / f"{name}.toml").write_text(task)
        self.log = folder / "coordinator.log"
        self.runs: dict[str, str] = {}
        self.create("first")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "smidgen", "coordinator", "serve"),
                    *("--store", str(self.store), "--port", "0", "--serve-packs"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            )
        self.port = self._port()
        only = ("--store", str(self.store), "--json")
        made = json.loads(command("coordinator", "operators", "new", *only).splitlines()[-1])
        self.operator = {"Authorization": f"Bearer {made['token']}"}

    def create(self, case: str, *options: str) -> str:
        """Create a run for a case; its token."""
        given = {
            **{"--base": "base", "--adapter": "lora:2", "--rounds": "2", "--min-clients": "1"},
            **{"--epochs": "1", "--batch": "4", "--tokens": "32"},
            **{"--name": f"run-{len(self.runs)}", "--task": "labels"},
        }
        flags = [option for option in options if option in FLAGS]
        pairs = [option for option in options if option not in FLAGS]
        given |= dict(zip(pairs[::2], pairs[1::2], strict=True))
        if given["--base"] != EMBEDDED:
            given |= {"--base": str(self.folder / given["--base"])}
        given |= {"--task": str(self.folder / f"{given['--task']}.toml")}
        if content := given.pop("--toml", ""):  # what only a run file says
            file = self.folder / f"{given['--name']}.toml"
            file.write_text(content)
            flags.append(str(file))
        # A run asks the devices of its case alone: those of others come and go.
        tag = ("--tag", f"case={given['--name']}")
        command("coordinator", "tokens", "new", "--store", str(self.store), *tag)
        line = [*(word for pair in given.items() for word in pair), *tag]
        said = command("coordinator", "create", "--store", str(self.store), *line, *flags, "--json")
        created = json.loads(said.splitlines()[-1])
        self.runs[case] = created["run_id"]
        return str(created["token"])

    def known(self, case: str) -> dict[str, bytes]:
        """All that the coordinator's owner can see, by where it is; of a case, or of all."""
        only = ("--store", str(self.store), "--run", self.runs[case])
        out = self.folder / "out" / self.runs[case]
        out.mkdir(parents=True)
        shown = [
            command("coordinator", "status", *only, "--json"),
            command("coordinator", "figures", *only, "--json", "--out", str(out / "rows.jsonl")),
            command("coordinator", "export", *only, "--json", "--out", str(out / "adapter")),
        ]
        return {
            "store": joined(self.store),
            "output": self.log.read_bytes(),
            "the operator's API and page": self._asked(self.runs[case]),
            "status, figures, export": "\n".join(shown).encode() + joined(out),
        }

    def _asked(self, run_id: str) -> bytes:
        """All answers to an operator, of a run and of all devices, page and metrics among them."""
        url = f"http://127.0.0.1:{self.port}"
        with httpx.Client(base_url=url, headers=self.operator, timeout=60.0) as http:
            devices = http.get(f"{API}/devices", params={"limit": 200}).json()["devices"]
            names = {"run_id": run_id, "device_id": devices[0]["device_id"]}
            routes = http.get("/openapi.json").json()["paths"]
            paths = {path for path, how in routes.items() if "get" in how and API in path}
            pages = [f"/page/{path.name}" for path in (ROOT / "coordinator/page/static").iterdir()]
            answers = []
            for path in ["/", *pages, "/metrics", *paths - {f"{API}/events"}]:
                answers.append(http.get(path.format_map(names)))
                assert answers[-1].status_code == 200, (path, answers[-1].text)
            assert len(paths) > 8
            return b"\n".join(f"{one.headers}".encode() + one.content for one in answers)

    def stop(self) -> None:
        assert self.process.poll() is None, self.log.read_text()
        self.process.terminate()
        self.process.wait(90.0)

    def _port(self) -> int:
        end = time.monotonic() + 60.0
        while time.monotonic() < end and self.process.poll() is None:
            if found := re.search(r"listening on http://127.0.0.1:(\d+)\s", self.log.read_text()):
                return int(found[1])
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())


def write_huge_base(folder: Path) -> None:
    """A tiny base in which one layer's results are beyond float32."""
    weights = load_file(write_tiny_base(folder) / "model.safetensors")
    weights["bert.encoder.layer.0.output.dense.weight"] *= 1e30
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def joined(folder: Path) -> bytes:
    """Names and bytes of every file of a folder, which may be in use."""
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):  # a file half written gets its name
            found.append(str(path.relative_to(folder)).encode() + path.read_bytes())
    return b"\n".join(found)
