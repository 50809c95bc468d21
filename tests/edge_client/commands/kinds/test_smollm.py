"""SmolLM2-135M learns from its own GGUF file, by its own chat template, without torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from smidgen.edge_client.bases.base import open_base
from smidgen.edge_client.bases.tokenizer import open_tokens
from smidgen.edge_client.tasks.encoder import Encoder
from smidgen.edge_client.tasks.task import read_task
from smidgen.edge_client.texts.examples import read_folder
from smidgen.edge_client.texts.tokens import Tokens
from smidgen.simulation.demo.home_commands import write_homes
from tests.command_line import smidgen
from tests.conftest import SHARED
from tests.edge_client.commands.kinds.texts import last_object

pytest.importorskip("jinja2")
FOLDER = SHARED / "models" / "smollm2-135m-instruct"
# Not by ru_maxrss: that of a child begins with its parent's, which is pytest with torch.
MEASURED = """
import atexit, pathlib, sys
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
import smidgen
smidgen.main()
"""
GGUF = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"
pytestmark = pytest.mark.skipif(not GGUF.is_file(), reason=f"no {GGUF.name} in SMIDGEN_SHARED")


def test_a_gguf_asks_what_the_folder_with_its_tokenizer_asks(tmp_path: Path) -> None:
    home = write_homes(tmp_path)[0]
    task = read_task(home / "task.toml")
    texts = read_folder(home, task).labelled
    both = open_tokens(open_base(str(GGUF))), Tokens(FOLDER)
    ours, theirs = (Encoder(one, task, True, 128) for one in both)
    assert ours.prompts(texts) == theirs.prompts(texts)
    assert ours.tokens.pad_id == theirs.tokens.pad_id


@pytest.mark.slow
def test_a_home_learns_its_commands(tmp_path: Path) -> None:
    home = write_homes(tmp_path, train=24, test=6)[0]
    known = ("--adapter", "lora:8", "--tokens", "96", "--batch", "4", "--lr", "0.002")
    where = ("--base", str(GGUF), "--engine", "onnx", "--data", str(home))
    out = ("--out", str(tmp_path / "out"), "--epochs", "1", "--json")
    found = last_object(smidgen("client", "train", *where, *known, *out))
    assert found["score_after"] < 0.2 * found["score_before"] and found["num_examples"] == 24
    done = smidgen("client", "evaluate", *where, "--adapter", str(tmp_path / "out"), "--json")
    scores = last_object(done)
    assert scores["perplexity"] == pytest.approx(found["score_after"], rel=1e-4)
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["r"] == 8


@pytest.mark.slow
def test_generation_keeps_to_its_budget() -> None:
    """Weights that do not fit are made dense anew for each token: the same answer, more slowly."""
    words = ("client", "generate", "--base", str(GGUF), "What is rain?", "--new-tokens", "4")
    answers = set()
    for budget_mib in (300, 600):
        done = subprocess.run(
            (sys.executable, "-c", MEASURED, *words, "--memory-budget", f"{budget_mib}M"),
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(done.stdout)
        (peak_kib,) = re.findall(r"VmHWM:\s+(\d+) kB", done.stderr)
        assert int(peak_kib) <= budget_mib << 10
        assert "of the weights are held dense" in done.stderr
    assert len(answers) == 1
