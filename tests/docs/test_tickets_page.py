"""The page on support tickets, by its own lines: from an export to answers by PEFT."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")

from smidgen.simulation.demo.setting import fleet
from tests.docs.pages import ROOT
from tests.docs.test_docs_run import lines, of, serve, typed

PAGE = "docs/tickets.md"
TICKET = "my parcel never arrived"


@pytest.fixture
def pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of the line that `create` prints, once all before the server is typed."""
    monkeypatch.chdir(tmp_path)
    Path("docs").symlink_to(ROOT / "docs")
    said = [typed(PAGE, "new", place=place).stdout for place in range(3)]
    assert said[0] == of("text", PAGE)[0].text
    typed(PAGE, "client train")
    assert TICKET in typed(PAGE, "client predict").stdout
    typed(PAGE, "coordinator init")
    return shlex.split(typed(PAGE, "coordinator create").stdout.splitlines()[-1])


def test_exports_become_a_run_and_a_line_for_devices(pasted: list[str]) -> None:
    page = lines(PAGE, "client run", {})[0]
    flags = [{word for word in words if word.startswith("--")} for words in (pasted, page)]
    assert pasted[1:4] == page[:3] and flags[1] - flags[0] == {"--name"}


@pytest.mark.slow
def test_three_shops_train_over_tls_and_peft_answers_alike(
    pasted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("peft")
    monkeypatch.setenv(*pasted[0].split("=", 1))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with fleet(tmp_path / "logs", 1) as scene:
        (ca,) = [word for word in pasted if word.startswith("sha256:")]
        replaced = {"https://SERVER:8700": serve(scene, PAGE), "sha256:HEX": ca}
        for words in lines(PAGE, "client run", replaced):
            name = words[words.index("--name") + 1]
            scene.start(name, [*words[1:], "--state", f"{name}-state"])
        scene.wait()
    assert "finished  10 of 10        3" in typed(PAGE, "coordinator status").stdout
    typed(PAGE, "coordinator export")
    (block,) = [one for one in of("sh", PAGE) if "answer.py" in one.text]
    install, *rest = block.text.splitlines()
    assert install.startswith("pip install")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}
    code = ["bash", "-ec", "\n".join(rest)]
    done = subprocess.run(code, capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    label = max(found, key=lambda name: found[name])
    said = typed(PAGE, "client predict", {"alone": "adapter"}).stdout
    assert said.split() == [label, f"{found[label]:.2f}", *TICKET.split()]
