"""Packing as a process: how much memory it takes, and what is left when it is cut short."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smidgen.edge_client.bases.base import EMBEDDED, BaseError, open_base
from smidgen.edge_client.bases.manifest import partial_folder
from smidgen.edge_client.bases.packing import PackingError, pack_model, pack_random
from tests.breadth import SLOW, first_fast

ROOT = Path(__file__).parents[3]
# Widths of distilbert: a layer is 28 MB of float32, the word table 94 MB.
TWO_LAYERS_BYTES = 2 * 4 * 7_087_872


def run(code: str, *arguments: object) -> Any:
    """Run code in a fresh process; the JSON it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    return json.loads(done.stdout)


MEASURED = """
import contextlib, json, sys
from pathlib import Path
from smidgen.edge_client.bases.packing import pack_model, pack_random
from smidgen.edge_client.metering.memory import peak_rss_bytes
model, bits, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
if model.endswith("pickled"):
    import torch
with contextlib.suppress(OSError):  # the peak starts anew, where that is allowed
    Path("/proc/self/clear_refs").write_text("5")
before = peak_rss_bytes()
pack_random(model, bits, out) if model == "distilbert" else pack_model(model, bits, out)
print(json.dumps(peak_rss_bytes() - before))
"""


@pytest.fixture(scope="module")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of distilbert's shape; a pack of 16 bits has the form of one."""
    folder = tmp_path_factory.mktemp("real")
    plain = pack_random("distilbert", 16, folder / "safetensors").folder
    (plain / "manifest.json").unlink()
    (plain / "weights.safetensors").rename(plain / "model.safetensors")
    yield plain
    shutil.rmtree(folder)


def pickled(model: Path, folder: Path) -> Path:
    """The same checkpoint as a pytorch_model.bin."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch_file

    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    wide = {n: t.float() for n, t in load_torch_file(model / "model.safetensors").items()}
    torch.save(wide, folder / "pytorch_model.bin")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("source", ["random", "safetensors", pytest.param("pickled", marks=SLOW)])
@pytest.mark.parametrize("bits", first_fast([8, 4, 16]))
def test_packing_never_holds_two_layers(
    request: pytest.FixtureRequest, tmp_path: Path, source: str, bits: int
) -> None:
    model = "distilbert"
    if source != "random":
        folder = request.getfixturevalue("real_folder")
        model = str(pickled(folder, tmp_path / source) if source == "pickled" else folder)
    peak_bytes = run(MEASURED, model, bits, tmp_path / "p")
    shutil.rmtree(tmp_path / "p")
    assert peak_bytes < TWO_LAYERS_BYTES  # and the word table alone is larger


KILLED = """
import sys
from pathlib import Path
from smidgen.edge_client.bases.packing import pack_random
pack_random("bert-base", 4, Path(sys.argv[1]))
"""


def packing_process(out: Path) -> "subprocess.Popen[bytes]":
    """A process that is in the midst of writing weights."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], cwd=ROOT)
    weights = partial_folder(out, process.pid) / "weights.safetensors"
    deadline = time.monotonic() + 60
    while not weights.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_what_kill_9_leaves_is_never_taken_for_a_pack(tmp_path: Path) -> None:
    out = tmp_path / "p"
    process = packing_process(out)
    process.kill()
    process.wait()
    left = partial_folder(out, process.pid)
    assert not out.exists() and list(tmp_path.iterdir()) == [left]
    with pytest.raises(BaseError, match="is a half-written pack, left by an interrupted"):
        open_base(str(left))
    with pytest.raises(BaseError, match="is a half-written pack"):
        open_base(str(left.rename(out)))


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    process = packing_process(tmp_path / "p")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    assert list(tmp_path.iterdir()) == []


FULL = """
import json, resource, sys
from pathlib import Path
from smidgen.edge_client.bases.packing import PackingError
from smidgen.edge_client.bases.packing import pack_model
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    pack_model("embedded", 8, Path(sys.argv[1]))
except PackingError as error:
    print(json.dumps(str(error)))
"""


def test_a_file_that_may_not_grow_is_told_and_nothing_stays(tmp_path: Path) -> None:
    said = run(FULL, tmp_path / "p")
    assert "File too large; " in said and "bytes are needed. Free space or choose" in said
    assert "p.partial-" in said and said.endswith("is removed")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_nothing_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of 2 MB can be mounted by root alone")
    try:
        with pytest.raises(PackingError, match=os.strerror(errno.ENOSPC)):
            pack_model(EMBEDDED, 8, disk / "p")
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_link_to_what_is_not_there_leads_to_the_pack(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "link"
    out.symlink_to("disk/p")
    assert pack_model(str(model), 8, out).is_new
    assert out.is_symlink() and open_base(str(tmp_path / "disk" / "p")).bits == 8
    assert not pack_model(str(model), 8, out).is_new


def test_a_folder_that_cannot_be_made_is_told(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PackingError, match=r"could not be written: .*Not a directory"):
        pack_model(str(model), 8, tmp_path / "file" / "p")
